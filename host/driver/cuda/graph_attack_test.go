package cuda

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
)

// newGraphAttacker has a driver that looks at what nodes name.
func newGraphAttacker(t *testing.T) *attacker {
	x := newAttacker(t)
	x.session.drv = bind.New(cudatest.Owning)
	return x
}

func (x *attacker) graph() wire.ID {
	g := x.fresh()
	x.must(x.GraphCreate(x.call(), &wire.GraphCreateArgs{Graph: g}))
	return g
}

// TestNodesKeepTheirParameters: a node that has all of its kernel's parameters cannot be changed to
// fewer, in a graph or in what was made of it.
func TestNodesKeepTheirParameters(t *testing.T) {
	x := newGraphAttacker(t)
	module, f, n, e, g := x.fresh(), x.fresh(), x.fresh(), x.fresh(), x.graph()
	x.must(x.ModuleLoad(x.call(), &wire.ModuleLoadArgs{Module: module, Image: []byte(".version 7.0")}, &wire.ModuleLoadReply{}))
	x.must(x.ModuleGetFunction(x.call(), &wire.ModuleGetFunctionArgs{Func: f, Module: module, Name: []byte("k")}, &wire.ModuleGetFunctionReply{}))
	launch := func(size int) []byte {
		v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: uint32(size)}
		return append(v.Append(nil), make([]byte, size)...)
	}
	x.must(x.GraphAddNode(x.call(), &wire.GraphAddNodeArgs{Graph: g, Node: n, Params: launch(cudatest.KernelBytes)}, &wire.GraphAddNodeReply{}))
	x.must(x.GraphInstantiate(x.call(), &wire.GraphInstantiateArgs{Exec: e, Graph: g}, &wire.GraphInstantiateReply{}))
	change := func(size int) (inGraph, inExec cuda.Result) {
		return x.GraphNodeSetParams(x.call(), &wire.GraphNodeSetParamsArgs{Node: n, Params: launch(size)}),
			x.GraphExecNodeSetParams(x.call(), &wire.GraphExecNodeSetParamsArgs{Exec: e, Node: n, Params: launch(size)})
	}
	for _, size := range []int{0, 8, 16, cudatest.KernelBytes - 1} {
		inGraph, inExec := change(size)
		x.refused("fewer parameters in a graph", inGraph)
		x.refused("fewer parameters in an executable graph", inExec)
	}
	if inGraph, inExec := change(cudatest.KernelBytes); inGraph != cuda.Success || inExec != cuda.Success {
		t.Errorf("all parameters: %v, %v", inGraph, inExec)
	}
}

// TestGraphsTakeAlongWhatTheyHad: a condition, and memory that the driver has given back, are
// nobody's when their graph or node is gone.
func TestGraphsTakeAlongWhatTheyHad(t *testing.T) {
	x := newGraphAttacker(t)
	condition := func(g wire.ID, h uint64) cuda.Result {
		return x.node(g, wire.NodeConditional, binary.LittleEndian.AppendUint32((&wire.ConditionalNode{Handle: h, Size: 1}).Append(nil), x.fresh()))
	}
	var c wire.GraphConditionalCreateReply
	g := x.graph()
	x.must(x.GraphConditionalCreate(x.call(), &wire.GraphConditionalCreateArgs{Graph: g}, &c))
	x.must(condition(g, c.Handle))
	x.must(x.GraphDestroy(x.call(), &wire.GraphDestroyArgs{Graph: g}))
	x.refused("a condition whose graph is gone", condition(x.graph(), c.Handle))

	// allocates is a node's parameters, with the rights of somebody else besides.
	allocates := func(location, other uint32) []byte {
		le := binary.LittleEndian
		b := (&wire.AllocNode{Size: 1 << 20, Access: 1}).Append(nil)
		b = append(b, make([]byte, bind.PoolPropsSize+bind.AccessDescSize)...)
		le.PutUint32(b[wire.AllocNodeSize:], 1) // pinned
		le.PutUint32(b[wire.AllocNodeSize+8:], location)
		le.PutUint32(b[wire.AllocNodeSize+bind.PoolPropsSize:], other)
		return b
	}
	want := allocates(1, 1)
	for _, elsewhere := range []uint32{0, 2, 3, 4, 1 << 31} { // the host, its nodes
		x.refused("an allocation of the host's memory", x.node(x.graph(), wire.NodeMemAlloc, allocates(elsewhere, 1)))
		x.refused("an allocation for the host", x.node(x.graph(), wire.NodeMemAlloc, allocates(1, elsewhere)))
	}
	for what, end := range map[string]func(g, n wire.ID) cuda.Result{
		"graph": func(g, _ wire.ID) cuda.Result { return x.GraphDestroy(x.call(), &wire.GraphDestroyArgs{Graph: g}) },
		"node": func(_, n wire.ID) cuda.Result {
			return x.GraphDestroyNode(x.call(), &wire.GraphDestroyNodeArgs{Node: n})
		},
	} {
		g, n, r := x.graph(), x.fresh(), wire.GraphAddNodeReply{}
		x.must(x.GraphAddNode(x.call(), &wire.GraphAddNodeArgs{Graph: g, Node: n, Type: wire.NodeMemAlloc, Params: want}, &r))
		free := (&wire.FreeNode{Ptr: r.Value}).Append(nil)
		x.must(x.node(g, wire.NodeMemFree, free))
		x.must(end(g, n))
		// An executable graph has the memory yet, and another one may end it.
		x.must(x.node(x.graph(), wire.NodeMemFree, free))
		cudatest.Release(r.Value) // the driver's part of what follows
		_, res := x.space.Mem(r.Value, 64)
		x.refused("memory of a "+what+" that is gone", res)
		x.refused("the end of memory of a "+what+" that is gone", x.node(x.graph(), wire.NodeMemFree, free))
	}
}

