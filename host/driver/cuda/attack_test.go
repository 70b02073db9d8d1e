package cuda

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// attacker is a session on a driver that knows what it may touch, with a context, some of whose
// operations a guest made up.
type attacker struct {
	*session
	t    *testing.T
	host *drivertest.Host
	id   uint32
}

func newAttacker(t *testing.T) *attacker {
	cudatest.Restart()
	cudatest.Shown()
	host := drivertest.NewHost()
	x := &attacker{agreeing(t, bind.New(cudatest.Showing), host), t, host, 100}
	x.must(x.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 1}))
	return x
}

func (x *attacker) call() *wire.Call { return &wire.Call{Ctx: 1, Thread: 1, Replier: silent{}} }
func (x *attacker) fresh() uint32    { x.id++; return x.id }

func (x *attacker) must(res cuda.Result) {
	x.t.Helper()
	if res != cuda.Success {
		x.t.Fatal(res)
	}
}

// refused fails the test if an attack succeeded, or if the driver was given what is none of the
// guest's.
func (x *attacker) refused(what string, res cuda.Result) {
	x.t.Helper()
	if res == cuda.Success {
		x.t.Errorf("%s: succeeded", what)
	}
	if f := cudatest.Finding(); f != "" {
		x.t.Errorf("%s: the driver got a %s", what, f)
	}
	if n := cudatest.Shown(); n != 0 {
		x.t.Errorf("%s: the driver was shown it", what)
	}
}

func (x *attacker) alloc(size uint64) uint64 {
	x.t.Helper()
	var r wire.MemAllocReply
	x.must(x.MemAlloc(x.call(), &wire.MemAllocArgs{Size: size}, &r))
	return r.Ptr
}

// lent is memory in the midst of the worker's that the guest shares as a region of a kind.
func (x *attacker) lent(kind uint32, size int) (id uint32, mem []byte) {
	x.t.Helper()
	const around = 1 << 20
	all, err := unix.Mmap(-1, 0, size+2*around, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		x.t.Fatal(err)
	}
	mem, id = all[around:around+size:around+size], x.fresh()
	cudatest.Lend(mem)
	x.t.Cleanup(func() {
		cudatest.TakeBack(mem)
		if err := unix.Munmap(all); err != nil {
			x.t.Error(err)
		}
	})
	va := number(beginning(x.t, mem))
	x.host.Regions[id] = driver.Region{ID: id, Kind: kind, VA: va, Size: uint64(size), Mem: mem}
	x.must(x.RegionAdd(x.call(), &wire.RegionAddArgs{Region: id, Kind: kind, Va: va, Size: uint64(size)}, &wire.RegionAddReply{}))
	return id, mem
}

func beginning(t *testing.T, mem []byte) bind.HostAddress {
	h, ok := bind.Mapped(mem, 0, 1)
	if !ok {
		t.Fatal("no memory")
	}
	return h.Address()
}

// wrapping are boxes of which some row or slice lies outside 1 MiB, although the sum that says so
// wraps, or leaves something out.
var wrapping = map[string]wire.Memcpy3DArgs{
	"slices wrap":        {SrcPitch: 1, SrcHeight: 1 << 24, SrcZ: 1<<40 - 1, Width: 1, Height: 4096, Depth: 2},
	"rows wrap":          {SrcPitch: 1 << 40, SrcHeight: 1, SrcY: 1<<24 - 1, Width: 1, Height: 2, Depth: 1},
	"no pitch":           {Width: 4096, Height: 512, Depth: 1},
	"no height":          {SrcPitch: 4096, SrcZ: 300, Width: 4096, Height: 4, Depth: 1},
	"rows beyond":        {SrcPitch: 4096, Width: 4096, Height: 257, Depth: 1},
	"x wraps":            {SrcPitch: 4096, SrcX: 1<<64 - 1, Width: 2, Height: 1, Depth: 1},
	"a row beyond":       {SrcPitch: 4096, SrcX: 1<<20 - 1, Width: 2, Height: 1, Depth: 1},
	"many slices":        {SrcPitch: 1 << 32, SrcHeight: 1 << 32, Width: 1, Height: 1, Depth: 1 << 32},
	"all of the largest": {SrcPitch: 1<<64 - 1, SrcHeight: 1<<64 - 1, SrcX: 1<<64 - 1, SrcY: 1<<64 - 1, SrcZ: 1<<64 - 1, Width: 1<<64 - 1, Height: 1<<64 - 1, Depth: 1<<64 - 1},
}

