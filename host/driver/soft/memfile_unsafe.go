package soft

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memoryFile is memory that several processes can map. Its size does not change.
type memoryFile struct {
	f    *os.File
	size uint64
}

func newMemoryFile(size uint64) (*memoryFile, error) {
	fd, err := unix.MemfdCreate("gpu memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	m := &memoryFile{os.NewFile(uintptr(fd), "gpu memory"), size}
	if err := m.f.Truncate(int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("memory of %d bytes: %w", size, err), m.close())
	}
	// Whoever maps it can rely on its size.
	if _, err := unix.FcntlInt(m.f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(fmt.Errorf("seal memory: %w", err), m.close())
	}
	return m, nil
}

// adoptMemoryFile takes over a descriptor from another session. Only a file that cannot shrink is accepted.
func adoptMemoryFile(fd int) (*memoryFile, error) {
	m := &memoryFile{f: os.NewFile(uintptr(fd), "gpu memory")}
	seals, err := unix.FcntlInt(m.f.Fd(), unix.F_GET_SEALS, 0)
	if err == nil && seals&unix.F_SEAL_SHRINK == 0 {
		err = errors.New("a file that may shrink")
	}
	info, e := m.f.Stat()
	if err = errors.Join(err, e); err != nil {
		return nil, errors.Join(fmt.Errorf("shared memory: %w", err), m.close())
	}
	m.size = uint64(info.Size())
	return m, nil
}

// mapAt puts the file from off on over addresses of this process, which decommit or releaseAll take back.
func (m *memoryFile) mapAt(mem []byte, off uint64) error {
	_, err := unix.MmapPtr(int(m.f.Fd()), int64(off), unsafe.Pointer(&mem[0]), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// punch gives memory back; the range reads as zeros.
func (m *memoryFile) punch(off, size uint64) {
	_ = unix.Fallocate(int(m.f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(size))
}

// close may be called on nil.
func (m *memoryFile) close() error {
	if m == nil {
		return nil
	}
	return m.f.Close()
}

// counters are two numbers that several processes count.
type counters struct {
	mem            []byte
	recorded, done *atomic.Uint64
}

func (m *memoryFile) counters() (*counters, error) {
	mem, err := unix.Mmap(int(m.f.Fd()), 0, countersSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	p := unsafe.Pointer(&mem[0])
	return &counters{mem, (*atomic.Uint64)(p), (*atomic.Uint64)(unsafe.Add(p, 8))}, nil
}

func (c *counters) close() { _ = unix.Munmap(c.mem) }
