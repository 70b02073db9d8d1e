package device_test

import (
	gocontext "context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/driver"
	cudadriver "causeway/host/driver/cuda"
	"causeway/host/driver/soft"
	"causeway/host/driver/soft/softtest"
	"causeway/host/inventory"
	"causeway/host/worker/link"
	"causeway/host/worker/workertest"
)

// gpuEnv names the GPU of TestLimitsOnGPU: cuda is a real one. Without it, soft.
const gpuEnv = "CAUSEWAY_TEST_GPU"

// realBackend is a worker's backend of TestLimitsOnGPU; false: another test's.
func realBackend(gpu string) (driver.Backend, error, bool) {
	switch gpu {
	case "soft":
		return soft.New(), nil, true
	case "soft:2":
		return soft.NewMany(2), nil, true
	case softtest.DifferentGPU:
		return softtest.Different{}, nil, true
	case shiftedGPU:
		b, err := newShifted()
		return b, err, true
	case startsGPU:
		return startingBackend{soft.New()}, nil, true
	case "cuda":
		b, err := cudadriver.New()
		return b, err, true
	}
	return nil, nil, false
}

// onGPU is TestLimitsOnGPU.
type onGPU struct {
	*testing.T
	v     *vm
	real  bool
	limit uint64
	nvml  *inventory.NVML
	slack uint64 // bytes by which the driver's account may differ
	next  wire.ID
}

func (g *onGPU) id() wire.ID {
	g.next++
	return 100 + g.next
}

const mib = 1 << 20

// driverUse is what the driver says of the first session's worker, in bytes; 0: nothing.
func (g *onGPU) driverUse(pid int) (n uint64) {
	if g.nvml == nil {
		return 0
	}
	r, err := g.nvml.Read()
	if err != nil {
		g.Fatal(err)
	}
	for _, used := range r.Used {
		n += used[pid]
	}
	return n
}

// row is a line of the table: what the virtual GPU says it uses, and the driver of the first
// worker.
func (g *onGPU) row(what string) {
	g.Helper()
	st := g.v.device.Status()
	pid, own := 0, uint64(0)
	if len(st.Sessions) > 0 {
		pid, own = st.Sessions[0].Worker, st.Sessions[0].Memory
	}
	g.Logf("%-44s %7d MiB used of %d, session %7d, driver %7d", what, st.Memory/mib, st.Limits.Memory/mib, own/mib, g.driverUse(pid)/mib)
	if says := g.driverUse(pid); says > st.Limits.Memory+g.slack {
		g.Errorf("%s: the driver says %d MiB", what, says/mib)
	}
	if st.Memory > st.Limits.Memory+g.slack {
		g.Errorf("%s: %d MiB of %d", what, st.Memory/mib, st.Limits.Memory/mib)
	}
}

