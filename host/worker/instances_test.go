package worker

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// tallyPTX has a variable, and kernels that count in it and show it.
const tallyPTX = `.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 tally = 5;
.visible .entry bump(.param .u64 at, .param .u32 inc)
{
	.reg .b32 %r<2>;
	ld.param.u32 %r1, [inc]; red.global.add.u32 [tally], %r1;
	ret;
}
.visible .entry show(.param .u64 at, .param .u32 inc)
{
	.reg .b32 %r<2>; .reg .b64 %d<2>;
	ld.param.u64 %d1, [at]; ld.global.u32 %r1, [tally]; st.global.u32 [%d1], %r1;
	ret;
}
`

// Objects of the test, beside softCtx, which is the other context.
const (
	tallyCtx = softFirst + iota
	tallyLib
	tallyBump
	tallyShow
	tallyFirst // ids from here on are a way's, eight for each context
)

// tallied is what a way adds: what comes about by a question alone has its first value.
const tallied = 3

// waysToInstances are all in which a context comes to have code of a library. Each adds inc to the
// library's variable there, if it can.
var waysToInstances = map[string]func(s *softSession, ctx, free wire.ID) (added uint32){
	"launch": func(s *softSession, ctx, _ wire.ID) uint32 {
		s.must(ctx, s.launch(tallyBump, 0, tallied, wire.StreamLegacy))
		return tallied
	},
	"cooperative launch": func(s *softSession, ctx, _ wire.ID) uint32 {
		s.must(ctx, &wire.LaunchArgs{Func: tallyBump, Stream: wire.StreamLegacy, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: inc(tallied), Flags: wire.LaunchCooperative})
		return tallied
	},
	"launch with attributes": func(s *softSession, ctx, _ wire.ID) uint32 {
		attr := binary.LittleEndian.AppendUint64(nil, cuda.LaunchAttrCooperative)
		attr = append(binary.LittleEndian.AppendUint64(attr, 1), make([]byte, 56)...)
		s.must(ctx, &wire.LaunchArgs{Func: tallyBump, Stream: wire.StreamLegacy, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: inc(tallied), Attrs: attr})
		return tallied
	},
	"launch that fails": func(s *softSession, ctx, _ wire.ID) uint32 {
		if res := s.do(ctx, &wire.LaunchArgs{Func: tallyBump, Stream: wire.StreamLegacy, Gx: 1, Gy: 1, Gz: 1, Bx: 4096, By: 1, Bz: 1, Params: inc(tallied)}); res == cuda.Success {
			s.t.Error("4096 threads are launched")
		}
		return 0
	},
	"node of a graph": func(s *softSession, ctx, free wire.ID) uint32 {
		s.must(ctx, &wire.GraphCreateArgs{Graph: free}, &wire.GraphAddNodeArgs{Graph: free, Node: free + 1, Params: s.kernel(tallyBump, 0, tallied)},
			&wire.GraphInstantiateArgs{Graph: free, Exec: free + 2}, &wire.GraphLaunchArgs{Exec: free + 2, Stream: wire.StreamLegacy})
		return tallied
	},
	"capture": func(s *softSession, ctx, free wire.ID) uint32 {
		s.must(ctx, &wire.StreamCreateArgs{Stream: free, Flags: 1}, &wire.StreamBeginCaptureArgs{Stream: free, Mode: 2}, s.launch(tallyBump, 0, tallied, free),
			&wire.StreamEndCaptureArgs{Stream: free, Fresh: free + 1}, &wire.GraphInstantiateArgs{Graph: free + 1, Exec: free + 2}, &wire.GraphLaunchArgs{Exec: free + 2, Stream: free})
		return tallied
	},
	"function": func(s *softSession, ctx, free wire.ID) uint32 {
		s.must(ctx, &wire.KernelGetFunctionArgs{Func: free, Kernel: tallyBump}, s.launch(free, 0, tallied, wire.StreamLegacy))
		return tallied
	},
	"function known": func(s *softSession, ctx, free wire.ID) uint32 {
		s.must(ctx, &wire.KernelFunctionArgs{Func: free, Kernel: tallyBump}, s.launch(free, 0, tallied, wire.StreamLegacy))
		return tallied
	},
	"module": func(s *softSession, ctx, free wire.ID) uint32 {
		s.must(ctx, &wire.LibraryGetModuleArgs{Library: tallyLib, Module: free}, &wire.ModuleGetFunctionArgs{Module: free, Func: free + 1, Name: []byte("bump")},
			s.launch(free+1, 0, tallied, wire.StreamLegacy))
		return tallied
	},
	"variable": func(s *softSession, ctx, _ wire.ID) uint32 {
		var r wire.LibraryGetGlobalReply
		s.must(ctx, &wire.LibraryGetGlobalArgs{Library: tallyLib, Name: []byte("tally")})
		if err := wire.DecodeReply(s.ring.replies[0].Payload, &r); err != nil {
			s.t.Fatal(err)
		}
		s.must(ctx, &wire.MemcpyHtoDArgs{Dst: r.Ptr, Stream: wire.StreamLegacy, Src: binary.LittleEndian.AppendUint32(nil, 5+tallied)})
		return tallied
	},
	"attribute": func(s *softSession, ctx, _ wire.ID) uint32 {
		s.must(ctx, &wire.FuncGetAttributeArgs{Func: tallyBump})
		return 0
	},
	"attributes, the first superseded": func(s *softSession, ctx, _ wire.ID) uint32 {
		for _, v := range []int32{1024, 2048} {
			s.must(ctx, &wire.FuncSetAttributeArgs{Func: tallyBump, Attr: cuda.FuncAttrMaxDynamicSharedSizeBytes, Value: v})
		}
		return 0
	},
	"occupancy": func(s *softSession, ctx, _ wire.ID) uint32 {
		s.must(ctx, &wire.OccupancyMaxActiveBlocksArgs{Func: tallyBump, Block: 32})
		return 0
	},
}

