package worker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// chance makes requests by chance, and notes what comes of them.
type chance struct {
	t       *testing.T
	r       *rand.Rand
	s       *softSession
	trace   []string
	like    []string // what has to come of them, if it is known
	next    wire.ID
	graphs  []wire.ID
	nodes   map[wire.ID][]wire.ID // by graph
	kinds   map[wire.ID]uint32
	execs   []wire.ID
	moves   bool
	refused int
}

func (w *chance) fresh() wire.ID {
	w.next++
	return w.next
}

func (w *chance) do(a wire.Args, r func() wire.Reply) (res cuda.Result, reply wire.Reply) {
	w.t.Helper()
	if r != nil {
		reply = r()
	}
	res = w.s.ask(a, reply)
	w.note(fmt.Sprintf("%v %+v: %v %+v", a.Op(), a, res, reply))
	if kept := w.s.kept(); kept != w.s.w.host.used {
		w.t.Fatalf("%v %+v: %d bytes are booked for %d", a.Op(), a, w.s.w.host.used, kept)
	}
	return res, reply
}

func (w *chance) note(text string) {
	w.t.Helper()
	if n := len(w.trace); w.like != nil && (n >= len(w.like) || w.like[n] != text) {
		w.t.Fatalf("after a move: %s\nwithout it: %s", text, w.like[min(n, len(w.like)-1)])
	}
	w.trace = append(w.trace, text)
}

func pick[T any](r *rand.Rand, list []T) (v T) {
	if len(list) > 0 {
		v = list[r.IntN(len(list))]
	}
	return v
}

// anyNode is a node of any graph, mostly one that is there.
func (w *chance) anyNode() wire.ID {
	if w.r.IntN(20) == 0 {
		return w.fresh()
	}
	return pick(w.r, w.nodes[pick(w.r, w.graphs)])
}

// params are of a node of some kind. What nodes do that run at the same time does not depend on
// which is first.
func (w *chance) params() (uint32, []byte) {
	s, i := w.s, w.r.IntN(softCopied-softFilled)
	switch w.r.IntN(6) {
	case 0:
		return wire.NodeMemset, (&wire.MemsetNode{Dst: s.word(softFilled + i), Value: uint32(i + 1), Element: 4, Width: 1, Height: 1}).Append(nil)
	case 1:
		src := wire.MemcpyOperand{Ptr: s.word(softFrom + i), Type: cuda.MemoryTypeUnified, Pitch: 4}
		dst := wire.MemcpyOperand{Ptr: s.word(softCopied + i), Type: cuda.MemoryTypeUnified, Pitch: 4}
		return wire.NodeMemcpy, (&wire.MemcpyNode{Width: 4, Height: 1, Depth: 1}).Append(dst.Append(src.Append(nil)))
	case 2:
		return wire.NodeEmpty, nil
	}
	return wire.NodeKernel, s.kernel(softAdd, w.r.IntN(softFilled), w.r.Uint32()%100)
}

func (w *chance) added(g, n wire.ID, kind uint32) {
	w.nodes[g] = append(w.nodes[g], n)
	w.kinds[n] = kind
}

// chain adds nodes that follow one another to a graph.
func (w *chance) chain(g wire.ID, n int) {
	for range n {
		var deps []byte
		if list := w.nodes[g]; len(list) > 0 {
			deps = ids(list[len(list)-1])
		}
		id := w.fresh()
		kind, params := w.params()
		if res, _ := w.do(&wire.GraphAddNodeArgs{Graph: g, Node: id, Type: kind, Deps: deps, Params: params}, nil); res == cuda.Success {
			w.added(g, id, kind)
		}
	}
}

