package worker

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/remote/shm"
)

// attributesOf lists what a fresh worker would be given of streams' attributes: STREAM:ATTRIBUTE.
func attributesOf(t *testing.T, r *recorder) string {
	t.Helper()
	var list []string
	for _, e := range r.entries() {
		if _, op, _ := wire.ParseHeader(e.rec); op == wire.OpStreamSetAttribute {
			a, err := wire.Decode(op, e.rec, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := a.(*wire.StreamSetAttributeArgs)
			list = append(list, fmt.Sprintf("%d:%d", s.Target, s.Attr))
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestCopiedAttributes: a stream that takes over another's attributes has those and no others,
// whatever either has besides; a stream that is always there has them with its context. What is
// gone is booked no more.
func TestCopiedAttributes(t *testing.T) {
	const own = "1:5 2:6 30:1 30:2 31:3"
	for name, x := range map[string]struct {
		source, target wire.ID
		want           string
	}{
		"to another":              {30, 31, "1:5 2:6 30:1 30:2 31:1 31:2"},
		"to one that has none":    {30, 32, "1:5 2:6 30:1 30:2 31:3 32:1 32:2"},
		"to itself":               {30, 30, own},
		"to one that is gone":     {30, 99, own},
		"from one that is gone":   {99, 30, "1:5 2:6 31:3"},
		"from one that has none":  {32, 30, "1:5 2:6 31:3"},
		"from the legacy stream":  {wire.StreamLegacy, 31, "1:5 2:6 30:1 30:2 31:5"},
		"from the thread's":       {wire.StreamPerThread, 31, "1:5 2:6 30:1 30:2 31:6"},
		"to the thread's":         {30, wire.StreamPerThread, "1:5 2:1 2:2 30:1 30:2 31:3"},
		"from one to the other's": {wire.StreamLegacy, wire.StreamPerThread, "1:5 2:5 30:1 30:2 31:3"},
	} {
		h := &hostMemory{limit: 1 << 30}
		r := newRecorder(h)
		note := func(ctx wire.ID, a wire.Args) {
			t.Helper()
			if err := r.note(&wire.Call{Op: a.Op(), Ctx: ctx}, a.Op().Info(), a, nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		set := func(stream wire.ID, attr uint32) {
			t.Helper()
			note(16, &wire.StreamSetAttributeArgs{Target: stream, Attr: attr, Value: make([]byte, 8)})
		}
		note(0, &wire.PrimaryCtxRetainArgs{Ctx: 16})
		for _, s := range []wire.ID{30, 31, 32} {
			note(16, &wire.StreamCreateArgs{Stream: s})
		}
		note(16, &wire.CtxSetLimitArgs{Limit: 1, Value: 7})
		set(30, 1)
		set(30, 2)
		set(31, 3)
		set(wire.StreamLegacy, 5)
		set(wire.StreamPerThread, 6)
		if got := attributesOf(t, r); got != own {
			t.Fatalf("%q", got)
		}
		others := len(r.entries()) - len(strings.Fields(own))
		var once uint64
		for i := range 3 {
			note(16, &wire.StreamCopyAttributesArgs{Source: x.source, Target: x.target})
			if got := attributesOf(t, r); got != x.want {
				t.Errorf("%s: %q, want %q", name, got, x.want)
			}
			if got := len(r.entries()) - len(strings.Fields(x.want)); got != others {
				t.Errorf("%s: %d others, %d before", name, got, others)
			}
			if i == 0 {
				once = h.used
			} else if h.used != once {
				t.Errorf("%s: %d bytes are booked, again %d", name, once, h.used)
			}
		}
		if note(0, &wire.PrimaryCtxReleaseArgs{Ctx: 16}); h.used != 0 {
			t.Errorf("%s: %d bytes stay booked", name, h.used)
		}
	}
}

// TestBlobsOnce: equal bytes are kept once, for as long as anything has them; their sum is taken
// once for each time that they are asked for, and not at all where there is nothing to find.
func TestBlobsOnce(t *testing.T) {
	h := &hostMemory{limit: 1 << 30}
	s := &newRecorder(h).blobs
	a, b, other := []byte("image"), []byte("image"), []byte("other")
	if p := s.same(a); &p[0] != &a[0] || s.last.p != nil {
		t.Error("bytes are looked for where there are none")
	}
	one := s.keep(a)
	s.forget()
	if p := s.same(nil); p != nil || s.last.p != nil {
		t.Error("no bytes are looked for")
	}
	if p := s.same(other); &p[0] != &other[0] {
		t.Error("other bytes are the same")
	}
	if p := s.same(b); &p[0] != &a[0] {
		t.Error("equal bytes are not the same")
	}
	if s.keep(b) != one || s.keep(other) == one || h.used != 10 || s.byID[one].refs != 2 {
		t.Errorf("%d bytes are booked, %d have the first", h.used, s.byID[one].refs)
	}
	if empty := s.keep(nil); empty == one || s.keep([]byte{}) != empty {
		t.Error("nothing is kept as something, or twice")
	} else {
		s.release(empty)
		s.release(empty)
	}
	b[0] = 'x' // which is not known any more
	s.forget()
	if p := s.same(b); &p[0] != &b[0] {
		t.Error("bytes are found that have changed")
	}
	for _, x := range []struct {
		id, size uint32
		ok       bool
	}{{one, 5, true}, {one, 4, false}, {one, 6, false}, {one + 100, 5, false}} {
		if p, ok := s.Take(x.id, x.size); ok != x.ok || ok && !bytes.Equal(p, a) {
			t.Errorf("%+v: %q, %v", x, p, ok)
		}
	}
	s.release(99)
	s.release(one)
	if _, ok := s.Take(one, 5); !ok || h.used != 10 {
		t.Errorf("they are gone, %d bytes are booked", h.used)
	}
	s.release(one)
	if _, ok := s.Take(one, 5); ok || h.used != 5 || len(s.byHash) != 1 {
		t.Errorf("they stay, %d bytes are booked", h.used)
	}
	if again := s.keep(a); again == one || again == 0 || h.used != 10 {
		t.Errorf("number %d is used again, %d bytes are booked", again, h.used)
	}
}

// TestBlobBounds: so many bytes may be sent ahead, of so many arguments, and each is whole when it
// is taken; what a request took comes back if that is to come again.
func TestBlobBounds(t *testing.T) {
	h := &hostMemory{limit: 1000}
	var b blobs
	b.init(h)
	for _, x := range []struct {
		total uint64
		part  int
		want  cuda.Result
	}{{0, 0, cuda.ErrorOutOfMemory}, {maxBlobBytes + 1, 0, cuda.ErrorOutOfMemory}, {1001, 0, cuda.ErrorOutOfMemory}, {1000, 10, cuda.Success}, {1000, 990, cuda.Success}, {999, 0, cuda.ErrorInvalidValue}} {
		if res := b.append(1, x.total, make([]byte, x.part)); res != x.want {
			t.Errorf("%+v: %v", x, res)
		}
	}
	if h.used != 0 || b.bytes != 0 || len(b.open) != 0 {
		t.Errorf("%d bytes are booked, %d promised", h.used, b.bytes)
	}
	for id := range uint32(maxBlobs) {
		if res := b.append(id, 2, []byte{1}); res != cuda.Success {
			t.Fatal(id, res)
		}
	}
	if res := b.append(maxBlobs, 2, nil); res != cuda.ErrorOutOfMemory {
		t.Errorf("one more: %v", res)
	}
	if _, ok := b.Take(3, 2); ok {
		t.Error("half of them is taken")
	}
	_ = b.append(3, 2, []byte{2})
	for _, size := range []uint32{1, 3} {
		if _, ok := b.Take(3, size); ok {
			t.Error("others are taken")
		}
	}
	for range 2 {
		if p, ok := b.Take(3, 2); !ok || !bytes.Equal(p, []byte{1, 2}) || b.bytes != 2*maxBlobs-2 || h.used != 2*maxBlobs {
			t.Errorf("%v, %v; %d promised, %d booked", p, ok, b.bytes, h.used)
		}
		if _, ok := b.Take(3, 2); ok {
			t.Error("they are taken twice")
		}
		if b.putBack(); b.bytes != 2*maxBlobs || h.used != 2*maxBlobs || len(b.last) != 0 || b.taken != 0 {
			t.Errorf("%d promised, %d booked", b.bytes, h.used)
		}
	}
	_, _ = b.Take(3, 2)
	b.settle()
	b.putBack() // of nothing
	if b.settle(); b.bytes != 2*maxBlobs-2 || h.used != 2*maxBlobs-2 || len(b.open) != maxBlobs-1 {
		t.Errorf("%d promised, %d booked", b.bytes, h.used)
	}
}

// TestRehearsalOfWhatFails: what cannot be made is an error of the rehearsal, the first of them,
// and all the rest is made all the same; a driver's reason is what keeps the session away.
func TestRehearsalOfWhatFails(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.StreamCreateArgs{Stream: 30}, &wire.StreamCreateArgs{Stream: 31}, &wire.StreamCreateArgs{Stream: 32})
	snap := s.snapshot()
	if err := newRecorded(t).w.perform(snap); err != nil {
		t.Error(err)
	}
	n := newRecorded(t)
	n.gpu.things[30], n.gpu.things[31] = &thing{}, &thing{}
	err := n.w.perform(snap)
	var d *differs
	if err == nil || !strings.Contains(err.Error(), "not complete") || !errors.Is(err, cuda.ErrorInvalidValue) || errors.As(err, &d) || n.gpu.things[32] == nil {
		t.Errorf("%v; the last is made: %v", err, n.gpu.things[32] != nil)
	}
}

// TestCostOfRequests: what is booked for a request has its bytes, and where it came to lie.
func TestCostOfRequests(t *testing.T) {
	for _, placed := range []int{0, 3} {
		h := &hostMemory{}
		r := newRecorder(h)
		a := &wire.StreamCreateArgs{Stream: 30}
		e, err := r.entry(&wire.Call{Op: a.Op(), Placed: make([]uint64, placed)}, a)
		if want := entryBytes + uint64(len(e.rec)) + 8*uint64(placed); err != nil || e.cost != want || h.used != want || len(e.placed) != placed {
			t.Errorf("%d booked, %d of the request's, want %d: %v", h.used, e.cost, want, err)
		}
		r.release(e)
		if r.release(e); h.used != 0 {
			t.Errorf("%d stay", h.used)
		}
	}
}

// TestRetainsAreBooked: each retaining of a primary context costs a little, until it is released,
// or the context was reset and is retained anew.
func TestRetainsAreBooked(t *testing.T) {
	h := &hostMemory{}
	r := newRecorder(h)
	note := func(a wire.Args) uint64 {
		t.Helper()
		if err := r.note(&wire.Call{Op: a.Op()}, a.Op().Info(), a, nil, 0); err != nil {
			t.Fatal(err)
		}
		return h.used
	}
	retain, release, reset := &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxReleaseArgs{Ctx: 16}, &wire.PrimaryCtxResetArgs{Ctx: 16}
	if note(release) != 0 || len(r.objects) != 0 {
		t.Error("what was never retained is released")
	}
	one := note(retain)
	for n := range uint64(4) {
		if got := note(retain); got != one+(n+1)*retainBytes || len(r.entries()) != int(n)+2 {
			t.Errorf("%d retained: %d bytes", n+2, got-one)
		}
	}
	if got := note(release); got != one+3*retainBytes {
		t.Errorf("one is released: %d", got-one)
	}
	note(reset)
	if got := note(retain); got != one || len(r.entries()) != 1 {
		t.Errorf("it was reset, and is retained: %d bytes, %d requests", int(got)-int(one), len(r.entries()))
	}
	if note(release) != 0 || len(r.objects) != 0 {
		t.Errorf("%d bytes stay", h.used)
	}
}

// TestAdoptsItsCarrier: a state of no carrier, or of one that cannot be, leaves no descriptor; a
// session in a VM has its carrier where the link feeds it.
func TestAdoptsItsCarrier(t *testing.T) {
	const name = "causeway-test-carrier"
	for what, snap := range map[string]*snapshot{
		"none": {}, "a unix one": {Unix: &shm.UnixState{}}, "a virtiofs one": {Virtiofs: &virtiofsState{}},
	} {
		s := &starter{}
		c, err := s.adoptCarrier(snap, []int{memfile(t, name, 4096)})
		if err == nil || c != nil || s.virtiofs != nil {
			t.Errorf("%s: %v, %v", what, c, err)
		}
		if n := filesOf(t, name); n != 0 {
			t.Errorf("%s: %d descriptors are left", what, n)
		}
	}
}

// TestRestoreAsksTheLender: a driver says after the rebuild whether what was allocated lies in what
// was lent, and not if that failed; what cannot be borrowed is not made again. Nothing is refused
// meanwhile.
func TestRestoreAsksTheLender(t *testing.T) {
	no := errors.New("elsewhere")
	for what, x := range map[string]struct {
		broken         bool
		borrows, after error
		lent           int
		asked          string
	}{
		"it is":           {lent: 1, asked: "ba"},
		"nothing is lent": {asked: "a"},
		"it is not":       {lent: 1, after: no, asked: "ba"},
		"not to be had":   {lent: 1, borrows: no, asked: "b"},
		"cannot be made":  {lent: 1, broken: true, asked: "b"},
	} {
		from, to := newRecorded(t), newRecorded(t)
		from.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.StreamCreateArgs{Stream: 30})
		if x.broken {
			to.gpu.things[30] = &thing{}
		}
		g := &borrowingGPU{lendingGPU: &lendingGPU{plainGPU: to.gpu}, borrows: x.borrows, after: x.after}
		to.w.session = g
		to.w.host.limit = 1
		h, other := handoverPair(t)
		var list []driver.Lent
		for range x.lent {
			list = append(list, driver.Lent{File: memfile(t, "causeway-test-borrowed", 0)})
		}
		err := h.restore(to.w, from.snapshot(), list)
		if x.borrows == nil && (err != nil) != (x.broken || x.after != nil) || x.after != nil && !errors.Is(err, no) || g.asked != x.asked && x.borrows == nil {
			t.Errorf("%s: %v, asked %s", what, err, g.asked)
		}
		if to.w.host.moving {
			t.Errorf("%s: its host memory has no limit any more", what)
		}
		_ = other.Close()
	}
}

// borrowingGPU takes what is lent as a test says.
type borrowingGPU struct {
	*lendingGPU
	borrows, after error
	asked          string
}

func (g *borrowingGPU) Borrow(list []driver.Lent) error {
	g.asked += "b"
	driver.CloseLent(list)
	return g.borrows
}

func (g *borrowingGPU) Borrowed() error {
	g.asked += "a"
	return g.after
}
