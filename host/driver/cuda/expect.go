package cuda

import (
	"errors"
	"fmt"
	"io"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

var _ driver.Expecter = (*session)(nil)

/*
Memory of a session that still runs elsewhere lies behind its addresses here before any operation of
it is made again. Blocks that are expected have an arena of their own in the device's range, which
backs their pages as the session's does; when that comes to back the same pages it takes them over,
with their bytes.

Bytes pass through a little pinned memory, by copies alone: to set memory a driver may load code of
its own, and what it has loaded decides where it puts the variables of modules.
*/

// coming is memory that is expected. Worker goroutine; its zero value is ready.
type coming struct {
	*arena.Arena // nil: none was
	of           *addressRange
	blocks       map[uint64]*awaited
	pages        map[uint64]backed // not the session's yet
	through      through
}

// awaited is a block that is expected.
type awaited struct {
	size uint64
	came bool // an operation allocates it: its bytes are booked as the session's
}

// Expects implements driver.Expecter: an address does not say of which of several devices it is.
func (s *session) Expects() bool {
	return s.arenas.on && s.warm != nil && len(s.warm.devices) == 1 && !s.warm.primary.IsZero()
}

// Expect implements driver.Expecter.
func (s *session) Expect(addr, size uint64) error {
	c := &s.arenas.coming
	if base := addr &^ (rangeSize - 1); !s.Expects() || !ofChoice(base) {
		return fmt.Errorf("no memory of a session lies at %#x: %w", addr, cuda.ErrorInvalidValue)
	}
	r, res := s.rangeOf(0, addr)
	if res != cuda.Success {
		return fmt.Errorf("%d GiB of addresses around %#x: %w", rangeSize>>30, addr, res)
	}
	if c.Arena == nil {
		base := r.all.Address().Value()
		c.of, c.blocks, c.pages = r, map[uint64]*awaited{}, map[uint64]backed{}
		c.Arena = arena.New(base, rangeSize, c)
	}
	if res := s.charge(size); res != cuda.Success {
		return fmt.Errorf("no room for %d bytes that are to come to %#x: %w", size, addr, res)
	}
	if err := c.AllocAt(addr, size); err != nil {
		s.refund(size)
		return fmt.Errorf("%d bytes that are to come to %#x: %w", size, addr, err)
	}
	c.blocks[addr] = &awaited{size: size}
	return s.Zero(addr, size)
}

// ofChoice reports whether ranges begin at an address.
func ofChoice(base uint64) bool {
	const span = rangeChoices * rangeSize
	return base-lowRanges < span || base-highRanges < span
}

// Back implements arena.Backing.
func (c *coming) Back(at, size uint64) error {
	p, err := c.of.put(at, size)
	if err == nil {
		c.pages[at] = p
	}
	return err
}

// Unback implements arena.Backing. What the session has taken over is none of these pages any more.
func (c *coming) Unback(at, _ uint64) {
	p, ok := c.pages[at]
	if !ok {
		return
	}
	delete(c.pages, at)
	c.of.s.note(c.through.wait(c.of.s)) // for what is on its way there
	c.of.drop(p)
}

// takePages is what backs pages already that the session's arena is about to back; false: nothing
// does. Others in their place are given back.
func (c *coming) takePages(r *addressRange, at, size uint64) (backed, bool) {
	if c.of != r || len(c.pages) == 0 {
		return backed{}, false
	}
	if p, ok := c.pages[at]; ok && p.mem.Size() == size {
		delete(c.pages, at)
		return p, true
	}
	c.give(at, size)
	return backed{}, false
}

// give drops what is expected at addresses that are given out to others' memory.
func (c *coming) give(at, size uint64) {
	for there, p := range c.pages {
		if there < at+size && at < there+p.mem.Size() {
			c.lose(there, p.mem.Size())
			c.Unback(there, 0)
		}
	}
}

// lose forgets the blocks that lie in pages.
func (c *coming) lose(at, size uint64) {
	for addr, b := range c.blocks {
		if addr-at < size {
			c.forget(addr, b)
		}
	}
}

// forget ends a block that is expected.
func (c *coming) forget(addr uint64, b *awaited) {
	delete(c.blocks, addr)
	if !b.came {
		c.of.s.refund(b.size)
	}
}

// chargeAs books what a call allocates: what is allocated again where it was expected is booked
// already.
func (s *session) chargeAs(c *wire.Call, size uint64) cuda.Result {
	if c.Replay && len(c.Placed) > 0 {
		if b := s.arenas.coming.blocks[c.Placed[0]]; b != nil && b.size == size && !b.came {
			b.came = true
			return cuda.Success
		}
	}
	return s.charge(size)
}

// part is a part of what is expected.
func (c *coming) part(addr, size uint64) (bind.Mem, error) {
	if c.Arena != nil {
		if at, ok := c.Block(addr); ok {
			if b := c.blocks[at]; b != nil && addr-at <= b.size && size <= b.size-(addr-at) {
				if m, ok := c.of.all.From(addr, size); ok {
					return m, nil
				}
			}
		}
	}
	return bind.Mem{}, fmt.Errorf("%d bytes at %#x are not expected", size, addr)
}

// Fill implements driver.Expecter.
func (s *session) Fill(addr, size uint64, r io.Reader) error {
	c := &s.arenas.coming
	to, err := c.part(addr, size)
	for done := uint64(0); err == nil && done < size; {
		var from bind.Host
		if from, err = c.through.room(s, size-done); err != nil {
			break
		}
		if _, err = io.ReadFull(r, from.Bytes()); err == nil {
			err = c.through.copy(s, to, done, from)
		}
		done += from.Size()
	}
	return err
}

// Zero implements driver.Expecter.
func (s *session) Zero(addr, size uint64) error {
	c := &s.arenas.coming
	to, err := c.part(addr, size)
	for done := uint64(0); err == nil && done < size; {
		var from bind.Host
		if from, err = c.through.zeros(s, size-done); err == nil {
			err = c.through.copy(s, to, done, from)
			done += from.Size()
		}
	}
	return err
}

// Forget implements driver.Expecter.
func (s *session) Forget(addr, size uint64) error {
	c := &s.arenas.coming
	b := c.blocks[addr]
	if b == nil || b.size != size || b.came {
		return fmt.Errorf("%d bytes at %#x are not expected", size, addr)
	}
	c.forget(addr, b)
	c.Free(addr)
	c.Trim()
	return nil
}

// Landed implements driver.Expecter.
func (s *session) Landed(addr, size uint64) error {
	b := s.arenas.coming.blocks[addr]
	if a, ok := s.allocs[addr]; !ok || a.size != size || b == nil || b.size != size || !b.came {
		return fmt.Errorf("import: no allocation of %d bytes at %#x", size, addr)
	}
	return nil
}

// Settle implements driver.Expecter.
func (s *session) Settle() error {
	c := &s.arenas.coming
	err := errorOf(s.note(c.through.end(s)))
	for addr, b := range c.blocks {
		c.forget(addr, b)
	}
	for at := range c.pages {
		c.Unback(at, 0)
	}
	*c = coming{}
	return err
}

// through is pinned memory through which bytes pass: zeros, then room.
type through struct {
	ctx  bind.Context
	mem  passing //  none: zero
	used uint64  // of the room, by copies that may be on their way
}

// What passes at once, in bytes. All of it is less than the holes in which what is mapped shows
// nowhere (host/worker/base.go).
const (
	throughZeros = 1 << 20
	throughRoom  = 4 << 20
)

// open makes the context current in which copies are made, and the memory if there is none.
func (t *through) open(s *session) error {
	if !t.mem.IsZero() {
		s.current = 0
		return errorOf(s.drv.CtxSetCurrent(t.ctx))
	}
	if t.ctx = s.warm.primary; t.ctx.IsZero() { // a context of the session's has it
		if res := s.anyContext(0); res != cuda.Success {
			return fmt.Errorf("a context to copy in: %w", res)
		}
		t.ctx = s.ctxs.m[s.current].handle
	}
	s.current = 0
	res := s.drv.CtxSetCurrent(t.ctx)
	if res == cuda.Success {
		t.mem, res = newPassing(s.drv, throughZeros+throughRoom)
	}
	if res != cuda.Success {
		return fmt.Errorf("memory to copy through: %w", res)
	}
	zeros, _ := t.mem.Host().Slice(0, throughZeros)
	clear(zeros.Bytes())
	t.used = 0
	return nil
}

// room is memory for up to n bytes, at least one.
func (t *through) room(s *session, n uint64) (bind.Host, error) {
	if err := t.open(s); err != nil {
		return bind.Host{}, err
	}
	if t.used == throughRoom {
		if res := s.note(t.wait(s)); res != cuda.Success {
			return bind.Host{}, res
		}
	}
	n = min(n, throughRoom-t.used)
	h, _ := t.mem.Host().Slice(throughZeros+t.used, n)
	t.used += n
	return h, nil
}

// zeros are up to n bytes.
func (t *through) zeros(s *session, n uint64) (bind.Host, error) {
	err := t.open(s)
	h, _ := t.mem.Host().Slice(0, min(n, throughZeros))
	return h, err
}

// copy has the GPU read from. It is done behind wait.
func (t *through) copy(s *session, to bind.Mem, at uint64, from bind.Host) error {
	part, ok := to.Slice(at, from.Size())
	if !ok {
		return errors.New("a copy beyond its end")
	}
	return errorOf(s.note(s.drv.MemcpyHtoDAsync(part, from, bind.StreamLegacy)))
}

// wait returns when all copies are done.
func (t *through) wait(s *session) cuda.Result {
	if t.mem.IsZero() {
		return cuda.Success
	}
	t.used = 0
	s.current = 0
	res := s.drv.CtxSetCurrent(t.ctx)
	if res == cuda.Success {
		res = s.drv.StreamSynchronize(bind.StreamLegacy)
	}
	return res
}

// end waits, and gives the memory back, before its context may go.
func (t *through) end(s *session) cuda.Result {
	if t.mem.IsZero() {
		return cuda.Success
	}
	res := t.wait(s)
	t.mem.free(s.drv)
	*t = through{}
	return res
}

// goneWith drops the memory, which has gone with its context.
func (t *through) goneWith(ctx bind.Context) {
	if t.ctx == ctx {
		t.mem.gone()
		*t = through{}
	}
}