// inc are a kernel's parameters, of which only the second counts.
func inc(n uint32) []byte { return binary.LittleEndian.AppendUint32(make([]byte, 8), n) }

// shown is what the variable is in a context.
func (s *softSession) shown(ctx wire.ID) uint32 {
	s.t.Helper()
	s.must(ctx, s.launch(tallyShow, softFilled, 0, wire.StreamLegacy))
	return s.memory()[softFilled]
}

// TestInstancesMove: each context has a library's variables for itself, and whatever made it have
// them they move, each to its own context: twice, as what has moved is recorded as well.
func TestInstancesMove(t *testing.T) {
	for _, loaded := range []wire.ID{0, softCtx, tallyCtx} {
		// The context that is current when the library is loaded: none, the first, the second.
		for first, one := range waysToInstances {
			for second, other := range waysToInstances {
				if first != "launch" && second != "launch" {
					continue
				}
				s := newSoft(t)
				s.must(0, &wire.CtxCreateArgs{Ctx: tallyCtx})
				s.must(loaded, &wire.LibraryLoadArgs{Library: tallyLib, Image: []byte(tallyPTX)})
				s.must(softCtx, &wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: tallyBump, Name: []byte("bump")},
					&wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: tallyShow, Name: []byte("show")})
				a, b := 5+one(s, softCtx, tallyFirst), 5+other(s, tallyCtx, tallyFirst+8)
				for n := range wire.ID(2) {
					s = s.moved()
					later := tallyFirst + 16 + n // what a later context has is nobody's of before
					s.must(0, &wire.CtxCreateArgs{Ctx: later})
					if x := s.shown(later); x != 5 {
						t.Errorf("loaded in %d, %s and %s: moved, the variable is %d in a new context", loaded, first, second, x)
					}
					if x, y := s.shown(softCtx), s.shown(tallyCtx); x != a || y != b {
						t.Errorf("loaded in %d, %s and %s: moved, the variables are %d and %d, want %d and %d", loaded, first, second, x, y, a, b)
					}
					s.must(softCtx, s.launch(tallyBump, 0, 100, wire.StreamLegacy))
					a += 100
				}
				s.close()
			}
		}
	}
}

// TestInstancesEnd: what is recorded of instances goes with the context and with the library, and a
// guest cannot say that there are any.
func TestInstancesEnd(t *testing.T) {
	s := newSoft(t)
	count := func() (n int) {
		for key := range s.w.record.objects {
			if key.space == wire.KindInstance {
				n++
			}
		}
		return n
	}
	s.must(0, &wire.CtxCreateArgs{Ctx: tallyCtx})
	s.must(0, &wire.LibraryLoadArgs{Library: tallyLib, Image: []byte(tallyPTX)})
	s.must(softCtx, &wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: tallyBump, Name: []byte("bump")})
	if res := s.do(softCtx, &wire.LibraryInstanceArgs{Library: tallyLib}); res == cuda.Success || count() != 0 {
		t.Errorf("a guest's: %v", res)
	}
	before := s.w.host.used
	for range 3 {
		for _, ctx := range []wire.ID{softCtx, tallyCtx} {
			s.must(ctx, s.launch(tallyBump, 0, 1, wire.StreamLegacy), &wire.OccupancyMaxActiveBlocksArgs{Func: tallyBump, Block: 32})
		}
	}
	if n := count(); n != 2 {
		t.Errorf("%d are recorded of two contexts", n)
	}
	s.must(0, &wire.CtxDestroyArgs{Ctx: tallyCtx})
	if n := count(); n != 1 {
		t.Errorf("%d are recorded of one context", n)
	}
	s.must(0, &wire.LibraryUnloadArgs{Library: tallyLib})
	if n := count(); n != 0 || s.w.host.used >= before {
		t.Errorf("%d are recorded of none, %d bytes are booked, %d before", n, s.w.host.used, before)
	}
}