// session opens one with a context.
func (g *onGPU) session() *workertest.Guest {
	g.Helper()
	_, s := start(g.T, g.v)
	must(g.T, s, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	s.Ctx = 16
	return s
}

// fill takes parts of a size until there is no room, and returns what undoes it.
func (g *onGPU) fill(s *workertest.Guest, part uint64, get func(size uint64) (cuda.Result, wire.Args)) (got uint64, undo []wire.Args) {
	g.Helper()
	for {
		res, back := get(part)
		switch res {
		case cuda.Success:
			got += part
			undo = append(undo, back)
		case cuda.ErrorOutOfMemory:
			return got, undo
		default:
			g.Fatal(res)
		}
	}
}

func (g *onGPU) call(s *workertest.Guest, a wire.Args, r wire.Reply) cuda.Result {
	g.Helper()
	res, err := s.Call(0, a, r)
	if err != nil {
		g.Fatal(err)
	}
	return res
}

// TestLimitsOnGPU has real drivers allocate in every way until there is no room. On a machine with
// a GPU: CAUSEWAY_TEST_GPU=cuda. The rows say what the virtual GPU counts and what the driver says
// of the first worker; they must not differ by more than a part of an allocation.
func TestLimitsOnGPU(t *testing.T) {
	g := &onGPU{T: t, limit: 256 * mib}
	gpu := os.Getenv(gpuEnv)
	if gpu == "" {
		gpu = "soft"
	}
	var audit time.Duration
	read := func(gocontext.Context) (*inventory.Reading, error) { return nil, errors.New("not told") }
	if gpu == "cuda" {
		g.real, g.limit, g.slack, audit = true, 8<<30, 64*mib, 500*time.Millisecond
		lib, err := inventory.LoadNVML("libnvidia-ml.so.1")
		if err == nil {
			g.nvml, err = inventory.OpenNVML(lib, func([]inventory.Identity) ([]int, error) { return []int{0}, nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		read = func(gocontext.Context) (*inventory.Reading, error) { return g.nvml.Read() }
	}
	g.v = bootWith(t, func(o *device.Options) {
		o.Worker, o.Limits.Memory, o.Audit, o.Machine = link.Config{GPU: gpu, Devices: []int{0}}, g.limit, audit, read
	})
	a := g.session()
	g.row("a context, as guessed")
	time.Sleep(4 * audit)
	g.row("a context, as the driver says")
	base := g.v.device.Status().Memory
	part := g.limit / 16
	if info := g.info(a); info.Total != g.limit || info.Free > g.limit-base {
		t.Errorf("%+v", info)
	}
	pool := g.id()
	must(t, a, &wire.PoolGetDefaultArgs{Pool: pool}, nil)
	for name, get := range g.ways(a) {
		got, undo := g.fill(a, part, get)
		time.Sleep(3 * audit)
		g.row(name)
		if got+base+2*part+g.slack < g.limit {
			t.Errorf("%s: only %d MiB", name, got/mib)
		}
		for _, u := range undo {
			if res := g.call(a, u, nil); res != cuda.Success {
				t.Fatal(name, res)
			}
		}
		must(t, a, &wire.CtxSynchronizeArgs{}, nil)
		must(t, a, &wire.PoolTrimToArgs{Pool: pool}, nil)
		time.Sleep(3 * audit)
		if n := g.v.device.Status().Memory; n > base+g.slack {
			t.Errorf("%s: %d MiB stay", name, (n-base)/mib)
		}
	}
	g.row("all given back")

	b := g.session()
	time.Sleep(3 * audit)
	half := (g.limit - g.v.device.Status().Memory) / 2
	alloc(t, a, half, cuda.Success)
	alloc(t, b, half+2*mib, cuda.ErrorOutOfMemory)
	alloc(t, b, half-2*mib, cuda.Success)
	g.row("two sessions")
	if info := g.info(b); info.Free > 8*mib+g.slack {
		t.Errorf("%+v", info)
	}
	if _, err := g.v.device.SetLimits(api.Limits{Memory: 2 * g.limit}.All()); err != nil {
		t.Fatal(err)
	}
	alloc(t, b, half, cuda.Success)
	g.row("twice the limit")
	if _, err := g.v.device.SetLimits(api.Limits{Memory: g.limit}.All()); err != nil {
		t.Fatal(err)
	}
	alloc(t, a, mib, cuda.ErrorOutOfMemory)
	_ = unix.Kill(g.v.device.Status().Sessions[1].Worker, unix.SIGKILL)
	eventually(t, "a killed worker's memory stays", func() bool { return g.v.device.Status().Memory < g.limit*3/4 })
	alloc(t, a, mib, cuda.Success)
	time.Sleep(3 * audit)
	g.row("one was killed")
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func (g *onGPU) info(s *workertest.Guest) (r wire.MemGetInfoReply) {
	must(g.T, s, &wire.MemGetInfoArgs{}, &r)
	return r
}

// ways are the ways to device memory.
func (g *onGPU) ways(s *workertest.Guest) map[string]func(size uint64) (cuda.Result, wire.Args) {
	return map[string]func(size uint64) (cuda.Result, wire.Args){
		"cuMemAlloc": func(size uint64) (cuda.Result, wire.Args) {
			var r wire.MemAllocReply
			res := g.call(s, &wire.MemAllocArgs{Size: size}, &r)
			return res, &wire.MemFreeArgs{Ptr: r.Ptr}
		},
		"cuMemAllocAsync": func(size uint64) (cuda.Result, wire.Args) {
			var r wire.MemAllocAsyncReply
			res := g.call(s, &wire.MemAllocAsyncArgs{Size: size, Stream: wire.StreamLegacy}, &r)
			return res, &wire.MemFreeAsyncArgs{Ptr: r.Ptr, Stream: wire.StreamLegacy}
		},
		"cuMemCreate": func(size uint64) (cuda.Result, wire.Args) {
			id := g.id()
			res := g.call(s, &wire.MemCreateArgs{Memhandle: id, Size: size}, nil)
			return res, &wire.MemReleaseArgs{Memhandle: id}
		},
		"cuArray3DCreate": func(size uint64) (cuda.Result, wire.Args) {
			id := g.id()
			res := g.call(s, &wire.ArrayCreateArgs{Array: id, Width: 8192, Height: size / 8192 / 16, Format: 0x20, Channels: 4}, nil)
			return res, &wire.ArrayDestroyArgs{Array: id}
		},
	}
}