// swapped has the two sides of a copy change places.
func swapped(a wire.Memcpy3DArgs) wire.Memcpy3DArgs {
	a.SrcKind, a.DstKind, a.SrcRegion, a.DstRegion, a.Src, a.Dst = a.DstKind, a.SrcKind, a.DstRegion, a.SrcRegion, a.Dst, a.Src
	a.SrcPitch, a.DstPitch, a.SrcHeight, a.DstHeight = a.DstPitch, a.SrcPitch, a.DstHeight, a.SrcHeight
	a.SrcX, a.DstX, a.SrcY, a.DstY, a.SrcZ, a.DstZ = a.DstX, a.SrcX, a.DstY, a.SrcY, a.DstZ, a.SrcZ
	return a
}

// TestBoxesStayInside: no 3D copy reads or writes outside what the guest shares, whatever its
// numbers come to: out of staging memory and into it, pinned memory, memory of a carrier that
// cannot be mapped, and as a graph's node. One that stays inside is made.
func TestBoxesStayInside(t *testing.T) {
	x := newAttacker(t)
	staging, _ := x.lent(wire.RegionStaging, 1<<20)
	_, pinned := x.lent(wire.RegionPinned, 1<<20)
	device, array, graph, carried := x.alloc(64<<20), x.fresh(), x.fresh(), x.fresh()
	x.must(x.ArrayCreate(x.call(), &wire.ArrayCreateArgs{Array: array, Width: 16, Height: 4096, Depth: 2, Format: 1, Channels: 1}))
	x.must(x.GraphCreate(x.call(), &wire.GraphCreateArgs{Graph: graph}))
	x.host.Regions[carried] = driver.Region{ID: carried, Kind: wire.RegionStaging, Size: 1 << 20, IO: nothing{}}
	both := func(what string, a wire.Memcpy3DArgs, check func(string, cuda.Result)) {
		t.Helper()
		a.Stream = wire.StreamLegacy
		check(what+", read", x.Memcpy3D(x.call(), &a))
		a = swapped(a)
		check(what+", written", x.Memcpy3D(x.call(), &a))
	}
	for name, a := range wrapping {
		a.DstPitch, a.DstHeight = 4096, 4096
		toArray := a
		a.DstKind, a.Dst = wire.OperandAddress, device
		toArray.DstKind, toArray.Dst = wire.OperandArray, uint64(array)
		a.SrcKind, a.SrcRegion = wire.OperandStaging, staging
		both("staging: "+name, a, x.refused)
		a.SrcKind, a.SrcRegion, a.Src = wire.OperandAddress, 0, number(beginning(t, pinned))
		both("pinned: "+name, a, x.refused)
		toArray.SrcKind, toArray.SrcRegion = wire.OperandStaging, carried
		both("carried: "+name, toArray, x.refused)
		for _, a := range []wire.Memcpy3DArgs{a, swapped(a)} {
			x.refused("node: "+name, x.copyNode(graph, &a))
		}
	}
	fits := wire.Memcpy3DArgs{SrcKind: wire.OperandStaging, SrcRegion: staging, SrcPitch: 4096, SrcHeight: 64, DstKind: wire.OperandAddress, Dst: device,
		DstPitch: 4096, DstHeight: 64, Width: 4096, Height: 64, Depth: 4}
	both("a box that fits", fits, func(what string, res cuda.Result) {
		if f := cudatest.Finding(); res != cuda.Success || f != "" {
			t.Errorf("%s: %v %s", what, res, f)
		}
	})
	fits.SrcKind, fits.SrcRegion, fits.Src = wire.OperandAddress, 0, number(beginning(t, pinned))
	x.must(x.copyNode(graph, &fits))
}

