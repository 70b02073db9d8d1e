package worker

import (
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/soft"
)

// node adds a node to a graph.
func (s *softSession) node(g, id, kind uint32, params []byte, deps ...wire.ID) uint64 {
	s.t.Helper()
	var r wire.GraphAddNodeReply
	s.want(cuda.Success, &wire.GraphAddNodeArgs{Graph: g, Node: id, Type: kind, Deps: ids(deps...), Params: params}, &r)
	return r.Value
}

func (s *softSession) instantiate(x, g wire.ID) {
	s.t.Helper()
	s.want(cuda.Success, &wire.GraphInstantiateArgs{Exec: x, Graph: g}, new(wire.GraphInstantiateReply))
}

func (s *softSession) update(x, g wire.ID) {
	s.t.Helper()
	s.want(cuda.Success, &wire.GraphExecUpdateArgs{Exec: x, Graph: g}, new(wire.GraphExecUpdateReply))
}

// clear zeroes what graphs write.
func (s *softSession) clear() {
	s.must(softCtx, &wire.MemsetArgs{Dst: s.words, Element: 4, Width: softFrom, Height: 1, Stream: softStream})
}

// launched is the first word after one launch.
func (s *softSession) launched(x wire.ID) uint32 {
	s.t.Helper()
	s.clear()
	s.must(softCtx, &wire.GraphLaunchArgs{Exec: x, Stream: softStream})
	return s.memory()[0]
}

// captured captures one kernel after the other on the first word.
func (s *softSession) captured(g wire.ID, incs ...uint32) {
	s.t.Helper()
	s.must(softCtx, &wire.StreamBeginCaptureArgs{Stream: softStream, Mode: 2})
	for _, inc := range incs {
		s.must(softCtx, s.launch(softMix, 0, inc, softStream))
	}
	s.want(cuda.Success, &wire.StreamEndCaptureArgs{Stream: softStream, Fresh: g}, new(wire.StreamEndCaptureReply))
}

const (
	aGraph = softFirst + 100 + iota
	aNode
	bNode
	cNode
	anExec
	bGraph
	dNode
	cGraph
	anObject
	bExec
)

