package cuda

import (
	"slices"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// Objects of the tests.
const (
	localCtx, localLib = 16, 20
	localKernels       = 30 // one for each size: see localSession
	localGraph         = 40
)

// localSession is a session that may move, in a context with 1024 bytes of local memory for each
// thread, and with a kernel for each size.
func localSession(t *testing.T, sizes ...int) *session {
	t.Helper()
	s := agreeing(t, agreeingDriver(cudatest.Locals()), drivertest.NewHost())
	s.arenas.on = true
	must := func(res cuda.Result) {
		t.Helper()
		if res != cuda.Success {
			t.Fatal(res)
		}
	}
	must(s.PrimaryCtxRetain(&wire.Call{}, &wire.PrimaryCtxRetainArgs{Ctx: localCtx}, &wire.PrimaryCtxRetainReply{}))
	must(s.LibraryLoad(&wire.Call{Ctx: localCtx}, &wire.LibraryLoadArgs{Library: localLib, Image: []byte(localKernel(8))}, &wire.LibraryLoadReply{}))
	for i, n := range sizes {
		cudatest.SetLocals(n, 0, 0, 0)
		must(s.LibraryGetKernel(&wire.Call{Ctx: localCtx}, &wire.LibraryGetKernelArgs{Library: localLib, Kernel: localKernels + uint32(i), Name: []byte("grow")}, &wire.LibraryGetKernelReply{}))
	}
	return s
}

// launching is a launch of a kernel with flags, and what is said of local memory then.
func (s *session) launching(i, flags uint32, attrs []byte) ([]wire.Local, cuda.Result) {
	c := &wire.Call{Op: wire.OpLaunch, Ctx: localCtx}
	res := s.Launch(c, &wire.LaunchArgs{Func: localKernels + i, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Stream: wire.StreamLegacy, Flags: flags, Attrs: attrs})
	return c.Locals, res
}

// TestLocalsAreSaid: a launch that needs more local memory than any before says so, whatever its
// form, once, and only if it is made; what needs no more does not.
func TestLocalsAreSaid(t *testing.T) {
	said := func(n uint32) []wire.Local { return []wire.Local{{Ctx: localCtx, Bytes: n}} }
	cooperative := make([]byte, 72)
	cooperative[0], cooperative[8] = byte(cuda.LaunchAttrCooperative), 1
	for _, x := range []struct {
		flags uint32
		attrs []byte
	}{{}, {flags: wire.LaunchCooperative}, {attrs: cooperative}} {
		s := localSession(t, 1024, 4096, 2048, 16384)
		for _, step := range []struct {
			kernel uint32
			says   []wire.Local
		}{{0, nil}, {1, said(4096)}, {1, nil}, {2, nil}, {3, said(16384)}, {1, nil}, {3, nil}, {0, nil}} {
			got, res := s.launching(step.kernel, x.flags, x.attrs)
			if res != cuda.Success || !slices.Equal(got, step.says) {
				t.Errorf("flags %d, %d bytes of attributes, kernel %d: %v, %v, want %v", x.flags, len(x.attrs), step.kernel, got, res, step.says)
			}
		}
	}
	s := localSession(t, 4096)
	cudatest.SetLocals(0, 0, int(cuda.ErrorOutOfMemory), 0)
	if got, res := s.launching(0, 0, nil); res != cuda.ErrorOutOfMemory || len(got) != 0 {
		t.Errorf("a launch that fails: %v, %v", got, res)
	}
	cudatest.SetLocals(0, 0, 0, 0)
	if got, res := s.launching(0, 0, nil); res != cuda.Success || !slices.Equal(got, said(4096)) {
		t.Errorf("and one that does not, behind it: %v, %v", got, res)
	}
	s = localSession(t, 4096)
	s.arenas.on = false
	if got, res := s.launching(0, 0, nil); res != cuda.Success || len(got) != 0 {
		t.Errorf("a session that stays: %v, %v", got, res)
	}
	s = localSession(t, 4096)
	_, _, _, _, before, _ := cudatest.LocalsMade()
	c := &wire.Call{Op: wire.OpLaunch, Ctx: localCtx, Keep: func(int) bool { return false }}
	res := s.Launch(c, &wire.LaunchArgs{Func: localKernels, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Stream: wire.StreamLegacy})
	if _, _, _, _, after, _ := cudatest.LocalsMade(); res != cuda.ErrorOutOfMemory || after != before || len(c.Locals) != 0 {
		t.Errorf("one that cannot be recorded: %v, %d launches, %v", res, after-before, c.Locals)
	}
}

// TestLocalsOfGraphs: a graph's kernels have local memory taken when it is made executable, and
// again by its launch if the limit was set meanwhile; adding nodes says nothing.
func TestLocalsOfGraphs(t *testing.T) {
	s := localSession(t, 4096, 16384)
	call := func() *wire.Call { return &wire.Call{Ctx: localCtx} }
	if res := s.GraphCreate(call(), &wire.GraphCreateArgs{Graph: localGraph}); res != cuda.Success {
		t.Fatal(res)
	}
	for i := range uint32(2) {
		v, c := wire.KernelNode{Func: localKernels + i, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}, call()
		if res := s.GraphAddNode(c, &wire.GraphAddNodeArgs{Graph: localGraph, Node: localGraph + 1 + i, Type: wire.NodeKernel, Params: v.Append(nil)}, &wire.GraphAddNodeReply{}); res != cuda.Success || len(c.Locals) != 0 {
			t.Fatal(res, c.Locals)
		}
	}
	const exec = localGraph + 3
	instantiate := func() ([]wire.Local, cuda.Result) {
		c := call()
		res := s.GraphInstantiate(c, &wire.GraphInstantiateArgs{Graph: localGraph, Exec: exec, Form: wire.GraphFormFlags}, &wire.GraphInstantiateReply{})
		return c.Locals, res
	}
	cudatest.SetLocals(0, 0, 0, int(cuda.ErrorOutOfMemory))
	if got, res := instantiate(); res != cuda.ErrorOutOfMemory || len(got) != 0 {
		t.Errorf("one that fails: %v, %v", got, res)
	}
	cudatest.SetLocals(0, 0, 0, 0)
	said := []wire.Local{{Ctx: localCtx, Bytes: 16384}}
	if got, res := instantiate(); res != cuda.Success || !slices.Equal(got, said) {
		t.Errorf("made executable: %v, %v", got, res)
	}
	launch := func() ([]wire.Local, cuda.Result) {
		c := call()
		res := s.GraphLaunch(c, &wire.GraphLaunchArgs{Exec: exec, Stream: wire.StreamLegacy})
		return c.Locals, res
	}
	if got, res := launch(); res != cuda.Success || len(got) != 0 {
		t.Errorf("launched: %v, %v", got, res)
	}
	if res := s.CtxSetLimit(call(), &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize, Value: 2048}); res != cuda.Success {
		t.Fatal(res)
	}
	if got, res := launch(); res != cuda.Success || !slices.Equal(got, said) {
		t.Errorf("launched behind a lower limit: %v, %v", got, res)
	}
	if got, res := launch(); res != cuda.Success || len(got) != 0 {
		t.Errorf("and again: %v, %v", got, res)
	}
}

