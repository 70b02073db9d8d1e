package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"causeway/remote"
	"causeway/remote/sys"
)

// recordHeader is the size of a record's header, and the least size of a record.
const recordHeader = uint64(unsafe.Sizeof(remote.Record{}))

// Ring implements remote.Ring over a mapped region 0.
type Ring struct {
	mem  []byte
	ring []byte

	tailWord, headWord  *atomic.Uint64
	state, sticky       *atomic.Uint32
	console, spaceWaits *atomic.Uint32

	head, tail uint64 // private: consumed, and known to be there
	said       uint64 // the head that the producer was told
	size       uint64 // of the record that Next delivered
}

var _ remote.Ring = (*Ring)(nil)

// NewRing takes region 0 as mapped memory. head is 0, or where an earlier consumer of the session
// stopped.
func NewRing(mem []byte, head uint64) (*Ring, error) {
	if uint64(len(mem)) != remote.Region0Size {
		return nil, fmt.Errorf("region 0 has %d bytes, not %d", len(mem), remote.Region0Size)
	}
	if uintptr(unsafe.Pointer(&mem[0]))%64 != 0 {
		return nil, fmt.Errorf("region 0 is not aligned to 64 bytes")
	}
	var c remote.ControlPage
	r := &Ring{
		mem:        mem,
		ring:       mem[remote.RingOffset : remote.RingOffset+remote.RingSize],
		tailWord:   word64(mem, unsafe.Offsetof(c.Tail)),
		headWord:   word64(mem, unsafe.Offsetof(c.Head)),
		state:      word32(mem, unsafe.Offsetof(c.WorkerState)),
		sticky:     word32(mem, unsafe.Offsetof(c.Sticky)),
		console:    word32(mem, unsafe.Offsetof(c.Console)),
		spaceWaits: word32(mem, unsafe.Offsetof(c.SpaceWaiters)),
		head:       head,
		tail:       head,
		said:       head,
	}
	return r, nil
}

// CheckControl checks the magic and version that the guest wrote before the handshake.
func CheckControl(mem []byte) error {
	var c remote.ControlPage
	magic := word32(mem, unsafe.Offsetof(c.Magic)).Load()
	version := word32(mem, unsafe.Offsetof(c.Version)).Load()
	size := word64(mem, unsafe.Offsetof(c.RingSize)).Load()
	switch {
	case magic != remote.HelloMagic:
		return remote.Violation("control page magic is %#x, not %#x", magic, remote.HelloMagic)
	case version != remote.ProtocolVersion:
		return remote.Violation("guest speaks protocol version %d, this host %d", version, remote.ProtocolVersion)
	case size != remote.RingSize:
		return remote.Violation("ring size is %d, not %d", size, remote.RingSize)
	}
	return nil
}

func word32(mem []byte, off uintptr) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off : off+4][0]))
}

func word64(mem []byte, off uintptr) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[off : off+8][0]))
}

// Head implements remote.Ring.
func (r *Ring) Head() uint64 { return r.head }

// Next implements remote.Ring.
func (r *Ring) Next(in *remote.Incoming) (bool, error) {
	if r.tail == r.head {
		tail := r.tailWord.Load()
		if tail == r.head {
			return false, nil
		}
		if n := tail - r.head; n > remote.RingSize || n%8 != 0 {
			return false, remote.Violation("ring tail %d does not follow head %d", tail, r.head)
		}
		r.tail = tail
	}
	if err := r.Record(r.head, r.tail, in); err != nil {
		return false, err
	}
	r.size = uint64(len(in.Bytes))
	if r.tail-r.head > r.size { // while this record is executed, the next comes nearer
		prefetch(unsafe.Pointer(&r.ring[(r.head+r.size)&(remote.RingSize-1)]))
	}
	return true, nil
}

// Record is the one at a position, of what lies before tail, which is at most a ring behind it.
func (r *Ring) Record(at, tail uint64, in *remote.Incoming) error {
	pos := at & (remote.RingSize - 1)
	avail := min(tail-at, remote.RingSize-pos)
	if avail < recordHeader {
		return remote.Violation("%d bytes are no record", avail)
	}
	h := *(*remote.Record)(unsafe.Pointer(&r.ring[pos])) // the one read of the header
	size := uint64(h.Size)
	if size < recordHeader || size%8 != 0 || size > avail {
		return remote.Violation("record of %d bytes at %d, where %d are left", size, at, avail)
	}
	*in = remote.Incoming{
		Op: h.Op, Flags: h.Flags, Slot: h.Slot, Seq: h.Seq, Ctx: h.Ctx, Thread: h.Thread,
		Bytes: r.ring[pos : pos+size : pos+size],
	}
	return nil
}

