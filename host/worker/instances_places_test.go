package worker

import (
	"bytes"
	"fmt"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
)

// movedAhead is moved, with memory that is in its place before anything is made again.
func (s *softSession) movedAhead() *softSession {
	s.t.Helper()
	s.sync()
	var b bytes.Buffer
	h := handover{out: state.NewWriter(&b), send: precopy.NewSender(), recv: precopy.NewReceiver(1<<30, maxRanges)}
	if _, err := h.send.Round(s.t.Context(), s.w.session.(driver.Precopier).ExportRunning, &b); err != nil {
		s.t.Fatal(err)
	}
	if err := h.send.Still(&b); err != nil {
		s.t.Fatal(err)
	}
	snap, err := s.w.snapshot()
	if err != nil {
		s.t.Fatal(err)
	}
	snap.Virtiofs = &virtiofsState{}
	if _, err := h.sendSession(s.w, snap, nil); err != nil {
		s.t.Fatal(err)
	}
	s.close()
	n := bareSoft(s.t)
	h.recv.Into(n.w.session.(driver.Expecter))
	if err := h.recv.Rounds(s.t.Context(), &b); err != nil {
		s.t.Fatal(err)
	}
	h.in = state.NewReader(&b, 1<<30)
	if snap, err = readSnapshot(h.in); err != nil {
		s.t.Fatal(err)
	}
	if err := n.w.restore(snap); err != nil {
		s.t.Fatalf("rebuild: %v", err)
	}
	if err := h.receiveMemory(n.w); err != nil {
		s.t.Fatal(err)
	}
	n.words, n.seq = s.words, s.seq
	return n
}

