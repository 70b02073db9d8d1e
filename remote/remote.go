package remote

import (
	"context"
	"errors"
	"fmt"
)

// Errors of carriers.
var (
	// ErrProtocol: the guest broke a rule of docs/PROTOCOL.md. The session ends.
	ErrProtocol = errors.New("protocol violation")
	// ErrUnknownRegion: no such region was declared.
	ErrUnknownRegion = errors.New("region is not declared")
	// ErrOutOfBounds: an extent leaves its region.
	ErrOutOfBounds = errors.New("extent leaves its region")
	// ErrRefused: a region was declared, and this side does not reach such memory.
	ErrRefused = errors.New("memory of this kind is not reached")
	// ErrClosed: the carrier has ended.
	ErrClosed = errors.New("carrier is closed")
)

// Violation makes an ErrProtocol that says what the guest did.
func Violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Incoming is one record of the ring, as Ring.Next delivers it. The fields are a private, checked
// copy of the header.
type Incoming struct {
	Op     uint16
	Flags  uint16
	Slot   uint32
	Seq    uint32
	Ctx    uint32
	Thread uint32
	// Bytes is the whole record, header included. It aliases memory that the guest can change at
	// any time: read each byte once. It is valid until Advance.
	Bytes []byte
}

// Outgoing is a reply to the request with sequence Seq in a slot.
type Outgoing struct {
	Slot    uint32
	Seq     uint32
	Result  uint32
	Payload []byte // at most SlotPayload bytes
	Total   uint32 // length of the whole reply; what exceeds Payload is fetched later
}

// Ring is the guest's command ring and the way back.
type Ring interface {
	// Next fills r with the next record, or reports false if there is none. An error is final: the
	// ring broke a rule.
	Next(r *Incoming) (bool, error)
	// Poll spins for about n short pauses and reports whether a record may be there.
	Poll(n int) bool
	// Advance consumes the record that Next delivered. It reports whether the guest waits for
	// space: wake slot SlotCount.
	Advance() (wake bool)
	// Head is the number of bytes consumed so far.
	Head() uint64

	// SetState publishes WorkerPolling, WorkerSleeping or WorkerDead. After it returns, Poll sees
	// every record whose producer did not see the new state.
	SetState(state uint32)

	// Reply answers a slot. It reports whether the guest thread sleeps: wake that slot.
	Reply(o *Outgoing) (wake bool)
	// Sleeps reports whether the guest thread of a slot that the GPU has answered sleeps: wake that
	// slot.
	Sleeps(slot uint32) bool
	// Complete stores value in a completion word of the control page.
	Complete(word, value uint32)
	// SetSticky publishes the result that every further call of the guest returns.
	SetSticky(result uint32)
	// SetConsole publishes how many bytes of device output wait.
	SetConsole(n uint32)
	// GPUDone is the address in this process of a slot's gpu_done word, for the GPU to write, if
	// the carrier shares memory.
	GPUDone(slot uint32) (addr uintptr, ok bool)
}

// Foresight is implemented by a Ring whose records nobody changes once they are there: what comes
// behind the next can be looked at, by one goroutine at a time.
type Foresight interface {
	// Behind fills r with the record at a position that is not consumed, and returns that of the
	// next; false: none is there.
	Behind(at uint64, r *Incoming) (next uint64, ok bool)
	// Consumed is Head, for any goroutine.
	Consumed() uint64
	// Coming has f called each time that records have come, by who brings them: f must not wait.
	Coming(f func())
}

// Declared is a region as the guest described it to the carrier.
type Declared struct {
	VA   uint64 // address in the guest process
	Size uint64
	// Of a region over a file: where it begins there, and whether the file is shared with others.
	Offset uint64
	Shared bool
	// Part is how many bytes lie in each file but the last, 0: there is one.
	Part uint64
}

// GuestMemory is one-sided access to the regions that the guest process declared.
type GuestMemory interface {
	// Await returns a region once the carrier can reach all of it, or ErrUnknownRegion when ctx
	// ends first.
	Await(ctx context.Context, region uint32) (Declared, error)
	// ReadAt fills p from region bytes starting at off.
	ReadAt(region uint32, p []byte, off uint64) error
	// WriteAt stores p at region offset off. It is visible to the guest no later than a Reply or
	// Complete that follows.
	WriteAt(region uint32, p []byte, off uint64) error
}