// TestInstancesAreBudgeted: what is recorded of instances is of the host's memory that a session
// may hold. Where that is at its end what needs one more is refused, and what there is moves.
func TestInstancesAreBudgeted(t *testing.T) {
	const contexts = 8
	s := newSoft(t)
	s.must(0, &wire.LibraryLoadArgs{Library: tallyLib, Image: []byte(tallyPTX)})
	s.must(softCtx, &wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: tallyBump, Name: []byte("bump")},
		&wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: tallyShow, Name: []byte("show")})
	for i := range wire.ID(contexts) {
		s.must(0, &wire.CtxCreateArgs{Ctx: tallyFirst + i})
	}
	s.w.host.limit = s.w.host.used + 3*(objectBytes+entryBytes)
	var have []wire.ID
	for i := range wire.ID(contexts) {
		switch res := s.do(tallyFirst+i, s.launch(tallyBump, 0, 1, wire.StreamLegacy)); res {
		case cuda.Success:
			have = append(have, tallyFirst+i)
		case cuda.ErrorOutOfMemory:
		default:
			t.Errorf("a launch in context %d: %v", i, res)
		}
	}
	if len(have) == 0 || len(have) == contexts || s.w.host.used > s.w.host.limit || s.w.instanceFee != 0 {
		t.Errorf("%d of %d contexts have one, %d bytes of %d are used, and %d reserved", len(have), contexts, s.w.host.used, s.w.host.limit, s.w.instanceFee)
	}
	s.must(have[0], s.launch(tallyBump, 0, 1, wire.StreamLegacy)) // which needs no more
	s = s.moved()
	for i, ctx := range have {
		want := uint32(6)
		if i == 0 {
			want = 7
		}
		if x := s.shown(ctx); x != want {
			t.Errorf("moved, the variable of context %d is %d, want %d", ctx, x, want)
		}
	}
	s.close()
}

// Objects of tests with other libraries.
const (
	otherLib, otherBump, otherShow = tallyFirst + 20, tallyFirst + 21, tallyFirst + 22
	nextOther                      = 4 // from a library's numbers to the next one's
)

// library loads one, and finds its kernels.
func (s *softSession) library(lib, bump, show wire.ID, image string) {
	s.t.Helper()
	s.must(0, &wire.LibraryLoadArgs{Library: lib, Image: []byte(image)}, &wire.LibraryGetKernelArgs{Library: lib, Kernel: bump, Name: []byte("bump")},
		&wire.LibraryGetKernelArgs{Library: lib, Kernel: show, Name: []byte("show")})
}

// tallyAt is where a library's variable lies in a context.
func (s *softSession) tallyAt(ctx, lib wire.ID) uint64 {
	s.t.Helper()
	var r wire.LibraryGetGlobalReply
	s.must(ctx, &wire.LibraryGetGlobalArgs{Library: lib, Name: []byte("tally")})
	if err := wire.DecodeReply(s.ring.replies[0].Payload, &r); err != nil {
		s.t.Fatal(err)
	}
	return r.Ptr
}

// managedTallyPTX has a managed variable as well.
const managedTallyPTX = tallyPTX + ".visible .global .attribute(.managed) .align 4 .u32 everywhere = 7;\n"

