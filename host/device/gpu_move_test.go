package device_test

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/virtio/fs/fstest"
)

// nestedGPU is a value of gpuEnv: the back end of real GPUs, whose driver is our own library. That
// takes memory to be registered in one piece only.
const nestedGPU = "nested"

// thereEnv is the number of the GPU that a VM of TestAheadOnGPU moves to; without it both have all,
// and so the same.
const thereEnv = "CAUSEWAY_TEST_GPU_THERE"

// movingVM is a VM whose sessions move to another device with a worker of the GPU that gpuEnv
// names, or of those of its devices.
func movingVM(t *testing.T, devices ...int) *vm {
	return movingVMWith(t, func(*device.Options) {}, devices...)
}

// movingVMWith is movingVM of a device with other options.
func movingVMWith(t *testing.T, change func(*device.Options), devices ...int) *vm {
	gpu := os.Getenv(gpuEnv)
	v := bootWith(t, func(o *device.Options) {
		change(o)
		o.Worker = link.Config{GPU: "soft"}
		if gpu == "cuda" || gpu == nestedGPU {
			o.Worker = link.Config{GPU: "cuda", Devices: devices, Migratable: true, Base: link.DrawBase()}
		}
	})
	v.whole = gpu == nestedGPU
	return v
}

// tallyPTX adds to a variable and to memory anywhere.
const tallyPTX = `.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 tally[65536];
.visible .entry add(.param .u64 at, .param .u32 inc)
{
	.reg .b32 %r<2>; .reg .b64 %d<3>;
	ld.param.u64 %d1, [at]; ld.param.u32 %r1, [inc];
	mov.u64 %d2, tally;
	red.global.add.u32 [%d1], %r1;
	red.global.add.u32 [%d2+4096], %r1;
	ret;
}`

const (
	tallyModule, tallyAdd, tallyStream = 40, 41, 42
	tallyBegin, tallyEnd               = 43, 44
	tallyGraph, tallyExec              = 45, 46
	tallyNode, tallyClone, tallyCopy   = 47, 48, 49
	tallyAt                            = 4096 // in the variable
	largeSize                          = 9 << 20
)

// tallying is a program that has what a session may have: variables, streams, events, memory of
// every kind.
type tallying struct {
	*holding
	variable, small, large uint64
	times                  uint32
}

func tally(t *testing.T, v *vm, seed byte) *tallying {
	t.Helper()
	h := &tallying{holding: hold(t, v, seed)}
	var small, large wire.MemAllocReply
	must(t, h.Guest, &wire.MemAllocArgs{Size: 512}, &small)
	must(t, h.Guest, &wire.ModuleLoadArgs{Module: tallyModule, Image: []byte(tallyPTX)}, &wire.ModuleLoadReply{})
	must(t, h.Guest, &wire.ModuleGetFunctionArgs{Module: tallyModule, Func: tallyAdd, Name: []byte("add")}, &wire.ModuleGetFunctionReply{})
	must(t, h.Guest, &wire.MemAllocArgs{Size: largeSize}, &large)
	h.small, h.large = small.Ptr, large.Ptr
	must(t, h.Guest, &wire.StreamCreateArgs{Stream: tallyStream, Flags: 1}, nil)
	for _, e := range []wire.ID{tallyBegin, tallyEnd} {
		must(t, h.Guest, &wire.EventCreateArgs{Event: e}, nil)
	}
	h.variable = h.where(t)
	set := func(at, size uint64) {
		must(t, h.Guest, &wire.MemsetArgs{Dst: at, Pitch: size, Element: 1, Value: uint32(seed), Width: size, Height: 1, Stream: wire.StreamLegacy}, nil)
	}
	set(h.small, 512)
	set(h.large, largeSize)
	must(t, h.Guest, &wire.MemsetArgs{Dst: h.small, Element: 1, Width: 4, Height: 1, Stream: wire.StreamLegacy}, nil)
	must(t, h.Guest, &wire.CtxSynchronizeArgs{}, nil)
	must(t, h.Guest, &wire.EventRecordArgs{Event: tallyBegin, Stream: tallyStream}, nil)
	h.capture(t)
	h.add(t)
	return h
}

// capture makes a graph that copies small memory to the end of the region, and a clone of it.
func (h *tallying) capture(t *testing.T) {
	t.Helper()
	must(t, h.Guest, &wire.StreamBeginCaptureArgs{Stream: tallyStream}, nil)
	must(t, h.Guest, &wire.MemcpyArgs{Dst: h.pinned + held - 4, Src: h.small, Size: 4, Stream: tallyStream}, nil)
	must(t, h.Guest, &wire.StreamEndCaptureArgs{Stream: tallyStream, Fresh: tallyGraph}, &wire.StreamEndCaptureReply{})
	must(t, h.Guest, &wire.GraphInstantiateArgs{Exec: tallyExec, Graph: tallyGraph}, &wire.GraphInstantiateReply{})
	must(t, h.Guest, &wire.GraphListArgs{What: wire.GraphListNodes, Graph: tallyGraph, Names: binary.LittleEndian.AppendUint32(nil, tallyNode)}, &wire.GraphListReply{})
	must(t, h.Guest, &wire.GraphCloneArgs{Graph: tallyClone, Original: tallyGraph}, nil)
}

// where asks for the variable.
func (h *tallying) where(t *testing.T) uint64 {
	t.Helper()
	var r wire.ModuleGetGlobalReply
	must(t, h.Guest, &wire.ModuleGetGlobalArgs{Module: tallyModule, Name: []byte("tally")}, &r)
	return r.Ptr
}

