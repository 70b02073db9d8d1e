package cuda

import (
	"fmt"
	"os"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// Numbers of the driver's: what cuMemGetHandleForAddressRange makes, and of what another device
// writes to a GPU (CUflushGPUDirectRDMAWritesOptions, CUGPUDirectRDMAWritesOrdering,
// CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope).
const (
	dmaBuf        = 1
	flushFromHost = 1
	ordersAll     = 200
	flushCurrent  = 0
	flushToAll    = 200
)

// copyDirect has the host's adapter move the bytes of a copy, behind the stream's work; done: it
// did, or the copy has failed. The context is current.
//
// What another device has written to a GPU's memory the GPU's next kernels see if it keeps that
// order, or is asked for it (a flush).
func (s *session) copyDirect(a *wire.MemcpyStagedArgs, st *stream) (done bool, res cuda.Result) {
	d, ok := s.host.(driver.Direct)
	if !ok || !d.Direct(a.Size) {
		return false, cuda.Success
	}
	m, ok := s.directMemory(a.Device, a.Size)
	if !ok {
		return false, cuda.Success
	}
	in, flush := a.Direction == 0, false
	if in {
		if flush, ok = s.flushes(st); !ok {
			d.NeverDirect(fmt.Errorf("the GPU neither orders nor flushes what adapters write"))
			return false, cuda.Success
		}
	}
	if res := s.note(s.drv.StreamSynchronize(st.handle)); res != cuda.Success {
		return true, res
	}
	ok, err := d.MoveDirect(a, m)
	switch {
	case err != nil:
		return true, cuda.ErrorInvalidValue
	case !ok:
		return false, cuda.Success
	case flush:
		return true, s.note(s.drv.FlushGPUDirectRDMAWrites(flushCurrent, flushToAll))
	}
	return true, cuda.Success
}

// flushes reports whether the GPU of a stream must be asked for what adapters have written; ok: it
// can be, or need not.
func (s *session) flushes(st *stream) (flush, ok bool) {
	ctx, there := s.ctxs.get(st.ctx)
	if !there {
		return false, false
	}
	order, res := s.drv.DeviceGetAttribute(cuda.DeviceAttrGPUDirectRDMAWritesOrdering, ctx.dev)
	if res == cuda.Success && order >= ordersAll {
		return false, true
	}
	options, res := s.drv.DeviceGetAttribute(cuda.DeviceAttrGPUDirectRDMAFlushWritesOptions, ctx.dev)
	return true, res == cuda.Success && options&flushFromHost != 0
}

// directMemory is the whole pages of the allocation around a range, if it is one of cuMemAlloc's
// that the guest has, and they hold the range. Memory of pools, of graphs and of addresses that the
// session gives out itself is taken away in ways of its own: an adapter is told of none.
func (s *session) directMemory(addr, size uint64) (m driver.DeviceMemory, ok bool) {
	all, ok := s.space.Allocation(addr)
	if !ok {
		return m, false
	}
	base := all.Address().Value()
	al, ok := s.allocs[base]
	if !ok || al.pooled || al.pool != nil || al.graph != nil || s.arenaOf(base) != nil {
		return m, false
	}
	page := uint64(os.Getpagesize())
	from := (base + page - 1) &^ (page - 1)
	to := (base + min(all.Size(), al.size)) &^ (page - 1)
	if from >= to {
		return m, false
	}
	serial, res := s.drv.AttributeOf(cuda.PointerAttrBufferID, al.at)
	if res != cuda.Success {
		return m, false
	}
	m = driver.DeviceMemory{Address: from, Size: to - from, Serial: serial}
	pages, ok := all.From(from, m.Size)
	if !ok || !m.Holds(addr, size) {
		return m, false
	}
	m.Export = func() (*os.File, uint64, error) { return s.exported(pages, al.ctx) }
	return m, true
}

// exported is a dma-buf of memory.
func (s *session) exported(pages bind.Mem, ctx uint32) (*os.File, uint64, error) {
	if c, ok := s.ctxs.get(ctx); ok {
		if can, res := s.drv.DeviceGetAttribute(cuda.DeviceAttrDmaBufSupported, c.dev); res != cuda.Success || can == 0 {
			return nil, 0, fmt.Errorf("%w: the open kernel modules of a newer one do", driver.ErrNoFiles)
		}
	}
	fd, res := s.drv.MemGetHandleForAddressRange(pages, dmaBuf, 0)
	if res != cuda.Success {
		return nil, 0, fmt.Errorf("cuMemGetHandleForAddressRange: %w", res)
	}
	return os.NewFile(uintptr(fd), "dma-buf"), 0, nil
}

// forgetDirect ends what an adapter knows of an allocation that is about to end.
func (s *session) forgetDirect(a allocation) {
	if d, ok := s.host.(driver.Direct); ok {
		d.ForgetDirect(a.at.Value(), a.size)
	}
}

// forgetDirectOf does so for all of a context's.
func (s *session) forgetDirectOf(ctx uint32) {
	for _, a := range s.allocs {
		if a.ctx == ctx && !a.pooled {
			s.forgetDirect(a)
		}
	}
}