// TestInstancesOfEndedContexts: a library whose variables were a context's that has ended has none
// where they were: another library's, which lie there now, move, and it has others in the next
// context that asks.
func TestInstancesOfEndedContexts(t *testing.T) {
	ways := map[string]func(s *softSession) uint32{}
	for way, one := range waysToInstances {
		ways[way] = func(s *softSession) uint32 { return one(s, tallyCtx, tallyFirst) }
	}
	manage := func(s *softSession) {
		var m wire.MemAllocReply
		s.want(cuda.Success, &wire.MemAllocArgs{Size: 4096}, &m)
		s.must(tallyCtx, &wire.LibraryManageArgs{Library: tallyLib, At: m.Ptr})
	}
	ways["managed, then used"] = func(s *softSession) uint32 {
		manage(s)
		return ways["launch"](s)
	}
	ways["used, then managed"] = func(s *softSession) uint32 {
		s.tallyAt(tallyCtx, tallyLib)
		manage(s)
		return ways["launch"](s)
	}
	graphOf := map[string]wire.ID{"node of a graph": tallyFirst, "capture": tallyFirst + 1}
	for way, one := range ways {
		image := tallyPTX
		if strings.Contains(way, "managed") {
			image = managedTallyPTX
		}
		s := newSoft(t)
		s.must(0, &wire.CtxCreateArgs{Ctx: tallyCtx})
		s.library(tallyLib, tallyBump, tallyShow, image)
		one(s)
		s.sync()
		was := s.tallyAt(tallyCtx, tallyLib)
		s.must(0, &wire.CtxDestroyArgs{Ctx: tallyCtx})
		var at []uint64 // a library that is managed had more places than one
		for n := wire.ID(0); n < 4 && !slices.Contains(at, was); n++ {
			s.library(otherLib+n*nextOther, otherBump+n*nextOther, otherShow+n*nextOther, tallyPTX)
			s.must(softCtx, s.launch(otherBump+n*nextOther, 0, uint32(n), wire.StreamLegacy))
			at = append(at, s.tallyAt(softCtx, otherLib+n*nextOther))
		}
		if !slices.Contains(at, was) {
			t.Fatalf("%s: other libraries' variables are at %#x, none at %#x: nothing is tried", way, at, was)
		}
		if g, is := graphOf[way]; is {
			if _, err := s.tryMove(); err == nil || !strings.Contains(err.Error(), "which was destroyed") {
				t.Errorf("%s: a graph whose context has ended: %v", way, err)
			}
			s.must(0, &wire.GraphExecDestroyArgs{Exec: tallyFirst + 2}, &wire.GraphDestroyArgs{Graph: g})
		}
		shown := func(kernel wire.ID) uint32 {
			s.must(softCtx, s.launch(kernel, softFilled, 0, wire.StreamLegacy))
			return s.memory()[softFilled]
		}
		for n := range uint32(3) {
			s = s.moved()
			for i := range at {
				lib := wire.ID(i) * nextOther
				if x := shown(otherShow + lib); x != 5+uint32(i) || s.tallyAt(softCtx, otherLib+lib) != at[i] {
					t.Errorf("%s: move %d: the variable of library %d is %d", way, n, i, x)
				}
			}
			if n > 0 { // the first moves without any
				if x := shown(tallyShow); x != 5+n-1 {
					t.Errorf("%s: move %d: the first library's variable is %d, want %d", way, n, x, 5+n-1)
				}
				s.must(softCtx, s.launch(tallyBump, 0, 1, wire.StreamLegacy))
			}
		}
		s.must(0, &wire.LibraryUnloadArgs{Library: tallyLib}, &wire.LibraryUnloadArgs{Library: otherLib})
		s.moved().close()
	}
}

// latePTX has a kernel that counts when it is told to.
const latePTX = tallyPTX + `.visible .entry late(.param .u64 at, .param .u32 inc)
{
	.reg .pred %p<2>; .reg .b32 %r<3>; .reg .b64 %d<2>;
	ld.param.u64 %d1, [at]; ld.param.u32 %r1, [inc];
WAIT:
	ld.volatile.global.u32 %r2, [%d1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra WAIT;
	red.global.add.u32 [tally], %r1;
	ret;
}
`

// TestInstancesOfContextsAtWork: what a kernel of a context that is destroyed still uses is nobody
// else's before it has ended.
func TestInstancesOfContextsAtWork(t *testing.T) {
	const late = tallyFirst + 23
	s := newSoft(t)
	s.must(0, &wire.CtxCreateArgs{Ctx: tallyCtx})
	s.library(tallyLib, tallyBump, tallyShow, latePTX)
	s.must(0, &wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: late, Name: []byte("late")})
	was := s.tallyAt(tallyCtx, tallyLib)
	s.must(tallyCtx, s.launch(late, softAdded, tallied, wire.StreamLegacy))
	s.must(0, &wire.CtxDestroyArgs{Ctx: tallyCtx})
	s.library(otherLib, otherBump, otherShow, tallyPTX)
	if now := s.tallyAt(softCtx, otherLib); now == was {
		t.Errorf("a kernel that runs counts in another library's variable, at %#x", now)
	}
	s.must(softCtx, &wire.MemsetArgs{Dst: s.word(softAdded), Value: 1, Element: 4, Width: 1, Height: 1, Stream: softStream})
	s.sync()
	s.must(softCtx, s.launch(otherShow, softFilled, 0, wire.StreamLegacy))
	if x := s.memory()[softFilled]; x != 5 {
		t.Errorf("the other library's variable is %d", x)
	}
	s.close()
}