// EarlyMemory is implemented by a GuestMemory that lies across a link.
type EarlyMemory interface {
	// Begin is ReadAt that does not wait: what comes of it comes by the channel, once, and p is not
	// to be touched before. Ask has what was begun leave. Answer waits for what comes, as its
	// receiver may itself.
	Begin(region uint32, p []byte, off uint64) (<-chan error, error)
	Ask()
	Answer(<-chan error) error
}

// Mapper is implemented by a GuestMemory whose regions can be mapped into this process.
type Mapper interface {
	// Map maps a region, at exactly the address at unless that is 0. Mapping it again returns the
	// same memory.
	Map(region uint32, at uint64) ([]byte, error)
	// Unmap ends a mapping. Its memory must not be touched afterwards.
	Unmap(region uint32) error
}

// Lender is implemented by a Mapper that keeps addresses at which regions have lain.
type Lender interface {
	// Lend gives such addresses up, for a driver to reserve them in their place, and reports
	// whether it had all of them; what fills a driver's block at their end may be free instead.
	Lend(at, size uint64) bool
	// Keep takes addresses that were lent and are nobody's any more.
	Keep(at, size uint64) error
}

// Watchable is implemented by a GuestMemory that says what is declared, and that is reached by
// ReadAt and WriteAt alone: a session's that is passed on.
type Watchable interface {
	// Watch has w told of each region but 0, those that are there first. Nothing may be mapped: a
	// region ends whenever the guest says so.
	Watch(w Watcher)
}

// Watcher is told of regions, in the order in which they come and go. It must not wait, nor use the
// memory that tells it.
type Watcher interface {
	// Declared says that all of a region can be reached.
	Declared(id uint32, d Declared)
	// Dropped says that nothing of it can be reached any more. The session may end without.
	Dropped(id uint32)
}

// Exposer is implemented by a GuestMemory whose regions' bytes others than this process's code can
// reach: an adapter.
type Exposer interface {
	// Expose has expose make the bytes of a region reachable, which stay where they are until
	// revoke has returned. That is called, once, before the region ends or its pages go, whatever
	// that is for; it waits for nothing but the adapter, and uses no memory of this. A region is
	// exposed once at a time.
	Expose(region uint32, expose func(mem []byte) (revoke func(), err error)) error
	// Conceal ends that, for a region that is exposed.
	Conceal(region uint32)
}

// DirectMemory is implemented by a GuestMemory that an adapter reaches by itself.
type DirectMemory interface {
	// MoveDirect has the adapter copy n bytes between a region, from off on, and memory of this
	// host's that it knows, a GPU's, from at on, which need not be this process's; in: to that.
	// They are there when it returns. false: nothing is under way, whatever of them may have been
	// copied, and ReadAt or WriteAt are to do it.
	MoveDirect(region uint32, off uint64, m Registered, at, n uint64, in bool) (ok bool, err error)
}

// Registered is memory as an adapter's work requests name it.
type Registered interface {
	// Address is that of its first byte.
	Address() uint64
	// LocalKey stands for it in work requests of this end.
	LocalKey() uint32
}

// Doorbell wakes the side that sleeps.
type Doorbell interface {
	// Wait returns when the guest rang, Ring was called, or ctx ended (its error). One goroutine
	// waits. It may return for no reason.
	Wait(ctx context.Context) error
	// Ring makes the present or next Wait return.
	Ring()
	// Wake wakes the guest thread that sleeps on a slot; SlotCount: threads that wait for ring
	// space.
	Wake(slot uint32)
}

// Carrier is one session's connection to its guest process.
type Carrier interface {
	Ring() Ring
	Memory() GuestMemory
	Doorbell() Doorbell
	// Welcome ends the handshake: status 0 once the session runs, else an errno and a sentence for
	// the user.
	Welcome(status uint32, text string) error
	// Done is closed when the guest process is gone, or has broken the carrier's rules.
	Done() <-chan struct{}
	// Err says why Done was closed: nil after an orderly end.
	Err() error
	// Close ends the connection and releases what it holds. Memory that was mapped is gone
	// afterwards.
	Close() error
}
