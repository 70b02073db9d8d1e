package cuda

import (
	"reflect"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// Numbers of contexts in these tests, and of what is made in the second of them. One number serves
// for an object of each kind.
const (
	ending, lasting = 1, 2
	spare           = 60
)

// newHeir is an attacker on a driver whose objects end with what they are of, with a context that
// lasts and an object of each kind in it.
func newHeir(t *testing.T) *attacker {
	cudatest.RestartLiving()
	host := drivertest.NewHost()
	x := &attacker{agreeing(t, bind.New(cudatest.Living), host), t, host, 100}
	x.must(x.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: lasting}))
	x.objects(lasting, spare)
	return x
}

func (x *attacker) in(ctx wire.ID) *wire.Call {
	return &wire.Call{Ctx: ctx, Thread: 1, Replier: silent{}}
}

// objects makes one of each kind in a context: those of a context itself, and with the numbers that
// follow those of code in it.
func (x *attacker) objects(ctx, n wire.ID) {
	x.t.Helper()
	c, name := x.in(ctx), []byte("k")
	x.must(x.StreamCreate(c, &wire.StreamCreateArgs{Stream: n}))
	x.must(x.EventCreate(c, &wire.EventCreateArgs{Event: n}))
	x.must(x.ModuleLoad(c, &wire.ModuleLoadArgs{Module: n, Image: []byte(".version 7.0")}, &wire.ModuleLoadReply{}))
	x.must(x.ModuleGetFunction(c, &wire.ModuleGetFunctionArgs{Func: n, Module: n, Name: name}, &wire.ModuleGetFunctionReply{}))
	x.must(x.FuncGetModule(c, &wire.FuncGetModuleArgs{Func: n, Module: n + 3}))
	x.must(x.ModuleGetTexRef(c, &wire.ModuleGetTexRefArgs{Texref: n + 1, Module: n, Name: name}))
	x.must(x.ModuleGetSurfRef(c, &wire.ModuleGetSurfRefArgs{Surfref: n, Module: n, Name: name}))
	x.must(x.TexRefCreate(c, &wire.TexRefCreateArgs{Texref: n}))
	x.must(x.ArrayCreate(c, &wire.ArrayCreateArgs{Array: n, Width: 64, Format: 1, Channels: 1}))
	x.must(x.MipmapCreate(c, &wire.MipmapCreateArgs{Mipmap: n, Width: 64, Format: 1, Channels: 1, Levels: 2}))
	x.must(x.MipmapGetLevel(c, &wire.MipmapGetLevelArgs{Mipmap: n, Level: n + 1}, &wire.MipmapGetLevelReply{}))
	resource := make([]byte, 144)
	x.must(x.TexObjectCreate(c, &wire.TexObjectCreateArgs{Tex: n, Array: n, Resource: resource, Texture: make([]byte, 104)}, &wire.TexObjectCreateReply{}))
	x.must(x.SurfObjectCreate(c, &wire.SurfObjectCreateArgs{Surf: n, Array: n, Resource: resource}, &wire.SurfObjectCreateReply{}))
	x.must(x.LibraryLoad(c, &wire.LibraryLoadArgs{Library: n, Image: []byte(".version 7.0")}, &wire.LibraryLoadReply{}))
	x.must(x.LibraryGetModule(c, &wire.LibraryGetModuleArgs{Library: n, Module: n + 1}))
	x.must(x.ModuleGetFunction(c, &wire.ModuleGetFunctionArgs{Func: n + 1, Module: n + 1, Name: name}, &wire.ModuleGetFunctionReply{}))
	x.must(x.LibraryGetKernel(c, &wire.LibraryGetKernelArgs{Kernel: n + 2, Library: n, Name: name}, &wire.LibraryGetKernelReply{}))
	x.must(x.KernelFunction(c, &wire.KernelFunctionArgs{Func: n + 3, Kernel: n + 2}))
	x.must(x.FuncGetModule(c, &wire.FuncGetModuleArgs{Func: n + 3, Module: n + 2}))
	x.must(x.LinkCreate(c, &wire.LinkCreateArgs{Link: n}))
	x.graphObjects(ctx, n)
}

