package soft

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// What a session shares: a file in memory, and where in it. Each begins with the exporter's name,
// because a process cannot open its own handles.
const (
	shareMemory   = 'm' // part: of an arena
	shareEvent    = 'e' // part: two counters
	sharePhysical = 'p' // part: all of the file
	sharePool     = 'q' // device
	sharePointer  = 'x' // part: of an arena; then the pool's name
)

// part is a range of a file, as it travels.
type part struct {
	Session      [16]byte // who shares
	Device       [16]byte // UUID
	Offset, Size uint64
}

func (p *part) encode() []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, p)
	return b
}

var partSize = binary.Size(part{})

// offer shares an object, once, and memory with it.
func (s *session) offer(c *wire.Call, kind byte, id uint64, mem driver.SharedMemory, what func() (blob []byte, file int, res cuda.Result)) ([]byte, cuda.Result) {
	res := cuda.Success
	token, err := s.offers.Offer(s.host, c, kind, id, func() (x driver.Shared, _ error) {
		x.Memory = mem
		if x.Blob, x.File, res = what(); res != cuda.Success {
			return x, res
		}
		return x, nil
	})
	switch {
	case res != cuda.Success:
		return nil, res
	case errors.Is(err, driver.ErrNoSharer):
		return nil, cuda.ErrorNotSupported
	case err != nil:
		s.log.Warn("cannot share with other processes", "error", err)
		return nil, cuda.ErrorOperatingSystem
	}
	return token, cuda.Success
}

func (s *session) unshare(kind byte, id uint64) { s.offers.Withdraw(s.host, kind, id) }

// redeem finds the part that a token of a kind names, its file, which is the caller's to close, and
// the device here.
func (s *session) redeem(kind byte, token []byte, refused cuda.Result) (p part, _ *memoryFile, _ int, res cuda.Result) {
	blob, fd, err := driver.Redeem(s.host, kind, token, partSize)
	if err != nil {
		return p, nil, 0, refused
	}
	defer func() {
		if res != cuda.Success {
			s.letGo(token)
		}
	}()
	_, _ = binary.Decode(blob, binary.LittleEndian, &p)
	dev := s.deviceOf(p.Device)
	if dev < 0 && kind != sharePhysical { // which devices that are shown may map all the same
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return p, nil, 0, cuda.ErrorInvalidDevice
	}
	if fd < 0 {
		return p, nil, dev, cuda.Success
	}
	f, err := adoptMemoryFile(fd)
	if err != nil || p.Size == 0 || p.Offset > f.size || p.Size > f.size-p.Offset {
		return p, nil, 0, refused
	}
	return p, f, dev, cuda.Success
}

// letGo ends what redeem has opened.
func (s *session) letGo(token []byte) { driver.LetGo(s.host, driver.ShareToken(token)) }

// notShown is the number of a device that this session does not have.
const notShown = -1

// deviceOf is this session's number of a device.
func (s *session) deviceOf(uuid [16]byte) int {
	for i, g := range s.gpus {
		if g.uuid == uuid {
			return i
		}
	}
	return notShown
}

// part describes a range of a file of this session.
func (s *session) part(device int, off, size uint64) *part {
	return &part{Session: s.name, Device: s.gpus[device].uuid, Offset: off, Size: size}
}

// MemExport shares memory of MemCreate.
func (s *session) MemExport(c *wire.Call, a *wire.MemExportArgs, r *wire.MemExportReply) (res cuda.Result) {
	p := s.mems[a.Memhandle]
	if p == nil || p.foreign || p.host {
		return cuda.ErrorInvalidValue
	}
	r.Token, res = s.offer(c, sharePhysical, uint64(a.Memhandle), driver.SharedMemory{Bytes: p.size, Lasting: true}, func() ([]byte, int, cuda.Result) {
		return s.part(p.device, 0, p.size).encode(), int(p.file.f.Fd()), cuda.Success
	})
	return res
}

// MemImport takes over memory that another session shares.
func (s *session) MemImport(c *wire.Call, a *wire.MemImportArgs, r *wire.MemImportReply) cuda.Result {
	if _, used := s.mems[a.Memhandle]; used || len(s.mems) >= maxObjects {
		return cuda.ErrorInvalidHandle
	}
	if c.Replay {
		p, res := s.awaitPhysical(c, a.Token)
		if res == cuda.Success {
			s.keepPhysical(a.Memhandle, p)
		}
		return res
	}
	p, f, dev, res := s.redeemPhysical(a.Token)
	if res != cuda.Success {
		return res
	}
	s.keepPhysical(a.Memhandle, &physical{file: f, size: p.Size, device: dev, foreign: true, token: driver.ShareToken(a.Token)})
	r.Dev, r.Size = uint32(dev), p.Size
	c.Placed = append(c.Placed, r.Size, uint64(dev))
	return cuda.Success
}

// redeemPhysical is redeem of memory of MemCreate, all of it.
func (s *session) redeemPhysical(token []byte) (part, *memoryFile, int, cuda.Result) {
	p, f, dev, res := s.redeem(sharePhysical, token, cuda.ErrorUnknown)
	if res == cuda.Success && (f == nil || p.Size != f.size || p.Size%vmmUnit != 0) {
		_ = f.close()
		s.letGo(token)
		res = cuda.ErrorUnknown
	}
	return p, f, dev, res
}
