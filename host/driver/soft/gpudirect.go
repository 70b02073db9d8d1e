package soft

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// direct is the memory of a copy that the host's adapter may move by itself, false if it may not.
// Its pages are where they stay: they are made parts of a file, which stands for a dma-buf, ahead
// of that.
func (s *session) direct(a *wire.MemcpyStagedArgs) (driver.Direct, driver.DeviceMemory, bool) {
	d, ok := s.host.(driver.Direct)
	if !ok || !d.Direct(a.Size) {
		return nil, driver.DeviceMemory{}, false
	}
	m := s.space.lookup(a.Device)
	if m == nil || m.freed || m.kind != plainMemory {
		return nil, driver.DeviceMemory{}, false
	}
	from := (m.lo + pageSize - 1) &^ (pageSize - 1)
	to := (m.lo + m.size) &^ (pageSize - 1)
	if from >= to {
		return nil, driver.DeviceMemory{}, false
	}
	whole := driver.DeviceMemory{Address: from, Size: to - from, Serial: m.serial}
	if !whole.Holds(a.Device, a.Size) {
		return nil, driver.DeviceMemory{}, false
	}
	if !s.space.published(m) {
		s.awaitIdle() // its chunks are copied
		if _, _, err := s.space.publish(m); err != nil {
			d.NeverDirect(err)
			return nil, driver.DeviceMemory{}, false
		}
	}
	whole.Export = func() (*os.File, uint64, error) { return s.space.exported(m.device, from) }
	return d, whole, true
}

// published reports whether all of an allocation lies in the file.
func (s *space) published(a *allocation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ar := s.arenas[a.device]
	off := a.lo - ar.base
	for at := off &^ (chunkSize - 1); at < off+a.size; at += chunkSize {
		if _, ok := ar.public[at]; !ok {
			return false
		}
	}
	return true
}

// exported is the file of a device's memory, from an address on. Any goroutine.
func (s *space) exported(device int, addr uint64) (*os.File, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ar := s.arenas[device]
	if ar.file == nil {
		return nil, 0, driver.ErrNoFiles
	}
	fd, err := unix.FcntlInt(ar.file.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("file of GPU memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "gpu memory"), addr - ar.base, nil
}

// moveDirect is moveStaged by the adapter, as far as it does that.
func moveDirect(d driver.Direct, m driver.DeviceMemory, a *wire.MemcpyStagedArgs) (done bool, res cuda.Result) {
	done, err := d.MoveDirect(a, m)
	if err != nil {
		return true, cuda.ErrorOperatingSystem
	}
	return done, cuda.Success
}

// released gives memory back that nothing uses any more.
func (s *session) released(gone ...*allocation) {
	if d, ok := s.host.(driver.Direct); ok {
		for _, a := range gone {
			if a.kind == plainMemory {
				d.ForgetDirect(a.lo, a.size)
			}
		}
	}
	s.space.release(gone...)
}
