package verbstest

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"causeway/remote/verbs"
)

// WithGPU is an adapter that takes memory of a GPU's: as files, which stand for dma-bufs, or by
// addresses, where At finds them.
type WithGPU struct {
	*Adapter
	// NoFile and NoAddress are why it does not; nil: it does.
	NoFile, NoAddress error
	// At is memory at an address of the GPU's.
	At func(address, size uint64) []byte
}

var _ verbs.GPUAdapter = (*WithGPU)(nil)

// RegisterFile implements verbs.GPUAdapter. The file may be closed afterwards.
func (a *WithGPU) RegisterFile(f *os.File, off, size, address uint64) (verbs.Memory, error) {
	if a.NoFile != nil {
		return nil, a.NoFile
	}
	page := uint64(os.Getpagesize())
	mem, err := unix.Mmap(int(f.Fd()), int64(off&^(page-1)), int(off%page+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("register file: %w", err)
	}
	return a.register(mem[off%page:], mem, address)
}

// RegisterAddress implements verbs.GPUAdapter.
func (a *WithGPU) RegisterAddress(address, size uint64) (verbs.Memory, error) {
	if a.NoAddress != nil {
		return nil, a.NoAddress
	}
	return a.register(a.At(address, size), nil, address)
}

func (a *WithGPU) register(mem, mapped []byte, address uint64) (verbs.Memory, error) {
	m, err := a.Register(mem, 0)
	if err != nil {
		if mapped != nil {
			err = errors.Join(err, unix.Munmap(mapped))
		}
		return nil, err
	}
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	m.(*memory).addr = address
	return &ofGPU{Memory: m, mapped: mapped}, nil
}

// ofGPU is memory that was mapped to be registered.
type ofGPU struct {
	verbs.Memory
	mapped []byte
}

// Close implements verbs.Memory.
func (m *ofGPU) Close() error {
	err := m.Memory.Close()
	if m.mapped != nil {
		err = errors.Join(err, unix.Munmap(m.mapped))
	}
	return err
}