// TestGraphsMove has graphs of every kind made, moved and launched.
func TestGraphsMove(t *testing.T) {
	const twoSteps = 3*5 + 7
	for name, run := range map[string]func(*testing.T, *softSession) *softSession{
		"captured": func(t *testing.T, s *softSession) *softSession {
			s.captured(aGraph, 5, 7)
			s = s.moved()
			s.instantiate(anExec, aGraph)
			return s
		},
		"executable": func(t *testing.T, s *softSession) *softSession {
			s.captured(aGraph, 5, 7)
			s.instantiate(anExec, aGraph)
			return s.moved()
		},
		"executable, graph destroyed": func(t *testing.T, s *softSession) *softSession {
			s.captured(aGraph, 5, 7)
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphDestroyArgs{Graph: aGraph})
			s.want(cuda.ErrorInvalidValue, &wire.GraphDestroyArgs{Graph: aGraph}, nil)
			s = s.moved()
			s.want(cuda.ErrorInvalidValue, &wire.GraphDestroyArgs{Graph: aGraph}, nil)
			return s
		},
		"executable, graph changed": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeKernel, s.kernel(softMix, 0, 5))
			s.node(aGraph, bNode, wire.NodeKernel, s.kernel(softMix, 0, 8), aNode)
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphNodeSetParamsArgs{Node: aNode, Type: wire.NodeKernel, Params: s.kernel(softMix, 0, 9)})
			s.must(softCtx, &wire.GraphDestroyNodeArgs{Node: aNode})
			s = s.moved().moved()
			s.must(softCtx, &wire.GraphExecNodeSetParamsArgs{Exec: anExec, Node: bNode, Type: wire.NodeKernel, Params: s.kernel(softMix, 0, 7)})
			s = s.moved()
			s.instantiate(bExec, aGraph)
			if got := s.launched(bExec); got != 8 {
				t.Errorf("the changed graph comes to %d", got)
			}
			return s
		},
		"updated from captures": func(t *testing.T, s *softSession) *softSession {
			s.captured(aGraph, 1, 2)
			s.instantiate(anExec, aGraph)
			s = s.moved()
			s.captured(bGraph, 5, 7)
			s.update(anExec, bGraph)
			s.must(softCtx, &wire.GraphDestroyArgs{Graph: aGraph}, &wire.GraphDestroyArgs{Graph: bGraph})
			return s.moved()
		},
		"nodes changed and off": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeKernel, s.kernel(softMix, 0, 99))
			s.node(aGraph, bNode, wire.NodeKernel, s.kernel(softMix, 0, 5), aNode)
			s.node(aGraph, cNode, wire.NodeKernel, s.kernel(softMix, 0, 9), bNode)
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphNodeSetEnabledArgs{Exec: anExec, Node: aNode},
				&wire.GraphExecNodeSetParamsArgs{Exec: anExec, Node: cNode, Type: wire.NodeKernel, Params: s.kernel(softMix, 0, 7)}, &wire.GraphDestroyArgs{Graph: aGraph})
			return s.moved()
		},
		"child graph": func(t *testing.T, s *softSession) *softSession {
			s.captured(bGraph, 5)
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeGraph, (&wire.ChildNode{Graph: bGraph}).Append(nil))
			s.node(aGraph, bNode, wire.NodeKernel, s.kernel(softMix, 0, 7), aNode)
			s = s.moved()
			var r wire.GraphNodeGetParamsReply
			s.want(cuda.Success, &wire.GraphNodeGetParamsArgs{Node: aNode, Fresh: cGraph}, &r)
			s = s.moved()
			var list wire.GraphListReply
			if s.want(cuda.Success, &wire.GraphListArgs{Graph: cGraph}, &list); list.Unnamed != 1 || len(list.Nodes) != wire.GraphEdgeSize {
				t.Errorf("%+v in the child graph", list)
			}
			s.instantiate(anExec, aGraph)
			return s.moved()
		},
		"event": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeKernel, s.kernel(softMix, 0, 5))
			s.node(aGraph, bNode, wire.NodeEventRecord, (&wire.EventNode{Event: softEvent}).Append(nil), aNode)
			s.node(aGraph, cNode, wire.NodeWaitEvent, (&wire.EventNode{Event: softEvent}).Append(nil), bNode)
			s.node(aGraph, dNode, wire.NodeKernel, s.kernel(softMix, 0, 7), cNode)
			s.instantiate(anExec, aGraph)
			return s.moved()
		},
		"kernel attributes": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeKernel, s.kernel(softMix, 0, twoSteps))
			v := make([]byte, 64)
			v[0] = 3
			s.must(softCtx, &wire.GraphNodeSetAttributeArgs{Node: aNode, Attr: cuda.LaunchAttrPriority, Value: v})
			s = s.moved()
			var r wire.GraphNodeGetAttributeReply
			if s.want(cuda.Success, &wire.GraphNodeGetAttributeArgs{Node: aNode, Attr: cuda.LaunchAttrPriority}, &r); r.Value[0] != 3 {
				t.Errorf("priority %v", r.Value)
			}
			s.instantiate(anExec, aGraph)
			return s
		},
		"conditional": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: bGraph}, &wire.GraphCreateArgs{Graph: aGraph})
			var h wire.GraphConditionalCreateReply
			for range 3 {
				s.want(cuda.Success, &wire.GraphConditionalCreateArgs{Graph: aGraph, Value: 1, Flags: 1}, &h)
			}
			loop := (&wire.ConditionalNode{Handle: h.Handle, Type: 1, Size: 1}).Append(nil)
			s.node(aGraph, aNode, wire.NodeConditional, append(loop, ids(cGraph)...))
			s = s.moved()
			p := (&wire.KernelNode{Func: softCount, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: 20}).Append(nil)
			p = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(p, s.word(0)), h.Handle)
			s.node(cGraph, bNode, wire.NodeKernel, binary.LittleEndian.AppendUint32(p, twoSteps))
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphDestroyArgs{Graph: aGraph})
			return s.moved().moved()
		},
		"memory": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: bGraph}, &wire.GraphCreateArgs{Graph: aGraph})
			at := s.node(bGraph, aNode, wire.NodeMemAlloc, append((&wire.AllocNode{Size: 4096}).Append(nil), make([]byte, 88)...))
			s.node(bGraph, bNode, wire.NodeMemset, (&wire.MemsetNode{Dst: at, Value: twoSteps, Element: 4, Width: 1, Height: 1}).Append(nil), aNode)
			s.instantiate(bExec, bGraph)
			operand := wire.MemcpyOperand{Ptr: at, Type: cuda.MemoryTypeUnified, Pitch: 4}
			to := wire.MemcpyOperand{Ptr: s.word(0), Type: cuda.MemoryTypeUnified, Pitch: 4}
			s.node(aGraph, cNode, wire.NodeMemcpy, (&wire.MemcpyNode{Width: 4, Height: 1, Depth: 1}).Append(to.Append(operand.Append(nil))))
			s.node(aGraph, dNode, wire.NodeMemFree, (&wire.FreeNode{Ptr: at}).Append(nil), cNode)
			s.instantiate(anExec, aGraph)
			s = s.moved()
			s.must(softCtx, &wire.GraphLaunchArgs{Exec: bExec, Stream: softStream})
			return s.moved() // it holds something
		},
		"captured memory": func(t *testing.T, s *softSession) *softSession {
			s.must(softCtx, &wire.StreamBeginCaptureArgs{Stream: softStream, Mode: 2})
			var mem wire.MemAllocAsyncReply
			s.want(cuda.Success, &wire.MemAllocAsyncArgs{Stream: softStream, Size: 64}, &mem)
			s.must(softCtx, &wire.MemsetArgs{Dst: mem.Ptr, Value: twoSteps, Element: 4, Width: 1, Height: 1, Stream: softStream},
				&wire.MemcpyArgs{Dst: s.word(0), Src: mem.Ptr, Size: 4, Stream: softStream}, &wire.MemFreeAsyncArgs{Stream: softStream, Ptr: mem.Ptr})
			s.want(cuda.Success, &wire.StreamEndCaptureArgs{Stream: softStream, Fresh: aGraph}, new(wire.StreamEndCaptureReply))
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphDestroyArgs{Graph: aGraph})
			return s.moved()
		},
		"memory that a fill names is gone": func(t *testing.T, s *softSession) *softSession {
			var mem wire.MemAllocReply
			s.want(cuda.Success, &wire.MemAllocArgs{Size: 4096}, &mem)
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeMemset, (&wire.MemsetNode{Dst: mem.Ptr, Element: 4, Width: 1, Height: 1}).Append(nil))
			s.must(softCtx, &wire.MemFreeArgs{Ptr: mem.Ptr})
			s.captured(bGraph, 5, 7)
			s.instantiate(anExec, bGraph)
			return s.moved()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := run(t, newSoft(t))
			if got := s.launched(anExec); got != twoSteps {
				t.Errorf("it comes to %d, want %d", got, twoSteps)
			}
			s.close()
		})
	}
}

