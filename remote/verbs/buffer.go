package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// buffer is registered memory of a power of two that a stream goes round in.
type buffer struct {
	mem []byte // of all, what is used
	all []byte
	reg Memory
}

func newBuffer(a Adapter, size int, may Access) (*buffer, error) {
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for RDMA: %w", err)
	}
	_ = unix.Madvise(mem, unix.MADV_DONTFORK) // what is pinned stays this process's
	reg, err := a.Register(mem, may)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory for RDMA: %w", err), unix.Munmap(mem))
	}
	return &buffer{mem, mem, reg}, nil
}

// copyIn stores bytes of the stream that begin at its byte at.
func (b *buffer) copyIn(p []byte, at uint64) {
	n := copy(b.mem[at%uint64(len(b.mem)):], p)
	copy(b.mem, p[n:])
}

// copyOut fetches them.
func (b *buffer) copyOut(p []byte, at uint64) {
	n := copy(p, b.mem[at%uint64(len(b.mem)):])
	copy(p[n:], b.mem)
}

func (b *buffer) close() error {
	if b == nil {
		return nil
	}
	return errors.Join(b.reg.Close(), unix.Munmap(b.all))
}
