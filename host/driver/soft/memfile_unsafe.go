package soft

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memoryFile is memory that several processes can map.
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
		_ = m.close()
		return nil, fmt.Errorf("memory of %d bytes: %w", size, err)
	}
	// Whoever maps it can rely on its size.
	if _, err := unix.FcntlInt(m.f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = m.close()
		return nil, fmt.Errorf("seal memory: %w", err)
	}
	return m, nil
}

// mapAt puts the file over addresses of this process, which decommit or releaseAll take back.
func (m *memoryFile) mapAt(mem []byte) error {
	_, err := unix.MmapPtr(int(m.f.Fd()), 0, unsafe.Pointer(&mem[0]), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

func (m *memoryFile) close() error { return m.f.Close() }
