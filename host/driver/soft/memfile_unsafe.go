package soft

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// memoryFile is memory that several processes can map. Its size does not change.
type memoryFile struct {
	f    *os.File
	size uint64
}

func newMemoryFile(size uint64) (*memoryFile, error) {
	fd, err := sys.NewMemory("gpu memory", int64(size), unix.F_SEAL_SEAL)
	if err != nil {
		return nil, err
	}
	return &memoryFile{os.NewFile(uintptr(fd), "gpu memory"), size}, nil
}

// adoptMemoryFile takes over a descriptor from another session. Only a file that cannot shrink is
// accepted.
func adoptMemoryFile(fd int) (*memoryFile, error) {
	size, err := sys.FixedSize(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return &memoryFile{os.NewFile(uintptr(fd), "gpu memory"), uint64(size)}, nil
}

// mapAt puts the file from off on over addresses of this process, which decommit or releaseAll take
// back.
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
