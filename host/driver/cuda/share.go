package cuda

import (
	"encoding/binary"
	"errors"
	"log/slog"

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

// offer shares an object of the driver's, once. what writes its bytes and returns a descriptor (-1: none) that is closed then.
func (s *session) offer(kind byte, id uint64, what func() (blob []byte, file int, res cuda.Result)) ([]byte, cuda.Result) {
	res := cuda.Success
	file := -1
	token, err := s.offers.Offer(s.host, kind, id, func() (blob []byte, _ int, _ error) {
		if blob, file, res = what(); res != cuda.Success {
			return nil, -1, res
		}
		return blob, file, nil
	})
	closeFile(file)
	switch {
	case res != cuda.Success:
		return nil, res
	case errors.Is(err, driver.ErrNoSharer):
		return nil, cuda.ErrorNotSupported
	case err != nil:
		slog.Warn("cannot share with other processes", "error", err)
		return nil, cuda.ErrorOperatingSystem
	}
	return token, cuda.Success
}

// unshare takes an offer back: its object is gone.
func (s *session) unshare(kind byte, id uint64) { s.offers.Withdraw(s.host, kind, id) }

// redeem finds what a token of a kind names; at least size bytes. The descriptor, -1 or the caller's, goes with it.
func (s *session) redeem(kind byte, token []byte, size int) (blob []byte, file int, ok bool) {
	blob, file, err := driver.Redeem(s.host, kind, token, size)
	return blob, file, err == nil
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
	var res cuda.Result
	r.Token, res = s.offer(sharePhysical, uint64(a.Memhandle), func() ([]byte, int, cuda.Result) {
		if res := s.fn.cuMemExportToShareableHandle.call(s.out.addr(), m.handle, posixFD, 0); res != cuda.Success {
			return nil, -1, res
		}
		return binary.LittleEndian.AppendUint64(nil, m.size), int(*s.out.i32(0)), cuda.Success
	})
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