// TestGraphsStay has sessions that cannot move say why.
func TestGraphsStay(t *testing.T) {
	for want, make := range map[string]func(*softSession){
		"a stream captures": func(s *softSession) {
			s.must(softCtx, &wire.StreamBeginCaptureArgs{Stream: softStream, Mode: 2})
		},
		"(kernel) is gone": func(s *softSession) {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeKernel, s.kernel(softMix, 0, 5))
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphDestroyNodeArgs{Node: aNode}, &wire.ModuleUnloadArgs{Module: softModule})
			s.must(softCtx, &wire.ModuleLoadArgs{Module: softModule, Image: []byte(mixPTX)},
				// Another of that id.
				&wire.ModuleGetFunctionArgs{Module: softModule, Func: softMix, Name: []byte("add")})
		},
		"graph that is gone": func(s *softSession) {
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.node(aGraph, aNode, wire.NodeMemAlloc, append((&wire.AllocNode{Size: 4096}).Append(nil), make([]byte, 88)...))
			s.instantiate(anExec, aGraph)
			s.must(softCtx, &wire.GraphLaunchArgs{Exec: anExec, Stream: softStream}, &wire.GraphExecDestroyArgs{Exec: anExec}, &wire.GraphDestroyArgs{Graph: aGraph})
		},
	} {
		t.Run(want, func(t *testing.T) {
			s := newSoft(t)
			make(s)
			if _, err := s.tryMove(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("move: %v", err)
			}
			s.close()
		})
	}
}

