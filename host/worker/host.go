package worker

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/remote"
)

var (
	_ driver.Host       = (*Worker)(nil)
	_ driver.HostMemory = (*Worker)(nil)
)

// Region implements driver.Host.
func (w *Worker) Region(id uint32) (driver.Region, bool) {
	w.regionMu.RLock()
	defer w.regionMu.RUnlock()
	r, ok := w.regions[id]
	r.Away = w.away.Load()
	return r, ok
}

// CompleteWord implements driver.Host.
func (w *Worker) CompleteWord(word, value uint32) {
	w.guestMu.RLock()
	w.ring.Complete(word, value)
	w.guestMu.RUnlock()
}

// SetSticky implements driver.Host. The first error stays.
func (w *Worker) SetSticky(res cuda.Result) {
	if w.replays.Load() {
		return
	}
	if res == cuda.Success {
		w.sticky.Store(0) // the driver reset what was poisoned
	} else if !w.sticky.CompareAndSwap(0, uint32(res)) {
		return
	}
	w.guestMu.RLock()
	w.ring.SetSticky(uint32(res))
	w.guestMu.RUnlock()
}

// Deferred implements driver.Host. The first error is delivered; those that follow from it are not.
func (w *Worker) Deferred(res cuda.Result) {
	w.count.failed(res)
	w.deferred.CompareAndSwap(0, uint32(res))
}

// regionIO reads and writes a region through the carrier.
type regionIO struct {
	mem   remote.GuestMemory
	early *early // nil: nothing comes early
	id    uint32
}

var (
	_ driver.StagedReader = regionIO{}
	_ driver.StagedHolder = regionIO{}
)

// ReadStaged implements driver.StagedReader.
func (r regionIO) ReadStaged(p []byte, a *wire.MemcpyStagedArgs) error {
	if r.early != nil {
		if ok, err := r.early.take(*a, p); ok {
			return err
		}
	}
	return r.mem.ReadAt(r.id, p, a.Offset)
}

// Landings implements driver.StagedHolder.
func (r regionIO) Landings() []byte {
	if r.early == nil {
		return nil
	}
	return r.early.landings()
}

// HoldStaged implements driver.StagedHolder.
func (r regionIO) HoldStaged(a *wire.MemcpyStagedArgs) (offset uint64, let func(), ok bool, err error) {
	if r.early == nil {
		return 0, nil, false, nil
	}
	l, ok, err := r.early.hold(*a)
	return l.at, l.put, ok, err
}

// ReadAt implements io.ReaderAt.
func (r regionIO) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, remote.ErrOutOfBounds
	}
	if err := r.mem.ReadAt(r.id, p, uint64(off)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements io.WriterAt.
func (r regionIO) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, remote.ErrOutOfBounds
	}
	if err := r.mem.WriteAt(r.id, p, uint64(off)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReserveHost implements driver.HostMemory.
func (w *Worker) ReserveHost(n uint64) bool { return w.host.reserve(n) }

// ReleaseHost implements driver.HostMemory.
func (w *Worker) ReleaseHost(n uint64) { w.host.release(n) }
