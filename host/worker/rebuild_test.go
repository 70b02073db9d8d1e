package worker

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/remote"
)

// recorded is a session that does what a test says and can move.
type recorded struct {
	t    testing.TB
	w    *Worker
	gpu  *plainGPU
	ring *fakeRing
	seq  uint32
}

func newRecorded(t testing.TB) *recorded {
	s := &recorded{t: t}
	w, c := newFake(t, func(d driver.Session) driver.Session { s.gpu = newPlain(d); return s.gpu })
	s.w, s.ring = w, &c.fakeRing
	return s
}

// do has the consumer execute a request, and reports its result.
func (s *recorded) do(ctx uint32, a wire.Args) cuda.Result {
	s.t.Helper()
	w := s.w
	enc := wire.Encoder{Blob: func(p []byte) (uint32, error) {
		id := uint32(len(w.blobs.open) + 1000)
		if res := w.blobs.append(id, uint64(len(p)), p); res != cuda.Success {
			return 0, res
		}
		return id, nil
	}}
	rec, err := enc.Record(nil, wire.Header{Ctx: ctx}, a)
	if err != nil {
		s.t.Fatal(err)
	}
	in := remote.Incoming{Op: uint16(a.Op()), Ctx: ctx, Bytes: rec}
	wants := a.Op().Info().Mode != wire.Async
	if wants {
		s.seq++
		in.Flags, in.Seq = remote.RecordReply, s.seq
	}
	s.ring.replies = s.ring.replies[:0]
	if err := w.execute(&in); err != nil {
		s.t.Fatal(err)
	}
	if wants {
		return cuda.Result(s.ring.replies[0].Result)
	}
	return cuda.Result(w.deferred.Swap(0))
}

// must is do of what must succeed.
func (s *recorded) must(ctx uint32, as ...wire.Args) {
	s.t.Helper()
	for _, a := range as {
		if res := s.do(ctx, a); res != cuda.Success {
			s.t.Fatalf("%v: %v", a.Op(), res)
		}
	}
}

// snapshot is what another worker would begin with.
func (s *recorded) snapshot() *snapshot {
	s.t.Helper()
	snap, err := s.w.snapshot()
	if err != nil {
		s.t.Fatal(err)
	}
	return snap
}

// moved is the session in another worker, which must be like this one.
func (s *recorded) moved() *recorded {
	s.t.Helper()
	n := newRecorded(s.t)
	if err := n.w.restore(s.snapshot()); err != nil {
		s.t.Fatalf("rebuild: %v, of:\n%v", err, s.gpu)
	}
	if a, b := s.gpu.String(), n.gpu.String(); a != b {
		s.t.Fatalf("rebuilt is:\n%s\ninstead of:\n%s", b, a)
	}
	if a, b := len(s.w.record.blobs.byID), len(n.w.record.blobs.byID); a != b || a != s.gpu.images() {
		s.t.Fatalf("%d images are kept, rebuilt are %d, in use %d", a, b, s.gpu.images())
	}
	return n
}

var images = func() (list [][]byte) {
	for i := range 3 {
		list = append(list, bytes.Repeat([]byte{byte('a' + i)}, wire.MaxRecord+1000))
	}
	return append(list, []byte("short"))
}()