// TestBoxesBeginInDeviceMemory: a box whose base is device memory and whose bytes are elsewhere
// would have the driver look up what is there.
func TestBoxesBeginInDeviceMemory(t *testing.T) {
	x := newGraphAttacker(t)
	g, device := x.graph(), x.alloc(1<<20)
	secret := bind.NewBuffer(4096)
	defer secret.Free()
	for what, v := range map[string]wire.MemcpyOperand{
		"an offset in a row": {X: 1 << 44, Pitch: 1<<44 + 64},
		"rows":               {Y: 1 << 30, Pitch: 1 << 14},
		"slices":             {Z: 1 << 22, Pitch: 1 << 12, Height: 1 << 10},
		"beyond the end":     {Y: 1, Pitch: 1 << 46, Height: 2},
	} {
		v.Type, v.Ptr = cuda.MemoryTypeUnified, device
		ok := wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Ptr: device, Pitch: 64}
		n := wire.MemcpyNode{Width: 64, Height: 1, Depth: 1}
		x.refused("a copy from beyond device memory by "+what, x.node(g, wire.NodeMemcpy, n.Append(ok.Append(v.Append(nil)))))
		x.refused("a copy to beyond device memory by "+what, x.node(g, wire.NodeMemcpy, n.Append(v.Append(ok.Append(nil)))))
	}
	two := wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Ptr: device, Pitch: 1 << 46, Height: 2}
	ok := wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Ptr: device, Pitch: 64, Height: 2}
	x.refused("a copy whose last row is beyond device memory", x.node(g, wire.NodeMemcpy, (&wire.MemcpyNode{Width: 64, Height: 2, Depth: 1}).Append(ok.Append(two.Append(nil)))))
	x.must(x.node(g, wire.NodeMemcpy, (&wire.MemcpyNode{Width: 64, Height: 2, Depth: 1}).Append(ok.Append(ok.Append(nil)))))
}

// TestFunctionsGoWithTheirCode: a function whose module or library is gone is launched no more, and
// becomes no node; those of other code stay, and its number can be given again.
func TestFunctionsGoWithTheirCode(t *testing.T) {
	for what, c := range map[string]struct {
		load func(x *attacker, code, f wire.ID) cuda.Result
		end  func(x *attacker, code wire.ID) cuda.Result
	}{
		"module": {func(x *attacker, code, f wire.ID) cuda.Result {
			x.must(x.ModuleLoad(x.call(), &wire.ModuleLoadArgs{Module: code, Image: []byte(".version 7.0")}, &wire.ModuleLoadReply{}))
			return x.ModuleGetFunction(x.call(), &wire.ModuleGetFunctionArgs{Func: f, Module: code, Name: []byte("k")}, &wire.ModuleGetFunctionReply{})
		}, func(x *attacker, code wire.ID) cuda.Result {
			return x.ModuleUnload(x.call(), &wire.ModuleUnloadArgs{Module: code})
		}},
		"library's module": {func(x *attacker, code, f wire.ID) cuda.Result {
			x.must(x.LibraryLoad(x.call(), &wire.LibraryLoadArgs{Library: code, Image: []byte(".version 7.0")}, &wire.LibraryLoadReply{}))
			module := x.fresh()
			x.must(x.LibraryGetModule(x.call(), &wire.LibraryGetModuleArgs{Library: code, Module: module}))
			x.must(x.ModuleGetFunction(x.call(), &wire.ModuleGetFunctionArgs{Func: f, Module: module, Name: []byte("k")}, &wire.ModuleGetFunctionReply{}))
			// Whose code stays.
			return x.ModuleUnload(x.call(), &wire.ModuleUnloadArgs{Module: module})
		}, func(x *attacker, code wire.ID) cuda.Result {
			return x.LibraryUnload(x.call(), &wire.LibraryUnloadArgs{Library: code})
		}},
		"library's kernel": {func(x *attacker, code, f wire.ID) cuda.Result {
			x.must(x.LibraryLoad(x.call(), &wire.LibraryLoadArgs{Library: code, Image: []byte(".version 7.0")}, &wire.LibraryLoadReply{}))
			return x.LibraryGetKernel(x.call(), &wire.LibraryGetKernelArgs{Kernel: f, Library: code, Name: []byte("k")}, &wire.LibraryGetKernelReply{})
		}, func(x *attacker, code wire.ID) cuda.Result {
			return x.LibraryUnload(x.call(), &wire.LibraryUnloadArgs{Library: code})
		}},
	} {
		x := newAttacker(t)
		code, f, other, left, graph := x.fresh(), x.fresh(), x.fresh(), x.fresh(), x.graph()
		x.must(c.load(x, code, f))
		x.must(c.load(x, other, left))
		launch := func(f wire.ID) cuda.Result {
			return x.Launch(x.call(), &wire.LaunchArgs{Func: f, Stream: wire.StreamLegacy, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: make([]byte, cudatest.KernelBytes)})
		}
		x.must(launch(f))
		x.must(c.end(x, code))
		cudatest.Shown()
		x.refused("a launch of a function whose "+what+" is gone", launch(f))
		v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: cudatest.KernelBytes}
		x.refused("a node of a function whose "+what+" is gone", x.node(graph, wire.NodeKernel, append(v.Append(nil), make([]byte, cudatest.KernelBytes)...)))
		x.must(launch(left))
		x.must(c.load(x, x.fresh(), f))
		x.must(launch(f))
	}
}