func (w *chance) capture(n int) {
	w.do(&wire.StreamBeginCaptureArgs{Stream: softStream, Mode: 2}, nil)
	for i := range n {
		if i == n/2 { // into another stream and back
			w.do(&wire.EventRecordArgs{Event: softEvent, Stream: softStream}, nil)
			w.do(&wire.StreamWaitEventArgs{Event: softEvent, Stream: softStream2}, nil)
			w.do(w.s.launch(softAdd, w.r.IntN(softFilled), w.r.Uint32()%100, softStream2), nil)
			w.do(&wire.EventRecordArgs{Event: softEvent, Stream: softStream2}, nil)
			w.do(&wire.StreamWaitEventArgs{Event: softEvent, Stream: softStream}, nil)
		}
		w.do(w.s.launch(softAdd, w.r.IntN(softFilled), w.r.Uint32()%100, softStream), nil)
	}
	g := w.fresh()
	if res, _ := w.do(&wire.StreamEndCaptureArgs{Stream: softStream, Fresh: g}, func() wire.Reply { return new(wire.StreamEndCaptureReply) }); res == cuda.Success {
		w.graphs = append(w.graphs, g)
	}
}

// list asks for a graph's nodes, and gives those that have none ids.
func (w *chance) list(g wire.ID, what uint32) {
	reply := func() wire.Reply { return new(wire.GraphListReply) }
	res, r := w.do(&wire.GraphListArgs{What: what, Graph: g, Node: w.anyNode()}, reply)
	if res != cuda.Success || w.r.IntN(2) == 0 {
		return
	}
	var names []wire.ID
	for range r.(*wire.GraphListReply).Unnamed {
		names = append(names, w.fresh())
	}
	_, r = w.do(&wire.GraphListArgs{What: what, Graph: g, Names: ids(names...)}, reply)
	for b := r.(*wire.GraphListReply).Nodes; len(b) > 0; b = b[wire.GraphEdgeSize:] {
		var e wire.GraphEdge
		_ = e.Decode(b)
		if slices.Contains(names, e.From) && w.kinds[e.From] == 0 {
			w.added(g, e.From, e.FromType)
		}
	}
}

func (w *chance) forget(g wire.ID) {
	w.graphs = slices.DeleteFunc(w.graphs, func(x wire.ID) bool { return x == g })
	delete(w.nodes, g)
}

func (w *chance) step() {
	g, x, n := pick(w.r, w.graphs), pick(w.r, w.execs), w.anyNode()
	switch w.r.IntN(25) {
	case 0:
		id := w.fresh()
		w.do(&wire.GraphCreateArgs{Graph: id}, nil)
		w.graphs = append(w.graphs, id)
		w.chain(id, 4)
	case 1:
		w.capture(4)
	case 2:
		if len(w.graphs) > 4 {
			if res, _ := w.do(&wire.GraphDestroyArgs{Graph: g}, nil); res == cuda.Success {
				w.forget(g)
			}
		}
	case 3:
		id := w.fresh()
		if res, _ := w.do(&wire.GraphCloneArgs{Graph: id, Original: g}, nil); res == cuda.Success {
			w.graphs = append(w.graphs, id)
		}
	case 4:
		w.chain(g, 1)
	case 5:
		if res, _ := w.do(&wire.GraphDestroyNodeArgs{Node: n}, nil); res == cuda.Success {
			for g := range w.nodes {
				w.nodes[g] = slices.DeleteFunc(w.nodes[g], func(x wire.ID) bool { return x == n })
			}
		}
	case 6:
		kind, params := w.params()
		w.do(&wire.GraphNodeSetParamsArgs{Node: n, Type: kind, Params: params}, nil)
	case 7:
		w.do(&wire.GraphSetEdgesArgs{Graph: g, Remove: w.r.Uint32() % 2, Before: ids(pick(w.r, w.nodes[g])), After: ids(pick(w.r, w.nodes[g]))}, nil)
	case 8:
		v := make([]byte, 64)
		v[0] = byte(w.r.IntN(3))
		w.do(&wire.GraphNodeSetAttributeArgs{Node: n, Attr: cuda.LaunchAttrPriority, Value: v}, nil)
	case 9:
		w.do(&wire.GraphNodeGetAttributeArgs{Node: n, Attr: cuda.LaunchAttrPriority}, func() wire.Reply { return new(wire.GraphNodeGetAttributeReply) })
	case 10:
		w.do(&wire.GraphNodeGetParamsArgs{Node: n, Fresh: w.fresh()}, func() wire.Reply { return new(wire.GraphNodeGetParamsReply) })
	case 11, 12:
		w.list(g, w.r.Uint32()%5)
	case 13:
		id, owner := w.fresh(), w.r.Uint32()%2
		child := pick(w.r, w.graphs)
		a := wire.GraphAddNodeArgs{Graph: g, Node: id, Type: wire.NodeGraph, Params: (&wire.ChildNode{Graph: child, Ownership: owner}).Append(nil)}
		if res, _ := w.do(&a, nil); res == cuda.Success {
			w.added(g, id, wire.NodeGraph)
			if owner == wire.ChildMoved {
				w.graphs = slices.DeleteFunc(w.graphs, func(x wire.ID) bool { return x == child })
			}
		}
	case 14, 15:
		id := w.fresh()
		if res, _ := w.do(&wire.GraphInstantiateArgs{Exec: id, Graph: g}, func() wire.Reply { return new(wire.GraphInstantiateReply) }); res == cuda.Success {
			w.execs = append(w.execs, id)
		}
	case 16, 17:
		w.do(&wire.GraphExecUpdateArgs{Exec: x, Graph: g}, func() wire.Reply { return new(wire.GraphExecUpdateReply) })
	case 18:
		kind, params := w.params()
		w.do(&wire.GraphExecNodeSetParamsArgs{Exec: x, Node: n, Type: kind, Params: params}, nil)
	case 19:
		w.do(&wire.GraphNodeSetEnabledArgs{Exec: x, Node: n, Enabled: w.r.Uint32() % 2}, nil)
	case 20:
		w.do(&wire.GraphNodeGetEnabledArgs{Exec: x, Node: n}, func() wire.Reply { return new(wire.GraphNodeGetEnabledReply) })
	case 22:
		found := w.fresh()
		_, r := w.do(&wire.GraphFindInCloneArgs{Node: n, Graph: g, Fresh: found}, func() wire.Reply { return new(wire.GraphFindInCloneReply) })
		if r.(*wire.GraphFindInCloneReply).Found == found {
			w.added(g, found, w.kinds[n])
		}
	case 21:
		if len(w.execs) > 6 {
			w.do(&wire.GraphExecDestroyArgs{Exec: x}, nil)
			w.execs = slices.DeleteFunc(w.execs, func(y wire.ID) bool { return x == y })
		}
	default:
		w.launch(x)
	}
}

