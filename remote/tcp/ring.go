package tcp

import (
	"sync/atomic"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/shm"
)

// ring is the mirror's ring, whose replies leave as frames. Errors of sending are the receiver's to
// notice: the connection is gone then.
type ring struct {
	*shm.Ring
	c    *Carrier
	told uint64        // head that the guest knows
	head atomic.Uint64 // for the receiver
	tail atomic.Uint64 // up to where records are there
	came atomic.Pointer[func()]
}

var (
	_ remote.Ring      = (*ring)(nil)
	_ remote.Foresight = (*ring)(nil)
)

// publish stores the tail, up to which the mirror has records: they stay as they are until they are
// consumed. It reports whether the consumer sleeps.
func (r *ring) publish(tail uint64) bool {
	r.tail.Store(tail)
	if f := r.came.Load(); f != nil {
		(*f)()
	}
	return r.Publish(tail)
}

// Coming implements remote.Foresight.
func (r *ring) Coming(f func()) { r.came.Store(&f) }

// Consumed implements remote.Foresight.
func (r *ring) Consumed() uint64 { return r.head.Load() }

// Behind implements remote.Foresight.
func (r *ring) Behind(at uint64, in *remote.Incoming) (next uint64, ok bool) {
	head, tail := r.head.Load(), r.tail.Load()
	if at < head || at >= tail || r.Record(at, tail, in) != nil {
		// Of what is no record Next says so.
		return at, false
	}
	return at + uint64(len(in.Bytes)), true
}

// Advance implements remote.Ring. The guest is told once per quarter of the ring.
func (r *ring) Advance() bool {
	r.Ring.Advance()
	head := r.Ring.Head()
	r.head.Store(head)
	if r.c.moves.asked.Load() {
		r.c.moves.consumed(head)
	}
	if head-r.told >= remote.RingSize/4 {
		r.told = head
		_ = r.c.send(frame.Header{Kind: frame.Head, Arg: head}, nil, nil)
	}
	return false
}

// SetState implements remote.Ring. The guest needs no doorbell, so that all it must know is the
// end.
func (r *ring) SetState(state uint32) {
	r.Ring.SetState(state)
	if state == remote.WorkerDead {
		r.control(remote.ControlPageWorkerStateOffset, state)
	}
}

// Reply implements remote.Ring. The guest's net thread wakes the waiter.
func (r *ring) Reply(o *remote.Outgoing) bool {
	if o.Slot >= remote.SlotCount { // its library would take the frame for a broken host's
		return false
	}
	n := uint32(len(o.Payload))
	var b [frame.SlotHeader]byte
	frame.Reply{Seq: o.Seq, Result: o.Result, Len: n, Total: max(o.Total, n)}.Append(b[:0])
	_ = r.c.send(frame.Header{Kind: frame.Slot, Arg: uint64(o.Slot)}, b[:], o.Payload)
	return false
}

// Complete implements remote.Ring.
func (r *ring) Complete(word, value uint32) {
	if word < remote.WordCount {
		_ = r.c.send(frame.Header{Kind: frame.Word, Arg: frame.Pair(word, value)}, nil, nil)
	}
}

// SetSticky implements remote.Ring.
func (r *ring) SetSticky(result uint32) { r.control(remote.ControlPageStickyOffset, result) }

// SetConsole implements remote.Ring.
func (r *ring) SetConsole(n uint32) { r.control(remote.ControlPageConsoleOffset, n) }

func (r *ring) control(off, value uint32) {
	_ = r.c.send(frame.Header{Kind: frame.Control, Arg: frame.Pair(off, value)}, nil, nil)
}

// Sleeps implements remote.Ring: no GPU answers a slot.
func (r *ring) Sleeps(uint32) bool { return false }

// GPUDone implements remote.Ring: no GPU here can write there.
func (r *ring) GPUDone(uint32) (uintptr, bool) { return 0, false }
