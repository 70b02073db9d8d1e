package cuda

import (
	"encoding/binary"
	"errors"
	"log/slog"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// What a session shares: the driver's own opaque bytes, or a descriptor of its, behind a byte that
// says which. The parent of the workers keeps it under a token; guests see nothing else.
const (
	shareMemory   = 'm' // CUipcMemHandle
	shareEvent    = 'e' // CUipcEventHandle
	sharePhysical = 'p' // size; descriptor of cuMemExportToShareableHandle
	sharePool     = 'q' // UUID of its device; descriptor of cuMemPoolExportToShareableHandle
	sharePointer  = 'x' // size, CUmemPoolPtrExportData
)

const (
	opaqueSize = 64 // CUipcMemHandle, CUipcEventHandle, CUmemPoolPtrExportData
	posixFD    = 1  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
)

// offer shares an object of the driver's, once, and the memory that is behind it. what writes its
// bytes and returns a descriptor (-1: none) that is closed then.
func (s *session) offer(c *wire.Call, kind byte, id uint64, mem driver.SharedMemory, what func() (blob []byte, file int, res cuda.Result)) ([]byte, cuda.Result) {
	res := cuda.Success
	x := driver.Shared{File: -1, Memory: mem}
	token, err := s.offers.Offer(s.host, c, kind, id, func() (driver.Shared, error) {
		if s.opt.Rehearsal { // nobody is told, and there may be no memory
			return x, nil
		}
		if x.Blob, x.File, res = what(); res != cuda.Success {
			return x, res
		}
		return x, nil
	})
	closeFile(x.File)
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

// unshareMemory is unshare of an allocation, by either name: however it ends, its token keeps
// nothing of it.
func (s *session) unshareMemory(ptr uint64) {
	s.unshare(shareMemory, ptr)
	s.unshare(sharePointer, ptr)
}

// redeem finds what a token of a kind names; at least size bytes. The descriptor, -1 or the
// caller's, goes with it.
func (s *session) redeem(kind byte, token []byte, size int) (blob []byte, file int, ok bool) {
	blob, file, err := driver.Redeem(s.host, kind, token, size)
	return blob, file, err == nil
}

// giveUp ends what redeem has opened.
func (s *session) giveUp(t driver.ShareToken) { driver.LetGo(s.host, t) }

// giveUpUnless does so if what was redeemed has not become the session's.
func (s *session) giveUpUnless(res *cuda.Result, token []byte) {
	if t, ok := tokenOf(token); ok && *res != cuda.Success {
		s.giveUp(t)
	}
}

func closeFile(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// MemExport shares memory of MemCreate.
func (s *session) MemExport(c *wire.Call, a *wire.MemExportArgs, r *wire.MemExportReply) cuda.Result {
	m, ok := s.mems.get(a.Memhandle)
	if !ok || m.host {
		return cuda.ErrorInvalidValue
	}
	var res cuda.Result
	r.Token, res = s.offer(c, sharePhysical, uint64(a.Memhandle), driver.SharedMemory{Bytes: m.size, Lasting: true}, func() ([]byte, int, cuda.Result) {
		fd, res := s.drv.MemExportToShareableHandle(m.handle, posixFD, 0)
		if res != cuda.Success {
			return nil, -1, res
		}
		return binary.LittleEndian.AppendUint64(nil, m.size), int(int32(fd)), cuda.Success
	})
	return res
}

// MemImport takes over memory that another session shares.
func (s *session) MemImport(c *wire.Call, a *wire.MemImportArgs, r *wire.MemImportReply) cuda.Result {
	if c.Replay {
		return s.awaitPhysical(c, a)
	}
	m := &physical{foreign: true}
	p, res := s.importPhysical(m, a.Token)
	if res != cuda.Success {
		return res
	}
	if !s.mems.put(a.Memhandle, m) {
		s.drv.MemRelease(m.handle)
		s.giveUp(m.token)
		return cuda.ErrorInvalidHandle
	}
	c.Placed = append(c.Placed, m.size, uint64(p.Location.Id))
	f := p.AllocFlags
	r.Handles, r.Dev, r.Size = p.RequestedHandleTypes, uint32(p.Location.Id), m.size
	r.Flags = uint32(f.CompressionType) | uint32(f.GpuDirectRDMACapable)<<8 | uint32(f.Usage)<<16
	return cuda.Success
}

// importPhysical has m be what a token names.
func (s *session) importPhysical(m *physical, token []byte) (p bind.MemAllocationProp, res cuda.Result) {
	blob, fd, ok := s.redeem(sharePhysical, token, 8)
	defer closeFile(fd)
	if !ok {
		return p, cuda.ErrorUnknown
	}
	defer func() { s.giveUpUnless(&res, token) }()
	if fd < 0 {
		return p, cuda.ErrorUnknown
	}
	if m.handle, res = s.drv.MemImportFromShareableHandle(fd, posixFD); res != cuda.Success {
		return p, res
	}
	if res = s.drv.MemGetAllocationPropertiesFromHandle(&p, m.handle); res != cuda.Success {
		s.drv.MemRelease(m.handle)
	}
	m.size, m.token = binary.LittleEndian.Uint64(blob), driver.ShareToken(token)
	return p, res
}