// TestPlacesBeforeManaging: where a library or a module had its variables before those that are
// managed moved, nothing else comes to lie: the load that is made again takes these addresses, with
// what has gone ahead of it there.
func TestPlacesBeforeManaging(t *testing.T) {
	const module, moduleBump, moduleShow = tallyFirst + 50, tallyFirst + 51, tallyFirst + 52
	for name, load := range map[string]func(s *softSession, at uint64){
		"library": func(s *softSession, at uint64) {
			s.library(tallyLib, tallyBump, tallyShow, managedTallyPTX)
			s.must(softCtx, &wire.LibraryManageArgs{Library: tallyLib, At: at})
		},
		"library that a context has": func(s *softSession, at uint64) {
			s.library(tallyLib, tallyBump, tallyShow, managedTallyPTX)
			s.tallyAt(softCtx, tallyLib)
			s.must(softCtx, &wire.LibraryManageArgs{Library: tallyLib, At: at})
		},
		"library that an ended context had": func(s *softSession, at uint64) {
			s.must(0, &wire.CtxCreateArgs{Ctx: tallyCtx})
			s.library(tallyLib, tallyBump, tallyShow, managedTallyPTX)
			s.must(tallyCtx, &wire.LibraryManageArgs{Library: tallyLib, At: at}, s.launch(tallyBump, 0, 1, wire.StreamLegacy))
			s.must(0, &wire.CtxDestroyArgs{Ctx: tallyCtx})
		},
		"module": func(s *softSession, at uint64) {
			s.must(softCtx, &wire.ModuleLoadArgs{Module: module, Image: []byte(managedTallyPTX)}, &wire.ModuleManageArgs{Module: module, At: at},
				&wire.ModuleGetFunctionArgs{Module: module, Func: moduleBump, Name: []byte("bump")}, &wire.ModuleGetFunctionArgs{Module: module, Func: moduleShow, Name: []byte("show")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSoft(t)
			var m wire.MemAllocReply
			s.want(cuda.Success, &wire.MemAllocArgs{Size: 4096}, &m)
			load(s, m.Ptr)
			var at [3]uint64
			for n := range at { // of equally large variables some would take the places
				lib := wire.ID(n) * nextOther
				s.library(otherLib+lib, otherBump+lib, otherShow+lib, tallyPTX)
				s.must(softCtx, s.launch(otherBump+lib, 0, uint32(n), wire.StreamLegacy))
				at[n] = s.tallyAt(softCtx, otherLib+lib)
			}
			bump, show, first := tallyBump, tallyShow, uint32(5)
			if name == "module" {
				bump, show = moduleBump, moduleShow
			}
			for move := range uint32(3) {
				s.must(softCtx, s.launch(bump, 0, 10, wire.StreamLegacy))
				first += 10
				s = s.movedAhead()
				var others []uint32
				for n := range at {
					lib := wire.ID(n) * nextOther
					s.must(softCtx, s.launch(otherShow+lib, softFilled, 0, wire.StreamLegacy))
					others = append(others, s.memory()[softFilled])
					if now := s.tallyAt(softCtx, otherLib+lib); now != at[n] {
						t.Errorf("move %d: the variable of library %d is at %#x, was at %#x", move, n, now, at[n])
					}
				}
				s.must(softCtx, s.launch(show, softFilled, 0, wire.StreamLegacy))
				if x := s.memory()[softFilled]; x != first || fmt.Sprint(others) != "[5 6 7]" {
					t.Errorf("move %d: the variables are %d and %v, want %d and [5 6 7]", move, x, others, first)
				}
			}
			if name == "module" {
				s.must(softCtx, &wire.ModuleUnloadArgs{Module: module})
			} else {
				s.must(0, &wire.LibraryUnloadArgs{Library: tallyLib})
			}
			s.movedAhead().close()
		})
	}
}

// TestAttributesOfEndedContexts: what was set of a library's kernel is its device's, whichever
// contexts were current and are gone: it is the same before and after a move, in every context.
func TestAttributesOfEndedContexts(t *testing.T) {
	const third, later = tallyFirst + 30, tallyFirst + 31
	all := []wire.ID{softCtx, tallyCtx, third}
	for _, found := range append([]wire.ID{0}, all...) {
		// The context that is current when the kernel is found.
		for _, set := range append([]wire.ID{0}, all...) {
			for ended := range 4 { // of the second and third
				s := newSoft(t)
				s.must(0, &wire.CtxCreateArgs{Ctx: tallyCtx}, &wire.CtxCreateArgs{Ctx: third}, &wire.LibraryLoadArgs{Library: tallyLib, Image: []byte(tallyPTX)})
				s.must(found, &wire.LibraryGetKernelArgs{Library: tallyLib, Kernel: tallyBump, Name: []byte("bump")})
				s.must(softCtx, &wire.KernelGetFunctionArgs{Func: tallyShow, Kernel: tallyBump})
				s.must(set, &wire.FuncSetAttributeArgs{Func: tallyBump, Attr: cuda.FuncAttrMaxDynamicSharedSizeBytes, Value: 60000}, &wire.FuncSetCacheConfigArgs{Func: tallyBump, Config: 1},
					&wire.FuncSetAttributeArgs{Func: tallyBump, Attr: cuda.FuncAttrPreferredSharedMemoryCarveout, Value: 30})
				// A function's own.
				s.must(softCtx, &wire.FuncSetAttributeArgs{Func: tallyShow, Attr: cuda.FuncAttrPreferredSharedMemoryCarveout, Value: 70})
				here := []wire.ID{softCtx}
				for i, ctx := range []wire.ID{tallyCtx, third} {
					if ended>>i&1 != 0 {
						s.must(0, &wire.CtxDestroyArgs{Ctx: ctx})
					} else {
						here = append(here, ctx)
					}
				}
				check := func(when string) {
					t.Helper()
					for _, ctx := range here {
						for attr, want := range map[int32][2]int32{cuda.FuncAttrMaxDynamicSharedSizeBytes: {60000, 60000}, cuda.FuncAttrPreferredSharedMemoryCarveout: {30, 70}} {
							for i, f := range []wire.ID{tallyBump, tallyShow} {
								var r wire.FuncGetAttributeReply
								s.must(ctx, &wire.FuncGetAttributeArgs{Func: f, Attr: attr})
								if err := wire.DecodeReply(s.ring.replies[0].Payload, &r); err != nil || r.Value != want[i] {
									t.Errorf("found in %d, set in %d, %d ended, %s: attribute %d of %d is %d in %d, want %d", found, set, ended, when, attr, f, r.Value, ctx, want[i])
								}
							}
						}
						launch := s.launch(tallyBump, 0, 1, wire.StreamLegacy).(*wire.LaunchArgs)
						launch.Shared = 60000
						s.must(ctx, launch)
						launch.Shared = 60001
						if s.do(ctx, launch) == cuda.Success {
							t.Errorf("found in %d, set in %d, %d ended, %s: launched with too much", found, set, ended, when)
						}
					}
				}
				check("unmoved")
				for n := range wire.ID(2) {
					s = s.moved()
					s.must(0, &wire.CtxCreateArgs{Ctx: later + n})
					here = append(here, later+n)
					check("moved")
				}
				s.close()
			}
		}
	}
}
