package fs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
)

// savesAtOnce is how many handles are saved at a time, and so about how many their destination
// makes side by side.
func savesAtOnce() int { return max(2, min(runtime.NumCPU(), 16)) }

// saveHandles writes the heads of handles, then what is in them.
func saveHandles(w io.Writer, hs []*handle) error {
	heads, err := headsOf(hs)
	if err != nil {
		return err
	}
	for _, b := range heads {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	out := &parts{w: w}
	out.each(hs, func(i int, h *handle) error {
		if err := h.ctl.(MovableHandle).Save(partWriter{out, uint32(i)}); err != nil {
			return err
		}
		if h.holds() {
			return errors.New("requests are still in flight")
		}
		return out.part(uint32(i), nil)
	})
	return out.err
}

// headsOf are the heads as bytes. Handles make theirs at once: some ask others for it.
func headsOf(hs []*handle) ([][]byte, error) {
	heads, all := make([][]byte, len(hs)), &parts{}
	all.each(hs, func(i int, h *handle) error {
		m, ok := h.ctl.(MovableHandle)
		if !ok {
			return errNotMovable
		}
		b, err := m.SaveHead()
		if err == nil && len(b) > MostHead {
			err = fmt.Errorf("a head of %d bytes", len(b))
		}
		if err != nil {
			return err
		}
		head := savedHandle{FH: h.fh, Node: h.node.id, UID: h.caller.UID, GID: h.caller.GID, PID: h.caller.PID, Size: uint32(len(b))}
		heads[i], err = binary.Append(nil, binary.LittleEndian, &head)
		heads[i] = append(heads[i], b...)
		return err
	})
	return heads, all.err
}

// parts writes what handles write at once. The first error ends all.
type parts struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// each has f do something for each handle, and returns when all have: err is the first that failed
// then. Those behind it are left out.
func (p *parts) each(hs []*handle, f func(i int, h *handle) error) {
	turns := make(chan struct{}, savesAtOnce())
	var wg sync.WaitGroup
	for i, h := range hs {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			if p.failed() {
				return
			}
			if err := f(i, h); err != nil {
				p.fail(h.named(err))
			}
		})
	}
	wg.Wait()
}

// named is an error that says whose it is.
func (h *handle) named(err error) error {
	return fmt.Errorf("%s, open in guest process %d: %w", h.node.name, h.caller.PID, err)
}

func (p *parts) failed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil
}

func (p *parts) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// part writes a part of handle i, its last if b is empty.
func (p *parts) part(i uint32, b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		_, p.err = p.w.Write(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, i), uint32(len(b))))
	}
	if p.err == nil {
		_, p.err = p.w.Write(b)
	}
	return p.err
}

// partWriter writes bytes of a handle in parts.
type partWriter struct {
	to *parts
	i  uint32
}

// Write implements io.Writer.
func (p partWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		part := b[:min(len(b), statePart)]
		if err := p.to.part(p.i, part); err != nil {
			return n, err
		}
		n, b = n+len(part), b[len(part):]
	}
	return n, nil
}

// arriving is a handle that is made of what comes.
type arriving struct {
	*handle
	move MovableHandle
	from *io.PipeReader
	to   *io.PipeWriter
	over bool // its last part has come
}

// loadHandles reads what saveHandles wrote of n handles, the last of which has that number. With an
// error nothing is left of them.
func (d *Device) loadHandles(r io.Reader, last uint64, n int) error {
	var list []*arriving
	var err error
	for ; err == nil && len(list) < n; err = d.expect(r, last, &list) {
	}
	if err == nil {
		err = loadAll(r, list)
	}
	for _, a := range list {
		if err != nil {
			a.move.Release()
			continue
		}
		d.mu.Lock()
		d.handles[a.fh] = a.handle
		d.mu.Unlock()
	}
	return err
}

// loadAll has handles load, side by side, what comes for them.
func loadAll(r io.Reader, list []*arriving) error {
	ctx, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	var wg sync.WaitGroup
	for _, a := range list {
		wg.Go(func() {
			if err := a.load(ctx); err != nil {
				err = a.named(err)
				fail(err)
				_ = a.from.CloseWithError(err)
			}
		})
	}
	if err := readParts(ctx, r, list); err != nil {
		fail(err)
		for _, a := range list {
			_ = a.to.CloseWithError(err)
		}
	}
	wg.Wait()
	return context.Cause(ctx) // the first error
}

// load makes the handle what it was.
func (a *arriving) load(ctx context.Context) error {
	if err := a.move.Load(ctx, a.from); err != nil {
		return err
	}
	var b [1]byte
	switch _, err := io.ReadFull(a.from, b[:]); {
	case err == nil:
		return fmt.Errorf("%w: more than is read of it", ErrState)
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// expect reads the head of a handle, and adds that to those in list.
func (d *Device) expect(r io.Reader, last uint64, list *[]*arriving) error {
	var head savedHandle
	if err := binary.Read(r, binary.LittleEndian, &head); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	n := d.node(head.Node)
	bad := n == nil || n.control == nil || head.FH == 0 || head.FH > last || head.Size > MostHead
	for _, a := range *list {
		bad = bad || a.fh == head.FH
	}
	if bad {
		return fmt.Errorf("%w: open file %d of inode %d", ErrState, head.FH, head.Node)
	}
	var b bytes.Buffer // which grows as bytes come
	if _, err := io.CopyN(&b, r, int64(head.Size)); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	a := &arriving{handle: &handle{d: d, fh: head.FH, node: n, caller: Caller{UID: head.UID, GID: head.GID, PID: head.PID}}}
	a.from, a.to = io.Pipe()
	m, ok := n.control.(MovableFile)
	if !ok {
		return fmt.Errorf("%s: %w", n.name, errNotMovable)
	}
	var err error
	if a.move, err = m.Expect(a.caller, b.Bytes()); err != nil {
		return a.named(err)
	}
	a.ctl = a.move
	*list = append(*list, a)
	return nil
}

// readParts gives handles what comes for them, until each has its last part. ctx ends when one of
// them fails.
func readParts(ctx context.Context, r io.Reader, list []*arriving) error {
	for left := len(list); left > 0; {
		var at struct{ I, Size uint32 }
		if err := binary.Read(r, binary.LittleEndian, &at); err != nil {
			return fmt.Errorf("%w: %w", ErrState, noEOF(err))
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case at.I >= uint32(len(list)) || at.Size > statePart || list[at.I].over:
			return fmt.Errorf("%w: a part of %d bytes of handle %d", ErrState, at.Size, at.I)
		case at.Size == 0:
			list[at.I].over = true
			_ = list[at.I].to.Close()
			left--
			continue
		}
		if _, err := io.CopyN(list[at.I].to, r, int64(at.Size)); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %w", ErrState, noEOF(err))
		}
	}
	return nil
}

// noEOF is an error of reading in the middle of something.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