// graphObjects are graphs with one node, of each kind that names something of a context, and what
// is made of them.
func (x *attacker) graphObjects(ctx, n wire.ID) {
	x.t.Helper()
	c := x.in(ctx)
	kernel := func(f wire.ID) []byte {
		v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: cudatest.KernelBytes}
		return append(v.Append(nil), make([]byte, cudatest.KernelBytes)...)
	}
	array := wire.MemcpyOperand{Type: cuda.MemoryTypeArray, Array: n}
	for i, p := range []struct {
		kind   uint32
		params []byte
	}{
		{wire.NodeKernel, kernel(n)}, {wire.NodeKernel, kernel(n + 1)}, {wire.NodeKernel, kernel(n + 2)}, {wire.NodeEventRecord, (&wire.EventNode{Event: n}).Append(nil)},
		{wire.NodeMemcpy, (&wire.MemcpyNode{Width: 8, Height: 1, Depth: 1}).Append(array.Append(array.Append(nil)))},
	} {
		g := n + wire.ID(i)
		x.must(x.GraphCreate(c, &wire.GraphCreateArgs{Graph: g}))
		x.must(x.GraphAddNode(c, &wire.GraphAddNodeArgs{Graph: g, Node: g, Type: p.kind, Params: p.params}, &wire.GraphAddNodeReply{}))
		x.must(x.GraphInstantiate(c, &wire.GraphInstantiateArgs{Exec: g, Graph: g}, &wire.GraphInstantiateReply{}))
	}
}

// ends reports whether an operation ends what it names.
func ends(op wire.Op) bool {
	for _, word := range []string{"Destroy", "Unload", "Release", "Reset", "Close", "Free", "Unmap", "Drop", "Abort", "Session"} {
		if strings.Contains(op.String(), word) {
			return true
		}
	}
	return false
}

// everything asks for each operation with each of its numbers being one of those given, and the
// others those of what lives; at last for those that end something.
func (x *attacker) everything(what string, ctx wire.ID, numbers ...wire.ID) {
	x.t.Helper()
	var d wire.Dispatcher
	for _, last := range []bool{false, true} {
		for op := wire.Op(1); op <= wire.OpCount; op++ {
			if ends(op) != last || op == wire.OpSessionInit {
				continue
			}
			v := reflect.ValueOf(wire.NewArgs(op)).Elem()
			for i := range v.NumField() {
				if v.Field(i).Kind() != reflect.Uint32 {
					continue
				}
				for _, n := range numbers {
					for _, rest := range []uint64{spare, 1} {
						a := wire.NewArgs(op)
						fillArgs(reflect.ValueOf(a).Elem(), rest)
						reflect.ValueOf(a).Elem().Field(i).SetUint(uint64(n))
						x.ask(&d, what, ctx, a)
					}
				}
			}
		}
	}
}

func fillArgs(v reflect.Value, n uint64) {
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Uint32, reflect.Uint64:
			f.SetUint(n)
		case reflect.Int32:
			f.SetInt(1)
		case reflect.Slice:
			switch v.Type().Field(i).Name {
			case "Name":
				f.SetBytes([]byte("k"))
			case "Resource":
				f.SetBytes(make([]byte, 144))
			case "Texture":
				f.SetBytes(make([]byte, 104))
			case "Params":
				f.SetBytes(make([]byte, cudatest.KernelBytes))
			}
		}
	}
	if f := v.FieldByName("Stream"); f.IsValid() && n == 1 {
		f.SetUint(streamLegacy)
	}
}

func (x *attacker) ask(d *wire.Dispatcher, what string, ctx wire.ID, a wire.Args) {
	x.t.Helper()
	rec, err := wire.AppendRecord(nil, wire.Header{Ctx: ctx, Thread: 1}, a)
	if err != nil {
		x.t.Fatal(err)
	}
	c := wire.Call{Op: a.Op(), Ctx: ctx, Thread: 1, Seq: 1, Replier: silent{}}
	x.Before(c.Op, false)
	if _, _, err := d.Dispatch(x.session, &c, rec, nil); err != nil {
		x.t.Fatalf("%v: %v", a.Op(), err)
	}
	x.unharmed(what, a)
}

// unharmed fails the test for what was gone and reached the driver.
func (x *attacker) unharmed(what string, a any) {
	x.t.Helper()
	if s := cudatest.Stale(); s != "" {
		x.t.Errorf("%s: %T %+v: %s", what, a, a, s)
	}
}