// nothing is memory of a carrier that only takes and gives bytes.
type nothing struct{}

func (nothing) ReadAt(b []byte, _ int64) (int, error)  { return len(b), nil }
func (nothing) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }

func (x *attacker) node(graph, kind uint32, params []byte) cuda.Result {
	return x.GraphAddNode(x.call(), &wire.GraphAddNodeArgs{Graph: graph, Node: x.fresh(), Type: kind, Params: params}, &wire.GraphAddNodeReply{})
}

// copyNode adds a copy between addresses to a graph.
func (x *attacker) copyNode(graph uint32, a *wire.Memcpy3DArgs) cuda.Result {
	src := wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Ptr: a.Src, X: a.SrcX, Y: a.SrcY, Z: a.SrcZ, Pitch: a.SrcPitch, Height: a.SrcHeight}
	dst := wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Ptr: a.Dst, X: a.DstX, Y: a.DstY, Z: a.DstZ, Pitch: a.DstPitch, Height: a.DstHeight}
	n := wire.MemcpyNode{Width: a.Width, Height: a.Height, Depth: a.Depth}
	return x.node(graph, wire.NodeMemcpy, n.Append(dst.Append(src.Append(nil))))
}

// TestParametersAreThere: a kernel is launched with as many bytes of parameters as it reads, or not
// at all.
func TestParametersAreThere(t *testing.T) {
	x := newAttacker(t)
	module, f, graph := x.fresh(), x.fresh(), x.fresh()
	x.must(x.ModuleLoad(x.call(), &wire.ModuleLoadArgs{Module: module, Image: []byte(".version 7.0")}, &wire.ModuleLoadReply{}))
	x.must(x.ModuleGetFunction(x.call(), &wire.ModuleGetFunctionArgs{Func: f, Module: module, Name: []byte("k")}, &wire.ModuleGetFunctionReply{}))
	x.must(x.GraphCreate(x.call(), &wire.GraphCreateArgs{Graph: graph}))
	cudatest.Shown()
	attribute := make([]byte, bind.AttributeSize)
	binary.LittleEndian.PutUint32(attribute, cuda.LaunchAttrPriority)
	launch := func(flags uint32, attrs []byte, size int) cuda.Result {
		return x.Launch(x.call(), &wire.LaunchArgs{Func: f, Stream: wire.StreamLegacy, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Flags: flags, Attrs: attrs, Params: make([]byte, size)})
	}
	for what, do := range map[string]func(size int) cuda.Result{
		"launch":             func(n int) cuda.Result { return launch(0, nil, n) },
		"cooperative launch": func(n int) cuda.Result { return launch(wire.LaunchCooperative, nil, n) },
		"extended launch":    func(n int) cuda.Result { return launch(0, attribute, n) },
		"node": func(n int) cuda.Result {
			v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: uint32(n)}
			return x.node(graph, wire.NodeKernel, append(v.Append(nil), make([]byte, n)...))
		},
	} {
		for _, n := range []int{0, 8, 9, 16, cudatest.KernelBytes - 1} {
			x.refused(what, do(n))
		}
		if res := do(cudatest.KernelBytes); res != cuda.Success || cudatest.Shown() != 1 {
			t.Errorf("%s with all parameters: %v", what, res)
		}
	}
}