// TestRebuildByChance runs requests by chance, and moves the session now and then: what comes out
// is what went in, and a session that moved is recorded as well as one that did not.
func TestRebuildByChance(t *testing.T) {
	rounds, steps := 60, 150
	if testing.Short() {
		rounds = 10
	}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(uint64(seed), 7))
		s := newRecorded(t)
		for range steps {
			ctx := uint32(r.IntN(3)) + 1
			id := func(kind int) uint32 { return uint32(10*kind + r.IntN(4)) }
			u := func(n int) uint32 { return uint32(r.IntN(n)) }
			addr := uint64(0x10000 + 0x1000*r.IntN(10))
			s.do(ctx, []wire.Args{
				&wire.PrimaryCtxRetainArgs{Ctx: u(2) + 1}, &wire.PrimaryCtxRetainArgs{Ctx: u(2) + 1}, &wire.PrimaryCtxReleaseArgs{Ctx: u(2) + 1},
				&wire.PrimaryCtxResetArgs{Ctx: u(20) + 1}, &wire.PrimaryCtxSetFlagsArgs{Ctx: u(2) + 1, Flags: u(9)}, &wire.CtxCreateArgs{Ctx: 3},
				&wire.CtxDestroyArgs{Ctx: 3 + u(5)}, &wire.CtxSetLimitArgs{Limit: u(3), Value: uint64(u(99))}, &wire.CtxSetLimitArgs{Limit: u(3), Value: uint64(u(99))},
				&wire.ModuleLoadArgs{Module: id(1), Image: images[u(4)]}, &wire.ModuleLoadArgs{Module: id(1), Image: images[u(4)]}, &wire.ModuleUnloadArgs{Module: id(1)},
				&wire.ModuleGetFunctionArgs{Module: id(1), Func: id(2), Name: []byte("f")}, &wire.FuncSetAttributeArgs{Func: id(2), Attr: int32(u(3)), Dev: int32(u(2)), Value: int32(u(99))},
				&wire.FuncSetCacheConfigArgs{Func: id(2), Config: u(4)}, &wire.StreamCreateArgs{Stream: id(3)}, &wire.StreamDestroyArgs{Stream: id(3)},
				&wire.EventCreateArgs{Event: id(4)}, &wire.EventCreateArgs{Event: id(4)}, &wire.EventRecordArgs{Event: id(4), Stream: u(3)}, &wire.EventRecordArgs{Event: id(4), Stream: u(3)},
				&wire.EventDestroyArgs{Event: id(4)}, &wire.MemAllocArgs{Size: uint64(u(99)) + 1}, &wire.MemFreeArgs{Ptr: addr},
			}[r.IntN(24)])
			if n := len(s.w.record.blobs.byID); n != s.gpu.images() {
				t.Fatalf("seed %d: %d images are kept, %d in use", seed, n, s.gpu.images())
			}
			s.tied(t)
			if r.IntN(40) == 0 {
				s = s.moved()
			}
		}
		s.moved()
		for ctx := range uint32(2) { // one that was reset is nobody's to release
			s.do(0, &wire.PrimaryCtxRetainArgs{Ctx: ctx + 1})
		}
		for range 100 {
			s.do(0, &wire.PrimaryCtxReleaseArgs{Ctx: 1})
			s.do(0, &wire.PrimaryCtxReleaseArgs{Ctx: 2})
		}
		s.do(0, &wire.CtxDestroyArgs{Ctx: 3})
		if s.w.host.used != 0 || len(s.w.record.objects) != 0 || len(s.w.record.blobs.byHash) != 0 {
			t.Fatalf("seed %d: of nothing %d bytes, %d objects and %d images are kept", seed, s.w.host.used, len(s.w.record.objects), len(s.w.record.blobs.byHash))
		}
	}
}

// kept is what is kept of the session's requests and graphs, in bytes that are to be booked.
func (s *recorded) kept() (n uint64) {
	for _, b := range s.w.record.blobs.byID {
		n += uint64(len(b.bytes))
	}
	for _, o := range s.w.record.objects {
		for _, e := range slices.Concat(o.mods, []*entry{o.create}) {
			n += e.cost
		}
	}
	g, templates := &s.w.graphs, map[*template]bool{nil: true}
	for _, l := range g.live {
		n += l.cost
	}
	for _, taken := range g.taken {
		n += taken
	}
	for _, o := range g.objects.list() {
		n += o.cost
	}
	for _, x := range g.execs {
		n += x.cost
		for _, t := range []*template{x.origin, x.last} {
			if !templates[t] {
				templates[t] = true
				n += t.cost
			}
		}
	}
	return n
}

