package worker

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote"
)

// day is how many requests TestRecordOfADay makes; the whole day of a busy program is ten million.
var day = flag.Int("day", 200_000, "requests of the simulated day")

// simulated is a program that keeps its objects and makes, changes and ends others all the time:
// every operation that leaves something behind, with fields by chance.
type simulated struct {
	t      testing.TB
	r      *recorder
	h      *hostMemory
	rand   *rand.Rand
	kept   map[wire.Kind]uint64 // an object of each kind, which stays
	next   uint64
	begins map[wire.Kind][]wire.Op // what makes an object of a kind
	ends   map[wire.Kind][]wire.Op
	change []wire.Op
	calls  int
	done   map[wire.Op]bool
}

func newSimulated(t testing.TB) *simulated {
	h := &hostMemory{limit: 1 << 30}
	s := &simulated{t: t, r: newRecorder(h), h: h, rand: rand.New(rand.NewPCG(1, 2)), kept: map[wire.Kind]uint64{}, next: 1000,
		begins: map[wire.Kind][]wire.Op{}, ends: map[wire.Kind][]wire.Op{}, done: map[wire.Op]bool{}}
	for op := wire.Op(1); op <= wire.OpCount; op++ {
		switch info := op.Info(); info.Effect {
		case wire.Creates, wire.Retains:
			s.begins[info.Kind] = append(s.begins[info.Kind], op)
		case wire.Destroys, wire.Releases:
			s.ends[info.Kind] = append(s.ends[info.Kind], op)
		case wire.Modifies, wire.Marks:
			s.change = append(s.change, op)
		}
	}
	for _, kind := range s.kinds() { // a context first, which is the others'
		s.kept[kind] = s.make(s.begins[kind][0], 0, nil)
	}
	return s
}

// kinds are in an order in which objects can be made.
func (s *simulated) kinds() (list []wire.Kind) {
	for kind := range s.begins {
		list = append(list, kind)
	}
	slices.SortFunc(list, func(a, b wire.Kind) int {
		rank := func(k wire.Kind) int {
			return slices.Index([]wire.Kind{wire.KindPeer, wire.KindMapping, wire.KindFunc, wire.KindModule, wire.KindCtx, wire.KindSession}, k)
		}
		if x, y := rank(b), rank(a); x != y {
			return x - y
		}
		return int(a) - int(b)
	})
	return list
}

// simulatedOwner is an object that another belongs to.
type simulatedOwner struct {
	kind wire.Kind
	id   uint64
}

// make does an operation on the object that its effect is about, a new one for 0, and returns that.
// All others that it names are the kept ones, or the one that it is in.
func (s *simulated) make(op wire.Op, of uint64, in *simulatedOwner) uint64 {
	s.t.Helper()
	s.calls++
	s.done[op] = true
	info := op.Info()
	if of == 0 {
		if s.next++; s.next > 1<<31 {
			s.next = 1000 // numbers come again
		}
		of = s.next
	}
	if info.Kind == wire.KindInstance { // it is known by its library
		if of = s.kept[wire.KindLibrary]; in != nil {
			of = in.id
		}
	}
	a := wire.NewArgs(op)
	fields := reflect.ValueOf(a).Elem()
	for i := range fields.NumField() {
		switch f := fields.Field(i); f.Kind() {
		case reflect.Uint32, reflect.Uint64:
			f.SetUint(s.rand.Uint64N(3))
		case reflect.Int32:
			f.SetInt(s.rand.Int64N(3))
		case reflect.Slice:
			f.SetBytes([]byte("bytes"))
		}
	}
	rec, err := wire.AppendRecord(nil, wire.Header{}, a)
	if err != nil {
		s.t.Fatalf("%v: %v", op, err)
	}
	for _, ref := range info.Refs {
		id := s.kept[ref.Kind]
		if in != nil && ref.Kind == in.kind {
			id = in.id
		}
		binary.LittleEndian.PutUint32(rec[wire.RecordSize+ref.Offset:], uint32(id))
	}
	reply := make([]byte, info.ReplyFixed)
	c := &wire.Call{Op: op, Ctx: wire.ID(s.kept[wire.KindCtx])}
	switch at := rec[wire.RecordSize:]; {
	case info.In == wire.InReply:
		binary.LittleEndian.PutUint64(reply[info.Object.Offset:], of)
		c.Placed = []uint64{of}
	case info.In == wire.InRequest && info.Kind == wire.KindMem:
		binary.LittleEndian.PutUint64(at[info.Object.Offset:], of)
	case info.In == wire.InRequest:
		binary.LittleEndian.PutUint32(at[info.Object.Offset:], uint32(of))
	}
	if a, err = wire.Decode(op, rec, nil); err != nil {
		s.t.Fatalf("%v: %v", op, err)
	}
	if l, ok := a.(*wire.ModuleLoadArgs); ok && s.rand.IntN(20) == 0 {
		l.Image = images[s.rand.IntN(len(images))]
	}
	if err := s.r.note(c, info, a, reply, 0); err != nil {
		s.t.Fatalf("%v: %v", op, err)
	}
	s.r.blobs.forget()
	return of
}

