package worker

import (
	"bytes"
	"cmp"
	"errors"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/remote"
)

// comingRing has records that wait, and comingMemory is asked for bytes and answers when the test
// says so.
type comingRing struct {
	remote.Ring
	records  [][]byte // each at a position of its own number
	consumed uint64
	come     func()
}

func (r *comingRing) Coming(f func()) { r.come = f }

func (r *comingRing) Consumed() uint64 { return r.consumed }

func (r *comingRing) Behind(at uint64, in *remote.Incoming) (uint64, bool) {
	if at >= uint64(len(r.records)) {
		return at, false
	}
	_, op, err := wire.ParseHeader(r.records[at])
	*in = remote.Incoming{Op: uint16(op), Bytes: r.records[at]}
	return at + 1, err == nil
}

type comingMemory struct {
	remote.GuestMemory
	asked  []uint64 // offsets
	left   []int    // how many had been, each time that they left
	open   []func(err error)
	refuse error
}

// nowhere is a region that is not declared.
const nowhere = 3

func (m *comingMemory) Begin(region uint32, p []byte, off uint64) (<-chan error, error) {
	if m.refuse != nil || region == nowhere {
		return nil, cmp.Or(m.refuse, remote.ErrUnknownRegion)
	}
	done := make(chan error, 1)
	m.asked = append(m.asked, off)
	m.open = append(m.open, func(err error) {
		copy(p, bytes.Repeat([]byte{byte(off >> 20), byte(region)}, len(p)/2))
		done <- err
	})
	return done, nil
}

func (m *comingMemory) Answer(done <-chan error) error { return <-done }

func (m *comingMemory) Ask() { m.left = append(m.left, len(m.asked)) }

func newComing(t *testing.T, copies ...wire.MemcpyStagedArgs) (*early, *comingRing, *comingMemory) {
	t.Helper()
	r, m := &comingRing{}, &comingMemory{}
	for _, c := range copies {
		r.add(t, &c)
	}
	return newEarly(r, m), r, m
}

// newComingUp is newComing of n copies, up(0) on.
func newComingUp(t *testing.T, n int) (*early, *comingRing, *comingMemory) {
	t.Helper()
	e, r, m := newComing(t)
	for i := range n {
		c := up(i)
		r.add(t, &c)
	}
	return e, r, m
}

func (r *comingRing) add(t *testing.T, a wire.Args) {
	t.Helper()
	rec, err := wire.AppendRecord(nil, wire.Header{}, a)
	if err != nil {
		t.Fatal(err)
	}
	r.records = append(r.records, rec)
}

func up(i int) wire.MemcpyStagedArgs {
	return wire.MemcpyStagedArgs{Region: 2, Offset: uint64(i) << 20, Size: 1 << 20, Word: uint32(i), Value: 1}
}

// TestEarly: copies to the GPU are asked for in the ring's order as far as there is room, once
// each, whatever stands between them, and come to whoever makes the copy.
func TestEarly(t *testing.T) {
	e, r, m := newComing(t)
	const n = 12
	for i := range n {
		c := up(i)
		r.add(t, &c)
		r.add(t, &wire.SessionFenceArgs{})
		down, elsewhere, much, none := c, c, c, c
		down.Direction, elsewhere.Region, much.Size, none.Size = 1, nowhere, earlyPiece+1, 0
		for _, other := range []*wire.MemcpyStagedArgs{&down, &elsewhere, &much, &none} {
			r.add(t, other)
		}
	}
	each := len(r.records) / n
	p := make([]byte, 1<<20)
	for i := range n {
		e.look(uint64(i * each))
		if want := min(i+1, n-earlyMost>>20+1); len(m.left) != want || m.left[want-1] != len(m.asked) {
			t.Fatalf("before copy %d: %d were asked for, and left as %v", i, len(m.asked), m.left)
		}
		if want := min(i+earlyMost>>20, n); len(m.asked) != want || m.asked[want-1] != uint64(want-1)<<20 {
			t.Fatalf("before copy %d: asked for %x", i, m.asked)
		}
		m.open[i](nil)
		if ok, err := e.take(up(i), p); !ok || err != nil || p[0] != byte(i) || p[1] != 2 || p[1<<20-1] != 2 {
			t.Fatalf("copy %d: %v, %v, %v", i, ok, err, p[:2])
		}
	}
	if ok, _ := e.take(up(3), p); ok || len(e.came) != 0 || len(e.waits) != 0 || e.bytes != 0 {
		t.Errorf("left: %d, %d, %d bytes", len(e.came), len(e.waits), e.bytes)
	}
}