// add has a kernel add 3 to the variable, to small memory and to the region.
func (h *tallying) add(t *testing.T) {
	t.Helper()
	for i, at := range []uint64{h.small, h.pinned} {
		if i == 1 {
			binary.LittleEndian.PutUint32(h.region, 0)
		}
		p := binary.LittleEndian.AppendUint64(nil, at)
		p = binary.LittleEndian.AppendUint32(p, 3)
		must(t, h.Guest, &wire.LaunchArgs{Func: tallyAdd, Stream: tallyStream, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: p}, nil)
		must(t, h.Guest, &wire.StreamSynchronizeArgs{Stream: tallyStream}, nil)
	}
	h.times++
	if got := binary.LittleEndian.Uint32(h.region); got != 3 {
		t.Errorf("a kernel left %d in the region, not 3", got)
	}
}

// word copies a word of the GPU's memory to the region.
func (h *tallying) word(t *testing.T, at uint64) uint32 {
	t.Helper()
	must(t, h.Guest, &wire.MemcpyArgs{Dst: h.pinned, Src: at, Size: 4, Stream: wire.StreamLegacy}, nil)
	must(t, h.Guest, &wire.CtxSynchronizeArgs{}, nil)
	return binary.LittleEndian.Uint32(h.region)
}

func (h *tallying) check(t *testing.T) {
	t.Helper()
	h.holding.check(t)
	h.add(t)
	if at := h.where(t); at != h.variable {
		t.Errorf("the variable is at %#x, and was at %#x", at, h.variable)
	}
	if got := h.word(t, h.variable+tallyAt); got != 6*h.times {
		t.Errorf("the variable is %d, not %d", got, 6*h.times)
	}
	if got := h.word(t, h.small); got != 3*h.times {
		t.Errorf("small memory is %d, not %d", got, 3*h.times)
	}
	must(t, h.Guest, &wire.GraphLaunchArgs{Exec: tallyExec, Stream: tallyStream}, nil)
	must(t, h.Guest, &wire.StreamSynchronizeArgs{Stream: tallyStream}, nil)
	if got := binary.LittleEndian.Uint32(h.region[held-4:]); got != 3*h.times {
		t.Errorf("a graph copied %d, not %d", got, 3*h.times)
	}
	var copied wire.GraphFindInCloneReply
	must(t, h.Guest, &wire.GraphFindInCloneArgs{Node: tallyNode, Graph: tallyClone, Fresh: tallyCopy}, &copied)
	if copied.Found != tallyCopy {
		t.Errorf("the copy of a node is %d, and was %d", copied.Found, tallyCopy)
	}
	seed := uint32(h.want[0])
	if got := h.word(t, h.large+largeSize-4); got != seed*0x01010101 {
		t.Errorf("large memory is %#x", got)
	}
	var r wire.EventElapsedTimeReply
	must(t, h.Guest, &wire.EventRecordArgs{Event: tallyEnd, Stream: tallyStream}, nil)
	must(t, h.Guest, &wire.EventSynchronizeArgs{Event: tallyEnd}, nil)
	must(t, h.Guest, &wire.EventElapsedTimeArgs{Start: tallyBegin, End: tallyEnd}, &r)
	if r.Ms <= 0 {
		t.Errorf("%v ms since the first event", r.Ms)
	}
}

// TestMoveOnGPU moves a VM there and back, again and again, between devices whose workers have the
// GPU of gpuEnv.
func TestMoveOnGPU(t *testing.T) {
	other, v := movingVM(t), movingVM(t)
	if err := other.Kill(); err != nil {
		t.Fatal(err)
	}
	other.Guest = nil
	sockets := []string{other.socket, v.socket}
	a, b := tally(t, v, 1), tally(t, v, 2)
	for range 2 { // it stands, and goes on where it is
		if err := v.StopRings(); err != nil {
			t.Fatal(err)
		}
		if err := v.StartRings(); err != nil {
			t.Fatal(err)
		}
		a.check(t)
		b.check(t)
	}
	for round := range 6 {
		seq, err := b.Begin(3, &wire.CtxSynchronizeArgs{})
		if err != nil {
			t.Fatal(err)
		}
		state := save(t, v)
		arrive(t, v, sockets[round%2], state)
		if res, err := b.Finish(3, seq, nil); err != nil || res != cuda.Success {
			t.Errorf("round %d: a call that waited: %v, %v", round, res, err)
		}
		a.check(t)
		b.check(t)
		t.Logf("round %d: %d bytes", round, len(state))
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestPreCopyOnGPU: of memory that went ahead only what changed since comes with the VM's state,
// there and back.
func TestPreCopyOnGPU(t *testing.T) {
	hosts := []*vm{movingVM(t), movingVM(t)}
	if err := hosts[1].Kill(); err != nil {
		t.Fatal(err)
	}
	hosts[1].Guest = nil
	v := hosts[0]
	a, b := tally(t, v, 1), tally(t, v, 2)
	for round := range 4 {
		from, to := hosts[round%2], hosts[(round+1)%2]
		c := precopy(t, from, to, device.CopyOptions{})
		a.check(t)
		c.ready(t, 2)
		front, err := fstest.Await(to.socket)
		if err != nil {
			t.Fatal(err)
		}
		logs(t, v)
		b.check(t)
		state := save(t, v)
		if len(state) > largeSize {
			t.Errorf("round %d: the state has %d bytes, although %d went ahead", round, len(state), c.status().Total)
		}
		left, err := v.MoveTo(front, state)
		if err != nil {
			t.Fatal(round, err)
		}
		left.Close()
		c.cut(t)
		if err := v.StartRings(); err != nil {
			t.Fatal(err)
		}
		a.check(t)
		b.check(t)
		t.Logf("round %d: %d bytes ahead, a state of %d", round, from.device.Status().Copied, len(state))
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}
