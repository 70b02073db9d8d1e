package worker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/soft"
	"causeway/host/worker/state"
)

// mixPTX has a kernel of which the order of launches shows, x = 3x + inc, and one of which it does not.
const mixPTX = `.version 8.0
.target sm_90
.address_size 64
.visible .entry mix(.param .u64 at, .param .u32 inc)
{
	.reg .b32 %r<4>; .reg .b64 %d<2>;
	ld.param.u64 %d1, [at]; ld.param.u32 %r1, [inc];
	ld.global.u32 %r2, [%d1]; mad.lo.u32 %r2, %r2, 3, %r1; st.global.u32 [%d1], %r2;
	ret;
}
.visible .entry add(.param .u64 at, .param .u32 inc)
{
	.reg .b32 %r<2>; .reg .b64 %d<2>;
	ld.param.u64 %d1, [at]; ld.param.u32 %r1, [inc];
	red.global.add.u32 [%d1], %r1;
	ret;
}
.extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);
.visible .entry count(.param .u64 at, .param .u64 handle, .param .u32 limit)
{
	.reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<3>;
	ld.param.u64 %d1, [at]; ld.param.u64 %d2, [handle]; ld.param.u32 %r1, [limit];
	ld.global.u32 %r2, [%d1]; add.u32 %r2, %r2, 1; st.global.u32 [%d1], %r2;
	setp.lt.u32 %p1, %r2, %r1; selp.u32 %r3, 1, 0, %p1;
	{
	.param .b64 p0; .param .b32 p1;
	st.param.b64 [p0], %d2; st.param.b32 [p1], %r3;
	call.uni cudaGraphSetConditional, (p0, p1);
	}
	ret;
}
`

const (
	softCtx = wire.ID(20) + iota
	softModule
	softMix
	softAdd
	softCount
	softStream
	softStream2
	softEvent
	softFirst // ids from here on are the test's
)

// softSession is a session on the software GPU that a test drives as its guest.
type softSession struct {
	recorded
	words  uint64 // memory
	closed bool
}

// The session has words that kernels change, that fills write, that copies write, and from which they copy.
const (
	softAdded  = 0
	softFilled = 32
	softCopied = 48
	softFrom   = 64
	softWords  = 80
)