// Poll implements remote.Ring.
func (r *Ring) Poll(n int) bool {
	if r.tail != r.head {
		return true
	}
	for range n {
		if r.tailWord.Load() != r.head {
			return true
		}
		sys.Pause()
	}
	return r.tailWord.Load() != r.head
}

// headStep is how far head runs ahead of what the producer is told while more is there: producers
// that wait for room poll its line, and the store waits for everything that the record's execution
// has stored for other cores.
const headStep = remote.RingSize / 64

// Advance implements remote.Ring. The producer is told of a record that was the last known, of
// others in steps.
func (r *Ring) Advance() bool {
	r.head += r.size
	r.size = 0
	if r.head != r.tail && r.head-r.said < headStep {
		return false
	}
	r.said = r.head
	r.headWord.Swap(r.head) // a full fence, as in SetState
	// Not before a quarter is free: any record fits then, and who sleeps is not woken for one
	// record after the other.
	return r.spaceWaits.Load() != 0 && r.tailWord.Load()-r.head <= remote.RingSize/4*3 && r.spaceWaits.Swap(0) != 0
}

// SetState implements remote.Ring. The store is a full fence: the tail is read after it. Go's
// stores are, too, but not under its race detector, whose stores only release; what is exchanged is
// a fence everywhere, and costs what a store does.
func (r *Ring) SetState(state uint32) { r.state.Swap(state) }

// Reply implements remote.Ring.
func (r *Ring) Reply(o *remote.Outgoing) bool {
	if o.Slot >= remote.SlotCount {
		return false
	}
	s := r.slot(o.Slot)
	n := copy(r.payload(o.Slot), o.Payload)
	s.result.Store(o.Result)
	s.payloadLen.Store(uint32(n))
	s.replyLen.Store(max(o.Total, uint32(n)))
	s.seqDone.Swap(o.Seq) // a full fence, as in SetState
	return s.waiting.Load() != 0 && s.waiting.Swap(0) != 0
}

// Sleeps implements remote.Ring.
func (r *Ring) Sleeps(slot uint32) bool {
	if slot >= remote.SlotCount {
		return false
	}
	w := r.waitWord(slot)
	return w.Load() != 0 && w.Swap(0) != 0
}

// slotWords mirrors remote.Slot with atomic words.
type slotWords struct {
	seqDone, result, payloadLen, replyLen, gpuDone, _, waiting atomic.Uint32
}

func (r *Ring) slot(i uint32) *slotWords {
	off := remote.SlotsOffset + uint64(i)*uint64(remote.SlotSize)
	return (*slotWords)(unsafe.Pointer(&r.mem[off]))
}

func (r *Ring) payload(i uint32) []byte {
	off := remote.SlotsOffset + uint64(i)*uint64(remote.SlotSize) + uint64(unsafe.Sizeof(remote.Slot{}))
	return r.mem[off : off+uint64(remote.SlotPayload)]
}

// Complete implements remote.Ring. A word that does not exist is ignored: the guest picked it.
func (r *Ring) Complete(word, value uint32) {
	if word < remote.WordCount {
		word32(r.mem, uintptr(remote.WordsOffset)+uintptr(word)*4).Store(value)
	}
}

// SetSticky implements remote.Ring.
func (r *Ring) SetSticky(result uint32) { r.sticky.Store(result) }

// SetConsole implements remote.Ring.
func (r *Ring) SetConsole(n uint32) { r.console.Store(n) }

// GPUDone implements remote.Ring.
func (r *Ring) GPUDone(slot uint32) (uintptr, bool) {
	if slot >= remote.SlotCount {
		return 0, false
	}
	return uintptr(unsafe.Pointer(&r.slot(slot).gpuDone)), true
}

// waitWord is the word that a guest thread sleeps on: a slot's waiting, or space_waiters for
// SlotCount.
func (r *Ring) waitWord(slot uint32) *atomic.Uint32 {
	if slot >= remote.SlotCount {
		return r.spaceWaits
	}
	return &r.slot(slot).waiting
}

// Publish stores tail on the producer's behalf, for a carrier that fills the ring itself. It
// reports whether the consumer sleeps.
func (r *Ring) Publish(tail uint64) (sleeping bool) {
	r.tailWord.Store(tail)
	return r.state.Load() == remote.WorkerSleeping
}