func (w *chance) launch(x wire.ID) {
	w.do(&wire.MemsetArgs{Dst: w.s.words, Element: 4, Width: softFrom, Height: 1, Stream: softStream}, nil)
	w.do(&wire.GraphLaunchArgs{Exec: x, Stream: softStream}, nil)
	w.note(fmt.Sprint(w.s.memory()))
}

// run makes the requests, and moves the session now and then if it is to move.
func (w *chance) run(steps int) {
	for range steps {
		w.step()
		if w.r.IntN(12) != 0 || !w.moves {
			continue
		}
		n, err := w.s.tryMove()
		if err != nil {
			w.refused++
			w.t.Log(err)
			continue
		}
		w.s = n
	}
	for _, x := range w.execs {
		w.launch(x)
	}
	for _, x := range w.execs {
		w.do(&wire.GraphExecDestroyArgs{Exec: x}, nil)
	}
	for _, g := range w.graphs {
		w.do(&wire.GraphDestroyArgs{Graph: g}, nil)
	}
	if n := len(w.s.w.graphs.live) + len(w.s.w.graphs.execs); n != 0 {
		w.t.Errorf("%d graphs are kept of none", n)
	}
	w.note(fmt.Sprint(w.s.w.host.used))
	w.s.close()
}

// TestGraphsByChance runs graph requests by chance in a session that moves now and then, and in one
// that does not: nothing must tell them apart.
func TestGraphsByChance(t *testing.T) {
	rounds, steps := 20, 150
	if testing.Short() {
		rounds = 8
	}
	refused := 0
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			one := func(moves bool, like []string) *chance {
				w := &chance{t: t, r: rand.New(rand.NewPCG(uint64(seed), 12)), s: newSoft(t), next: softFirst, nodes: map[wire.ID][]wire.ID{},
					kinds: map[wire.ID]uint32{}, moves: moves, like: like}
				w.run(steps)
				return w
			}
			refused += one(true, one(false, nil).trace).refused
		})
	}
	if refused > 0 {
		t.Errorf("%d moves were refused", refused)
	}
}
