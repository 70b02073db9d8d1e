package worker

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/remote"
)

// fakeCarrier is a guest that exists in the test only, and whose every step the test orders.
type fakeCarrier struct {
	fakeRing
	fakeBell
	done chan struct{}
}

func (c *fakeCarrier) Ring() remote.Ring            { return &c.fakeRing }
func (c *fakeCarrier) Doorbell() remote.Doorbell    { return &c.fakeBell }
func (c *fakeCarrier) Memory() remote.GuestMemory   { return fakeMemory{} }
func (c *fakeCarrier) Welcome(uint32, string) error { return nil }
func (c *fakeCarrier) Done() <-chan struct{}        { return c.done }
func (c *fakeCarrier) Err() error                   { return nil }
func (c *fakeCarrier) Close() error                 { return nil }

// fakeMemory has region 0, of which nothing can be touched.
type fakeMemory struct{}

func (fakeMemory) Await(_ context.Context, id uint32) (remote.Declared, error) {
	if id != 0 {
		return remote.Declared{}, remote.ErrUnknownRegion
	}
	return remote.Declared{VA: 0x1000, Size: remote.Region0Size}, nil
}
func (fakeMemory) ReadAt(uint32, []byte, uint64) error  { return remote.ErrUnknownRegion }
func (fakeMemory) WriteAt(uint32, []byte, uint64) error { return remote.ErrUnknownRegion }

// fakeRing has the records that the test puts there.
type fakeRing struct {
	mu      sync.Mutex
	records [][]byte
	states  []uint32
	onState func(state uint32)      // called before the state is seen
	onPoll  func()                  // called before a look
	waits   bool                    // the guest waits for space
	replies []remote.Outgoing       // payloads are copies
	sleeps  map[uint32]bool         // slots whose guest thread sleeps
	onReply func(o remote.Outgoing) // called without the lock
	words   map[uint32]uint32
	sticky  uint32
	console uint32
	head    uint64
}

// put makes a record available.
func (r *fakeRing) put(t testing.TB, h wire.Header, a wire.Args) {
	rec, err := wire.AppendRecord(nil, h, a)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.records = append(r.records, rec)
	r.mu.Unlock()
}

func (r *fakeRing) Next(in *remote.Incoming) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) == 0 {
		return false, nil
	}
	h, op, err := wire.ParseHeader(r.records[0])
	*in = remote.Incoming{Op: uint16(op), Flags: h.Flags, Slot: h.Slot, Seq: h.Seq, Ctx: h.Ctx, Thread: h.Thread, Bytes: r.records[0]}
	return true, err
}

func (r *fakeRing) Poll(int) bool {
	if r.onPoll != nil {
		r.onPoll()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.records) > 0
}

func (r *fakeRing) Advance() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.head += uint64(len(r.records[0]))
	r.records = r.records[1:]
	return r.waits
}

func (r *fakeRing) Head() uint64 { return r.head }

func (r *fakeRing) SetState(state uint32) {
	if r.onState != nil {
		r.onState(state)
	}
	r.mu.Lock()
	r.states = append(r.states, state)
	r.mu.Unlock()
}

func (r *fakeRing) Reply(o *remote.Outgoing) bool {
	c := *o
	c.Payload = append([]byte(nil), o.Payload...)
	r.mu.Lock()
	r.replies = append(r.replies, c)
	wake := r.sleeps[o.Slot]
	f := r.onReply
	r.mu.Unlock()
	if f != nil {
		f(c)
	}
	return wake
}

func (r *fakeRing) Sleeps(slot uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sleeps[slot]
}

func (r *fakeRing) Complete(word, value uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.words == nil {
		r.words = map[uint32]uint32{}
	}
	r.words[word] = value
}
func (r *fakeRing) SetSticky(res uint32)           { r.sticky = res }
func (r *fakeRing) SetConsole(n uint32)            { r.console = n }
func (r *fakeRing) GPUDone(uint32) (uintptr, bool) { return 0, false }

// fakeBell counts, and never wakes anybody by itself.
type fakeBell struct {
	onWait func() error // what Wait does
	mu     sync.Mutex
	rings  int
	woken  []uint32
}

func (b *fakeBell) Wait(context.Context) error { return b.onWait() }

func (b *fakeBell) Ring() {
	b.mu.Lock()
	b.rings++
	b.mu.Unlock()
}

func (b *fakeBell) Wake(slot uint32) {
	b.mu.Lock()
	b.woken = append(b.woken, slot)
	b.mu.Unlock()
}

// newFake makes a session on a fake carrier, with a driver that the test may wrap.
func newFake(t testing.TB, wrap func(driver.Session) driver.Session) (*Worker, *fakeCarrier) {
	t.Helper()
	c := &fakeCarrier{done: make(chan struct{})}
	w, err := New(c, fakeBackend{&drivertest.Backend{}, wrap}, driver.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return w, c
}

type fakeBackend struct {
	driver.Backend
	wrap func(driver.Session) driver.Session
}

func (b fakeBackend) Open(h driver.Host, o driver.Options) (driver.Session, error) {
	s, err := b.Backend.Open(h, o)
	if err == nil && b.wrap != nil {
		s = b.wrap(s)
	}
	return s, err
}
