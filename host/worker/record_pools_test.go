package worker

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/state"
)

// pooled is memory of the session's by address.
func (s *softSession) pooled() map[uint64][]byte {
	s.t.Helper()
	s.sync()
	all := map[uint64][]byte{}
	err := s.w.session.ExportMemory(func(addr, _ uint64, r io.Reader) error {
		b, err := io.ReadAll(r)
		all[addr] = b
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// TestRebuildOfDestroyedPools: memory of a pool that was destroyed is there until it is freed, on
// either side of a move, also if its number is another pool's by then; and nothing is kept of the
// pool when that is over.
func TestRebuildOfDestroyedPools(t *testing.T) {
	const pool = softFirst
	s := newSoft(t)
	before, objects := s.w.host.used, len(s.w.record.objects)
	alloc := func(value uint32) uint64 {
		var m wire.MemAllocFromPoolReply
		s.want(cuda.Success, &wire.MemAllocFromPoolArgs{Size: 4096, Pool: pool, Stream: softStream}, &m)
		s.must(softCtx, &wire.MemsetArgs{Dst: m.Ptr, Value: value, Element: 4, Width: 1024, Height: 1, Stream: softStream})
		return m.Ptr
	}
	s.must(softCtx, &wire.PoolCreateArgs{Pool: pool}, &wire.PoolSetAccessArgs{Pool: pool, Flags: 3})
	one, two := alloc(1), alloc(2)
	s.must(softCtx, &wire.PoolDestroyArgs{Pool: pool}, &wire.PoolCreateArgs{Pool: pool})
	three := alloc(3)
	for range 2 {
		want := s.pooled()
		s = s.moved()
		s.recorded.tied(t)
		got := s.pooled()
		for _, at := range []uint64{one, two, three} {
			if len(got[at]) != 4096 || !bytes.Equal(got[at], want[at]) {
				t.Fatalf("memory at %#x has %d bytes after a move, had %d", at, len(got[at]), len(want[at]))
			}
		}
		s.want(cuda.ErrorInvalidValue, &wire.PoolDestroyArgs{Pool: pool + 1}, nil)
	}
	s.must(softCtx, &wire.MemFreeAsyncArgs{Ptr: one, Stream: softStream}, &wire.MemFreeArgs{Ptr: two})
	s = s.moved()
	if got := s.pooled(); got[one] != nil || got[two] != nil || got[three] == nil {
		t.Error("what is freed is not gone, or more is")
	}
	s.must(softCtx, &wire.PoolDestroyArgs{Pool: pool}, &wire.MemFreeArgs{Ptr: three})
	if s.w.host.used != before || len(s.w.record.objects) != objects {
		t.Errorf("%d bytes are booked for %d objects, were %d for %d", s.w.host.used, len(s.w.record.objects), before, objects)
	}
}

// TestPoolsThatEndWithTheirContext: what outlived a pool does not outlive its context, and nothing
// of either is kept.
func TestPoolsThatEndWithTheirContext(t *testing.T) {
	s := newRecorded(t)
	r := s.w.record
	note := func(a wire.Args, reply []byte) {
		t.Helper()
		if err := r.note(&wire.Call{Op: a.Op(), Ctx: 1}, a.Op().Info(), a, reply, 0); err != nil {
			t.Fatal(err)
		}
	}
	s.must(1, &wire.CtxCreateArgs{Ctx: 1})
	for i := range uint64(100) {
		note(&wire.PoolCreateArgs{Pool: 40}, nil)
		note(&wire.MemAllocFromPoolArgs{Size: 1, Pool: 40}, wire.AppendReply(nil, &wire.MemAllocFromPoolReply{Ptr: 0x1000 * (i + 1)}))
		note(&wire.PoolDestroyArgs{Pool: 40}, nil)
	}
	if n := len(r.objects); n != 201 {
		t.Errorf("%d objects", n)
	}
	s.must(1, &wire.CtxDestroyArgs{Ctx: 1})
	if s.w.host.used != 0 || len(r.objects) != 0 {
		t.Errorf("of nothing %d bytes and %d objects are kept", s.w.host.used, len(r.objects))
	}
}

// TestStateThatAsksForMore: requests that no record has are not made, whatever state they come in:
// neither work for the GPU, which is nobody's turn, nor the end of an object.
func TestStateThatAsksForMore(t *testing.T) {
	for _, a := range []wire.Args{
		&wire.LaunchArgs{Func: 10, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1},
		&wire.MemsetArgs{Dst: 0x10000, Element: 4, Width: 1, Height: 1},
		&wire.CtxDestroyArgs{Ctx: 1}, &wire.MemFreeArgs{Ptr: 0x10000}, &wire.RegionDropArgs{Region: 1},
		&wire.CtxSynchronizeArgs{}, &wire.SessionFenceArgs{}, &wire.BlobAppendArgs{Blob: 1, Total: 1 << 30, Part: []byte("part")},
	} {
		s := newRecorded(t)
		s.must(1, &wire.CtxCreateArgs{Ctx: 1})
		snap := s.snapshot()
		rec, err := wire.AppendRecord(nil, wire.Header{Ctx: 1}, a)
		if err != nil {
			t.Fatal(err)
		}
		snap.Requests = append(snap.Requests, request{Record: rec})
		n := newRecorded(t)
		if err := n.w.restore(snap); !errors.Is(err, state.ErrState) {
			t.Errorf("%v was made again: %v", a.Op(), err)
		}
	}
	for op := wire.Op(1); op <= wire.OpCount; op++ { // what is recorded can be replayed
		switch info := op.Info(); info.Effect {
		case wire.Creates, wire.Retains, wire.Modifies, wire.Resets, wire.Marks:
			if !replayable(info) {
				t.Errorf("%v is recorded, and refused", op)
			}
		}
	}
}