// TestImagesAreWhole: no image reaches the driver whose parts lie beyond it, or that holds
// addresses.
func TestImagesAreWhole(t *testing.T) {
	x := newAttacker(t)
	link := x.fresh()
	x.must(x.LinkCreate(x.call(), &wire.LinkCreateArgs{Link: link}))
	show := map[string]func(img []byte) cuda.Result{
		"module": func(img []byte) cuda.Result {
			return x.ModuleLoad(x.call(), &wire.ModuleLoadArgs{Module: x.fresh(), Image: img}, &wire.ModuleLoadReply{})
		},
		"library": func(img []byte) cuda.Result {
			return x.LibraryLoad(x.call(), &wire.LibraryLoadArgs{Library: x.fresh(), Image: img}, &wire.LibraryLoadReply{})
		},
	}
	for name, kind := range map[string]uint32{"input": cuda.JITInputCubin, "text that is none": cuda.JITInputPTX, "fatbin input": cuda.JITInputFatbinary, "object": cuda.JITInputObject} {
		show[name] = func(img []byte) cuda.Result {
			return x.LinkAdd(x.call(), &wire.LinkAddArgs{Link: link, Type: kind, Input: img, Name: []byte("x")}, &wire.LinkAddReply{})
		}
	}
	whole, le := cubin(), binary.LittleEndian
	edit := func(at int, v uint64) []byte {
		img := bytes.Clone(whole)
		le.PutUint64(img[at:], v)
		return img
	}
	section := len(whole) - 64
	bad := map[string][]byte{
		"section behind the end":  edit(section+24, uint64(len(whole))+64),
		"section far away":        edit(section+24, 1<<40),
		"section that wraps":      edit(section+24, 1<<64-1),
		"section that is longer":  edit(section+32, uint64(len(whole))),
		"sections behind the end": edit(40, uint64(len(whole))),
		"segments behind the end": edit(32, 1<<63),
		"cut off":                 whole[:len(whole)-64],
		"wrapper with an address": append(le.AppendUint64(le.AppendUint32(le.AppendUint32(nil, 0x466243b1), 1), 1<<46), make([]byte, 8)...),
	}
	for what, img := range bad {
		for how, do := range show {
			x.refused(how+": "+what, do(img))
			if what != "wrapper with an address" {
				x.refused(how+", in a fatbin: "+what, do(container(img)))
			}
		}
	}
	x.refused("library: fatbin that is longer", show["library"](container(whole)[:100]))
	text := container(append([]byte(".version 8.0\n.target sm_75\n"), make([]byte, 8)...))
	le.PutUint16(text[16:], 1)
	for _, at := range []uint32{0, 8, 0x7ffffff0} { // an H200's driver looks for options there
		le.PutUint32(text[16+20:], at)
		for how, do := range show {
			x.refused(how+": options of the worker's memory", do(text))
		}
	}
	for _, kind := range []uint32{cuda.JITInputNvvm, 99} {
		for _, img := range [][]byte{whole, container(whole), []byte("!<arch>\n"), bad["wrapper with an address"]} {
			a := wire.LinkAddArgs{Link: link, Type: kind, Input: img, Name: []byte("x")}
			x.refused("an image that passes for something else", x.LinkAdd(x.call(), &a, &wire.LinkAddReply{}))
		}
	}
	for how, do := range show {
		if res := do(whole); res != cuda.Success || cudatest.Shown() != 1 {
			t.Errorf("%s: a whole image: %v", how, res)
		}
		if res := do(container(whole)); res != cuda.Success || cudatest.Shown() != 1 {
			t.Errorf("%s: a whole image in a fatbin: %v", how, res)
		}
	}
}

// cubin is a small ELF image for GPUs: header, 16 bytes, and the headers of no section and of one
// that has them.
func cubin() []byte {
	le := binary.LittleEndian
	b := make([]byte, 64+16+2*64)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 2)
	le.PutUint16(b[18:], 190)
	le.PutUint64(b[40:], 80)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], 2)
	le.PutUint32(b[144+4:], 1) // SHT_PROGBITS
	le.PutUint64(b[144+24:], 64)
	le.PutUint64(b[144+32:], 16)
	return b
}

