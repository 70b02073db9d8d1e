package wire

import (
	"fmt"
	"sync/atomic"

	"causeway/cuda"
)

// Call is one request on its way through a Driver. The worker owns it; it is valid until the method
// returns.
type Call struct {
	Op     Op
	Ctx    ID     // the calling thread's current context, 0 if none
	Thread uint32 // names the calling thread's per-thread stream
	Slot   uint32
	Seq    uint32
	// Replay: a recorded request is executed again, in another process. Addresses must come out as
	// they were.
	Replay bool
	// Placed holds the addresses that the operation allocated (memory, module globals), in the
	// driver's order, and whatever else must come out as it was: tokens of what is shared, sizes of
	// what others share. A driver appends them; on replay they are given and Place hands them out.
	Placed []uint64
	// Instances are of libraries that have got code and variables in a context by this operation,
	// whether or not it then succeeds: a driver appends them.
	Instances []Instance
	// Locals say of contexts whose local memory has grown by this operation how much each thread
	// has now, in bytes: a driver appends them.
	Locals []Local
	// Keep asks whether one more may be recorded, of so many variables; nil: any may. Who makes one
	// asks before.
	Keep func(variables int) bool
	// Refuse, unless it is cuda.Success, answers a request with arguments in the driver's place.
	// The request is decoded all the same, so that bytes that were sent ahead for it are taken.
	Refuse cuda.Result
	// Replier answers later. The worker sets it for wait operations.
	Replier Replier

	of       *Call // that this is in another context; nil: none
	next     int
	because  error
	pending  *Pending
	atReturn func()
}

// Instance is a library's code in a context, where its variables lie at addresses that code holds:
// Placed of a LibraryInstance that makes it again.
type Instance struct {
	Library, Ctx ID
	Placed       []uint64
}

// Local is a context's local memory: Bytes of a LocalMemory that has a driver take it again.
type Local struct {
	Ctx   ID
	Bytes uint32
}

// In is the call in another context. What it brings into being is the call's.
func (c *Call) In(ctx ID) *Call {
	in := *c
	in.Ctx, in.of = ctx, c
	return &in
}

// Made notes an instance.
func (c *Call) Made(in Instance) {
	for c.of != nil {
		c = c.of
	}
	c.Instances = append(c.Instances, in)
}

// Grew notes that a context's local memory has grown.
func (c *Call) Grew(l Local) {
	for c.of != nil {
		c = c.of
	}
	c.Locals = append(c.Locals, l)
}

// MayKeep asks Keep, if it is there.
func (c *Call) MayKeep(variables int) bool { return c.Keep == nil || c.Keep(variables) }

// AtReturn has f called when the operation's method has returned. At most one function is.
func (c *Call) AtReturn(f func()) { c.atReturn = f }

// Place returns the next address that a replayed operation must use; ok is false when not
// replaying, or beyond the last.
func (c *Call) Place() (addr uint64, ok bool) {
	if !c.Replay || c.next >= len(c.Placed) {
		return 0, false
	}
	c.next++
	return c.Placed[c.next-1], true
}

// Places is Place for n of them, all or none.
func (c *Call) Places(n int) ([]uint64, bool) {
	if !c.Replay || n > len(c.Placed)-c.next {
		return nil, false
	}
	c.next += n
	return c.Placed[c.next-n : c.next : c.next], true
}

// Because says for people why a replayed operation fails. The first reason stays.
func (c *Call) Because(format string, args ...any) {
	if c.because == nil {
		c.because = &Reason{fmt.Sprintf(format, args...)}
	}
}

// Reason is what Because has said, a *Reason; nil: nothing.
func (c *Call) Reason() error { return c.because }

// Reason is why a replayed operation fails: something of it comes out another.
type Reason struct{ text string }

func (r *Reason) Error() string { return r.text }

// Later keeps the reply of a wait operation open. The method then returns cuda.Success, which is
// ignored. Calling it again returns the same Pending.
func (c *Call) Later() *Pending {
	if c.pending == nil {
		c.pending = &Pending{op: c.Op, slot: c.Slot, seq: c.Seq, to: c.Replier}
	}
	return c.pending
}

// Taken reports whether a Pending will answer this call.
func (c *Call) Taken() bool { return c.pending != nil }

// Replier is the worker's side of a Pending. Its methods are called from any goroutine.
type Replier interface {
	// Reply answers a slot. payload is the caller's to keep.
	Reply(slot, seq uint32, res cuda.Result, payload []byte)
	// GPUDone is where the GPU itself may answer the slot: an address in this process.
	GPUDone(slot uint32) (addr uintptr, ok bool)
	// WakeSlot wakes the guest thread that sleeps on a slot which the GPU has answered.
	WakeSlot(slot, seq uint32)
}

// Pending is an open reply. Exactly one of Done and Wake ends it; later calls do nothing. Any
// goroutine may call.
type Pending struct {
	op        Op
	slot, seq uint32
	to        Replier
	ended     atomic.Bool
}

// Op is the operation that waits.
func (p *Pending) Op() Op { return p.op }

// Done answers. reply may be nil: the reply then has no payload. It travels only with cuda.Success.
func (p *Pending) Done(res cuda.Result, reply Reply) {
	if p.ended.Swap(true) || p.to == nil {
		return
	}
	var payload []byte
	if reply != nil && (res == cuda.Success || reply.Op().Info().Always) {
		payload = AppendReply(nil, reply)
	}
	p.to.Reply(p.slot, p.seq, res, payload)
}

// GPUDone is the alternative to Done for operations without a reply: a GPU that stores seq at addr
// has answered Success. The driver then calls Wake when it notices. ok is false if the carrier
// cannot share the slot with a GPU.
func (p *Pending) GPUDone() (addr uintptr, seq uint32, ok bool) {
	if p.to == nil {
		return 0, 0, false
	}
	addr, ok = p.to.GPUDone(p.slot)
	return addr, p.seq, ok
}

// Wake ends a Pending that the GPU has answered through GPUDone, and wakes the guest thread if it
// sleeps.
func (p *Pending) Wake() {
	if !p.ended.Swap(true) && p.to != nil {
		p.to.WakeSlot(p.slot, p.seq)
	}
}
