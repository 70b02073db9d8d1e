package precopy

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Slot is how much is looked at, and sent, at once, in bytes; a window consists of slots.
const Slot = 4 << 20

// minSlots is how many a window has at least: the receiver is done with one when the next one
// begins.
const minSlots = 2

// Window is memory that the sender and the receiver both map, where blocks lie instead of in the
// stream. The sender fills one slot after the other, and again from the first on; the receiver
// gives each back, in that order, when it has what it wants of it. It believes nothing but where
// the window ends: what lies there may change while it is read. Each side has one of its own.
type Window struct {
	mem  []byte
	back io.ReadWriter

	// The sender's: slots that the stream has named, and that were given back. The receiver's: the
	// slot whose blocks it reads, and whether there is one.
	told, freed int
	current     int
	reads       bool
}

// NewWindow is one of mem, which both sides map. A byte comes and goes over back for each slot that
// is free again.
func NewWindow(mem []byte, back io.ReadWriter) (*Window, error) {
	if len(mem) < minSlots*Slot || len(mem)%Slot != 0 || len(mem) > 1<<31 {
		return nil, fmt.Errorf("a window of %d bytes", len(mem))
	}
	return &Window{mem: mem, back: back}, nil
}

func (w *Window) slots() int { return len(w.mem) / Slot }

// next is a slot for the sender to fill. It waits for one, after flush, without which the receiver
// might not know of those it has.
func (w *Window) next(flush func() error) ([]byte, error) {
	if w.told-w.freed == w.slots() {
		if err := flush(); err != nil {
			return nil, err
		}
		free := make([]byte, w.slots())
		n, err := w.back.Read(free)
		if errors.Is(err, io.EOF) {
			// The receiver has refused, or ended, as one does that closes the stream.
			err = unix.EPIPE
		}
		if err != nil {
			return nil, fmt.Errorf("a free slot: %w", err)
		}
		if w.freed += n; w.freed > w.told {
			return nil, fmt.Errorf("%w: %d slots came back of %d", ErrStream, w.freed, w.told)
		}
	}
	return w.mem[w.told%w.slots()*Slot:][:Slot], nil
}

// named ends the use of the slot of next, blocks of which the stream has named. Without it next
// gives the same one again.
func (w *Window) named() { w.told++ }

// offset is where a slot of next begins.
func (w *Window) offset() uint32 { return uint32(w.told % w.slots() * Slot) }

// block is what the stream names. What was named before in another slot is done with.
func (w *Window) block(f frame) ([]byte, error) {
	if w == nil {
		return nil, fmt.Errorf("%w: a block in a window, and there is none", ErrStream)
	}
	off := uint64(f.size)
	if off >= uint64(len(w.mem)) || off%Slot+f.len > Slot {
		return nil, fmt.Errorf("%w: %d bytes at %d of a window of %d", ErrStream, f.len, off, len(w.mem))
	}
	slot := int(off / Slot)
	if w.reads && slot == w.current {
		return w.mem[off:][:f.len], nil
	}
	if err := w.done(); err != nil {
		return nil, err
	}
	if w.reads, w.current = true, slot; slot != w.told%w.slots() {
		return nil, fmt.Errorf("%w: slot %d is not the next", ErrStream, slot)
	}
	w.told++
	return w.mem[off:][:f.len], nil
}

// done gives the slot back that blocks were read of.
func (w *Window) done() error {
	if w == nil || !w.reads {
		return nil
	}
	w.reads = false
	if _, err := w.back.Write([]byte{0}); err != nil {
		return fmt.Errorf("give a slot back: %w", err)
	}
	return nil
}
