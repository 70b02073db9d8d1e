package worker

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// How often the host looks whether a guest's function has returned: at once for a short while, then
// less and less.
const (
	callbackEager  = 30 * time.Microsecond
	callbackNap    = 20 * time.Microsecond
	callbackMaxNap = time.Millisecond
)

const (
	callbackEntry = 16 // bytes: id u64, status u32, number u32
	callbackDone  = remote.SlotsOffset + 64 + uint64(wire.CallbackDoneOffset)
)

// callbacks is the way from streams into the guest's functions (cuda/api/ops_host.idl). Posting and
// looking go around the ring: the consumer may be blocked in a driver call that waits for a
// callback.
type callbacks struct {
	mu      sync.Mutex
	isOpen  bool
	slot    uint32
	base    uint32
	number  uint32 // of the last callback posted
	table   [wire.CallbackCount * callbackEntry]byte
	posted  [wire.CallbackCount]*callback
	waiting []*callback // have no entry yet
	polling bool
}

// callbackState is what another process needs to go on, when nothing is outstanding.
type callbackState struct {
	Open               bool
	Slot, Base, Number uint32
}

func (b *callbacks) state() callbackState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return callbackState{b.isOpen, b.slot, b.base, b.number}
}

func (b *callbacks) restore(s callbackState) {
	b.isOpen, b.slot, b.base, b.number = s.Open && s.Slot < remote.SlotCount, s.Slot, s.Base, s.Number
}

type callback struct {
	id     uint64
	status cuda.Result
	number uint32
	done   chan struct{}
}

func (b *callbacks) opened() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.isOpen
}

// out reports whether a function of the guest was asked for and has not returned.
func (b *callbacks) out() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) > 0 || slices.ContainsFunc(b.posted[:], func(c *callback) bool { return c != nil })
}

// end is for when the session has ended: the ring goes with it, and a driver's thread that asks
// late finds nobody.
func (b *callbacks) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isOpen, b.waiting = false, nil
}

// openAt gives callbacks their slot, once.
func (b *callbacks) openAt(slot, seq uint32) cuda.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isOpen {
		return cuda.ErrorInvalidValue
	}
	b.isOpen, b.slot, b.base = true, slot, seq
	return cuda.Success
}

// CallBack implements driver.Host.
func (w *Worker) CallBack(id uint64, status cuda.Result) bool {
	w.host.release(w.graphs.objects.ended(id))
	c := &callback{id: id, status: status, done: make(chan struct{})}
	b := &w.calls
	b.mu.Lock()
	if !b.isOpen {
		b.mu.Unlock()
		return false // no guest of ours asks for a callback before it can take one
	}
	b.waiting = append(b.waiting, c)
	w.postCallbacks()
	if !b.polling {
		b.polling = true
		go w.routineCallbacks()
	}
	b.mu.Unlock()
	select {
	case <-c.done:
		return true
	case <-w.ended:
		return false
	case <-w.ctx.Done():
		// The guest is gone, or the parent wants the end: the consumer may be in a call of the
		// driver that waits for this very function.
		return false
	}
}

// postCallbacks writes waiting callbacks into free entries and tells the guest. calls.mu is held.
func (w *Worker) postCallbacks() {
	b, some := &w.calls, false
	for len(b.waiting) > 0 {
		i := b.number % wire.CallbackCount
		if b.posted[i] != nil {
			break
		}
		c := b.waiting[0]
		b.waiting = b.waiting[1:]
		b.number++
		c.number = b.number
		b.posted[i] = c
		e := b.table[i*callbackEntry:][:callbackEntry]
		binary.LittleEndian.PutUint64(e, c.id)
		binary.LittleEndian.PutUint32(e[8:], uint32(c.status))
		binary.LittleEndian.PutUint32(e[12:], c.number)
		some = true
	}
	if !some {
		return
	}
	w.guestMu.RLock()
	wake := w.ring.Reply(&remote.Outgoing{Slot: b.slot, Seq: b.base + b.number, Payload: b.table[:], Total: uint32(len(b.table))})
	w.guestMu.RUnlock()
	if wake {
		w.bell.Wake(b.slot)
	}
}

// routineCallbacks looks for callbacks that have returned, for as long as any is outstanding.
func (w *Worker) routineCallbacks() {
	idle, last := callbackNap, time.Now()
	for {
		found, more := w.collectCallbacks()
		if !more {
			return
		}
		if found {
			idle, last = callbackNap, time.Now()
			continue
		}
		if time.Since(last) < callbackEager {
			continue
		}
		select {
		case <-w.ended:
			return
		case <-time.After(idle):
			idle = min(idle+idle/2, callbackMaxNap)
		}
	}
}

// collectCallbacks ends the callbacks that the guest says have returned. more: some are still out.
func (w *Worker) collectCallbacks() (found, more bool) {
	b := &w.calls
	var words [4 * wire.CallbackCount]byte
	w.guestMu.RLock()
	err := w.memory.ReadAt(0, words[:], callbackDone+uint64(b.slot)*uint64(remote.SlotSize))
	w.guestMu.RUnlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.polling = false // the carrier has ended, and with it the session
		return false, false
	}
	for i, c := range b.posted {
		if c == nil {
			continue
		}
		if binary.LittleEndian.Uint32(words[4*i:]) != c.number {
			more = true
			continue
		}
		b.posted[i], found = nil, true
		close(c.done)
	}
	if found && len(b.waiting) > 0 {
		w.postCallbacks()
		more = true
	}
	b.polling = more
	return found, more
}
