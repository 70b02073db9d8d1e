package cuda

import (
	"fmt"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
)

// TestCapturesEndWithWhatTheyTook: a graph that a capture made needs what the captured calls named;
// a capture under way ends with it.
func TestCapturesEndWithWhatTheyTook(t *testing.T) {
	const n, made, from = 7, 30, 31
	unload := func(x *attacker) cuda.Result {
		return x.ModuleUnload(x.in(ending), &wire.ModuleUnloadArgs{Module: n})
	}
	destroy := func(x *attacker) cuda.Result { return x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: ending}) }
	for what, end := range map[string]func(x *attacker) cuda.Result{"module": unload, "context": destroy} {
		for _, under := range []bool{false, true} {
			for _, into := range []wire.ID{0, from} {
				// Each session ends before the next begins, in which handles are the same numbers.
				t.Run(fmt.Sprintf("%s, under way %v, into %d", what, under, into), func(t *testing.T) {
					x := newHeir(t)
					x.must(x.CtxCreate(x.in(0), &wire.CtxCreateArgs{Ctx: ending}))
					x.objects(ending, n)
					x.must(x.GraphCreate(x.in(ending), &wire.GraphCreateArgs{Graph: from}))
					x.must(x.StreamBeginCapture(x.in(ending), &wire.StreamBeginCaptureArgs{Stream: n, Graph: into}))
					x.must(x.Launch(x.in(ending), &wire.LaunchArgs{Func: n, Stream: n, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: make([]byte, cudatest.KernelBytes)}))
					finish := func() cuda.Result {
						return x.StreamEndCapture(x.in(ending), &wire.StreamEndCaptureArgs{Stream: n, Fresh: made}, &wire.StreamEndCaptureReply{})
					}
					graph := wire.ID(made)
					if into != 0 {
						graph = into
					}
					if !under {
						x.must(finish())
						x.must(x.GraphInstantiate(x.in(ending), &wire.GraphInstantiateArgs{Exec: made, Graph: graph}, &wire.GraphInstantiateReply{}))
					}
					x.must(end(x))
					if x.capturing() {
						t.Errorf("%s: a capture goes on without it", what)
					}
					if under {
						finish()
					}
					if res := x.GraphLaunch(x.in(lasting), &wire.GraphLaunchArgs{Exec: made, Stream: spare}); res == cuda.Success {
						t.Errorf("%s: what was captured is launched without it", what)
					}
					if res := x.GraphInstantiate(x.in(lasting), &wire.GraphInstantiateArgs{Exec: made + 5, Graph: graph}, &wire.GraphInstantiateReply{}); res == cuda.Success {
						t.Errorf("%s: a graph that was captured is made executable without it", what)
					}
					x.everything(what, lasting, n, made, from)
				})
			}
		}
	}
}

// TestLostGraphsSayWhy: what ended with a context says so when it is used, and can be ended; its
// number may be given again.
func TestLostGraphsSayWhy(t *testing.T) {
	const n = 7
	x := newHeir(t)
	x.must(x.CtxCreate(x.in(0), &wire.CtxCreateArgs{Ctx: ending}))
	x.objects(ending, n)
	x.must(x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: ending}))
	launch := func() cuda.Result {
		return x.GraphLaunch(x.in(lasting), &wire.GraphLaunchArgs{Exec: n, Stream: wire.StreamLegacy})
	}
	instantiate := func() cuda.Result {
		return x.GraphInstantiate(x.in(lasting), &wire.GraphInstantiateArgs{Exec: 90, Graph: n}, &wire.GraphInstantiateReply{})
	}
	if a, b := launch(), instantiate(); a != cuda.ErrorContextIsDestroyed || b != cuda.ErrorContextIsDestroyed {
		t.Errorf("launch %v, instantiation %v", a, b)
	}
	for _, want := range []cuda.Result{cuda.Success, cuda.ErrorInvalidValue} {
		e, g := x.GraphExecDestroy(x.in(0), &wire.GraphExecDestroyArgs{Exec: n}), x.GraphDestroy(x.in(0), &wire.GraphDestroyArgs{Graph: n})
		if e != want || g != want {
			t.Errorf("their ends: %v and %v, want %v", e, g, want)
		}
	}
	x.must(x.GraphCreate(x.in(lasting), &wire.GraphCreateArgs{Graph: n + 1}))
	x.must(x.GraphInstantiate(x.in(lasting), &wire.GraphInstantiateArgs{Exec: n + 1, Graph: n + 1}, &wire.GraphInstantiateReply{}))
	x.must(x.GraphLaunch(x.in(lasting), &wire.GraphLaunchArgs{Exec: n + 1, Stream: wire.StreamLegacy}))
	x.must(x.GraphExecDestroy(x.in(lasting), &wire.GraphExecDestroyArgs{Exec: n + 1}))
	x.must(x.GraphDestroy(x.in(lasting), &wire.GraphDestroyArgs{Graph: n + 1}))
	if _, again := x.lost.graphs[n+1]; again {
		t.Error("a graph that was made anew is lost yet")
	}
}

