package cuda

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

var _ driver.Precopier = (*session)(nil)

// running is memory that can be read while the session works: allocations of its ranges. Other
// memory moves when the session stands still.
type running struct {
	// Held for reading while the GPU reads, for writing while memory is put behind addresses or
	// taken away.
	mu   sync.RWMutex
	live map[uint64]block
}

// block is an allocation of a range.
type block struct {
	size uint64
	all  bind.Mem // the range
	dev  uint32
}

// lives notes an allocation of a range, or its end.
func (r *running) lives(ptr uint64, b block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.live == nil {
		r.live = map[uint64]block{}
	}
	r.live[ptr] = b
}

func (r *running) ends(ptr uint64) {
	r.mu.Lock()
	delete(r.live, ptr)
	r.mu.Unlock()
}

// ExportRunning implements driver.Precopier. Its copies have a stream of their own, in the primary
// context.
func (s *session) ExportRunning(fn func(addr, size uint64, r io.Reader) error) error {
	runtime.LockOSThread() // which has contexts current
	r := &s.arenas.running
	r.mu.RLock()
	list := maps.Clone(r.live)
	r.mu.RUnlock()
	readers := map[uint32]*runningReader{}
	defer func() {
		for _, x := range readers {
			x.close()
		}
		s.drv.CtxSetCurrent(bind.Context{})
		runtime.UnlockOSThread()
	}()
	for _, ptr := range slices.Sorted(maps.Keys(list)) {
		b := list[ptr]
		x := readers[b.dev]
		if x == nil {
			var err error
			if x, err = s.newRunningReader(b.dev); err != nil {
				return err
			}
			readers[b.dev] = x
		}
		if err := fn(ptr, b.size, &runningBlock{x: x, ptr: ptr, block: b}); err != nil {
			return err
		}
	}
	return nil
}

// runningReader copies from a device on a thread of its own.
type runningReader struct {
	s      *session
	dev    uint32
	ctx    bind.Context
	resets int // of that context, before it was made
	stream bind.Stream
	buf    passing
}

func (s *session) newRunningReader(dev uint32) (*runningReader, error) {
	resets := s.users.resetsOf(dev)
	leave, ok := s.users.enterPrimary(dev, resets)
	if !ok {
		return nil, driver.ErrGone
	}
	defer leave()
	ctx, res := s.drv.DevicePrimaryCtxRetain(dev)
	if res != cuda.Success {
		return nil, fmt.Errorf("a context to copy in: %w", res)
	}
	x := &runningReader{s: s, dev: dev, ctx: ctx, resets: resets}
	if res = s.drv.CtxSetCurrent(ctx); res == cuda.Success {
		x.stream, res = s.drv.StreamCreateWithPriority(cuda.StreamNonBlocking, 0)
	}
	if res == cuda.Success {
		if x.buf, res = newPassing(s.drv, pieceSize+sumsSize); res == cuda.Success {
			return x, nil
		}
		s.drv.StreamDestroy(x.stream)
	}
	s.drv.DevicePrimaryCtxRelease(dev)
	return nil, fmt.Errorf("to copy while the session works: %w", res)
}

func (x *runningReader) close() {
	leave, ok := x.s.users.enterPrimary(x.dev, x.resets)
	if !ok {
		x.buf.gone()
		return
	}
	defer leave()
	x.s.drv.CtxSetCurrent(x.ctx)
	x.buf.free(x.s.drv)
	x.s.drv.StreamDestroy(x.stream)
	x.s.drv.DevicePrimaryCtxRelease(x.dev)
}

// runningBlock reads an allocation that may be written, or freed, meanwhile.
type runningBlock struct {
	x    *runningReader
	ptr  uint64
	done uint64
	rest []byte
	block
}

// piece is the first n bytes of what is copied to.
func (x *runningReader) piece(n uint64) bind.Host {
	h, _ := x.buf.Host().Slice(0, n)
	return h
}

// Read implements io.Reader.
func (b *runningBlock) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		n := min(b.size-b.done, pieceSize)
		if n == 0 {
			return 0, io.EOF
		}
		if err := b.fetch(n); err != nil {
			return 0, err
		}
		b.done += n
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *runningBlock) fetch(n uint64) error {
	r, d := &b.x.s.arenas.running, b.x.s.drv
	r.mu.RLock() // its pages go under it
	defer r.mu.RUnlock()
	leave, ok := b.x.s.users.enterPrimary(b.dev, b.x.resets)
	if !ok || r.live[b.ptr] != b.block {
		if ok {
			leave()
		}
		return driver.ErrGone
	}
	defer leave()
	from, within := b.all.From(b.ptr+b.done, n)
	to := b.x.piece(n)
	if !within {
		return arena.ErrNoAddresses
	}
	res := d.CtxSetCurrent(b.x.ctx)
	if res == cuda.Success {
		res = d.MemcpyDtoHAsync(to, from, b.x.stream)
	}
	if res == cuda.Success {
		res = d.StreamSynchronize(b.x.stream)
	}
	b.rest = to.Bytes()
	return errorOf(res)
}
