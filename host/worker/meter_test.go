package worker

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/meter"
	"causeway/remote"
	"causeway/remote/sys"
)

func countingTo(t testing.TB) (*counting, *meter.Page) {
	t.Helper()
	p, err := meter.New()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := sys.MapPage(p.File(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sys.UnmapPage(mem)
		p.Close()
	})
	return &counting{to: meter.Open(mem)}, p
}

// TestCount: what each request counts for. The guest's memory is where it pinned some.
func TestCount(t *testing.T) {
	const guest, device = 0x7f0000001000, 0x700000000000
	tried := map[wire.Op]bool{wire.OpSessionInit: true, wire.OpRegionAdd: true, wire.OpRegionDrop: true}
	defer func() {
		for op := wire.Op(1); op <= wire.OpCount; op++ {
			if op.Info().Counts != wire.CountsNothing && !tried[op] {
				t.Errorf("%s counts for something that no case tries", op)
			}
		}
	}()
	pieces := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, device), guest), 9)
	for name, c := range map[string]struct {
		args wire.Args
		want meter.Counters
	}{
		"launch":            {&wire.LaunchArgs{}, meter.Counters{Launches: 1}},
		"graph":             {&wire.GraphLaunchArgs{}, meter.Counters{Launches: 1}},
		"in":                {&wire.MemcpyArgs{Dst: device, Src: guest, Size: 9}, meter.Counters{BytesIn: 9}},
		"out":               {&wire.MemcpyArgs{Dst: guest, Src: device, Size: 9}, meter.Counters{BytesOut: 9}},
		"out, waited for":   {&wire.MemcpyWaitArgs{Dst: guest, Src: device, Size: 9}, meter.Counters{BytesOut: 9}},
		"a batch in":        {&wire.MemcpyBatchArgs{Pieces: append(pieces, pieces...)}, meter.Counters{BytesIn: 18}},
		"within the device": {&wire.MemcpyArgs{Dst: device, Src: device, Size: 9}, meter.Counters{}},
		"within the guest":  {&wire.MemcpyArgs{Dst: guest, Src: guest, Size: 9}, meter.Counters{}},
		"beside the region": {&wire.MemcpyArgs{Dst: device, Src: guest + 4096, Size: 9}, meter.Counters{}},
		"in the ring":       {&wire.MemcpyHtoDArgs{Src: make([]byte, 5)}, meter.Counters{BytesIn: 5}},
		"in a reply":        {&wire.MemcpyDtoHArgs{Size: 5}, meter.Counters{BytesOut: 5}},
		"into staging":      {&wire.MemcpyStagedArgs{Direction: 1, Size: 7}, meter.Counters{BytesOut: 7}},
		"from staging":      {&wire.MemcpyStagedArgs{Size: 7}, meter.Counters{BytesIn: 7}},
		"box from staging":  {&wire.Memcpy3DArgs{SrcKind: wire.OperandStaging, Width: 4, Height: 3, Depth: 2}, meter.Counters{BytesIn: 24}},
		"box to the guest":  {&wire.Memcpy3DArgs{SrcKind: wire.OperandArray, Src: guest, Dst: guest, Width: 4, Height: 1}, meter.Counters{BytesOut: 4}},
		"box of arrays":     {&wire.Memcpy3DArgs{SrcKind: wire.OperandArray, DstKind: wire.OperandArray, Width: 4, Height: 1}, meter.Counters{}},
		"neither":           {&wire.MemAllocArgs{Size: 1 << 30}, meter.Counters{}},
	} {
		tried[c.args.Op()] = true
		n, p := countingTo(t)
		do := func(a wire.Args) {
			if n.count(a.Op().Info().Counts, cuda.Success) {
				n.more(a)
			}
		}
		do(&wire.RegionAddArgs{Region: 3, Kind: wire.RegionPinned, Va: guest, Size: 4096})
		do(&wire.RegionAddArgs{Region: 4, Kind: wire.RegionStaging, Va: device, Size: 4096})
		do(c.args)
		if n.count(c.args.Op().Info().Counts, cuda.ErrorInvalidValue) {
			t.Errorf("%s: what failed counts", name)
		}
		c.want.Calls = 4
		if got := p.Counters(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		do(&wire.RegionDropArgs{Region: 3})
		if n.guests(guest) {
			t.Error("the region is gone")
		}
	}
}

// TestCountedOnce: a session that moves says in its next worker who it is, and counts nothing again
// that the one before has counted.
func TestCountedOnce(t *testing.T) {
	s := newRecorded(t)
	n, before := countingTo(t)
	s.w.count = *n
	s.must(0, &wire.SessionInitArgs{Version: remote.ProtocolVersion, Pid: 77, Exe: []byte("/usr/bin/program")})
	s.must(1, &wire.PrimaryCtxRetainArgs{Ctx: 1}, &wire.ModuleLoadArgs{Module: 10, Image: images[0]}, &wire.ModuleGetFunctionArgs{Module: 10, Func: 20, Name: []byte("f")},
		&wire.MemAllocArgs{Size: 64}, &wire.EventCreateArgs{Event: 40}, &wire.EventRecordArgs{Event: 40, Stream: wire.StreamLegacy})
	if c := before.Counters(); c.Calls != 7 {
		t.Errorf("%+v", c)
	}
	next := newRecorded(t)
	n, after := countingTo(t)
	next.w.count = *n
	if err := next.w.restore(s.snapshot()); err != nil {
		t.Fatal(err)
	}
	if c := after.Counters(); c != (meter.Counters{}) {
		t.Errorf("counted again: %+v", c)
	}
	for name, p := range map[string]*meter.Page{"before": before, "after": after} {
		if pid, program := p.Guest(); pid != 77 || program != "/usr/bin/program" {
			t.Errorf("%s it moves: process %d, %q", name, pid, program)
		}
	}
}

// BenchmarkCount is what counting adds to a launch.
func BenchmarkCount(b *testing.B) {
	n, _ := countingTo(b)
	for b.Loop() {
		n.count(wire.OpLaunch.Info().Counts, cuda.Success)
	}
}