// TestChangedNodesNeedNoMore: a node, or an executable graph, that was changed to other code
// outlives what it had before.
func TestChangedNodesNeedNoMore(t *testing.T) {
	const n = 7
	x := newHeir(t)
	x.objects(lasting, n)
	v := wire.KernelNode{Func: spare, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: cudatest.KernelBytes}
	params := append(v.Append(nil), make([]byte, cudatest.KernelBytes)...)
	x.must(x.GraphNodeSetParams(x.in(lasting), &wire.GraphNodeSetParamsArgs{Node: n, Type: wire.NodeKernel, Params: params}))
	x.must(x.GraphExecNodeSetParams(x.in(lasting), &wire.GraphExecNodeSetParamsArgs{Exec: n, Node: n, Type: wire.NodeKernel, Params: params}))
	x.must(x.GraphExecUpdate(x.in(lasting), &wire.GraphExecUpdateArgs{Exec: n + 1, Graph: spare}, &wire.GraphExecUpdateReply{}))
	x.must(x.ModuleUnload(x.in(lasting), &wire.ModuleUnloadArgs{Module: n}))
	x.must(x.LibraryUnload(x.in(lasting), &wire.LibraryUnloadArgs{Library: n}))
	for exec, lives := range map[wire.ID]bool{n: true, n + 1: true, n + 2: false} {
		if _, ok := x.execs.get(exec); ok != lives {
			t.Errorf("executable graph %d: %v", exec, ok)
		}
	}
	if _, ok := x.graphs.get(n); !ok {
		t.Error("a graph ended with what its node had before")
	}
}

// TestEventsOfGraphsStay: an event that a graph records lives in the driver until neither that
// graph nor what was made of it does.
func TestEventsOfGraphsStay(t *testing.T) {
	const n = 7
	for name, last := range map[string]func(x *attacker){
		"graph": func(x *attacker) {
			x.must(x.GraphExecDestroy(x.in(lasting), &wire.GraphExecDestroyArgs{Exec: n + 3}))
			x.must(x.GraphDestroy(x.in(lasting), &wire.GraphDestroyArgs{Graph: n + 3}))
		},
		"executable graph": func(x *attacker) {
			x.must(x.GraphDestroy(x.in(lasting), &wire.GraphDestroyArgs{Graph: n + 3}))
			x.must(x.GraphExecDestroy(x.in(lasting), &wire.GraphExecDestroyArgs{Exec: n + 3}))
		},
		"context": func(x *attacker) { x.must(x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: lasting})) },
	} {
		x := newHeir(t)
		x.objects(lasting, n)
		x.must(x.EventDestroy(x.in(lasting), &wire.EventDestroyArgs{Event: n}))
		if len(x.kept) != 1 {
			t.Fatalf("%s: %d events are kept", name, len(x.kept))
		}
		last(x)
		if len(x.kept) != 0 {
			t.Errorf("%s: events are kept for nobody", name)
		}
		x.unharmed(name, "the end")
	}
}