// TestNothingOutlivesItsContext: whatever a guest names that was of a context that is gone, in
// whichever way it went and even if its number is another context's now, no operation hands it to
// the driver.
func TestNothingOutlivesItsContext(t *testing.T) {
	const n = 7
	primary := func(x *attacker) {
		x.must(x.PrimaryCtxRetain(x.in(0), &wire.PrimaryCtxRetainArgs{Ctx: ending}, &wire.PrimaryCtxRetainReply{}))
	}
	create := func(x *attacker) { x.must(x.CtxCreate(x.in(0), &wire.CtxCreateArgs{Ctx: ending})) }
	for what, c := range map[string]struct{ begin, end, again func(x *attacker) }{
		"destroyed": {create, func(x *attacker) { x.must(x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: ending})) }, func(*attacker) {}},
		"destroyed, its number another's": {create, func(x *attacker) {
			x.must(x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: ending}))
		}, create},
		"released": {primary, func(x *attacker) { x.must(x.PrimaryCtxRelease(x.in(0), &wire.PrimaryCtxReleaseArgs{Ctx: ending})) }, primary},
		"reset":    {primary, func(x *attacker) { x.must(x.PrimaryCtxReset(x.in(0), &wire.PrimaryCtxResetArgs{Ctx: ending})) }, primary},
		"reset by another number": {primary, func(x *attacker) {
			x.must(x.PrimaryCtxReset(x.in(0), &wire.PrimaryCtxResetArgs{Ctx: 99}))
		}, func(*attacker) {}},
		"a green context's": {func(x *attacker) {
			x.must(x.green(n))
			x.must(x.CtxFromGreenCtx(x.in(lasting), &wire.CtxFromGreenCtxArgs{Ctx: ending, Green: n}))
		}, func(x *attacker) {
			x.must(x.GreenCtxDestroy(x.in(0), &wire.GreenCtxDestroyArgs{Green: n}))
		}, create},
	} {
		t.Run(what, func(t *testing.T) {
			x := newHeir(t)
			c.begin(x)
			x.objects(ending, n)
			c.end(x)
			x.unharmed(what, "the end itself")
			c.again(x)
			for _, ctx := range []wire.ID{lasting, ending, 0} {
				x.everything(what, ctx, n, n+1, n+2, n+3, n+4)
			}
		})
	}
}

// green makes a green context of all of the device.
func (x *attacker) green(id wire.ID) cuda.Result {
	x.session.descs.put(id, resDesc{handle: made[bind.DevResourceDesc](1)})
	return x.GreenCtxCreate(x.in(lasting), &wire.GreenCtxCreateArgs{Green: id, Resdesc: id}, &wire.GreenCtxCreateReply{})
}

// TestNothingOutlivesWhatItIsOf: nor does anything that is of code, of an array, of a green
// context, of a pool or of a stream.
func TestNothingOutlivesWhatItIsOf(t *testing.T) {
	const n = 7
	for what, end := range map[string]func(x *attacker) cuda.Result{
		"module":  func(x *attacker) cuda.Result { return x.ModuleUnload(x.in(lasting), &wire.ModuleUnloadArgs{Module: n}) },
		"library": func(x *attacker) cuda.Result { return x.LibraryUnload(x.in(0), &wire.LibraryUnloadArgs{Library: n}) },
		"array":   func(x *attacker) cuda.Result { return x.ArrayDestroy(x.in(lasting), &wire.ArrayDestroyArgs{Array: n}) },
		"mipmapped array": func(x *attacker) cuda.Result {
			level := wire.MemcpyOperand{Type: cuda.MemoryTypeArray, Array: n + 1}
			x.must(x.GraphAddNode(x.in(lasting), &wire.GraphAddNodeArgs{Graph: n, Node: 40, Type: wire.NodeMemcpy,
				Params: (&wire.MemcpyNode{Width: 8, Height: 1, Depth: 1}).Append(level.Append(level.Append(nil)))}, &wire.GraphAddNodeReply{}))
			return x.MipmapDestroy(x.in(lasting), &wire.MipmapDestroyArgs{Mipmap: n})
		},
		"event": func(x *attacker) cuda.Result { return x.EventDestroy(x.in(lasting), &wire.EventDestroyArgs{Event: n}) },
		"stream": func(x *attacker) cuda.Result {
			return x.StreamDestroy(x.in(lasting), &wire.StreamDestroyArgs{Stream: n})
		},
		"green context without a context": func(x *attacker) cuda.Result {
			x.must(x.green(n))
			x.must(x.GreenCtxStreamCreate(x.in(lasting), &wire.GreenCtxStreamCreateArgs{Stream: n + 1, Green: n, Flags: cuda.StreamNonBlocking}))
			return x.GreenCtxDestroy(x.in(0), &wire.GreenCtxDestroyArgs{Green: n})
		},
		"green context, by a reset": func(x *attacker) cuda.Result {
			x.must(x.green(n))
			x.must(x.GreenCtxStreamCreate(x.in(lasting), &wire.GreenCtxStreamCreateArgs{Stream: n + 1, Green: n, Flags: cuda.StreamNonBlocking}))
			return x.PrimaryCtxReset(x.in(0), &wire.PrimaryCtxResetArgs{Ctx: 99})
		},
		"pool": func(x *attacker) cuda.Result {
			x.must(x.PoolCreate(x.in(lasting), &wire.PoolCreateArgs{Pool: n}))
			x.must(x.MemAllocFromPool(x.in(lasting), &wire.MemAllocFromPoolArgs{Pool: n, Size: 4096, Stream: wire.StreamLegacy}, &wire.MemAllocFromPoolReply{}))
			return x.PoolDestroy(x.in(lasting), &wire.PoolDestroyArgs{Pool: n})
		},
		"child": func(x *attacker) cuda.Result { // of a graph whose node's module goes
			for g, owned := range map[wire.ID]uint32{30: wire.ChildCloned, 31: wire.ChildMoved} {
				child := g + 10
				x.must(x.GraphClone(x.in(lasting), &wire.GraphCloneArgs{Graph: child, Original: n}))
				x.must(x.GraphCreate(x.in(lasting), &wire.GraphCreateArgs{Graph: g}))
				x.must(x.GraphAddNode(x.in(lasting), &wire.GraphAddNodeArgs{Graph: g, Node: g, Type: wire.NodeGraph,
					Params: (&wire.ChildNode{Graph: child, Ownership: owned}).Append(nil)}, &wire.GraphAddNodeReply{}))
				x.must(x.GraphInstantiate(x.in(lasting), &wire.GraphInstantiateArgs{Exec: g, Graph: g}, &wire.GraphInstantiateReply{}))
			}
			res := x.ModuleUnload(x.in(lasting), &wire.ModuleUnloadArgs{Module: n})
			for g := range wire.ID(2) {
				if _, lives := x.execs.get(30 + g); lives {
					x.t.Errorf("what was made of graph %d outlives a kernel in its child", 30+g)
				}
			}
			return res
		},
	} {
		t.Run(what, func(t *testing.T) {
			x := newHeir(t)
			x.objects(lasting, n)
			x.must(end(x))
			x.unharmed(what, "the end itself")
			for _, ctx := range []wire.ID{lasting, 0} {
				x.everything(what, ctx, n, n+1, n+2, n+3, n+4, 30, 31, 40, 41)
			}
		})
	}
}