// TestEarlyWhileOneWaits: a copy that comes while the consumer stands at the one before, as a
// driver has it do, is asked for all the same. What comes at any other time wakes nobody.
func TestEarlyWhileOneWaits(t *testing.T) {
	e, r, m := newComing(t, up(0))
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		e.follow(ended)
	}()
	e.begin(0)
	for i := range uint64(3) { // none is consumed
		e.mu.Lock()
		c := up(int(i) + 1)
		r.add(t, &c)
		e.mu.Unlock()
		r.come()
		asked := func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(m.asked) == int(i)+2
		}
		for end := time.Now().Add(10 * time.Second); !asked(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("behind a copy that waits %d are not asked for", i+1)
			}
		}
	}
	p := make([]byte, 1<<20)
	for i, open := range m.open {
		open(nil)
		if ok, err := e.take(up(i), p); !ok || err != nil || p[0] != byte(i) {
			t.Errorf("copy %d: %v, %v", i, ok, err)
		}
	}
	close(ended)
	<-over
	e.end()
	if r.come(); len(e.coming) != 0 {
		t.Error("where the consumer is at no copy somebody is woken")
	}
}

// TestEarlyRefused: what a copy does not come for makes room after a while, an error is the copy's,
// and bytes that cannot be asked for are left to it.
func TestEarlyRefused(t *testing.T) {
	e, r, m := newComingUp(t, 8)
	e.look(0)
	if len(m.asked) != 4 {
		t.Fatal(m.asked)
	}
	broken := errors.New("broken")
	m.open[0](broken)
	if ok, err := e.take(up(0), make([]byte, 1<<20)); !ok || !errors.Is(err, broken) {
		t.Error(ok, err)
	}
	if ok, _ := e.take(up(7), make([]byte, 1<<20)); ok {
		// Its turn came before its bytes were asked for.
		t.Error("bytes that were not asked for")
	}
	for i := range 2 * earlyWaits { // copies 1 to 6 never come for theirs
		c := up(100 + i)
		r.add(t, &c)
		e.look(uint64(8 + i))
		n := len(m.open)
		if len(e.came) > 4 || e.bytes > earlyMost || len(e.waits) > earlyWaits {
			t.Fatalf("%d bytes in %d pieces, %d wait", e.bytes, len(e.came), len(e.waits))
		}
		if last := e.came[len(e.came)-1]; last.copy == c {
			m.open[n-1](nil)
		}
		if ok, err := e.take(c, make([]byte, 1<<20)); err != nil || ok != (m.asked[n-1] == c.Offset) {
			t.Fatal(ok, err)
		}
	}
	if at := m.asked[len(m.asked)-1]; at != uint64(100+2*earlyWaits-1)<<20 {
		t.Errorf("refused copies leave no room: the last asked for is at %#x", at)
	}
	m.refuse = remote.ErrOutOfBounds
	c := up(1000)
	r.add(t, &c)
	e.look(uint64(len(r.records) - 1))
	if ok, err := e.take(c, make([]byte, 1<<20)); ok || err != nil {
		t.Error(ok, err)
	}
}

// TestEarlyMuch: of copies without number as many are noted as are bounded.
func TestEarlyMuch(t *testing.T) {
	e, r, _ := newComing(t)
	for i := range 10 * earlyWaits {
		c := up(i)
		r.add(t, &c)
	}
	e.look(0)
	if len(e.waits) > earlyWaits || len(e.came) > 4 {
		t.Errorf("%d wait, %d are asked for", len(e.waits), len(e.came))
	}
}

// TestConsumerLooksAhead: what is asked for early is found as the consumer comes to a copy, and by
// no other operation.
func TestConsumerLooksAhead(t *testing.T) {
	c := wire.MemcpyStagedArgs{Offset: 4096, Size: 4096} // of the region that there is
	e, ring, m := newComing(t, c)
	w, _ := newFake(t, nil)
	w.early = e
	for _, a := range []wire.Args{&wire.MemFreeArgs{Ptr: 1}, &c} {
		rec, err := wire.AppendRecord(nil, wire.Header{}, a)
		if err != nil {
			t.Fatal(err)
		}
		w.incoming = remote.Incoming{Op: uint16(a.Op()), Bytes: rec}
		if err := w.consume(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if want := a.Op() == wire.OpMemcpyStaged; (len(m.asked) == 1) != want {
			t.Errorf("at %v %d copies of %d are asked for", a.Op(), len(m.asked), len(ring.records))
		}
	}
	for _, answer := range m.open {
		answer(nil)
	}
}

// TestEarlyLost: a guest's end that brings nothing of what was asked for, while its copies go other
// ways, has no more asked for than a few; once it does, it goes on.
func TestEarlyLost(t *testing.T) {
	e, r, m := newComing(t)
	next := func(i int) {
		c := up(i)
		r.add(t, &c)
		e.look(uint64(i))
		e.pass(c)
	}
	for i := range 5 * earlyLost {
		next(i)
	}
	n := len(m.asked)
	if n != earlyLost || len(e.came) != 0 {
		t.Fatalf("%d are asked for, none of which comes, and %d are noted", n, len(e.came))
	}
	for _, open := range m.open {
		open(nil)
	}
	lost := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.lost
	}
	for end := time.Now().Add(10 * time.Second); lost() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d are given up for ever", lost())
		}
	}
	if next(5 * earlyLost); len(m.asked) != n+1 {
		t.Error("nothing is asked for any more")
	}
}
