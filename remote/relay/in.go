package relay

import (
	"context"
	"errors"
	"fmt"
	"io"

	"causeway/remote"
	"causeway/remote/frame"
)

// receive follows what the server sends, to the stream's end.
func (s *Session) receive(ctx context.Context) error {
	for {
		h, err := frame.ReadHeader(s.in)
		if err == nil {
			s.undone = h.Append(s.undone[:0])
			err = s.frame(ctx, h)
		}
		if err == nil {
			s.undone = s.undone[:0]
		}
		if err != nil {
			if s.dead.Load() {
				return fmt.Errorf("%w: its worker failed", ErrServer)
			}
			return lost(err)
		}
	}
}

// frame checks one frame of the server and does what it says.
func (s *Session) frame(ctx context.Context, h frame.Header) error {
	if h.Kind == frame.State {
		return s.stateFrame(h)
	}
	if h.Flags != 0 {
		return remote.Violation("frame of type %d with flags %#x", h.Kind, h.Flags)
	}
	switch h.Kind {
	case frame.Slot:
		return s.slotFrame(h)
	case frame.Read:
		return s.readFrame(ctx, h)
	case frame.Write:
		if h.Len >= frame.Bulk {
			s.widen()
		}
		return s.writeFrame(&s.lane, h)
	}
	if h.Len != 0 {
		return remote.Violation("frame of type %d with %d bytes", h.Kind, h.Len)
	}
	switch h.Kind {
	case frame.Head:
		return s.headFrame(h.Arg)
	case frame.Word:
		word, value := frame.Halves(h.Arg)
		if word >= remote.WordCount {
			return remote.Violation("WORD frame for word %d", word)
		}
		return s.touch(func() error {
			s.ring.Complete(word, value)
			return nil
		})
	case frame.Control:
		return s.controlFrame(frame.Halves(h.Arg))
	case frame.Recalled:
		return s.recalled()
	case frame.Behind:
		return s.behindFrame(ctx, h.Arg)
	}
	return remote.Violation("frame of type %d", h.Kind)
}

// headFrame frees room of the server's mirror.
func (s *Session) headFrame(head uint64) error {
	if sent := s.given.Load(); head < s.head.Load() || head > sent {
		return remote.Violation("HEAD frame at %d, which was %d, where %d bytes were sent", head, s.head.Load(), sent)
	}
	s.head.Store(head)
	select {
	case s.room <- struct{}{}:
	default:
	}
	return nil
}

func (s *Session) controlFrame(off, value uint32) error {
	return s.touch(func() error {
		switch {
		case off == remote.ControlPageStickyOffset:
			s.ring.SetSticky(value)
		case off == remote.ControlPageConsoleOffset:
			s.ring.SetConsole(value)
		case off == remote.ControlPageWorkerStateOffset && value == remote.WorkerDead:
			s.dead.Store(true) // the guest hears of it with the stream's end, which follows
		default:
			return remote.Violation("CONTROL frame stores %d at %d", value, off)
		}
		return nil
	})
}

// slotFrame answers a slot. The reply goes from the stream's buffer to the slot.
func (s *Session) slotFrame(h frame.Header) error {
	if h.Arg >= uint64(remote.SlotCount) || h.Len < frame.SlotHeader || h.Len > frame.SlotHeader+remote.SlotPayload {
		return remote.Violation("SLOT frame of %d bytes for slot %d", h.Len, h.Arg)
	}
	b, err := s.in.Peek(int(h.Len))
	if err != nil {
		return short(err)
	}
	r := frame.ParseReply(b)
	payload := b[frame.SlotHeader:]
	// A reply that goes on fills its slot: the guest fetches the rest, piece by piece, and would
	// ask for ever.
	if int(r.Len) != len(payload) || r.Total < r.Len || r.Total > r.Len && r.Len != remote.SlotPayload {
		return remote.Violation("SLOT frame with %d bytes of %d says %d", len(payload), r.Total, r.Len)
	}
	slot, wake := uint32(h.Arg), false
	err = s.touch(func() error {
		s.reply = remote.Outgoing{Slot: slot, Seq: r.Seq, Result: r.Result, Payload: payload, Total: r.Total}
		wake = s.ring.Reply(&s.reply)
		return nil
	})
	if err != nil {
		return err
	}
	_, _ = s.in.Discard(len(b))
	if wake {
		s.bell.Wake(slot)
	}
	return nil
}

func (s *Session) readFrame(ctx context.Context, h frame.Header) error {
	if h.Len != frame.ExtentSize {
		return remote.Violation("READ frame of %d bytes", h.Len)
	}
	e, err := s.extent()
	if err != nil {
		return err
	}
	if e.Size == 0 || e.Size > frame.MaxRead {
		return remote.Violation("READ of %d bytes", e.Size)
	}
	select {
	case s.queue(e) <- read{h.Arg, e}:
		s.wide.rung.Ring() // of no effect if it is the first stream's
		_, _ = s.in.Discard(frame.ExtentSize)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// extent is the one that comes next, which stays in the buffer.
func (l *lane) extent() (frame.Extent, error) {
	b, err := l.in.Peek(frame.ExtentSize)
	if err != nil {
		return frame.Extent{}, short(err)
	}
	return frame.ParseExtent(b), nil
}

// writeFrame stores bytes in a region, from the stream's buffer: nothing is held while more is
// waited for.
func (s *Session) writeFrame(l *lane, h frame.Header) error {
	if h.Len < frame.ExtentSize {
		return remote.Violation("WRITE frame of %d bytes", h.Len)
	}
	e, err := l.extent()
	if err != nil {
		return err
	}
	if e.Size != uint64(h.Len-frame.ExtentSize) || e.Region == 0 || !s.regions.has(e) {
		return remote.Violation("WRITE of %#x bytes at %#x of region %d in a frame of %d", e.Size, e.Offset, e.Region, h.Len)
	}
	_, _ = l.in.Discard(frame.ExtentSize)
	for {
		h.Len = uint32(frame.ExtentSize + e.Size)
		if l.undone = e.Append(h.Append(l.undone[:0])); e.Size == 0 {
			// What is left is a frame itself.
			return nil
		}
		if l.in.Buffered() == 0 {
			if _, err := l.in.Peek(1); err != nil {
				return short(err)
			}
		}
		b, _ := l.in.Peek(int(min(uint64(l.in.Buffered()), e.Size)))
		err := s.touch(func() error { return s.mem.WriteAt(e.Region, b, e.Offset) })
		switch {
		case errors.Is(err, errStill):
			return err
		case err != nil:
			return remote.Violation("WRITE: %v", err)
		}
		_, _ = l.in.Discard(len(b))
		e.Offset, e.Size = e.Offset+uint64(len(b)), e.Size-uint64(len(b))
	}
}

// short is the error of a frame that ends early.
func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
