package cuda

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
)

/*
A session that comes by a lease is made of what another host says that it was: records, and where
each was placed. The worker replays what a record can have, by the decoder of a ring; what the
places may be is this package's to check.
*/

// FuzzReplayed replays records with places as a host could say them, in a session that may move:
// nothing panics, memory lies in the session's own ranges alone, and what is booked is what it has.
func FuzzReplayed(f *testing.F) {
	dir := filepath.Join("..", "soft", "testdata", "fuzz", "FuzzOperations")
	list, err := os.ReadDir(dir)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range list {
		f.Add(placedAnywhere(seed(f, filepath.Join(dir, e.Name())), 0))
	}
	alloc := recordsOf(f, copies()...)
	for _, at := range []uint64{0, 1, lowRanges, highRanges, lowRanges + 512, 1<<47 - 1, ^uint64(0)} {
		f.Add(placedAnywhere(alloc, 1, at))
		f.Add(placedAnywhere(allocations(f), 1, at))
	}
	f.Add(placedAnywhere(recordsOf(f, request{Args: &wire.PrimaryCtxRetainArgs{Ctx: 5}}, request{Args: &wire.CtxSetLimitArgs{Value: 4096}}, request{Args: &wire.LocalMemoryArgs{Bytes: 16384}}), 0))
	drv := mappingDriver()
	f.Fuzz(func(t *testing.T, b []byte) {
		cudatest.RestartLiving()
		var s *session
		// Otherwise the end of the process does.
		t.Cleanup(func() { s.letGo(func(uint32) bool { return true }) })
		s, _ = ownSessionOn(t, drv, 1<<30)
		s.Before(wire.OpSessionInit, false)
		var d wire.Dispatcher
		le := binary.LittleEndian
		for n := 0; len(b) > 0 && n < 64; n++ {
			places := make([]uint64, b[0]%8)
			b = b[1:]
			for i := range places {
				if len(b) < 8 {
					return
				}
				places[i], b = le.Uint64(b), b[8:]
			}
			if len(b) < wire.RecordSize {
				return
			}
			size := max(wire.RecordSize, min(int(le.Uint32(b)), len(b)))
			c := wire.Call{Op: wire.Op(le.Uint16(b[4:])), Ctx: le.Uint32(b[16:]), Thread: le.Uint32(b[20:]), Seq: 1, Replier: silent{}, Replay: true, Placed: places}
			if !recorded(c.Op) {
				return // which the worker refuses
			}
			if _, res, err := d.Dispatch(s, &c, b[:size], nil); err != nil || res != cuda.Success {
				return // which ends the session
			}
			b = b[size:]
			if n := s.budget.Used(); n != s.used+s.pooling.spare {
				t.Fatalf("%d bytes booked after operation %d, for %d in use and %d that pools hold", n, c.Op, s.used, s.pooling.spare)
			}
			for at, a := range s.allocs {
				if a.size != 0 && s.arenaOf(at) == nil {
					t.Fatalf("operation %v has memory at %#x, which is in no range of the session's", c.Op, at)
				}
			}
		}
	})
}

// recorded reports whether a record can have an operation, but for those that outlive what they
// name: the worker says so (package worker, replayable).
func recorded(op wire.Op) bool {
	info := op.Info()
	if info == nil {
		return false
	}
	switch info.Effect {
	case wire.Creates, wire.Retains, wire.Modifies, wire.Resets, wire.Marks:
		return true
	}
	return false
}

// placedAnywhere puts places ahead of each record.
func placedAnywhere(records []byte, n byte, places ...uint64) (b []byte) {
	for len(records) >= wire.RecordSize {
		size := max(wire.RecordSize, min(int(binary.LittleEndian.Uint32(records)), len(records)))
		b = append(b, n)
		for _, at := range places {
			b = binary.LittleEndian.AppendUint64(b, at)
		}
		b = append(b, records[:size]...)
		records = records[size:]
	}
	return b
}

// allocations are records that bring memory about.
func allocations(t testing.TB) []byte {
	return recordsOf(t,
		request{Args: &wire.PrimaryCtxRetainArgs{Ctx: 5}},
		request{Args: &wire.MemAllocArgs{Size: regionSize}},
		request{Args: &wire.MemAllocArgs{Size: 512}},
		request{Args: &wire.MemAllocPitchArgs{Width: 100, Height: 7, Element: 4}},
		request{Args: &wire.PoolCreateArgs{Pool: 20}},
		request{Args: &wire.MemAddressReserveArgs{Resv: 21, Size: 2 << 20}},
		request{Args: &wire.GraphCreateArgs{Graph: 22}},
		request{Args: &wire.GraphAddNodeArgs{Graph: 22, Node: 23, Type: wire.NodeMemAlloc, Params: allocParams(4096)}},
	)
}
