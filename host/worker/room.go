package worker

import (
	"context"

	"causeway/host/worker/link"
	"causeway/remote"
)

/*
Where more memory is promised than the GPU has, a request may be refused that the virtual GPU's
limit allows, only because others' sessions are on the GPU at the moment. It is not answered then:
the record stays in the ring, as if it had not been read, and the parent is asked for room.
Meanwhile the consumer does what else is asked of it, so that this session can be parked, moved and
suspended as well; whoever goes on with it executes the record anew. Only if there is no room to be
had the program sees what the driver said.
*/

// room is a session's part in that. The consumer owns it, but for answers.
type room struct {
	asks    func(m link.ToParent) error // nil: nobody gives room
	short   func() uint64
	number  uint64
	answers chan link.Room
	stalled uint64 // bytes that the record that was just executed lacks; 0: it is done
	denied  bool   // it is executed for the last time
}

// openRoom has the session ask its parent.
func (s *starter) openRoom(w *Worker) {
	if s.budget == nil {
		return
	}
	w.room = room{asks: s.link.Send, short: s.budget.Short, answers: make(chan link.Room, 1)}
}

// answered takes the parent's answer. It is called on the link's goroutine, and waits for nobody.
func (r *room) answered(m link.Room) {
	select {
	case <-r.answers: // to a question that nobody waits for any more
	default:
	}
	select {
	case r.answers <- m:
	default:
	}
}

// lacks says how much room the last operation lacked that was refused; 0: that was not why.
func (r *room) lacks() uint64 {
	if r.asks == nil {
		return 0
	}
	n := r.short()
	if r.denied {
		return 0
	}
	return n
}

// stall has an operation not have been executed: it lacked n bytes of room.
func (w *Worker) stall(in *remote.Incoming, n uint64) {
	w.room.stalled = n
	w.blobs.putBack()
	if in.Flags&remote.RecordReply != 0 {
		w.slots[in.Slot].forget()
	}
}

// awaitRoom asks for the room that the incoming record lacks, and serves tasks until it is there or
// will not be.
func (w *Worker) awaitRoom(ctx context.Context) error {
	r := &w.room
	n := r.stalled
	r.stalled = 0
	r.number++
	if err := r.asks(link.Want{Number: r.number, Bytes: n}); err != nil {
		r.denied = true
		return nil
	}
	for {
		select {
		case a := <-r.answers:
			if a.Number == r.number {
				r.denied = !a.Granted
				return nil
			}
		case t := <-w.tasks:
			// Pending stays: runTask may look for one in vain, but none is overlooked.
			if err := t(); err != nil {
				return err
			}
		case <-ctx.Done():
			return errEnded
		}
	}
}
