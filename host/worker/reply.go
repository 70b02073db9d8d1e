package worker

import (
	"bytes"
	"sync"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// slot is the worker's private view of a reply slot.
type slot struct {
	mu   sync.Mutex
	op   wire.Op
	seq  uint32 // of the request being answered
	open bool   // it is not answered yet
	fine bool   // that it is refused is no failure of the program's
	more []byte // the whole of a reply that did not fit, until its last part was fetched
	out  remote.Outgoing
}

// begin opens a slot for a request. It returns how many bytes of an earlier reply it let go of.
func (s *slot) begin(op wire.Op, seq uint32) (dropped uint64) {
	s.mu.Lock()
	s.op, s.seq, s.open, s.fine = op, seq, true, false
	var old []byte
	if op != wire.OpReplyMore {
		old, s.more = s.more, nil
	}
	s.mu.Unlock()
	return uint64(len(old))
}

// excuse has the refusal that its request gets not be counted.
func (s *slot) excuse() {
	s.mu.Lock()
	s.fine = true
	s.mu.Unlock()
}

// forget closes a slot whose request will come again.
func (s *slot) forget() {
	s.mu.Lock()
	s.open = false
	s.mu.Unlock()
}

// Reply implements wire.Replier. A reply that comes after the slot went on to another request is
// dropped.
func (w *Worker) Reply(index, seq uint32, res cuda.Result, payload []byte) {
	w.closeSlot(index, seq, func(s *slot) (wake bool) {
		if !s.fine {
			w.count.failed(res)
		}
		if res == cuda.Success && w.deferred.Load() != 0 && !s.op.Info().OwnReply {
			if d := cuda.Result(w.deferred.Swap(0)); d != cuda.Success {
				res, payload = d, nil
			}
		}
		return w.put(s, index, res, payload)
	})
}

// closeSlot closes a slot that is open for a request of this number, whose guest hears of it by
// how, which says whether it sleeps.
func (w *Worker) closeSlot(index, seq uint32, how func(s *slot) (wake bool)) {
	if index >= remote.SlotCount {
		return
	}
	w.guestMu.RLock()
	s := &w.slots[index]
	s.mu.Lock()
	wake := false
	if s.open && s.seq == seq {
		s.open = false
		wake = how(s)
	}
	s.mu.Unlock()
	w.guestMu.RUnlock()
	if wake {
		w.bell.Wake(index)
	}
}

// put writes a reply to the carrier. s is locked.
func (w *Worker) put(s *slot, index uint32, res cuda.Result, payload []byte) bool {
	total := uint32(len(payload))
	if total > remote.SlotPayload && !w.host.reserve(uint64(total)) {
		if !s.op.Info().OwnReply {
			res, payload, total = cuda.ErrorOutOfMemory, nil, 0
		} else { // the guest must learn of what was made or ended
			w.host.book(uint64(total))
		}
	}
	if total > remote.SlotPayload {
		s.more = bytes.Clone(payload)
		payload = payload[:remote.SlotPayload]
	}
	s.out = remote.Outgoing{Slot: index, Seq: s.seq, Result: uint32(res), Payload: payload, Total: total}
	wake := w.ring.Reply(&s.out)
	s.out.Payload = nil
	return wake
}

// GPUDone implements wire.Replier.
func (w *Worker) GPUDone(index uint32) (uintptr, bool) { return w.ring.GPUDone(index) }

// WakeSlot implements wire.Replier. A thread that spins has seen the GPU's answer; its slot is left
// alone.
func (w *Worker) WakeSlot(index, seq uint32) {
	w.closeSlot(index, seq, func(*slot) bool { return w.ring.Sleeps(index) })
}

// replyMore fetches a part of the reply that is kept for a slot.
func (w *Worker) replyMore(index, offset uint32) ([]byte, cuda.Result) {
	if index >= remote.SlotCount {
		return nil, cuda.ErrorInvalidValue
	}
	s := &w.slots[index]
	s.mu.Lock()
	defer s.mu.Unlock()
	if uint64(offset) >= uint64(len(s.more)) {
		return nil, cuda.ErrorInvalidValue
	}
	const most = int(remote.SlotPayload) - 16 // less the span in front, aligned
	part := s.more[offset:]
	if len(part) <= most {
		w.host.release(uint64(len(s.more)))
		s.more = nil
		return part, cuda.Success
	}
	return part[:most], cuda.Success
}
