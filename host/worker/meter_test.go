package worker

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/host/worker/meter"
)

func countingTo(t testing.TB) (*counting, *meter.Page) {
	t.Helper()
	p, err := meter.New()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := link.MapPage(p.Shared().File, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		link.UnmapPage(mem)
		p.Close()
	})
	return &counting{to: meter.Open(mem)}, p
}

// TestCount: what each request counts for. The guest's memory is where it pinned some.
func TestCount(t *testing.T) {
	const guest, device = 0x7f0000001000, 0x700000000000
	for name, c := range map[string]struct {
		args wire.Args
		want api.Counters
	}{
		"launch":            {&wire.LaunchArgs{}, api.Counters{Launches: 1}},
		"graph":             {&wire.GraphLaunchArgs{}, api.Counters{Launches: 1}},
		"in":                {&wire.MemcpyArgs{Dst: device, Src: guest, Size: 9}, api.Counters{BytesIn: 9}},
		"out":               {&wire.MemcpyArgs{Dst: guest, Src: device, Size: 9}, api.Counters{BytesOut: 9}},
		"out, waited for":   {&wire.MemcpyWaitArgs{Dst: guest, Src: device, Size: 9}, api.Counters{BytesOut: 9}},
		"within the device": {&wire.MemcpyArgs{Dst: device, Src: device, Size: 9}, api.Counters{}},
		"within the guest":  {&wire.MemcpyArgs{Dst: guest, Src: guest, Size: 9}, api.Counters{}},
		"beside the region": {&wire.MemcpyArgs{Dst: device, Src: guest + 4096, Size: 9}, api.Counters{}},
		"in the ring":       {&wire.MemcpyHtoDArgs{Src: make([]byte, 5)}, api.Counters{BytesIn: 5}},
		"in a reply":        {&wire.MemcpyDtoHArgs{Size: 5}, api.Counters{BytesOut: 5}},
		"into staging":      {&wire.MemcpyStagedArgs{Direction: 1, Size: 7}, api.Counters{BytesOut: 7}},
		"from staging":      {&wire.MemcpyStagedArgs{Size: 7}, api.Counters{BytesIn: 7}},
		"box from staging":  {&wire.Memcpy3DArgs{SrcKind: wire.BoxStaging, Width: 4, Height: 3, Depth: 2}, api.Counters{BytesIn: 24}},
		"box to the guest":  {&wire.Memcpy3DArgs{SrcKind: wire.BoxArray, Src: guest, Dst: guest, Width: 4, Height: 1}, api.Counters{BytesOut: 4}},
		"box of arrays":     {&wire.Memcpy3DArgs{SrcKind: wire.BoxArray, DstKind: wire.BoxArray, Width: 4, Height: 1}, api.Counters{}},
		"neither":           {&wire.MemAllocArgs{Size: 1 << 30}, api.Counters{}},
	} {
		n, p := countingTo(t)
		do := func(a wire.Args) {
			if n.count(a.Op(), cuda.Success) {
				n.more(a)
			}
		}
		do(&wire.RegionAddArgs{Region: 3, Kind: wire.RegionPinned, Va: guest, Size: 4096})
		do(&wire.RegionAddArgs{Region: 4, Kind: wire.RegionStaging, Va: device, Size: 4096})
		do(c.args)
		if n.count(c.args.Op(), cuda.ErrorInvalidValue) {
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

// BenchmarkCount is what counting adds to a launch.
func BenchmarkCount(b *testing.B) {
	n, _ := countingTo(b)
	for b.Loop() {
		n.count(wire.OpLaunch, cuda.Success)
	}
}