// tied: what is recorded of an object names its parents, and they it, and nothing names one that is
// gone; what is booked is what is kept.
func (s *recorded) tied(t *testing.T) {
	t.Helper()
	r := s.w.record
	if kept := s.kept(); kept != s.w.host.used {
		t.Fatalf("%d bytes are booked for %d", s.w.host.used, kept)
	}
	for _, o := range r.objects {
		for _, p := range o.parents {
			if _, ok := p.children[o]; !ok || r.objects[p.key] != p {
				t.Fatalf("object %v is not known to its parent %v", o.key, p.key)
			}
		}
		for c := range o.children {
			if r.objects[c.key] != c {
				t.Fatalf("object %v, which is gone, is kept by its parent %v", c.key, o.key)
			}
		}
	}
}

// TestRebuildOfNumbersUsedAgain: a number whose object went unseen, with something else, is the new
// one's, and nothing of the old is kept.
func TestRebuildOfNumbersUsedAgain(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.ModuleLoadArgs{Module: 10, Image: images[0]})
	used := s.w.host.used
	for range 5 {
		delete(s.gpu.things, 10)
		s.must(1, &wire.ModuleLoadArgs{Module: 10, Image: images[0]})
		s.tied(t)
	}
	if s.w.host.used != used {
		t.Errorf("%d bytes are booked, %d were", s.w.host.used, used)
	}
	s.moved()
}

// TestRebuildOfImages: of two modules with one image, the other can still be rebuilt, and the image
// goes with the last.
func TestRebuildOfImages(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1})
	for id := uint32(10); id < 13; id++ {
		s.must(1, &wire.ModuleLoadArgs{Module: id, Image: images[0]})
	}
	for id := uint32(10); id < 12; id++ {
		s.must(1, &wire.ModuleUnloadArgs{Module: id})
		s = s.moved()
	}
	s.must(1, &wire.ModuleUnloadArgs{Module: 12})
	s.moved()
}

// TestRebuildOfSettings: settings of different things stand beside each other, the last of each
// counts, and repeating one costs nothing.
func TestRebuildOfSettings(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.PrimaryCtxRetainArgs{Ctx: 1}, &wire.ModuleLoadArgs{Module: 10, Image: images[3]}, &wire.ModuleGetFunctionArgs{Module: 10, Func: 20, Name: []byte("f")})
	for i := range uint64(5000) {
		s.must(1, &wire.CtxSetLimitArgs{Limit: 0, Value: i})
		if i > 100 {
			continue
		}
		s.must(1, &wire.CtxSetLimitArgs{Limit: 1, Value: i + 1}, &wire.PrimaryCtxSetFlagsArgs{Ctx: 1, Flags: uint32(i)})
		for attr := range int32(3) {
			s.must(1, &wire.FuncSetAttributeArgs{Func: 20, Attr: attr, Value: int32(i)})
		}
	}
	n := s.moved()
	if got := len(n.snapshot().Requests); got > 10 {
		t.Errorf("%d requests are kept", got)
	}
}

// TestRebuildOfResets: what nobody may be refused does not add up.
func TestRebuildOfResets(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.PrimaryCtxRetainArgs{Ctx: 1})
	for range 1000 {
		s.must(1, &wire.EventCreateArgs{Event: 40}, &wire.PrimaryCtxResetArgs{Ctx: 1})
	}
	if n := s.moved(); len(n.snapshot().Requests) > 3 {
		t.Errorf("%d requests are kept", len(n.snapshot().Requests))
	}
}