// TestUserObjectsMove: destructors run when they would have run, and once.
func TestUserObjectsMove(t *testing.T) {
	s := newSoft(t)
	alive := func(want int) {
		t.Helper()
		s.sync()
		if got := len(s.w.graphs.objects.list()); got != want {
			t.Errorf("%d objects, want %d", got, want)
		}
	}
	for i := range wire.ID(2) {
		s.must(softCtx, &wire.UserObjectCreateArgs{Object: anObject + 10 + i, ID: uint64(77 + i), Count: 1, Flags: 1})
	}
	s.captured(aGraph, 5)
	s.captured(bGraph, 5)
	s.must(softCtx, &wire.GraphUserObjectArgs{Graph: aGraph, Object: anObject + 10, Count: 1, Flags: 1},
		&wire.GraphUserObjectArgs{Graph: bGraph, Object: anObject + 11, Count: 1})
	s.instantiate(anExec, aGraph)
	s.instantiate(bExec, aGraph)
	s.must(softCtx, &wire.GraphDestroyArgs{Graph: aGraph})
	alive(2)
	s = s.moved()
	alive(2)
	s.must(softCtx, &wire.GraphExecDestroyArgs{Exec: anExec})
	alive(2)
	s.update(bExec, bGraph) // the references of that graph replace those of the other
	alive(1)
	s = s.moved()
	s.must(softCtx, &wire.GraphDestroyArgs{Graph: bGraph}, &wire.UserObjectCountArgs{Object: anObject + 11, Release: 1, Count: 1})
	alive(1)
	s = s.moved()
	s.must(softCtx, &wire.GraphExecDestroyArgs{Exec: bExec})
	alive(0)
	s.close()
}

// asked counts the questions about graphs.
type asked struct {
	driver.Session
	driver.GraphKeeper
	questions, graphs int
}

func (a *asked) GraphList(c *wire.Call, v *wire.GraphListArgs, r *wire.GraphListReply) cuda.Result {
	a.questions++
	return a.Session.GraphList(c, v, r)
}

func (a *asked) StreamEndCapture(c *wire.Call, v *wire.StreamEndCaptureArgs, r *wire.StreamEndCaptureReply) cuda.Result {
	a.graphs++
	return a.Session.StreamEndCapture(c, v, r)
}

func (a *asked) GraphDestroy(c *wire.Call, v *wire.GraphDestroyArgs) cuda.Result {
	a.graphs--
	return a.Session.GraphDestroy(c, v)
}

