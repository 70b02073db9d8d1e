package conformance

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// nodes lists a graph's nodes, naming them on the way.
func (g *Guest) nodes(graph wire.ID) []wire.GraphEdge {
	g.t.Helper()
	var names []byte
	for {
		var r wire.GraphListReply
		g.ok(g.Session.GraphList(g.call(wire.OpGraphList), &wire.GraphListArgs{What: wire.GraphListNodes, Graph: graph, Names: names}, &r), "GraphList")
		if r.Unnamed == 0 {
			list := make([]wire.GraphEdge, len(r.Nodes)/wire.GraphEdgeSize)
			for i := range list {
				if err := list[i].Decode(r.Nodes[i*wire.GraphEdgeSize:]); err != nil {
					g.t.Fatal(err)
				}
			}
			return list
		}
		names = nil
		for range r.Unnamed {
			names = binary.LittleEndian.AppendUint32(names, g.ID())
		}
	}
}

func (g *Guest) stream() wire.ID {
	g.t.Helper()
	id := g.ID()
	g.ok(g.Session.StreamCreate(g.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: id, Flags: cuda.StreamNonBlocking}), "StreamCreate")
	return id
}

// testGraphs captures a fill and a kernel, asks what was captured, changes the kernel in the
// executable graph, replays, and ends a capture that a forbidden call spoilt.
func testGraphs(t *testing.T, g *Guest) {
	const n = 256
	add := g.kernel(g.load(kernels), "add")
	buf, st := g.alloc(4*n), g.stream()
	params := func(k uint32) []byte {
		b := binary.LittleEndian.AppendUint64(nil, buf)
		b = binary.LittleEndian.AppendUint64(b, buf)
		return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, n), k)
	}
	begin := func(mode uint32) {
		g.t.Helper()
		g.ok(g.Session.StreamBeginCapture(g.call(wire.OpStreamBeginCapture), &wire.StreamBeginCaptureArgs{Stream: st, Mode: mode}), "StreamBeginCapture")
	}
	end := func() (wire.StreamEndCaptureReply, cuda.Result) {
		var r wire.StreamEndCaptureReply
		res := g.Session.StreamEndCapture(g.call(wire.OpStreamEndCapture), &wire.StreamEndCaptureArgs{Stream: st, Fresh: g.ID()}, &r)
		return r, res
	}
	begin(cuda.CaptureModeThreadLocal)
	g.ok(g.do(&wire.MemsetArgs{Dst: buf, Value: 5, Element: 4, Width: n, Height: 1, Stream: st}, nil), "Memset")
	g.ok(g.do(&wire.LaunchArgs{Func: add, Stream: st, Gx: n / 64, Gy: 1, Gz: 1, Bx: 64, By: 1, Bz: 1, Params: params(3)}, nil), "Launch")
	var info wire.StreamCaptureInfoReply
	g.ok(g.Session.StreamCaptureInfo(g.call(wire.OpStreamCaptureInfo), &wire.StreamCaptureInfoArgs{Stream: st}, &info), "StreamCaptureInfo")
	if info.Status != cuda.CaptureStatusActive || info.ID == 0 {
		t.Errorf("capture: status %d, id %d", info.Status, info.ID)
	}
	r, res := end()
	g.ok(res, "StreamEndCapture")
	var kernel wire.ID
	kinds := map[uint32]int{}
	for _, e := range g.nodes(r.Graph) {
		kinds[e.FromType]++
		if e.FromType == 0 {
			kernel = e.From
		}
	}
	if kinds[0] != 1 || kinds[2] != 1 || len(kinds) != 2 {
		t.Fatalf("captured %v nodes by type, want a kernel and a fill", kinds)
	}
	var p wire.GraphNodeGetParamsReply
	g.ok(g.Session.GraphNodeGetParams(g.call(wire.OpGraphNodeGetParams), &wire.GraphNodeGetParamsArgs{Node: kernel}, &p), "GraphNodeGetParams")
	var k wire.KernelNode
	if err := k.Decode(p.Params); err != nil || k.Func != add || k.Gx != n/64 || k.Bx != 64 || string(p.Params[wire.KernelNodeSize:]) != string(params(3)) {
		t.Errorf("captured kernel: %+v, %v", k, err)
	}
	exec := g.ID()
	var ir wire.GraphInstantiateReply
	g.ok(g.Session.GraphInstantiate(g.call(wire.OpGraphInstantiate), &wire.GraphInstantiateArgs{Exec: exec, Graph: r.Graph}, &ir), "GraphInstantiate")
	launch := func(want uint32) {
		g.t.Helper()
		g.ok(g.do(&wire.GraphLaunchArgs{Exec: exec, Stream: st}, nil), "GraphLaunch")
		g.ok(g.sync(), "CtxSynchronize")
		if got := binary.LittleEndian.Uint32(g.get(buf+4*(n-1), 4)); got != want {
			t.Errorf("replayed: %d, want %d", got, want)
		}
	}
	launch(8)
	k.Size = uint32(len(params(3)))
	g.ok(g.Session.GraphExecNodeSetParams(g.call(wire.OpGraphExecNodeSetParams), &wire.GraphExecNodeSetParamsArgs{Exec: exec, Node: kernel, Type: 0,
		Params: append(k.Append(nil), params(30)...)}), "GraphExecNodeSetParams")
	launch(35)
	g.ok(g.Session.GraphDestroy(g.call(wire.OpGraphDestroy), &wire.GraphDestroyArgs{Graph: r.Graph}), "GraphDestroy")
	launch(35)

	begin(cuda.CaptureModeGlobal)
	var none wire.StreamEndCaptureReply
	g.ok(g.Session.StreamEndCapture(g.call(wire.OpStreamEndCapture), &wire.StreamEndCaptureArgs{Stream: st}, &none), "StreamEndCapture without a graph")
	if none.Graph != 0 || none.Ended != 1 {
		t.Errorf("a capture whose graph nobody takes: graph %d, ended %d", none.Graph, none.Ended)
	}

	begin(cuda.CaptureModeGlobal)
	var mr wire.MemAllocReply
	if res := g.do(&wire.MemAllocArgs{Size: 4}, &mr); res != cuda.ErrorStreamCaptureUnsupported {
		t.Errorf("MemAlloc while capturing: %v", res)
	}
	if r, res := end(); res != cuda.ErrorStreamCaptureInvalidated || r.Ended != 1 {
		t.Errorf("end of a spoilt capture: %v, ended %d", res, r.Ended)
	}
	var again wire.MemAllocReply
	g.ok(g.do(&wire.MemAllocArgs{Size: 4}, &again), "MemAlloc afterwards")
	g.ok(g.Session.GraphExecDestroy(g.call(wire.OpGraphExecDestroy), &wire.GraphExecDestroyArgs{Exec: exec}), "GraphExecDestroy")
}