// TestTablesOfContexts: each table of objects that have a context is among those that end with it.
func TestTablesOfContexts(t *testing.T) {
	s := &session{}
	listed := map[uintptr]bool{}
	for _, l := range s.ofContexts() {
		listed[reflect.ValueOf(l).Pointer()] = true
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			switch {
			case strings.HasPrefix(f.Type().Name(), "owned["):
				if !listed[f.Addr().Pointer()] {
					t.Errorf("%s is not among the tables of contexts' objects", name)
				}
			case strings.HasPrefix(f.Type().Name(), "table["):
				of := f.Field(0).Type().Elem()
				if of.Kind() == reflect.Pointer {
					of = of.Elem()
				}
				if _, has := of.FieldByName("ctx"); of.Kind() == reflect.Struct && has && of.Name() != "green" {
					// That is its own context.
					t.Errorf("%s holds objects of contexts and is no table of such", name)
				}
			case v.Type().Field(i).Anonymous && f.Kind() == reflect.Struct:
				walk(f)
			}
		}
	}
	walk(reflect.ValueOf(s).Elem())
	if len(listed) < 11 {
		t.Errorf("%d tables", len(listed))
	}
}

// TestNumbersOfContexts: a primary context's number stays that of its device, and no other
// context's; a green context's context has one, and ends with it.
func TestNumbersOfContexts(t *testing.T) {
	x := newHeir(t)
	x.session.warm.devices = make([]deviceInfo, 2)
	retain := func(ctx, dev uint32) cuda.Result {
		return x.PrimaryCtxRetain(x.in(0), &wire.PrimaryCtxRetainArgs{Ctx: ctx, Dev: dev}, &wire.PrimaryCtxRetainReply{})
	}
	x.must(retain(5, 0))
	x.must(retain(6, 1))
	for what, res := range map[string]cuda.Result{"another device": retain(5, 1), "the first": retain(6, 0), "a context of the guest's own": retain(lasting, 0)} {
		if res != cuda.ErrorInvalidContext {
			t.Errorf("a primary context under the number of %s: %v", what, res)
		}
	}
	x.must(retain(5, 0))
	for range 2 {
		x.must(x.PrimaryCtxRelease(x.in(0), &wire.PrimaryCtxReleaseArgs{Ctx: 5}))
	}
	x.must(x.green(9))
	from := func(ctx wire.ID) cuda.Result {
		return x.CtxFromGreenCtx(x.in(lasting), &wire.CtxFromGreenCtxArgs{Ctx: ctx, Green: 9})
	}
	x.must(from(10))
	if a, b := from(11), x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: 10}); a != cuda.ErrorInvalidHandle || b != cuda.ErrorInvalidContext {
		t.Errorf("a green context's second context: %v; the end of its first: %v", a, b)
	}
	if res := x.PrimaryCtxRelease(x.in(0), &wire.PrimaryCtxReleaseArgs{Ctx: 5}); res != cuda.ErrorInvalidContext {
		t.Errorf("one release more: %v", res)
	}
}