// bareSoft has nothing yet.
func bareSoft(t testing.TB) *softSession {
	t.Helper()
	c := &fakeCarrier{done: make(chan struct{})}
	w, err := New(c, soft.New(), driver.Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s := &softSession{recorded: recorded{t: t, w: w, ring: &c.fakeRing}}
	t.Cleanup(s.close)
	return s
}

// close makes room for another: a process has one software GPU's memory.
func (s *softSession) close() {
	if s.closed {
		return
	}
	s.closed = true
	if err := s.w.session.Close(); err != nil {
		s.t.Error(err)
	}
}

func newSoft(t testing.TB) *softSession {
	t.Helper()
	s := bareSoft(t)
	s.start()
	return s
}

// start makes what tests need.
func (s *softSession) start() {
	s.t.Helper()
	s.must(0, &wire.SessionInitArgs{Version: wire.ProtocolVersion})
	s.must(0, &wire.PrimaryCtxRetainArgs{Ctx: softCtx})
	var mem wire.MemAllocReply
	s.want(cuda.Success, &wire.MemAllocArgs{Size: 4 * softWords}, &mem)
	s.words = mem.Ptr
	s.must(softCtx,
		&wire.ModuleLoadArgs{Module: softModule, Image: []byte(mixPTX)},
		&wire.ModuleGetFunctionArgs{Module: softModule, Func: softMix, Name: []byte("mix")},
		&wire.ModuleGetFunctionArgs{Module: softModule, Func: softAdd, Name: []byte("add")},
		&wire.ModuleGetFunctionArgs{Module: softModule, Func: softCount, Name: []byte("count")},
		&wire.StreamCreateArgs{Stream: softStream, Flags: 1}, &wire.StreamCreateArgs{Stream: softStream2, Flags: 1},
		&wire.EventCreateArgs{Event: softEvent}, &wire.MemsetArgs{Dst: mem.Ptr, Element: 4, Width: softFrom, Height: 1, Stream: softStream},
		&wire.MemsetArgs{Dst: mem.Ptr + 4*softFrom, Value: 77, Element: 4, Width: softWords - softFrom, Height: 1, Stream: softStream})
	s.sync()
}

// ask executes a request and decodes its reply.
func (s *softSession) ask(a wire.Args, r wire.Reply) cuda.Result {
	s.t.Helper()
	res := s.do(softCtx, a)
	if r != nil && (res == cuda.Success || a.Op().Info().Always) {
		if err := wire.DecodeReply(s.ring.replies[0].Payload, r); err != nil {
			s.t.Fatal(err)
		}
	}
	return res
}

func (s *softSession) want(want cuda.Result, a wire.Args, r wire.Reply) {
	s.t.Helper()
	if res := s.ask(a, r); res != want {
		s.t.Fatalf("%v: %v, want %v", a.Op(), res, want)
	}
}

func (s *softSession) sync() {
	s.t.Helper()
	if err := s.w.session.Quiesce(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, open := s.w.unanswered(); !open {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("no answer")
		}
		time.Sleep(time.Millisecond)
	}
}

// memory is what the words hold.
func (s *softSession) memory() []uint32 {
	s.t.Helper()
	s.sync()
	var out []uint32
	err := s.w.session.ExportMemory(func(addr, _ uint64, r io.Reader) error {
		b, err := io.ReadAll(r)
		for ; addr == s.words && len(b) > 0; b = b[4:] {
			out = append(out, binary.LittleEndian.Uint32(b))
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// moved is the session in another worker; this one has ended.
func (s *softSession) moved() *softSession {
	s.t.Helper()
	n, err := s.tryMove()
	if err != nil {
		s.t.Fatalf("move: %v", err)
	}
	return n
}

// tryMove is moved, unless this session says that it cannot be.
func (s *softSession) tryMove() (*softSession, error) {
	s.t.Helper()
	s.sync()
	snap, err := s.w.snapshot()
	if err != nil {
		return nil, err
	}
	snap.Leased = &leasedState{}
	var b bytes.Buffer
	h := handover{out: state.NewWriter(&b)}
	if err := h.sendSession(s.w, snap); err != nil {
		return nil, err
	}
	s.close()
	h.in = state.NewReader(&b, 1<<30)
	if snap, err = readSnapshot(h.in); err != nil {
		s.t.Fatal(err)
	}
	n := bareSoft(s.t)
	if err := n.w.restore(snap); err != nil {
		s.t.Fatalf("rebuild: %v", err)
	}
	if err := h.receiveMemory(n.w); err != nil {
		s.t.Fatal(err)
	}
	n.words, n.seq = s.words, s.seq
	return n, nil
}

func (s *softSession) word(i int) uint64 { return s.words + 4*uint64(i) }

// kernel are the parameters of a kernel node.
func (s *softSession) kernel(f wire.ID, word int, inc uint32) []byte {
	v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: 12}
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(v.Append(nil), s.word(word)), inc)
}

func (s *softSession) launch(f wire.ID, word int, inc uint32, on wire.ID) wire.Args {
	p := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, s.word(word)), inc)
	return &wire.LaunchArgs{Func: f, Stream: on, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Params: p}
}

func ids(list ...wire.ID) (b []byte) {
	for _, id := range list {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return b
}

// chance makes requests by chance, and notes what comes of them.
type chance struct {
	t       *testing.T
	r       *rand.Rand
	s       *softSession
	trace   []string
	like    []string // what has to come of them, if it is known
	next    wire.ID
	graphs  []wire.ID
	nodes   map[wire.ID][]wire.ID // by graph
	kinds   map[wire.ID]uint32
	execs   []wire.ID
	moves   bool
	refused int
}

func (w *chance) fresh() wire.ID {
	w.next++
	return w.next
}

func (w *chance) do(a wire.Args, r func() wire.Reply) (res cuda.Result, reply wire.Reply) {
	w.t.Helper()
	if r != nil {
		reply = r()
	}
	res = w.s.ask(a, reply)
	w.note(fmt.Sprintf("%v %+v: %v %+v", a.Op(), a, res, reply))
	return res, reply
}

func (w *chance) note(text string) {
	w.t.Helper()
	if n := len(w.trace); w.like != nil && (n >= len(w.like) || w.like[n] != text) {
		w.t.Fatalf("after a move: %s\nwithout it: %s", text, w.like[min(n, len(w.like)-1)])
	}
	w.trace = append(w.trace, text)
}

func pick[T any](r *rand.Rand, list []T) (v T) {
	if len(list) > 0 {
		v = list[r.IntN(len(list))]
	}
	return v
}

// anyNode is a node of any graph, mostly one that is there.
func (w *chance) anyNode() wire.ID {
	if w.r.IntN(20) == 0 {
		return w.fresh()
	}
	return pick(w.r, w.nodes[pick(w.r, w.graphs)])
}

// params are of a node of some kind. What nodes do that run at the same time does not depend on which is first.
func (w *chance) params() (uint32, []byte) {
	s, i := w.s, w.r.IntN(softCopied-softFilled)
	switch w.r.IntN(6) {
	case 0:
		return wire.NodeMemset, (&wire.MemsetNode{Dst: s.word(softFilled + i), Value: uint32(i + 1), Element: 4, Width: 1, Height: 1}).Append(nil)
	case 1:
		src := wire.MemcpySide{Ptr: s.word(softFrom + i), Type: cuda.MemoryTypeUnified, Pitch: 4}
		dst := wire.MemcpySide{Ptr: s.word(softCopied + i), Type: cuda.MemoryTypeUnified, Pitch: 4}
		return wire.NodeMemcpy, (&wire.MemcpyNode{Width: 4, Height: 1, Depth: 1}).Append(dst.Append(src.Append(nil)))
	case 2:
		return wire.NodeEmpty, nil
	}
	return wire.NodeKernel, s.kernel(softAdd, w.r.IntN(softFilled), w.r.Uint32()%100)
}

func (w *chance) added(g, n wire.ID, kind uint32) {
	w.nodes[g] = append(w.nodes[g], n)
	w.kinds[n] = kind
}

// chain adds nodes that follow one another to a graph.
func (w *chance) chain(g wire.ID, n int) {
	for range n {
		var deps []byte
		if list := w.nodes[g]; len(list) > 0 {
			deps = ids(list[len(list)-1])
		}
		id := w.fresh()
		kind, params := w.params()
		if res, _ := w.do(&wire.GraphAddNodeArgs{Graph: g, Node: id, Type: kind, Deps: deps, Params: params}, nil); res == cuda.Success {
			w.added(g, id, kind)
		}
	}
}

func (w *chance) capture(n int) {
	w.do(&wire.StreamBeginCaptureArgs{Stream: softStream, Mode: 2}, nil)
	for i := range n {
		if i == n/2 { // into another stream and back
			w.do(&wire.EventRecordArgs{Event: softEvent, Stream: softStream}, nil)
			w.do(&wire.StreamWaitEventArgs{Event: softEvent, Stream: softStream2}, nil)
			w.do(w.s.launch(softAdd, w.r.IntN(softFilled), w.r.Uint32()%100, softStream2), nil)
			w.do(&wire.EventRecordArgs{Event: softEvent, Stream: softStream2}, nil)
			w.do(&wire.StreamWaitEventArgs{Event: softEvent, Stream: softStream}, nil)
		}
		w.do(w.s.launch(softAdd, w.r.IntN(softFilled), w.r.Uint32()%100, softStream), nil)
	}
	g := w.fresh()
	if res, _ := w.do(&wire.StreamEndCaptureArgs{Stream: softStream, Fresh: g}, func() wire.Reply { return new(wire.StreamEndCaptureReply) }); res == cuda.Success {
		w.graphs = append(w.graphs, g)
	}
}

// list asks for a graph's nodes, and gives those that have none ids.
func (w *chance) list(g wire.ID, what uint32) {
	reply := func() wire.Reply { return new(wire.GraphListReply) }
	res, r := w.do(&wire.GraphListArgs{What: what, Graph: g, Node: w.anyNode()}, reply)
	if res != cuda.Success || w.r.IntN(2) == 0 {
		return
	}
	var names []wire.ID
	for range r.(*wire.GraphListReply).Unnamed {
		names = append(names, w.fresh())
	}
	_, r = w.do(&wire.GraphListArgs{What: what, Graph: g, Names: ids(names...)}, reply)
	for b := r.(*wire.GraphListReply).Nodes; len(b) > 0; b = b[wire.GraphEdgeSize:] {
		var e wire.GraphEdge
		_ = e.Decode(b)
		if slices.Contains(names, e.From) && w.kinds[e.From] == 0 {
			w.added(g, e.From, e.FromType)
		}
	}
}

func (w *chance) forget(g wire.ID) {
	w.graphs = slices.DeleteFunc(w.graphs, func(x wire.ID) bool { return x == g })
	delete(w.nodes, g)
}

func (w *chance) step() {
	g, x, n := pick(w.r, w.graphs), pick(w.r, w.execs), w.anyNode()
	switch w.r.IntN(24) {
	case 0:
		id := w.fresh()
		w.do(&wire.GraphCreateArgs{Graph: id}, nil)
		w.graphs = append(w.graphs, id)
		w.chain(id, 4)
	case 1:
		w.capture(4)
	case 2:
		if len(w.graphs) > 4 {
			if res, _ := w.do(&wire.GraphDestroyArgs{Graph: g}, nil); res == cuda.Success {
				w.forget(g)
			}
		}
	case 3:
		id := w.fresh()
		if res, _ := w.do(&wire.GraphCloneArgs{Graph: id, Original: g}, nil); res == cuda.Success {
			w.graphs = append(w.graphs, id)
		}
	case 4:
		w.chain(g, 1)
	case 5:
		if res, _ := w.do(&wire.GraphDestroyNodeArgs{Node: n}, nil); res == cuda.Success {
			for g := range w.nodes {
				w.nodes[g] = slices.DeleteFunc(w.nodes[g], func(x wire.ID) bool { return x == n })
			}
		}
	case 6:
		kind, params := w.params()
		w.do(&wire.GraphNodeSetParamsArgs{Node: n, Type: kind, Params: params}, nil)
	case 7:
		w.do(&wire.GraphSetEdgesArgs{Graph: g, Remove: w.r.Uint32() % 2, Before: ids(pick(w.r, w.nodes[g])), After: ids(pick(w.r, w.nodes[g]))}, nil)
	case 8:
		v := make([]byte, 64)
		v[0] = byte(w.r.IntN(3))
		w.do(&wire.GraphNodeSetAttributeArgs{Node: n, Attr: cuda.LaunchAttrPriority, Value: v}, nil)
	case 9:
		w.do(&wire.GraphNodeGetAttributeArgs{Node: n, Attr: cuda.LaunchAttrPriority}, func() wire.Reply { return new(wire.GraphNodeGetAttributeReply) })
	case 10:
		w.do(&wire.GraphNodeGetParamsArgs{Node: n, Fresh: w.fresh()}, func() wire.Reply { return new(wire.GraphNodeGetParamsReply) })
	case 11, 12:
		w.list(g, w.r.Uint32()%5)
	case 13:
		id, owner := w.fresh(), w.r.Uint32()%2
		child := pick(w.r, w.graphs)
		a := wire.GraphAddNodeArgs{Graph: g, Node: id, Type: wire.NodeGraph, Params: (&wire.ChildNode{Graph: child, Ownership: owner}).Append(nil)}
		if res, _ := w.do(&a, nil); res == cuda.Success {
			w.added(g, id, wire.NodeGraph)
			if owner == wire.ChildMoved {
				w.graphs = slices.DeleteFunc(w.graphs, func(x wire.ID) bool { return x == child })
			}
		}
	case 14, 15:
		id := w.fresh()
		if res, _ := w.do(&wire.GraphInstantiateArgs{Exec: id, Graph: g}, func() wire.Reply { return new(wire.GraphInstantiateReply) }); res == cuda.Success {
			w.execs = append(w.execs, id)
		}
	case 16, 17:
		w.do(&wire.GraphExecUpdateArgs{Exec: x, Graph: g}, func() wire.Reply { return new(wire.GraphExecUpdateReply) })
	case 18:
		kind, params := w.params()
		w.do(&wire.GraphExecNodeSetParamsArgs{Exec: x, Node: n, Type: kind, Params: params}, nil)
	case 19:
		w.do(&wire.GraphNodeSetEnabledArgs{Exec: x, Node: n, Enabled: w.r.Uint32() % 2}, nil)
	case 20:
		w.do(&wire.GraphNodeGetEnabledArgs{Exec: x, Node: n}, func() wire.Reply { return new(wire.GraphNodeGetEnabledReply) })
	case 21:
		if len(w.execs) > 6 {
			w.do(&wire.GraphExecDestroyArgs{Exec: x}, nil)
			w.execs = slices.DeleteFunc(w.execs, func(y wire.ID) bool { return x == y })
		}
	default:
		w.launch(x)
	}
}

func (w *chance) launch(x wire.ID) {
	w.do(&wire.MemsetArgs{Dst: w.s.words, Element: 4, Width: softFrom, Height: 1, Stream: softStream}, nil)
	w.do(&wire.GraphLaunchArgs{Exec: x, Stream: softStream}, nil)
	w.note(fmt.Sprint(w.s.memory()))
}

// run makes the requests, and moves the session now and then if it is to move.
func (w *chance) run(steps int) {
	for range steps {
		w.step()
		if w.r.IntN(12) != 0 || !w.moves {
			continue
		}
		n, err := w.s.tryMove()
		if err != nil {
			w.refused++
			w.t.Log(err)
			continue
		}
		w.s = n
	}
	for _, x := range w.execs {
		w.launch(x)
	}
	for _, x := range w.execs {
		w.do(&wire.GraphExecDestroyArgs{Exec: x}, nil)
	}
	for _, g := range w.graphs {
		w.do(&wire.GraphDestroyArgs{Graph: g}, nil)
	}
	if n := len(w.s.w.graphs.live) + len(w.s.w.graphs.execs); n != 0 {
		w.t.Errorf("%d graphs are kept of none", n)
	}
	w.note(fmt.Sprint(w.s.w.host.used))
	w.s.close()
}

// TestGraphsByChance runs graph requests by chance in a session that moves now and then, and in one that does not: nothing must tell them apart.
func TestGraphsByChance(t *testing.T) {
	rounds, steps := 20, 150
	if testing.Short() {
		rounds = 8
	}
	refused := 0
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			one := func(moves bool, like []string) *chance {
				w := &chance{t: t, r: rand.New(rand.NewPCG(uint64(seed), 12)), s: newSoft(t), next: softFirst, nodes: map[wire.ID][]wire.ID{},
					kinds: map[wire.ID]uint32{}, moves: moves, like: like}
				w.run(steps)
				return w
			}
			refused += one(true, one(false, nil).trace).refused
		})
	}
	if refused > 0 {
		t.Errorf("%d moves were refused", refused)
	}
}