// container is a fatbin with one entry of machine code for an unknown GPU.
func container(code []byte) []byte {
	le := binary.LittleEndian
	code = append(bytes.Clone(code), make([]byte, -len(code)&7)...)
	e := make([]byte, 64)
	le.PutUint16(e, 2)
	le.PutUint16(e[2:], 0x101)
	le.PutUint32(e[4:], 64)
	le.PutUint64(e[8:], uint64(len(code)))
	le.PutUint32(e[28:], 90)
	head := le.AppendUint64([]byte("\x50\xed\x55\xba\x01\x00\x10\x00"), uint64(len(e)+len(code)))
	return append(append(head, e...), code...)
}

// TestNothingElseOfTheWorker: further numbers that would reach memory of the worker's, or tell of
// it.
func TestNothingElseOfTheWorker(t *testing.T) {
	x := newAttacker(t)
	device, graph, secret := x.alloc(4096), x.fresh(), bind.NewBuffer(4096)
	defer secret.Free()
	x.must(x.GraphCreate(x.call(), &wire.GraphCreateArgs{Graph: graph}))
	for _, attr := range []int32{cuda.PointerAttrContext, cuda.PointerAttrHostPointer, cuda.PointerAttrP2pTokens, cuda.PointerAttrMempoolHandle, 99} {
		var r wire.PointerGetAttributeReply
		if res := x.PointerGetAttribute(x.call(), &wire.PointerGetAttributeArgs{Attr: attr, Ptr: device}, &r); res == cuda.Success || r.Value != 0 {
			t.Errorf("pointer attribute %d: %v, %#x", attr, res, r.Value)
		}
	}
	var r wire.PointerGetAttributeReply
	x.must(x.PointerGetAttribute(x.call(), &wire.PointerGetAttributeArgs{Attr: cuda.PointerAttrMemoryType, Ptr: device}, &r))

	x.refused("a condition from nowhere", x.node(graph, wire.NodeConditional, binary.LittleEndian.AppendUint32((&wire.ConditionalNode{Handle: 0x414141, Size: 1}).Append(nil), x.fresh())))
	x.refused("a free of the worker's memory", x.node(graph, wire.NodeMemFree, (&wire.FreeNode{Ptr: at(secret)}).Append(nil)))
	x.refused("a fill of the worker's memory", x.node(graph, wire.NodeMemset, (&wire.MemsetNode{Dst: at(secret), Element: 1, Width: 16, Height: 1}).Append(nil)))
	x.refused("rows that wrap", x.Memset(x.call(), &wire.MemsetArgs{Dst: device, Pitch: 1 << 47, Element: 4, Width: 1 << 62, Height: 2, Stream: wire.StreamLegacy}))
	op := make([]byte, bind.MemOpSize)
	op[0] = 2 // a word is written
	binary.LittleEndian.PutUint64(op[8:], at(secret))
	x.refused("a word of the worker's", x.node(graph, wire.NodeBatchMemOp, append((&wire.BatchNode{Count: 1}).Append(nil), op...)))

	resource := make([]byte, 144)
	resource[0] = 3 // rows
	binary.LittleEndian.PutUint64(resource[8:], device)
	binary.LittleEndian.PutUint64(resource[32:], 1<<33)
	binary.LittleEndian.PutUint64(resource[40:], 1<<31)
	x.refused("a texture of rows that wrap", x.TexObjectCreate(x.call(), &wire.TexObjectCreateArgs{Tex: x.fresh(), Resource: resource, Texture: make([]byte, 104)}, &wire.TexObjectCreateReply{}))
	binary.LittleEndian.PutUint64(resource[8:], at(secret))
	binary.LittleEndian.PutUint64(resource[32:], 1)
	x.refused("a texture of the worker's memory", x.TexObjectCreate(x.call(), &wire.TexObjectCreateArgs{Tex: x.fresh(), Resource: resource, Texture: make([]byte, 104)}, &wire.TexObjectCreateReply{}))
	x.refused("a tensor map of the worker's memory", x.TensorMapEncode(x.call(), &wire.TensorMapEncodeArgs{Form: wire.TensorMapTiled, Rank: 1, Address: at(secret), Dims: make([]byte, 8), Box: make([]byte, 4), Elements: make([]byte, 4)}, &wire.TensorMapEncodeReply{}))

	attrs := make([]byte, bind.AttributeSize)
	for _, id := range []uint32{cuda.LaunchAttrDeviceUpdatableKernelNode, 99} {
		binary.LittleEndian.PutUint32(attrs, id)
		_, _, res := x.space.LaunchAttributes(attrs, x.eventHandle)
		x.refused("a launch attribute that is not known", res)
	}
	binary.LittleEndian.PutUint32(attrs, cuda.LaunchAttrAccessPolicyWindow)
	binary.LittleEndian.PutUint64(attrs[8:], at(secret))
	binary.LittleEndian.PutUint64(attrs[16:], 4096)
	_, _, res := x.space.LaunchAttributes(attrs, x.eventHandle)
	x.refused("a window over the worker's memory", res)
	_, pinned := x.lent(wire.RegionPinned, 1<<20)
	binary.LittleEndian.PutUint64(attrs[8:], number(beginning(t, pinned))+1<<20-4096)
	_, _, res = x.space.LaunchAttributes(attrs, x.eventHandle)
	x.must(res)
	binary.LittleEndian.PutUint64(attrs[16:], 4097)
	_, _, res = x.space.LaunchAttributes(attrs, x.eventHandle)
	x.refused("a window beyond memory of the guest's", res)
	binary.LittleEndian.PutUint64(attrs[16:], 4096)
	binary.LittleEndian.PutUint64(attrs[8:], device)
	_, _, res = x.space.LaunchAttributes(attrs, x.eventHandle)
	x.must(res)
}

