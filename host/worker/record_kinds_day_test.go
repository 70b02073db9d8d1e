package worker

import (
	"io"
	"math/rand/v2"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/drivertest"
	"causeway/host/worker/state"
)

// counter counts what is written.
type counter struct{ n int }

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) { c.n += len(b); return len(b), nil }

var _ io.Writer = (*counter)(nil)

// weighed is what a move of the session sends beside its memory, in bytes, what is booked of the
// host's memory for it, and all that its record, its graphs and its driver hold.
func (s *softSession) weighed() (sent int, booked uint64, held map[string]int) {
	s.t.Helper()
	s.sync()
	snap := s.snapshot()
	snap.Virtiofs = &virtiofsState{}
	var c counter
	w := state.NewWriter(&c)
	snap.write(w)
	if err := w.Flush(); err != nil {
		s.t.Fatal(err)
	}
	return c.n, s.w.host.used, drivertest.Weigh(struct {
		Record  *recorder
		Graphs  *graphs
		Blobs   *blobs
		Session any
	}{s.w.record, &s.w.graphs, &s.w.blobs, s.w.session})
}

// TestRecordOfADayOfKinds: of objects that are made and ended all day nothing adds up, neither in
// what a move sends nor in what worker and driver hold, also where graphs or several objects
// together are what is made: memory in stream order, pools that their memory outlives, graphs that
// allocate, pieces of managed memory that come and go.
func TestRecordOfADayOfKinds(t *testing.T) {
	turns := *day / 400
	const id = softFirst + 500
	var reserved wire.MemAddressReserveReply
	for name, kind := range map[string]struct {
		begin func(s *softSession)
		turn  func(s *softSession, r *rand.Rand)
	}{
		"cudaMallocAsync": {nil, func(s *softSession, r *rand.Rand) {
			var list []uint64
			for range 1 + r.IntN(3) {
				var m wire.MemAllocAsyncReply
				s.want(cuda.Success, &wire.MemAllocAsyncArgs{Size: 1 + r.Uint64N(1<<16), Stream: softStream}, &m)
				list = append(list, m.Ptr)
			}
			for _, at := range list {
				s.must(softCtx, &wire.MemFreeAsyncArgs{Ptr: at, Stream: softStream2})
			}
		}},
		"pools": {nil, func(s *softSession, r *rand.Rand) {
			var m wire.MemAllocFromPoolReply
			s.must(softCtx, &wire.PoolCreateArgs{Pool: id}, &wire.PoolSetAttributeArgs{Pool: id, Attr: cuda.PoolAttrReleaseThreshold, Value: r.Uint64N(1 << 30)}, &wire.PoolSetAccessArgs{Pool: id, Flags: 3})
			s.want(cuda.Success, &wire.MemAllocFromPoolArgs{Pool: id, Size: 1 + r.Uint64N(1<<16), Stream: softStream}, &m)
			end := []wire.Args{&wire.PoolDestroyArgs{Pool: id}, &wire.MemFreeAsyncArgs{Ptr: m.Ptr, Stream: softStream}}
			at := r.IntN(2)
			s.must(softCtx, end[at], end[1-at])
		}},
		"graphs that allocate": {nil, func(s *softSession, r *rand.Rand) {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			at := s.node(aGraph, aNode, wire.NodeMemAlloc, append((&wire.AllocNode{Size: 1 + r.Uint64N(1<<16)}).Append(nil), make([]byte, 88)...))
			s.node(aGraph, bNode, wire.NodeMemset, (&wire.MemsetNode{Dst: at, Element: 1, Width: 1, Height: 1}).Append(nil), aNode)
			inside := r.IntN(2) == 0
			if inside {
				s.node(aGraph, cNode, wire.NodeMemFree, (&wire.FreeNode{Ptr: at}).Append(nil), bNode)
			}
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphLaunchArgs{Exec: anExec, Stream: softStream})
			if !inside {
				s.must(softCtx, &wire.MemFreeAsyncArgs{Ptr: at, Stream: softStream})
			}
			s.must(softCtx, &wire.GraphExecDestroyArgs{Exec: anExec}, &wire.GraphDestroyArgs{Graph: aGraph})
		}},
		"captures that allocate": {nil, func(s *softSession, r *rand.Rand) {
			s.must(softCtx, &wire.StreamBeginCaptureArgs{Stream: softStream, Mode: 2})
			var m wire.MemAllocAsyncReply
			for range 1 + r.IntN(2) {
				s.want(cuda.Success, &wire.MemAllocAsyncArgs{Stream: softStream, Size: 1 + r.Uint64N(1<<16)}, &m)
				s.must(softCtx, &wire.MemsetArgs{Dst: m.Ptr, Element: 1, Width: 1, Height: 1, Stream: softStream}, &wire.MemFreeAsyncArgs{Stream: softStream, Ptr: m.Ptr})
			}
			s.want(cuda.Success, &wire.StreamEndCaptureArgs{Stream: softStream, Fresh: aGraph}, new(wire.StreamEndCaptureReply))
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphDestroyArgs{Graph: aGraph}, &wire.GraphLaunchArgs{Exec: anExec, Stream: softStream}, &wire.GraphExecDestroyArgs{Exec: anExec})
		}},
		"what is executable is updated": {func(s *softSession) {
			s.captured(aGraph, 1, 2)
			s.instantiate(anExec, aGraph)
		}, func(s *softSession, r *rand.Rand) {
			s.captured(bGraph, r.Uint32(), r.Uint32())
			s.update(anExec, bGraph)
			s.must(softCtx, &wire.GraphLaunchArgs{Exec: anExec, Stream: softStream}, &wire.GraphDestroyArgs{Graph: bGraph})
		}},
		"pieces of managed memory": {func(s *softSession) {
			s.want(cuda.Success, &wire.MemAddressReserveArgs{Resv: id, Size: 64 << 20}, &reserved)
		}, func(s *softSession, r *rand.Rand) {
			at := reserved.Ptr + r.Uint64N(32)<<21
			s.must(softCtx, &wire.MemCreateArgs{Memhandle: id + 1, Size: 2 << 20}, &wire.MemMapArgs{Mapping: id + 2, Resv: id, Memhandle: id + 1, Ptr: at, Size: 2 << 20})
			s.must(softCtx, &wire.MemSetAccessArgs{Mapping: id + 2, Flags: 3}, &wire.MemsetArgs{Dst: at, Element: 1, Width: 1, Height: 1, Stream: softStream})
			s.sync()
			s.must(softCtx, &wire.MemUnmapArgs{Mapping: id + 2}, &wire.MemReleaseArgs{Memhandle: id + 1})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s, r := newSoft(t), rand.New(rand.NewPCG(1, 9))
			if kind.begin != nil {
				kind.begin(s)
			}
			for range 50 {
				kind.turn(s, r)
			}
			sent, booked, minute := s.weighed()
			for n := range turns {
				if kind.turn(s, r); n%8 == 0 {
					s.sync()
				}
			}
			sentThen, bookedThen, then := s.weighed()
			if sentThen != sent || bookedThen != booked {
				t.Errorf("a move sends %d bytes and %d are booked after %d turns, and were %d and %d after 50", sentThen, bookedThen, turns, sent, booked)
			}
			if more := drivertest.Grown(minute, then, turns/10); more != "" {
				t.Errorf("after %d turns there is more:\n%s", turns, more)
			}
			t.Logf("%d bytes are sent of it", sentThen)
			s = s.moved()
			kind.turn(s, r)
			s.close()
		})
	}
}
