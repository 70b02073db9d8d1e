package remotetest

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"causeway/remote"
	"causeway/remote/sys"
)

// spins is how often a word is looked at before sleeping: some 100 µs.
const spins = 50_000

// Word32 is a word of region 0.
func (g *Guest) Word32(off uintptr) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&g.Mem[off : off+4][0]))
}

func (g *Guest) word64(off uintptr) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&g.Mem[off : off+8][0]))
}

// Address is where mem lies in this process.
func Address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mem[0]))) }

// Prepare initialises region 0.
func Prepare(mem []byte) {
	c := (*remote.ControlPage)(unsafe.Pointer(&mem[0]))
	c.Magic, c.Version, c.RingSize = remote.HelloMagic, remote.ProtocolVersion, remote.RingSize
}

// Publish stores tail and rings the doorbell if the worker sleeps, or has to be sent it.
func (g *Guest) Publish(tail uint64) {
	var c remote.ControlPage
	g.tail = tail
	g.word64(unsafe.Offsetof(c.Tail)).Swap(tail) // a full fence under the race detector, too
	if g.pushes || g.Word32(unsafe.Offsetof(c.WorkerState)).Load() == remote.WorkerSleeping {
		g.carrier.Ring()
	}
}

// Sleeping says whether the worker sleeps.
func (g *Guest) Sleeping() bool {
	var c remote.ControlPage
	return g.Word32(unsafe.Offsetof(c.WorkerState)).Load() == remote.WorkerSleeping
}

// Sticky and Console are the words of the control page.
func (g *Guest) Sticky() uint32 {
	var c remote.ControlPage
	return g.Word32(unsafe.Offsetof(c.Sticky)).Load()
}

// Console is the number of bytes of device output that wait.
func (g *Guest) Console() uint32 {
	var c remote.ControlPage
	return g.Word32(unsafe.Offsetof(c.Console)).Load()
}

// Word is a completion word.
func (g *Guest) Word(i uint32) uint32 {
	return g.Word32(uintptr(remote.WordsOffset) + uintptr(i)*4).Load()
}

func (g *Guest) putSkip(n uint64) {
	r := (*remote.Record)(unsafe.Pointer(&g.Mem[remote.RingOffset+g.tail%remote.RingSize]))
	*r = remote.Record{Size: uint32(n), Op: remote.OpSkip}
}

// awaitSpace waits for n bytes of ring.
func (g *Guest) awaitSpace(n uint64) error {
	var c remote.ControlPage
	head, waiters := g.word64(unsafe.Offsetof(c.Head)), g.Word32(unsafe.Offsetof(c.SpaceWaiters))
	ok := func() bool { return g.tail+n-head.Load() <= remote.RingSize }
	return g.wait(ok, remote.SlotCount, waiters)
}

// Await waits for a reply.
func (g *Guest) Await(slot, seq uint32) error {
	s := g.slot(slot)
	ok := func() bool {
		return (*atomic.Uint32)(unsafe.Pointer(&s.SeqDone)).Load() == seq || (*atomic.Uint32)(unsafe.Pointer(&s.GpuDone)).Load() == seq
	}
	return g.wait(ok, slot, (*atomic.Uint32)(unsafe.Pointer(&s.Waiting)))
}

// ByGPU reports whether a call that has its answer has it from the GPU: the slot holds the reply of
// one before, and success is all there is to say.
func (g *Guest) ByGPU(slot, seq uint32) bool {
	return (*atomic.Uint32)(unsafe.Pointer(&g.slot(slot).SeqDone)).Load() != seq
}

// wait spins until ok, then sleeps on word.
func (g *Guest) wait(ok func() bool, slot uint32, word *atomic.Uint32) error {
	for range spins {
		if ok() {
			return nil
		}
	}
	for end := time.Now().Add(Limit); time.Now().Before(end); {
		word.Swap(1)
		if ok() {
			word.Store(0)
			return nil
		}
		select {
		case <-g.carrier.Gone():
			if ok() {
				return nil
			}
			return ErrGone
		default:
		}
		g.carrier.Sleep(slot, word)
	}
	return ErrSilent
}

// futexWait returns when woken, or when word is no longer 1. Nothing but a wake-up ends it in time:
// one that is lost is an error of the test.
func futexWait(word *atomic.Uint32) { sys.FutexWait(word, 1, Limit) }

// WakeAll ends the sleep of everybody, when Gone is closed.
func (g *Guest) WakeAll() {
	var c remote.ControlPage
	wake(g.Word32(unsafe.Offsetof(c.SpaceWaiters)))
	for i := range remote.SlotCount {
		wake((*atomic.Uint32)(unsafe.Pointer(&g.slot(i).Waiting)))
	}
}

func wake(word *atomic.Uint32) {
	if word.Swap(0) != 0 {
		sys.FutexWake(word)
	}
}

// freed follows the host's head, on the host's behalf.
func (g *Guest) freed(head uint64) {
	var c remote.ControlPage
	g.word64(unsafe.Offsetof(c.Head)).Swap(head)
	wake(g.Word32(unsafe.Offsetof(c.SpaceWaiters)))
}

func (g *Guest) slot(i uint32) *remote.Slot {
	return (*remote.Slot)(unsafe.Pointer(&g.Mem[remote.SlotsOffset+uint64(i)*uint64(remote.SlotSize)]))
}

// Reply reads an answered slot: the result, the payload, and how long the whole reply is.
func (g *Guest) Reply(slot uint32) (uint32, []byte, uint32) {
	s := g.slot(slot)
	off := remote.SlotsOffset + uint64(slot)*uint64(remote.SlotSize) + uint64(unsafe.Sizeof(*s))
	if s.PayloadLen > remote.SlotPayload {
		panic(fmt.Sprintf("host wrote a payload of %d bytes", s.PayloadLen))
	}
	return s.Result, bytes.Clone(g.Mem[off : off+uint64(s.PayloadLen)]), s.ReplyLen
}

// State is what the worker says of itself.
func (g *Guest) State() uint32 { return g.Word32(remote.ControlPageWorkerStateOffset).Load() }

// answer stores a reply on the host's behalf, for carriers whose host cannot.
func (g *Guest) answer(slot, seq, result, total uint32, payload []byte) {
	s := g.slot(slot)
	off := remote.SlotsOffset + uint64(slot)*uint64(remote.SlotSize) + uint64(unsafe.Sizeof(*s))
	copy(g.Mem[off:off+uint64(remote.SlotPayload)], payload)
	s.Result, s.PayloadLen, s.ReplyLen = result, uint32(len(payload)), total
	// A full fence under the race detector, too.
	(*atomic.Uint32)(unsafe.Pointer(&s.SeqDone)).Swap(seq)
	wake((*atomic.Uint32)(unsafe.Pointer(&s.Waiting)))
}

// Idle says whether the worker has consumed everything.
func (g *Guest) Idle() bool {
	return g.word64(remote.ControlPageHeadOffset).Load() == g.word64(remote.ControlPageTailOffset).Load()
}