// TestGraphMemoryEnds: addresses of a graph's allocation are nobody's when its node is gone, unless
// the driver knows them.
func TestGraphMemoryEnds(t *testing.T) {
	s := bind.NewSpace(bind.New(cudatest.Owning))
	cudatest.Restart()
	const where, size = 0x7e4000000000, 1 << 20
	node := made[bind.Address](where)
	if _, res := s.Mem(where, size); res == cuda.Success {
		t.Fatal("memory of nobody")
	}
	s.AddGraph(node, size)
	if _, res := s.Mem(where+4096, size-4096); res != cuda.Success {
		t.Error(res)
	}
	if _, res := s.Mem(where, size+1); res == cuda.Success {
		t.Error("more than the node has")
	}
	s.DropGraph(where)
	if _, res := s.Mem(where, 1); res == cuda.Success {
		t.Error("memory of a node that is gone")
	}
	if _, ok := s.Graph(where); ok {
		t.Error("memory of a node that is gone may be freed, which the driver does not know")
	}
}

// TestMappedFar: memory that the driver has made on the host is the guest's where it is mapped, and
// no other of the host's is, beside it or when it is unmapped.
func TestMappedFar(t *testing.T) {
	s := bind.NewSpace(bind.New(cudatest.Owning))
	cudatest.Restart()
	const size = 1 << 20
	host := bind.NewBuffer(4 * size)
	defer host.Free()
	all := registered(host.Host().Bytes()).Mem()
	begin := number(all.Address())
	part := func(i uint64) bind.Mem {
		m, _ := all.Slice(i*size, size)
		return m
	}
	for _, step := range []struct {
		what       string
		mapped     []bind.Mem
		addr, size uint64
		want       cuda.Result
	}{
		{"nothing is mapped", nil, begin, 1, cuda.ErrorInvalidValue},
		{"all of one", []bind.Mem{part(1)}, begin + size, size, cuda.Success},
		{"a byte more", []bind.Mem{part(1)}, begin + size, size + 1, cuda.ErrorInvalidValue},
		{"a byte before", []bind.Mem{part(1)}, begin + size - 1, 2, cuda.ErrorInvalidValue},
		{"the byte behind", []bind.Mem{part(1)}, begin + 2*size, 1, cuda.ErrorInvalidValue},
		{"over two", []bind.Mem{part(2), part(1)}, begin + size + 5, 2*size - 5, cuda.Success},
		{"over a gap", []bind.Mem{part(1), part(3)}, begin + size, 3 * size, cuda.ErrorInvalidValue},
		{"what wraps", []bind.Mem{part(1)}, begin + size, ^uint64(0) - size, cuda.ErrorInvalidValue},
	} {
		for _, m := range step.mapped {
			s.MapFar(m)
		}
		if _, res := s.Mem(step.addr, step.size); res != step.want {
			t.Errorf("%s: %v, want %v", step.what, res, step.want)
		}
		for _, m := range step.mapped {
			s.UnmapFar(m)
		}
		if _, res := s.Mem(step.addr, step.size); res == cuda.Success {
			t.Errorf("%s: it is the guest's after it was unmapped", step.what)
		}
	}
}