// live has the program make so many requests.
func (s *simulated) live(requests int) {
	kinds := s.kinds()
	for end := s.calls + requests; s.calls < end; {
		if s.rand.IntN(3) == 0 {
			// What is added to a link stays as long as that.
			if op := s.change[s.rand.IntN(len(s.change))]; op != wire.OpLinkAdd {
				s.make(op, s.kept[op.Info().Kind], nil)
			}
			continue
		}
		kind := kinds[s.rand.IntN(len(kinds))]
		switch {
		case kind == wire.KindCtx && s.rand.IntN(10) == 0:
			s.make(wire.OpPrimaryCtxRetain, s.kept[kind], nil)
			s.make(wire.OpPrimaryCtxRelease, s.kept[kind], nil)
		case kind == wire.KindCtx:
			s.make(wire.OpCtxDestroy, s.use([]wire.Op{wire.OpCtxCreate, wire.OpCtxFromGreenCtx}[s.rand.IntN(2)], kind), nil)
		case len(s.ends[kind]) > 0 && kind != wire.KindSession:
			begins, ends := s.begins[kind], s.ends[kind]
			s.make(ends[s.rand.IntN(len(ends))], s.use(begins[s.rand.IntN(len(begins))], kind), nil)
		}
	}
}

// use makes an object, and of it what goes with it alone, and changes it.
func (s *simulated) use(begin wire.Op, kind wire.Kind) uint64 {
	of := s.make(begin, 0, nil)
	for _, op := range s.change {
		if op.Info().Kind == kind && s.rand.IntN(2) == 0 {
			s.make(op, of, nil)
		}
	}
	s.belonging(kind, of)
	return of
}

// belonging makes what goes with an object alone, and with that.
func (s *simulated) belonging(kind wire.Kind, of uint64) {
	for other, begins := range s.begins {
		for _, op := range begins {
			belongs := slices.ContainsFunc(op.Info().Refs, func(r wire.Ref) bool { return r.Kind == kind && !r.New })
			if belongs && len(s.ends[other]) == 0 && s.rand.IntN(2) == 0 {
				s.belonging(other, s.make(op, 0, &simulatedOwner{kind, of}))
			}
		}
	}
}

// settle has the record keep the same steps of a context's local memory whenever it is asked for.
// A step stays that something was made behind, and what is made again all day goes behind another
// each time: here behind the last ones, and others behind that.
func (s *simulated) settle() {
	s.step()
	s.make(s.begins[wire.KindInstance][0], 0, nil)
	s.step()
}

// step changes the local memory of the context that stays in both ways.
func (s *simulated) step() {
	for _, a := range []wire.Args{&wire.LocalMemoryArgs{Bytes: 1}, &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize}} {
		c := &wire.Call{Op: a.Op(), Ctx: wire.ID(s.kept[wire.KindCtx])}
		if err := s.r.note(c, a.Op().Info(), a, nil, 0); err != nil {
			s.t.Fatalf("%v: %v", a.Op(), err)
		}
	}
}

// size is what the record has: requests, objects, what is booked for them, and long bytes.
func (s *simulated) size() [4]uint64 {
	n := len(s.r.entries()) // which has what nothing needs go
	return [4]uint64{uint64(n), uint64(len(s.r.objects)), s.h.used, uint64(len(s.r.blobs.byID))}
}

// TestRecordOfADay: the record of a program that made, changed and ended objects all day is that of
// one that did so for a minute. Every operation is done of those that leave something behind, and
// all that can be changed of what stays has been changed in the minute.
func TestRecordOfADay(t *testing.T) {
	s := newSimulated(t)
	s.live(20_000)
	s.settle()
	minute := s.size()
	began := time.Now()
	s.live(*day)
	s.settle()
	if got := s.size(); got != minute {
		t.Errorf("requests, objects, booked bytes and images are %d after a day of %d requests, and were %d after a minute", got, s.calls, minute)
	}
	for op := wire.Op(1); op <= wire.OpCount; op++ {
		switch info := op.Info(); {
		case info.Effect == wire.NoEffect, s.done[op], info.Kind == wire.KindSession:
		case info.Effect == wire.Resets: // ends all that stays: TestRebuildOfResets
		default:
			t.Errorf("%v was not done all day", op)
		}
	}
	t.Logf("%d requests a second are recorded: the record has %d requests of %d objects, %d bytes booked", int(float64(*day)/time.Since(began).Seconds()), minute[0], minute[1], minute[2])
}

// BenchmarkRecordingOfALaunch is what a launch costs the consumer, on a driver that does nothing,
// and which part of that recording is.
func BenchmarkRecordingOfALaunch(b *testing.B) {
	s := newRecorded(b)
	s.must(1, &wire.CtxCreateArgs{Ctx: 1})
	rec, err := wire.AppendRecord(nil, wire.Header{Ctx: 1}, &wire.LaunchArgs{Func: 1, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: make([]byte, 64)})
	if err != nil {
		b.Fatal(err)
	}
	w, in := s.w, &remote.Incoming{Op: uint16(wire.OpLaunch), Ctx: 1, Bytes: rec}
	began := time.Now()
	for range b.N {
		if err := w.execute(in); err != nil {
			b.Fatal(err)
		}
	}
	launch := time.Since(began)
	info := wire.OpLaunch.Info()
	began = time.Now()
	for range b.N { // what execute does of it for an operation that leaves nothing behind
		if recorded := info.Effect != wire.NoEffect; recorded {
			b.Fatal("a launch is recorded")
		}
		if recorded := info.Effect != wire.NoEffect; recorded {
			b.Fatal("a launch is recorded")
		}
	}
	b.ReportMetric(100*float64(time.Since(began))/float64(launch), "%recording")
}