// testMovedGraph makes a captured graph part of another's child node: it runs there, and belongs to
// it from then on.
func testMovedGraph(t *testing.T, g *Guest) {
	const n = 64
	buf, st := g.alloc(4*n), g.stream()
	fill := func(value uint32) wire.ID {
		g.t.Helper()
		g.ok(g.Session.StreamBeginCapture(g.call(wire.OpStreamBeginCapture), &wire.StreamBeginCaptureArgs{Stream: st, Mode: cuda.CaptureModeRelaxed}), "StreamBeginCapture")
		g.ok(g.do(&wire.MemsetArgs{Dst: buf, Value: value, Element: 4, Width: n, Height: 1, Stream: st}, nil), "Memset")
		var r wire.StreamEndCaptureReply
		g.ok(g.Session.StreamEndCapture(g.call(wire.OpStreamEndCapture), &wire.StreamEndCaptureArgs{Stream: st, Fresh: g.ID()}, &r), "StreamEndCapture")
		return r.Graph
	}
	child, parent := fill(77), g.ID()
	g.ok(g.Session.GraphCreate(g.call(wire.OpGraphCreate), &wire.GraphCreateArgs{Graph: parent}), "GraphCreate")
	move := func() cuda.Result {
		var r wire.GraphAddNodeReply
		return g.Session.GraphAddNode(g.call(wire.OpGraphAddNode), &wire.GraphAddNodeArgs{Graph: parent, Node: g.ID(), Type: 4,
			Params: (&wire.ChildNode{Graph: child, Ownership: 1}).Append(nil)}, &r)
	}
	g.ok(move(), "GraphAddNode")
	if res := move(); res == cuda.Success {
		t.Error("a graph moved twice")
	}
	if res := g.Session.GraphDestroy(g.call(wire.OpGraphDestroy), &wire.GraphDestroyArgs{Graph: child}); res == cuda.Success {
		t.Error("a graph inside a node was destroyed by itself")
	}
	exec := g.ID()
	var ir wire.GraphInstantiateReply
	g.ok(g.Session.GraphInstantiate(g.call(wire.OpGraphInstantiate), &wire.GraphInstantiateArgs{Exec: exec, Graph: parent}, &ir), "GraphInstantiate")
	g.ok(g.do(&wire.GraphLaunchArgs{Exec: exec, Stream: st}, nil), "GraphLaunch")
	g.ok(g.sync(), "CtxSynchronize")
	if got := binary.LittleEndian.Uint32(g.get(buf+4*(n-1), 4)); got != 77 {
		t.Errorf("the child wrote %d", got)
	}
	g.ok(g.Session.GraphExecDestroy(g.call(wire.OpGraphExecDestroy), &wire.GraphExecDestroyArgs{Exec: exec}), "GraphExecDestroy")
	g.ok(g.Session.GraphDestroy(g.call(wire.OpGraphDestroy), &wire.GraphDestroyArgs{Graph: parent}), "GraphDestroy")
}
