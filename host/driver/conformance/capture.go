package conformance

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// testForbidden makes every call that a capture refuses (cuda/api/ops.idl) while a stream captures:
// it fails, and nothing comes of the capture. A thread whose capture is relaxed may make those that
// are merely unsafe.
func testForbidden(t *testing.T, g *Guest) {
	const n = 64
	buf, own, st, other := g.alloc(n), g.alloc(n), g.stream(), g.stream()
	event := g.ID()
	g.ok(g.do(&wire.EventCreateArgs{Event: event}, nil), "EventCreate")
	g.ok(g.do(&wire.EventRecordArgs{Event: event, Stream: other}, nil), "EventRecord")
	const pinned, staging = 2, 3
	pin := len(g.AddRegion(pinned, wire.RegionPinned, 1<<16))
	g.AddRegion(staging, wire.RegionStaging, 1<<16)
	g.ok(g.do(&wire.RegionAddArgs{Region: staging, Kind: wire.RegionStaging, Size: 1 << 16}, new(wire.RegionAddReply)), "RegionAdd")
	reg, _ := g.Region(pinned)
	cases := []struct {
		args  wire.Args
		reply wire.Reply
	}{
		{&wire.MemAllocArgs{Size: n}, new(wire.MemAllocReply)},
		{&wire.MemAllocPitchArgs{Width: n, Height: 2, Element: 4}, new(wire.MemAllocPitchReply)},
		{&wire.EventQueryArgs{Event: event}, nil},
		{&wire.StreamQueryArgs{Stream: other}, nil},
		{&wire.CaptureUnsafeArgs{}, nil},
		{&wire.RegionAddArgs{Region: pinned, Kind: wire.RegionPinned, Va: reg.VA, Size: uint64(pin)}, new(wire.RegionAddReply)},
		{&wire.MemFreeArgs{Ptr: own}, nil}, // the last that a relaxed thread may: it takes effect
		{&wire.StreamSynchronizeArgs{Stream: st}, nil},
		{&wire.EventSynchronizeArgs{Event: event}, nil},
		{&wire.CtxSynchronizeArgs{}, nil},
		{&wire.MemcpyHtoDArgs{Dst: buf, Src: make([]byte, n), Stream: st}, nil},
		{&wire.MemcpyDtoHArgs{Src: buf, Size: n, Stream: st}, new(wire.MemcpyDtoHReply)},
		{&wire.MemcpyStagedArgs{Region: staging, Size: n, Device: buf, Stream: st, Word: 5, Value: 9}, nil},
		{&wire.MemcpyWaitArgs{Dst: buf, Src: buf + n/2, Size: n / 2, Stream: st}, nil},
		{&wire.StreamCaptureCheckArgs{Stream: st}, nil},
	}
	tried := map[wire.Op]bool{}
	capture := func(mode uint32, a wire.Args, r wire.Reply) (cuda.Result, cuda.Result) {
		g.t.Helper()
		g.ok(g.do(&wire.StreamBeginCaptureArgs{Stream: st, Mode: mode}, nil), "StreamBeginCapture")
		res := g.do(a, r)
		var end wire.StreamEndCaptureReply
		ended := g.do(&wire.StreamEndCaptureArgs{Stream: st}, &end)
		if end.Ended != 1 {
			t.Errorf("after %v the stream captures on", a.Op())
		}
		return res, ended
	}
	for _, c := range cases {
		tried[c.args.Op()] = true
		res, ended := capture(cuda.CaptureModeGlobal, c.args, c.reply)
		if res != cuda.ErrorStreamCaptureUnsupported || ended != cuda.ErrorStreamCaptureInvalidated {
			t.Errorf("%v while capturing: %v, and the capture's end: %v", c.args.Op(), res, ended)
		}
	}
	for op := wire.Op(1); op <= wire.OpCount; op++ {
		if k := op.Info().Capture; k != wire.CaptureAny && k != wire.CaptureNode && !tried[op] {
			t.Errorf("%v is refused while something captures, and was not tried", op)
		}
	}
	for _, c := range cases {
		if c.args.Op().Info().Capture != wire.CaptureUnsafe {
			continue
		}
		if res, ended := capture(cuda.CaptureModeRelaxed, c.args, c.reply); res != cuda.Success || ended != cuda.Success {
			t.Errorf("%v while a relaxed thread captures: %v, and the capture's end: %v", c.args.Op(), res, ended)
		}
	}
}
