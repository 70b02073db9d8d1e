package cuda

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// What a session shares: the driver's own opaque bytes, or a descriptor of its, behind a byte that says which. The parent of
// the workers keeps it under a token; guests see nothing else.
const (
	shareMemory   = 'm' // CUipcMemHandle
	shareEvent    = 'e' // CUipcEventHandle
	sharePhysical = 'p' // size; descriptor of cuMemExportToShareableHandle
	sharePool     = 'q' // UUID of its device; descriptor of cuMemPoolExportToShareableHandle
	sharePointer  = 'x' // size, CUmemPoolPtrExportData
)

const (
	opaqueSize    = 64 // CUipcMemHandle, CUipcEventHandle, CUmemPoolPtrExportData
	posixFD       = 1  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	attrDevice    = 9  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
	attrRangeSize = 12 // CU_POINTER_ATTRIBUTE_RANGE_SIZE
)

// shareKey names what was offered: an address, or the id of an object.
type shareKey struct {
	kind byte
	id   uint64
}

// offer leaves bytes and a descriptor (-1: none) with the parent, once for each object.
func (s *session) offer(key shareKey, blob []byte, file int) ([]byte, cuda.Result) {
	h, ok := s.host.(driver.Sharer)
	if !ok {
		return nil, cuda.ErrorNotSupported
	}
	t, err := h.Offer(append([]byte{key.kind}, blob...), file)
	if err != nil {
		return nil, cuda.ErrorOperatingSystem
	}
	if s.offered == nil {
		s.offered = map[shareKey]driver.ShareToken{}
	}
	s.offered[key] = t
	return t[:], cuda.Success
}

// token is what an earlier offer answered.
func (s *session) token(key shareKey) ([]byte, bool) {
	t, ok := s.offered[key]
	return slices.Clone(t[:]), ok
}

// unshare takes an offer back: its object is gone.
func (s *session) unshare(kind byte, id uint64) {
	key := shareKey{kind, id}
	t, ok := s.offered[key]
	if !ok {
		return
	}
	delete(s.offered, key)
	if h, ok := s.host.(driver.Sharer); ok {
		h.Withdraw(t)
	}
}

// redeem finds what a token of a kind names; at least size bytes. The descriptor, -1 or the caller's, goes with it.
func (s *session) redeem(kind byte, token []byte, size int) (blob []byte, file int, ok bool) {
	h, shares := s.host.(driver.Sharer)
	if !shares || len(token) != wire.ShareTokenSize {
		return nil, -1, false
	}
	blob, file, err := h.Redeem(driver.ShareToken(token))
	if err != nil {
		return nil, -1, false
	}
	if len(blob) < 1+size || blob[0] != kind {
		closeFile(file)
		return nil, -1, false
	}
	return blob[1:], file, true
}

func closeFile(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// words are 64 opaque bytes as the last eight of 14 arguments: where the System V ABI passes a struct of that size by value.
func words(b []byte) (w [8]uint64) {
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return w
}

// MemExport shares memory of MemCreate.
func (s *session) MemExport(c *wire.Call, a *wire.MemExportArgs, r *wire.MemExportReply) cuda.Result {
	m, ok := s.mems.get(a.Memhandle)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	key := shareKey{sharePhysical, uint64(a.Memhandle)}
	if r.Token, ok = s.token(key); ok {
		return cuda.Success
	}
	if res := s.fn.cuMemExportToShareableHandle.call(s.out.addr(), m.handle, posixFD, 0); res != cuda.Success {
		return res
	}
	fd := int(*s.out.i32(0))
	defer closeFile(fd)
	var res cuda.Result
	r.Token, res = s.offer(key, binary.LittleEndian.AppendUint64(nil, m.size), fd)
	return res
}

// MemImport takes over memory that another session shares.
func (s *session) MemImport(c *wire.Call, a *wire.MemImportArgs, r *wire.MemImportReply) cuda.Result {
	blob, fd, ok := s.redeem(sharePhysical, a.Token, 8)
	defer closeFile(fd)
	if !ok || fd < 0 {
		return cuda.ErrorUnknown
	}
	if res := s.fn.cuMemImportFromShareableHandle.call(s.out.addr(), uint64(fd), posixFD); res != cuda.Success {
		return res
	}
	handle := *s.out.u64(0)
	prop := newBuffer(memPropSize)
	defer prop.free()
	res := s.fn.cuMemGetAllocationPropertiesFromHandle.call(prop.addr(), handle)
	size := binary.LittleEndian.Uint64(blob)
	if res == cuda.Success && !s.mems.put(a.Memhandle, &physical{handle: handle, size: size, foreign: true}) {
		res = cuda.ErrorInvalidHandle
	}
	if res != cuda.Success {
		s.fn.cuMemRelease.call(handle)
		return res
	}
	le, b := binary.LittleEndian, prop.bytes()
	r.Handles, r.Dev, r.Flags, r.Size = le.Uint32(b[4:]), le.Uint32(b[12:]), le.Uint32(b[24:]), size
	return cuda.Success
}