// TestLocalsOfLimits: a limit of the stack counts as much as a kernel that needs as much, also one
// that is lower: the driver may have given back what is more.
func TestLocalsOfLimits(t *testing.T) {
	s := localSession(t, 4096)
	for i, step := range []struct {
		limit uint64
		says  int
	}{{8192, 0}, {2048, 1}, {4096, 0}, {0, 1}, {1 << 40, 0}} {
		if res := s.CtxSetLimit(&wire.Call{Ctx: localCtx}, &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize, Value: step.limit}); res != cuda.Success {
			t.Fatal(res)
		}
		if got, res := s.launching(0, 0, nil); res != cuda.Success || len(got) != step.says {
			t.Errorf("%d: behind a limit of %d: %v, %v", i, step.limit, got, res)
		}
	}
	s.CtxSetLimit(&wire.Call{Ctx: localCtx}, &wire.CtxSetLimitArgs{Limit: cuda.LimitPrintfFifoSize, Value: 16})
	if got, res := s.launching(0, 0, nil); res != cuda.Success || len(got) != 0 {
		t.Errorf("behind another limit: %v, %v", got, res)
	}
}

// TestLocalsAgain: where a session is made again a graph of a kernel that needs as much is made
// executable, and not launched, and nothing stays of it; what cannot be had says so by name.
func TestLocalsAgain(t *testing.T) {
	for name, x := range map[string]struct {
		args    wire.LocalMemoryArgs
		again   bool
		needs   int
		fails   int
		want    cuda.Result
		because string
	}{
		"as much":                {wire.LocalMemoryArgs{Bytes: 16384}, true, 16384, 0, cuda.Success, ""},
		"a little more":          {wire.LocalMemoryArgs{Bytes: 16388}, true, 16392, 0, cuda.Success, ""},
		"less than it should be": {wire.LocalMemoryArgs{Bytes: 16384}, true, 16000, 0, cuda.ErrorNotSupported, "16384 bytes"},
		"without room":           {wire.LocalMemoryArgs{Bytes: 16384}, true, 16384, int(cuda.ErrorOutOfMemory), cuda.ErrorOutOfMemory, "context 16"},
		"none":                   {wire.LocalMemoryArgs{}, true, 16384, 0, cuda.ErrorInvalidValue, ""},
		"more than there can be": {wire.LocalMemoryArgs{Bytes: maxLocal + 1}, true, 1 << 30, 0, cuda.ErrorInvalidValue, ""},
		"of a guest":             {wire.LocalMemoryArgs{Bytes: 16384}, false, 16384, 0, cuda.ErrorInvalidValue, ""},
	} {
		s := localSession(t, 16384)
		cudatest.SetLocals(0, x.needs, 0, x.fails)
		c := &wire.Call{Op: wire.OpLocalMemory, Ctx: localCtx, Replay: x.again}
		res := s.LocalMemory(c, &x.args)
		if res != x.want || (c.Reason() == nil) != (x.because == "") || x.because != "" && !strings.Contains(c.Reason().Error(), x.because) {
			t.Errorf("%s: %v, %v", name, res, c.Reason())
		}
		loaded, unloaded, made, ended, launched, graphs := cudatest.LocalsMade()
		if loaded != unloaded || made != ended || launched != 0 || graphs != 0 || (made == 1) != (res == cuda.Success) {
			t.Errorf("%s: %d modules loaded and %d unloaded, %d graphs made executable and %d ended, %d launches, %d graphs are left", name, loaded, unloaded, made, ended, launched, graphs)
		}
		cudatest.SetLocals(0, 0, 0, 0)
		if got, res := s.launching(0, 0, nil); res != cuda.Success || (len(got) == 0) != (x.want == cuda.Success) {
			t.Errorf("%s: a launch behind it: %v, %v", name, got, res)
		}
	}
}

// TestLocalKernel: the text is one that fatbins take, for the least and the most.
func TestLocalKernel(t *testing.T) {
	for _, n := range []uint32{1, 16384, maxLocal} {
		if _, err := fatbin.Check([]byte(localKernel(n)), func(int) bool { return false }); err != nil {
			t.Error(n, err)
		}
	}
}