// TestRebuildOfTheRest: what no request says comes along: errors, text, replies that were not
// fetched, bytes that were sent ahead.
func TestRebuildOfTheRest(t *testing.T) {
	s := newRecorded(t)
	w := s.w
	w.sticky.Store(7)
	w.deferred.Store(9)
	w.Console([]byte("printed"))
	w.slots[5].begin(wire.OpMemcpyDtoH, 1)
	long := bytes.Repeat([]byte("long"), int(remote.SlotPayload))
	w.Reply(5, 1, cuda.ErrorInvalidValue, long)
	for id, n := range map[uint32]uint64{1: maxBlobBytes / 2, 2: 100} {
		if res := w.blobs.append(id, n, []byte("half")); res != cuda.Success {
			t.Fatal(res)
		}
	}
	w.calls.restore(callbackState{Open: true, Slot: 3, Base: 4, Number: 5})
	w.watch.restore(watchState{Limit: 6})
	w.console.errs, w.console.lost = []byte("error"), true
	n := s.moved().w
	if n.host.used != w.host.used || n.blobs.bytes != w.blobs.bytes || len(n.blobs.open) != len(w.blobs.open) {
		t.Errorf("%d bytes are booked, not %d, and %d promised, not %d", n.host.used, w.host.used, n.blobs.bytes, w.blobs.bytes)
	}
	if n.calls.state() != w.calls.state() || n.watch.state() != w.watch.state() || string(n.console.errs) != "error" || !n.console.lost {
		t.Errorf("%+v, %+v, %q", n.calls.state(), n.watch.state(), n.console.errs)
	}
	if n.sticky.Load() != 7 || n.deferred.Load() != 9 {
		t.Errorf("errors are %d and %d", n.sticky.Load(), n.deferred.Load())
	}
	if text, _ := n.consoleRead(); string(text) != "printed" {
		t.Errorf("text is %q", text)
	}
	if part, res := n.replyMore(5, uint32(remote.SlotPayload)); res != cuda.Success || !bytes.HasPrefix(long[remote.SlotPayload:], part) || len(part) == 0 {
		t.Errorf("a reply's rest: %v, %d bytes", res, len(part))
	}
	if res := n.blobs.append(2, 100, bytes.Repeat([]byte{1}, 96)); res != cuda.Success {
		t.Errorf("the rest of bytes sent ahead: %v", res)
	}
	if b, ok := n.blobs.Take(2, 100); !ok || !bytes.HasPrefix(b, []byte("half")) {
		t.Errorf("bytes sent ahead: %v, %.8q", ok, b)
	}
	if res := n.blobs.append(3, maxBlobBytes/2+1, nil); res != cuda.ErrorOutOfMemory {
		t.Errorf("more than may be sent ahead: %v", res)
	}
	if res := n.blobs.append(3, maxBlobBytes/2, nil); res != cuda.Success {
		t.Errorf("as much as may be sent ahead: %v", res)
	}
}

// TestMoveThatFails: a request that cannot be made again is an error, not another session.
func TestMoveThatFails(t *testing.T) {
	s := newRecorded(t)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.StreamCreateArgs{Stream: 30})
	snap := s.snapshot()
	n := newRecorded(t)
	n.gpu.things[30] = &thing{}
	if err := n.w.restore(snap); !errors.Is(err, cuda.ErrorInvalidValue) {
		t.Errorf("restored with %v", err)
	}
	snap = s.snapshot()
	snap.Requests[0].Record = snap.Requests[0].Record[:8]
	if err := newRecorded(t).w.restore(snap); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("restored a damaged request with %v", err)
	}
}

// TestBadPartsAreGivenBack: of bytes sent ahead whose parts do not fit nothing is kept or booked.
func TestBadPartsAreGivenBack(t *testing.T) {
	w := newRecorded(t).w
	for range 10 {
		if res := w.blobs.append(1, 1000, make([]byte, 600)); res != cuda.Success || w.host.used != 1000 {
			t.Fatal(res, w.host.used)
		}
		if res := w.blobs.append(1, 1000, make([]byte, 401)); res != cuda.ErrorInvalidValue {
			t.Fatal(res)
		}
		if w.host.used != 0 || w.blobs.bytes != 0 || len(w.blobs.open) != 0 {
			t.Fatalf("%d bytes are booked, %d promised, %d open", w.host.used, w.blobs.bytes, len(w.blobs.open))
		}
	}
	if res := w.blobs.append(1, 10, make([]byte, 11)); res != cuda.ErrorInvalidValue || w.host.used != 0 {
		t.Error(res, w.host.used)
	}
}
