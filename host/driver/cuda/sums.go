package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// launchSums launches the kernel over memory, in the current context, which has it. What out gets
// is there when the stream has done it.
func (s *session) launchSums(stream bind.Stream, mem bind.Mem, block uint64, key [2]uint64, out bind.Mem) error {
	blocks := (mem.Size() + block - 1) / block
	var params []byte
	for _, v := range []uint64{mem.Address().Value(), mem.Size(), block, key[0], key[1], out.Address().Value()} {
		params = binary.LittleEndian.AppendUint64(params, v)
	}
	fn := &s.warm.sums
	args, ok := fn.layout.Arguments(params)
	if !ok || blocks > sumsSize/16 || blocks*16 > out.Size() {
		return errors.ErrUnsupported
	}
	return errorOf(s.drv.LaunchKernel(fn.handle, &bind.Dims{uint32(blocks), 1, 1, sumsThreads, 1, 1, 0}, stream, args))
}

// sumsOf reads sums that a launch has made.
func sumsOf(out bind.Host, sums [][2]uint64) {
	b := out.Bytes()
	for i := range sums {
		sums[i] = [2]uint64{binary.LittleEndian.Uint64(b[i*16:]), binary.LittleEndian.Uint64(b[i*16+8:])}
	}
}

// summing is where the kernel is launched, and what its sums pass through.
type summing struct {
	s      *session
	stream bind.Stream
	out    bind.Mem
	host   bind.Host // the same
	note   bool      // this is the worker's goroutine, which takes note of faults
}

// now sums up memory, and waits.
func (x *summing) now(mem bind.Mem, block uint64, key [2]uint64, sums [][2]uint64) error {
	if err := x.s.launchSums(x.stream, mem, block, key, x.out); err != nil {
		return err
	}
	res := x.s.drv.StreamSynchronize(x.stream)
	if x.note {
		x.s.note(res)
	}
	if res != cuda.Success {
		return res
	}
	sumsOf(x.host, sums)
	return nil
}

// inLaunches calls fn for as much at a time, of size bytes, as one launch sums up.
func inLaunches(size, block uint64, sums [][2]uint64, fn func(at, n uint64, sums [][2]uint64) error) error {
	for at := uint64(0); at < size; {
		n := min(size-at, sumsSize/16*block)
		some := (n + block - 1) / block
		if err := fn(at, n, sums[:some]); err != nil {
			return err
		}
		at, sums = at+n, sums[some:]
	}
	return nil
}

// sumsWorth is the least that is summed up by the GPU: reading less takes no longer than the
// launches.
const sumsWorth = 1 << 20

// summable reports whether an allocation of so many bytes of a device is summed up by the kernel.
func (s *session) summable(dev uint32, size uint64) bool {
	return s.warm != nil && dev == 0 && s.warm.sums.layout != nil && size >= sumsWorth
}

var _ driver.Summer = (*runningBlock)(nil)

// summing has its room behind the piece that is copied to.
func (x *runningReader) summing() *summing {
	out, _ := x.buf.Mem().Slice(pieceSize, sumsSize)
	host, _ := x.buf.Host().Slice(pieceSize, sumsSize)
	return &summing{s: x.s, stream: x.stream, out: out, host: host}
}

// Sums implements driver.Summer. Kernels of the guest may hold the whole GPU for long, or for ever:
// a launch that touches no memory goes ahead, so that nobody who frees memory waits for them here.
func (b *runningBlock) Sums(ctx context.Context, block uint64, key [2]uint64, sums [][2]uint64) error {
	s, x := b.x.s, b.x.summing()
	if !s.summable(b.dev, b.size) || b.done > 0 {
		return errors.ErrUnsupported
	}
	leave, ok := s.users.enterPrimary(b.dev, b.x.resets)
	if !ok {
		return driver.ErrGone
	}
	defer leave()
	if err := errorOf(s.drv.CtxSetCurrent(b.x.ctx)); err != nil {
		return err
	}
	first, _ := x.out.Slice(0, 1)
	if err := s.launchSums(x.stream, first, 1, key, x.out); err != nil {
		return err
	}
	for s.drv.StreamQuery(x.stream) == cuda.ErrorNotReady {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Microsecond):
		}
	}
	if slow, err := b.x.slowSums(x, block, key); slow || err != nil {
		return errors.Join(err, errors.ErrUnsupported)
	}
	return inLaunches(b.size, block, sums, func(at, n uint64, sums [][2]uint64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return b.sumsNow(x, at, n, block, key, sums)
	})
}

