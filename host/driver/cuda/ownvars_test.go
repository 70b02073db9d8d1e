package cuda

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cubinvars"
	"causeway/host/driver/cuda/cubinvars/cubintest"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// Objects of the tests: a library in two contexts, of a device each.
const (
	firstCtx, secondCtx = 16, 17
	ownLib              = 20
	ownKernel           = 30
	ownFunc             = 31
	here, there         = 0x3000_0000_0000, 0x3100_0000_0000 // where a driver puts variables
)

// ownCase is a session with a library whose variables are to be where they were.
type ownCase struct {
	*session
	image []byte
	load  wire.Call     // in the first context
	found wire.Instance // that the kernel's function has brought about in the second
	again wire.Call     // that makes it so, where the session comes from another
}

// newOwn makes the library's objects; before is the session where it was made first, nil: this is that.
func newOwn(t *testing.T, base, taken uint64, image []byte, before *ownCase) (*ownCase, cuda.Result) {
	t.Helper()
	marked, err := cubinvars.Place(cubintest.Variables(0), map[string]uint64{"x": 0x1234_5678_9abc})
	if err != nil {
		t.Fatal(err)
	}
	bank := bytes.Index(marked, binary.LittleEndian.AppendUint64(nil, 0x1234_5678_9abc))
	cudatest.BeginEditions(base, uint64(bank), taken)
	s := &ownCase{session: agreeing(t, agreeingDriver(cudatest.Editions()), drivertest.NewHost()), image: image}
	s.arenas.on = true
	for i, ctx := range []uint32{firstCtx, secondCtx} {
		if res := s.PrimaryCtxRetain(&wire.Call{}, &wire.PrimaryCtxRetainArgs{Ctx: ctx, Dev: uint32(i)}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	s.load = wire.Call{Op: wire.OpLibraryLoad, Ctx: firstCtx}
	if before != nil {
		s.load.Replay, s.load.Placed = true, before.load.Placed
		s.found = before.found
		s.again = wire.Call{Op: wire.OpLibraryInstance, Ctx: secondCtx, Replay: true, Placed: s.found.Placed}
		s.Reserve(append(append([]uint64{}, before.load.Placed...), before.found.Placed...), [][]byte{image})
	}
	if res := s.LibraryLoad(&s.load, &wire.LibraryLoadArgs{Library: ownLib, Image: image}, &wire.LibraryLoadReply{}); res != cuda.Success {
		return s, res
	}
	if res := s.LibraryGetKernel(&wire.Call{Ctx: firstCtx}, &wire.LibraryGetKernelArgs{Library: ownLib, Kernel: ownKernel, Name: []byte("k")}, &wire.LibraryGetKernelReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	if before != nil {
		if res := s.LibraryInstance(&s.again, &wire.LibraryInstanceArgs{Library: ownLib}); res != cuda.Success {
			return s, res
		}
	}
	c := wire.Call{Op: wire.OpKernelGetFunction, Ctx: secondCtx, Replay: before != nil}
	res := s.KernelGetFunction(&c, &wire.KernelGetFunctionArgs{Kernel: ownKernel, Func: ownFunc}, &wire.KernelGetFunctionReply{})
	switch {
	case len(c.Placed) > 0 || (len(c.Instances) == 1) != (before == nil):
		t.Errorf("a function in a second context: %v, %v", c.Placed, c.Instances)
	case before == nil:
		s.found = c.Instances[0]
	}
	return s, res
}

// launched is what the driver launches of a function in a context.
func (s *ownCase) launched(t *testing.T, ctx, function uint32) uint64 {
	t.Helper()
	if res := s.Launch(&wire.Call{Op: wire.OpLaunch, Ctx: ctx}, &wire.LaunchArgs{Func: function, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Stream: wire.StreamLegacy}); res != cuda.Success {
		t.Fatal(res)
	}
	s.submitters.drain(nil)
	return cudatest.EditionCount(cudatest.EditionLaunched)
}

// global is where the guest finds a variable.
func (s *ownCase) global(t *testing.T, ctx uint32, name string) uint64 {
	t.Helper()
	var r wire.LibraryGetGlobalReply
	if res := s.LibraryGetGlobal(&wire.Call{Ctx: ctx}, &wire.LibraryGetGlobalArgs{Library: ownLib, Name: []byte(name)}, &r); res != cuda.Success {
		t.Fatal(name, res)
	}
	return r.Ptr
}

// TestOwnVariables: a driver puts the variables of a library elsewhere, and its code holds the old addresses in both contexts all the same: in memory of this session's, by editions that
// launches take. Constants are where the driver has them, unless the guest knows another place.
func TestOwnVariables(t *testing.T) {
	first, res := newOwn(t, here, 0, cubintest.Variables(0), nil)
	if res != cuda.Success || len(first.load.Placed) != 3 || len(first.found.Placed) != 3 {
		t.Fatal(res, first.load.Placed, first.found.Placed)
	}
	if first.launched(t, firstCtx, ownKernel) != 1<<8 || first.edition(ownLib, firstCtx) != nil {
		t.Error("there are editions without need")
	}
	c := first.global(t, firstCtx, "c")
	told := first.toldTable()

	s, res := newOwn(t, there, 0, first.image, first)
	if res != cuda.Success {
		t.Fatal(res, s.load.Reason(), s.again.Reason())
	}
	const base, one, other = 1, 2, 3 // libraries of the driver
	for lib, placed := range map[uint64][]uint64{base: {0, 0}, one: first.load.Placed, other: first.found.Placed} {
		want := [2]uint64{placed[0], placed[1]}
		if lib != base {
			want[1] += 4
		}
		if got := cudatest.Held(lib); got != want {
			t.Errorf("library %d holds %#x, want %#x", lib, got, want)
		}
	}
	if a, b, f := s.launched(t, firstCtx, ownKernel), s.launched(t, secondCtx, ownKernel), s.launched(t, secondCtx, ownFunc); a != one<<8 || b != other<<8 || f != other<<8|1<<20 {
		t.Errorf("launched were %#x, %#x, %#x", a, b, f)
	}
	if a, b := s.global(t, firstCtx, "x"), s.global(t, secondCtx, "y"); a != first.load.Placed[0] || b != first.found.Placed[1] {
		t.Errorf("variables are at %#x, %#x", a, b)
	}
	if n := cudatest.EditionCount(cudatest.EditionBacked); n != 2 || cudatest.EditionCount(cudatest.EditionGranted) != 2 || s.used < 2*ownPage {
		t.Errorf("%d pages are backed; %d bytes are used", n, s.used)
	}
	for i, was := range first.load.Placed {
		size := []uint64{8, 16, 4}[i]
		if at, ok := s.variableAt(was, size); !ok || (at == was) != (i < 2) {
			t.Errorf("bytes of the variable at %#x go to %#x, %v", was, at, ok)
		}
	}
	if err := s.setTold(uint64(len(told)), bytes.NewReader(told)); err == nil || !strings.Contains(err.Error(), "has asked for a variable") {
		t.Errorf("the guest knows the constant at %#x: %v", c, err)
	}
	known := binary.LittleEndian.AppendUint64(nil, first.load.Placed[0])
	if err := s.setTold(8, bytes.NewReader(known)); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(s.toldTable(), known) {
		t.Errorf("%x is told, want %x", s.toldTable(), known)
	}

	third, res := newOwn(t, here, 0, first.image, s) // and once more, to a driver that puts them where they were at first
	if res != cuda.Success {
		t.Fatal(res, third.load.Reason())
	}
	if res := third.LibraryUnload(&wire.Call{}, &wire.LibraryUnloadArgs{Library: ownLib}); res != cuda.Success || third.edition(ownLib, firstCtx) != nil || len(third.arenas.own.images) != 0 {
		t.Error("unloaded:", res)
	}
}

// TestOwnVariablesUnloaded: editions go with their library, and with their context.
func TestOwnVariablesUnloaded(t *testing.T) {
	first, _ := newOwn(t, here, 0, cubintest.Variables(0), nil)
	s, res := newOwn(t, there, 0, first.image, first)
	if res != cuda.Success {
		t.Fatal(res)
	}
	if res := s.PrimaryCtxRelease(&wire.Call{}, &wire.PrimaryCtxReleaseArgs{Ctx: secondCtx}); res != cuda.Success {
		t.Fatal(res)
	}
	if s.edition(ownLib, secondCtx) != nil || s.edition(ownLib, firstCtx) == nil || cudatest.EditionCount(cudatest.EditionUnloaded) != 1<<3 {
		t.Errorf("unloaded are %#x", cudatest.EditionCount(cudatest.EditionUnloaded))
	}
	if res := s.LibraryUnload(&wire.Call{}, &wire.LibraryUnloadArgs{Library: ownLib}); res != cuda.Success || cudatest.EditionCount(cudatest.EditionUnloaded) != 1<<3|1<<2|1<<1 {
		t.Errorf("%v, unloaded are %#x", res, cudatest.EditionCount(cudatest.EditionUnloaded))
	}
}

// TestOwnVariablesRefused: what cannot be where it was refuses, by name, and leaves the choice to the driver where that may do better.
func TestOwnVariablesRefused(t *testing.T) {
	const page = here + 1<<22
	plain, another := cubintest.Variables(0), cubintest.Variables(0x10002)
	for name, c := range map[string]struct {
		base, taken uint64
		image       []byte
		pages       uint64
		why         string
	}{
		"its page is taken":           {there, page &^ (ownPage - 1), plain, 1, "variable x of library 20 comes out"},
		"taken by the driver as ever": {here, page &^ (ownPage - 1), plain, 1, ""},
		"not to be placed":            {there, 0, another, 0, "variable x of library 20 comes out"},
		"not, and where it was":       {here, 0, another, 0, ""},
	} {
		first, res := newOwn(t, here, 0, c.image, nil)
		if res != cuda.Success {
			t.Fatal(res)
		}
		s, res := newOwn(t, c.base, c.taken, c.image, first)
		if (res == cuda.Success) != (c.why == "") || c.why != "" && (s.load.Reason() == nil || !strings.Contains(s.load.Reason().Error(), c.why)) {
			t.Errorf("%s: %v, %v", name, res, s.load.Reason())
		}
		if n := cudatest.EditionCount(cudatest.EditionPages); n != c.pages {
			t.Errorf("%s: %d pages are reserved", name, n)
		}
	}
}

// FuzzTold: a table from elsewhere is refused, or names variables.
func FuzzTold(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 8))
	f.Add(make([]byte, 9))
	f.Fuzz(func(t *testing.T, table []byte) {
		key := instance{owner{true, ownLib}, firstCtx}
		s := &session{}
		s.arenas.own.pages = map[uint64]*varPage{}
		s.arenas.variables = map[instance][]moduleVar{key: {{"x", 1 << 20, 1 << 20, 8}}}
		err := s.setTold(uint64(len(table)), bytes.NewReader(table))
		for n := len(table) / 8; err == nil && n > 0; n-- {
			if binary.LittleEndian.Uint64(table[8*n-8:]) != 1<<20 {
				t.Fatalf("%x is taken over", table)
			}
		}
		if err == nil && len(table) > 0 && !s.arenas.own.told[key][1<<20] {
			t.Fatal("nothing is told")
		}
	})
}
