package worker

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/soft"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
)

// mixPTX has a kernel of which the order of launches shows, x = 3x + inc, and one of which it does
// not.
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

// The session has words that kernels change, that fills write, that copies write, and from which
// they copy.
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
	return openSoft(t, driver.Options{})
}

func openSoft(t testing.TB, o driver.Options) *softSession {
	t.Helper()
	c := &fakeCarrier{done: make(chan struct{})}
	w, err := New(c, soft.New(), o, slog.New(slog.DiscardHandler))
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
	for deadline := time.Now().Add(time.Minute); ; {
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
	snap.Virtiofs = &virtiofsState{}
	var b bytes.Buffer
	h := handover{out: state.NewWriter(&b), send: precopy.NewSender(), recv: precopy.NewReceiver(1<<30, maxRanges)}
	if _, err := h.sendSession(s.w, snap, nil); err != nil {
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