// slowSums reports whether the GPU takes longer to sum up than the processor takes to read:
// software GPUs do. It is tried once.
func (x *runningReader) slowSums(on *summing, block uint64, key [2]uint64) (bool, error) {
	const tried, enough = 1 << 20, 250 * time.Microsecond
	known := x.s.warm.sums.known
	some, _ := x.buf.Mem().Slice(0, tried)
	for range 4 {
		if v := known.Load(); v != sumsUntried {
			return v == sumsSlow, nil
		}
		begin := time.Now()
		if err := on.now(some, block, key, nil); err != nil {
			return false, err
		}
		if time.Since(begin) < enough {
			known.Store(sumsFast)
		}
	}
	known.CompareAndSwap(sumsUntried, sumsSlow)
	return known.Load() == sumsSlow, nil
}

// sumsNow sums up n bytes from an offset on.
func (b *runningBlock) sumsNow(x *summing, at, n, block uint64, key [2]uint64, sums [][2]uint64) error {
	r := &b.x.s.arenas.running
	r.mu.RLock() // its pages go under it
	defer r.mu.RUnlock()
	if r.live[b.ptr] != b.block {
		return driver.ErrGone
	}
	mem, ok := b.all.From(b.ptr+at, n)
	if !ok {
		return fmt.Errorf("sums of %#x: %w", b.ptr, cuda.ErrorInvalidValue)
	}
	return x.now(mem, block, key, sums)
}

// ReadSums implements driver.Summer: what is summed up is the copy.
func (b *runningBlock) ReadSums(p []byte, block uint64, key [2]uint64, sums [][2]uint64) error {
	n := uint64(len(p))
	if n > pieceSize || len(b.rest) > 0 {
		return errors.ErrUnsupported
	}
	if err := b.fetch(n); err != nil {
		return err
	}
	leave, ok := b.x.s.users.enterPrimary(b.dev, b.x.resets)
	if !ok {
		return driver.ErrGone
	}
	defer leave()
	piece, _ := b.x.buf.Mem().Slice(0, n)
	if err := b.x.summing().now(piece, block, key, sums); err != nil {
		return err
	}
	copy(p, b.rest)
	b.done, b.rest = b.done+n, nil
	return nil
}

// Skip implements driver.Summer.
func (b *runningBlock) Skip(n uint64) { b.done += n }

// settledBlock is memory of a range, of a session that stands still.
type settledBlock struct {
	memReader
	ctx uint32 // in which it is read
}

var _ driver.Summer = (*settledBlock)(nil)

// Sums implements driver.Summer.
func (d *settledBlock) Sums(_ context.Context, block uint64, key [2]uint64, sums [][2]uint64) error {
	s := d.m.s
	if d.done > 0 || s.warm.sums.known.Load() != sumsFast {
		return errors.ErrUnsupported
	}
	defer s.anyContext(d.ctx)
	r, err := d.m.sumsRoom()
	if err != nil {
		return err
	}
	x := &summing{s: s, stream: bind.StreamLegacy, out: r.Mem(), host: r.Host(), note: true}
	return inLaunches(d.mem.Size(), block, sums, func(at, n uint64, sums [][2]uint64) error {
		mem, _ := d.mem.Slice(at, n)
		return x.now(mem, block, key, sums)
	})
}

// sumsRoom makes the context current that has the kernel, and the room for sums.
func (m *mover) sumsRoom() (bind.Registered, error) {
	s := m.s
	s.current = 0
	if m.sumsCtx.IsZero() {
		ctx, res := s.drv.DevicePrimaryCtxRetain(0)
		if res != cuda.Success {
			return bind.Registered{}, fmt.Errorf("a context to sum up in: %w", res)
		}
		m.sumsCtx = ctx
	}
	res := s.drv.CtxSetCurrent(m.sumsCtx)
	if res == cuda.Success && m.sums.IsZero() {
		m.sums, res = newPassing(s.drv, sumsSize)
	}
	return m.sums.Registered, errorOf(res)
}

// endSums gives back what sumsRoom took.
func (m *mover) endSums() {
	if m.sumsCtx.IsZero() {
		return
	}
	m.s.current = 0
	if m.s.drv.CtxSetCurrent(m.sumsCtx) == cuda.Success {
		m.sums.free(m.s.drv)
	}
	m.s.drv.CtxSetCurrent(bind.Context{})
	m.s.drv.DevicePrimaryCtxRelease(0)
}

// ReadSums implements driver.Summer: nothing is written meanwhile, so what Sums said is so.
func (d *settledBlock) ReadSums(p []byte, _ uint64, _ [2]uint64, _ [][2]uint64) error {
	_, err := io.ReadFull(d, p)
	return err
}

// Skip implements driver.Summer.
func (d *settledBlock) Skip(n uint64) { d.done += n }
