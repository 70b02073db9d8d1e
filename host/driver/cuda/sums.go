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

// launchSums launches the kernel over memory, in the current context, which has it. What out gets is there when the stream has done it.
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

// summable reports whether a device's memory can be summed up by the kernel.
func (s *session) summable(dev uint32) bool {
	return s.warm != nil && dev == 0 && s.warm.sums.layout != nil
}

var _ driver.Summer = (*runningBlock)(nil)

// room is where sums of what is copied lie, behind the piece.
func (x *runningReader) room() (bind.Mem, bind.Host) {
	m, _ := x.buf.Mem().Slice(pieceSize, sumsSize)
	h, _ := x.buf.Host().Slice(pieceSize, sumsSize)
	return m, h
}

// Sums implements driver.Summer. Kernels of the guest may hold the whole GPU for long, or for ever: a launch that touches no memory goes ahead, so that nobody who frees
// memory waits for them here.
func (b *runningBlock) Sums(ctx context.Context, block uint64, key [2]uint64, sums [][2]uint64) error {
	s := b.x.s
	if !s.summable(b.dev) || len(b.rest) > 0 {
		return errors.ErrUnsupported
	}
	out, host := b.x.room()
	if err := errorOf(s.drv.CtxSetCurrent(b.x.ctx)); err != nil {
		return err
	}
	first, _ := out.Slice(0, 1)
	if err := s.launchSums(b.x.stream, first, 1, key, out); err != nil {
		return err
	}
	for s.drv.StreamQuery(b.x.stream) == cuda.ErrorNotReady {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Microsecond):
		}
	}
	if slow, err := b.x.slowSums(block, key, out); slow || err != nil {
		return errors.Join(err, errors.ErrUnsupported)
	}
	for len(sums) > 0 {
		some := min(len(sums), sumsSize/16)
		n := min(uint64(some)*block, b.size-b.done)
		if err := b.sumsNow(n, block, key, out, ctx); err != nil {
			return err
		}
		sumsOf(host, sums[:some])
		b.done += n
		sums = sums[some:]
	}
	b.done = 0
	return nil
}

// slowSums reports whether the GPU takes longer to sum up than the processor takes to read: software GPUs do. It is tried once.
func (x *runningReader) slowSums(block uint64, key [2]uint64, out bind.Mem) (bool, error) {
	const tried, enough = 1 << 20, 250 * time.Microsecond
	w := x.s.warm
	for range 4 {
		if v := w.sums.known.Load(); v != sumsUntried {
			return v == sumsSlow, nil
		}
		some, _ := x.buf.Mem().Slice(0, tried)
		begin := time.Now()
		if err := x.s.launchSums(x.stream, some, block, key, out); err != nil {
			return false, err
		}
		if err := errorOf(x.s.drv.StreamSynchronize(x.stream)); err != nil {
			return false, err
		}
		if time.Since(begin) < enough {
			w.sums.known.Store(sumsFast)
		}
	}
	w.sums.known.CompareAndSwap(sumsUntried, sumsSlow)
	return w.sums.known.Load() == sumsSlow, nil
}

// sumsNow sums up the next n bytes.
func (b *runningBlock) sumsNow(n, block uint64, key [2]uint64, out bind.Mem, ctx context.Context) error {
	r, d := &b.x.s.arenas.running, b.x.s.drv
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.RLock() // its pages go under it
	defer r.mu.RUnlock()
	if r.live[b.ptr] != b.block {
		return driver.ErrGone
	}
	mem, ok := b.all.From(b.ptr+b.done, n)
	if !ok {
		return fmt.Errorf("sums of %#x: %w", b.ptr, cuda.ErrorInvalidValue)
	}
	if err := b.x.s.launchSums(b.x.stream, mem, block, key, out); err != nil {
		return err
	}
	return errorOf(d.StreamSynchronize(b.x.stream))
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
	out, host := b.x.room()
	piece, _ := b.x.buf.Mem().Slice(0, n)
	if err := b.x.s.launchSums(b.x.stream, piece, block, key, out); err != nil {
		return err
	}
	if err := errorOf(b.x.s.drv.StreamSynchronize(b.x.stream)); err != nil {
		return err
	}
	sumsOf(host, sums)
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
	if len(d.rest) > 0 || s.warm.sums.known.Load() != sumsFast {
		return errors.ErrUnsupported
	}
	defer s.anyContext(d.ctx)
	r, err := d.m.sumsRoom()
	if err != nil {
		return err
	}
	for at := d.done; len(sums) > 0; {
		some := min(len(sums), sumsSize/16)
		n := min(uint64(some)*block, d.mem.Size()-at)
		mem, _ := d.mem.Slice(at, n)
		if err := s.launchSums(bind.StreamLegacy, mem, block, key, r.Mem()); err != nil {
			return err
		}
		if err := errorOf(s.note(s.drv.StreamSynchronize(bind.StreamLegacy))); err != nil {
			return err
		}
		sumsOf(r.Host(), sums[:some])
		at, sums = at+n, sums[some:]
	}
	return nil
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