// TestRowsEndInDeviceMemory: rows whose first lies in device memory and whose last lies elsewhere
// would have the driver look up what is there.
func TestRowsEndInDeviceMemory(t *testing.T) {
	x := newAttacker(t)
	device := x.alloc(1 << 20)
	for _, c := range []struct{ pitch, height uint64 }{{1 << 46, 2}, {1 << 46, 3}, {1 << 21, 2}} {
		_, res := x.space.Rect(device, c.pitch, 64, 1, c.height)
		x.refused(fmt.Sprintf("%d rows, %#x apart", c.height, c.pitch), res)
	}
	_, res := x.space.Rect(device, 4096, 64, 1, 256)
	x.must(res)
}

// TestNodesTellOfSoManyRights: of a driver's list no more is read than was asked for, whatever it
// says that it has.
func TestNodesTellOfSoManyRights(t *testing.T) {
	d := bind.New(cudatest.Showing)
	for _, most := range []uint64{0, 2, cudatest.Rights, 5 * cudatest.Rights} {
		a, res := d.AllocationOf(made[bind.GraphNode](1), most)
		if want := int(min(most, cudatest.Rights)) * bind.AccessDescSize; res != cuda.Success || len(a.Access) != want || len(a.Props) != bind.PoolPropsSize {
			t.Errorf("at most %d: %v, %d bytes of rights, %d of properties", most, res, len(a.Access), len(a.Props))
		}
	}
}

// TestCapturedRows: what a capture takes up may name addresses of nothing, and of nothing of the
// worker's.
func TestCapturedRows(t *testing.T) {
	s := bind.NewSpace(bind.New(cudatest.Owning))
	secret := bind.NewBuffer(4096)
	defer secret.Free()
	none, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(none)) }()
	for what, c := range map[string]struct {
		addr, pitch, width, height uint64
		want                       cuda.Result
	}{
		"of nothing":             {1 << 20, 0, 64, 1, cuda.Success},
		"of addresses kept free": {number(beginning(t, none)), 0, 4096, 1, cuda.Success},
		"of the worker's":        {at(secret), 0, 64, 1, cuda.ErrorInvalidValue},
		"up to the worker's":     {1 << 20, 0, at(secret), 1, cuda.ErrorInvalidValue},
		"rows over the worker's": {1 << 20, at(secret), 64, 2, cuda.ErrorInvalidValue},
		"that wraps":             {1<<64 - 32, 0, 64, 1, cuda.ErrorInvalidValue},
	} {
		if _, res := s.CapturedRect(c.addr, c.pitch, c.width, 1, c.height); res != c.want {
			t.Errorf("a fill %s: %v, want %v", what, res, c.want)
		}
	}
}