// TestUpdatesKeepNothing: a program that captures a graph, updates what is executable from it and
// destroys it, for ever, has nobody look at its graphs, and at most one kept.
func TestUpdatesKeepNothing(t *testing.T) {
	c := &fakeCarrier{done: make(chan struct{})}
	var count *asked
	w, err := New(c, fakeBackend{soft.New(), func(s driver.Session) driver.Session {
		count = &asked{Session: s, GraphKeeper: s.(driver.GraphKeeper)}
		return count
	}}, driver.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &softSession{recorded: recorded{t: t, w: w, ring: &c.fakeRing}}
	t.Cleanup(s.close)
	s.start()
	s.captured(aGraph, 5)
	s.instantiate(anExec, aGraph)
	old, used := aGraph, uint64(0)
	for i := range wire.ID(1000) {
		g := aGraph + 100 + i
		s.must(softCtx, &wire.GraphDestroyArgs{Graph: old})
		s.captured(g, i)
		s.update(anExec, g)
		old = g
		if i == 10 {
			used = w.host.used
		}
	}
	if count.questions != 0 || count.graphs != 1 || w.host.used != used {
		t.Errorf("%d questions, %d graphs, %d bytes instead of %d", count.questions, count.graphs, w.host.used, used)
	}
}

// TestWhatNodesName: a node can be made again as long as what it names is older than the
// description that names it; another of the same number, although it was made right behind that, is
// not what it named.
func TestWhatNodesName(t *testing.T) {
	const id, since = 30, 100
	w, _ := newFake(t, nil)
	array := (&wire.MemcpyNode{}).Append((&wire.MemcpyOperand{Type: cuda.MemoryTypeArray, Array: id}).Append((&wire.MemcpyOperand{Type: cuda.MemoryTypeUnified}).Append(nil)))
	for what, c := range map[string]struct {
		kind   uint32
		params []byte
		names  bool
	}{
		"a kernel":          {wire.NodeKernel, (&wire.KernelNode{Func: id}).Append(nil), true},
		"a wait":            {wire.NodeWaitEvent, (&wire.EventNode{Event: id}).Append(nil), true},
		"a record":          {wire.NodeEventRecord, (&wire.EventNode{Event: id}).Append(nil), true},
		"a copy":            {wire.NodeMemcpy, array, true},
		"a copy of no such": {wire.NodeMemcpy, (&wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Array: id}).Append(nil), false},
		"a fill":            {wire.NodeMemset, (&wire.MemsetNode{}).Append(nil), false},
	} {
		for order, stands := range map[uint64]bool{0: false, since - 1: true, since: false, since + 1: false} {
			if delete(w.record.objects, objectKey{id: id}); order != 0 {
				w.record.objects[objectKey{id: id}] = &object{create: &entry{order: order}}
			}
			if err := w.graphs.stands(c.kind, c.params, since); (err == nil) != (stands || !c.names) {
				t.Errorf("%s, what it names is of %d: %v", what, order, err)
			}
		}
	}
}

// TestGraphMemoryOfQueuedLaunches: memory of graphs that are gone goes when others want some, but
// not what a launch that is queued still is to allocate.
func TestGraphMemoryOfQueuedLaunches(t *testing.T) {
	const launches, flag = 60, 63
	s := newSoft(t)
	alloc := append((&wire.AllocNode{Size: 4096}).Append(nil), make([]byte, 88)...)
	s.must(softCtx, &wire.StreamWaitValueArgs{Stream: softStream, Addr: s.word(flag), Value: 1, Width: 4, Flags: cuda.StreamWaitValueEq})
	var left []uint64
	for i := range uint32(launches) {
		s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
		at := s.node(aGraph, aNode, wire.NodeMemAlloc, alloc)
		s.node(aGraph, bNode, wire.NodeMemset, (&wire.MemsetNode{Dst: at, Value: i, Element: 4, Width: 1024, Height: 1}).Append(nil), aNode)
		s.instantiate(anExec, aGraph)
		s.must(softCtx, &wire.GraphLaunchArgs{Exec: anExec, Stream: softStream}, &wire.GraphExecDestroyArgs{Exec: anExec}, &wire.GraphDestroyArgs{Graph: aGraph})
		left = append(left, at)
	}
	s.must(softCtx, &wire.StreamWriteValueArgs{Stream: softStream2, Addr: s.word(flag), Value: 1, Width: 4})
	for n, at := range left {
		s.must(softCtx, &wire.MemcpyArgs{Dst: s.word(n), Src: at + 4092, Size: 4, Stream: softStream}, &wire.MemFreeAsyncArgs{Ptr: at, Stream: softStream})
	}
	for n, got := range s.memory()[:launches] {
		if got != uint32(n) {
			t.Fatalf("launch %d has left %d", n, got)
		}
	}
	s.close()
}
