package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"

	"causeway/cuda"
)

// fill sets every field of a struct to something that survives a round trip.
func fill(v reflect.Value, rng *rand.Rand) {
	for i := range v.NumField() {
		f := v.Field(i)
		switch f.Kind() {
		case reflect.Slice:
			b := make([]byte, rng.IntN(40))
			for j := range b {
				b[j] = byte(rng.Uint32())
			}
			if len(b) > 0 {
				f.SetBytes(b)
			}
		case reflect.Float32:
			f.SetFloat(float64(rng.IntN(1000)))
		case reflect.Int32:
			f.SetInt(int64(int32(rng.Uint32())))
		case reflect.Uint32:
			f.SetUint(uint64(rng.Uint32()))
		case reflect.Uint64:
			f.SetUint(rng.Uint64())
		}
	}
}

// TestRoundTrip encodes and decodes every operation's request and reply.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for op := Op(1); op <= OpCount; op++ {
		for range 20 {
			a := NewArgs(op)
			fill(reflect.ValueOf(a).Elem(), rng)
			h := Header{Flags: RecordReply, Slot: 3, Seq: 4, Ctx: 17, Thread: 2}
			rec, err := AppendRecord([]byte("x"), h, a)
			if err != nil {
				t.Fatalf("%s: %v", op, err)
			}
			rec = rec[1:]
			if len(rec)%recordAlign != 0 {
				t.Fatalf("%s: record of %d bytes", op, len(rec))
			}
			gotH, gotOp, err := ParseHeader(rec)
			if err != nil || gotH != h || gotOp != op {
				t.Fatalf("%s: header %+v %s, %v", op, gotH, gotOp, err)
			}
			got, err := Decode(op, rec, nil)
			if err != nil || !reflect.DeepEqual(got, a) {
				t.Fatalf("%s: got %+v (%v), want %+v", op, got, err, a)
			}
			if r := NewReply(op); r != nil {
				fill(reflect.ValueOf(r).Elem(), rng)
				back := NewReply(op)
				if err := DecodeReply(AppendReply(nil, r), back); err != nil || !reflect.DeepEqual(back, r) {
					t.Fatalf("%s: reply %+v (%v), want %+v", op, back, err, r)
				}
			}
		}
	}
}

type blobs map[uint32][]byte

func (m blobs) Take(id, size uint32) ([]byte, bool) {
	b, ok := m[id]
	delete(m, id)
	return b, ok && len(b) == int(size)
}

// loader is a driver that answers a few operations.
type loader struct {
	Unsupported
	image, options []byte
	result         cuda.Result
	later          *Pending
}

func (l *loader) ModuleLoad(_ *Call, a *ModuleLoadArgs, r *ModuleLoadReply) cuda.Result {
	l.image, l.options = a.Image, a.Options
	r.ErrLen, r.Logs = 3, []byte("bad")
	return l.result
}

func (l *loader) MemAlloc(c *Call, a *MemAllocArgs, r *MemAllocReply) cuda.Result {
	if addr, ok := c.Place(); ok {
		r.Ptr = addr
		return l.result
	}
	r.Ptr = 0x7000 + a.Size
	c.Placed = append(c.Placed, r.Ptr)
	return l.result
}

func (l *loader) StreamSynchronize(c *Call, _ *StreamSynchronizeArgs) cuda.Result {
	l.later = c.Later()
	return cuda.Success
}

func (l *loader) MemcpyDtoH(c *Call, _ *MemcpyDtoHArgs, _ *MemcpyDtoHReply) cuda.Result {
	l.later = c.Later()
	return cuda.Success
}

func (l *loader) Launch(*Call, *LaunchArgs) cuda.Result { return l.result }

func record(t testing.TB, e *Encoder, a Args) []byte {
	t.Helper()
	rec, err := e.Record(nil, Header{}, a)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestBlobs(t *testing.T) {
	image := bytes.Repeat([]byte("image"), 100_000)
	sent := blobs{}
	e := &Encoder{Blob: func(p []byte) (uint32, error) {
		id := uint32(len(sent) + 1)
		sent[id] = p
		return id, nil
	}}
	rec := record(t, e, &ModuleLoadArgs{Module: 20, Options: []byte("opts"), Image: image})
	if len(rec) > MaxRecord || len(sent) != 1 {
		t.Fatalf("record of %d bytes, %d blobs", len(rec), len(sent))
	}
	l, d := &loader{result: cuda.ErrorInvalidPTX}, &Dispatcher{}
	c := Call{Op: OpModuleLoad}
	payload, res, err := d.Dispatch(l, &c, rec, sent)
	if err != nil || res != cuda.ErrorInvalidPTX || !bytes.Equal(l.image, image) || string(l.options) != "opts" {
		t.Fatalf("%v %v, %d bytes of image", res, err, len(l.image))
	}
	var r ModuleLoadReply
	if err := DecodeReply(payload, &r); err != nil || string(r.Logs) != "bad" || r.ErrLen != 3 {
		t.Fatalf("logs of a failed load: %+v %v", r, err)
	}
	if len(sent) != 0 {
		t.Error("the blob was not taken")
	}

	kept, err := AppendRecord(nil, Header{}, d.Args())
	if err != nil {
		t.Fatal(err)
	}
	l.image = nil
	if _, res, err := d.Dispatch(l, &c, kept, nil); err != nil || res != cuda.ErrorInvalidPTX || !bytes.Equal(l.image, image) {
		t.Errorf("replay of the kept record: %v %v, %d bytes of image", res, err, len(l.image))
	}
	if _, res, err := d.Dispatch(l, &c, rec, sent); err != nil || res != cuda.ErrorInvalidValue {
		t.Errorf("missing blob: %v %v, want InvalidValue and no error", res, err)
	}
}

func TestMalformed(t *testing.T) {
	good := record(t, &Encoder{}, &MemcpyHtoDArgs{Dst: 1, Stream: 1, Src: []byte("12345678")})
	span := RecordSize + 12
	tests := []struct {
		name string
		op   Op
		edit func(b []byte) []byte
	}{
		{"unknown op", 0x7fff, func(b []byte) []byte { return b }},
		{"op 0", 0, func(b []byte) []byte { return b }},
		{"short", OpMemcpyHtoD, func(b []byte) []byte { return b[:RecordSize+8] }},
		{"no header", OpMemcpyHtoD, func(b []byte) []byte { return b[:8] }},
		{"long span", OpMemcpyHtoD, func(b []byte) []byte { b[span+1] = 1; return b }},
		{"huge span", OpMemcpyHtoD, func(b []byte) []byte { b[span+3] = 0xff; return b }},
		{"span in the header", OpMemcpyHtoD, func(b []byte) []byte { b[span+4] = 0; return b }},
		{"span behind the end", OpMemcpyHtoD, func(b []byte) []byte { b[span+6] = 1; return b }},
		{"blob for data", OpMemcpyHtoD, func(b []byte) []byte { b[span+7] = 0x80; return b }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var d Dispatcher
			_, _, err := d.Dispatch(&loader{}, &Call{Op: tc.op}, tc.edit(bytes.Clone(good)), blobs{})
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("got %v, want ErrMalformed", err)
			}
		})
	}
}

func TestPlaced(t *testing.T) {
	rec := record(t, &Encoder{}, &MemAllocArgs{Size: 64})
	l, d := &loader{}, &Dispatcher{}
	c := Call{Op: OpMemAlloc}
	payload, res, err := d.Dispatch(l, &c, rec, nil)
	obj, ok := c.Op.Info().ObjectOf(rec, payload, 0)
	if err != nil || res != 0 || !ok || obj != 0x7040 || len(c.Placed) != 1 || c.Placed[0] != obj {
		t.Fatalf("%v %v object %#x %v placed %#x", res, err, obj, ok, c.Placed)
	}
	again := Call{Op: OpMemAlloc, Replay: true, Placed: []uint64{0xabc}}
	payload, _, _ = d.Dispatch(l, &again, rec, nil)
	if obj, _ := c.Op.Info().ObjectOf(rec, payload, 0); obj != 0xabc {
		t.Errorf("replay placed %#x", obj)
	}
}

// TestSupersedes: a later request takes an earlier one's place if it sets the same.
func TestSupersedes(t *testing.T) {
	set := func(attr, value, dev int32) []byte {
		return record(t, &Encoder{}, &FuncSetAttributeArgs{Func: 20, Attr: attr, Value: value, Dev: dev})
	}
	first := set(8, 1, 0)
	for name, c := range map[string]struct {
		op    Op
		later []byte
		want  bool
	}{
		"the same":         {OpFuncSetAttribute, set(8, 2, 0), true},
		"another":          {OpFuncSetAttribute, set(9, 1, 0), false},
		"another device":   {OpFuncSetAttribute, set(8, 1, 1), false},
		"short":            {OpFuncSetAttribute, set(8, 1, 0)[:RecordSize+8], false},
		"other operation":  {OpFuncSetCacheConfig, record(t, &Encoder{}, &FuncSetCacheConfigArgs{Func: 20}), false},
		"one that adds up": {OpTexRefSet, record(t, &Encoder{}, &TexRefSetArgs{Texref: 20}), false},
	} {
		if got := c.op.Info().Supersedes(c.later, first); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestAwaiters: requests say whether the guest polls for them exactly where the table says that
// they can.
func TestAwaiters(t *testing.T) {
	for op := Op(1); op <= OpCount; op++ {
		if _, ok := NewArgs(op).(Awaiter); ok != op.Info().Awaited {
			t.Errorf("%s: %v", op, ok)
		}
		if _, ok := NewArgs(op).(Marker); ok != (op.Info().Effect == Marks) {
			t.Errorf("%s: it marks: %v", op, ok)
		}
	}
	for a, want := range map[Awaiter]bool{
		&MemcpyStagedArgs{Direction: 1}: true, &MemcpyStagedArgs{}: false, &Memcpy3DArgs{DstKind: OperandStaging}: true, &Memcpy3DArgs{SrcKind: OperandStaging}: false,
	} {
		if a.Awaited() != want {
			t.Errorf("%+v: %v", a, !want)
		}
	}
}

type replier struct {
	payload []byte
	res     cuda.Result
	n, woke int
}

func (r *replier) Reply(_, _ uint32, res cuda.Result, payload []byte) {
	r.payload, r.res = payload, res
	r.n++
}
func (r *replier) GPUDone(uint32) (uintptr, bool) { return 0x40, true }
func (r *replier) WakeSlot(uint32, uint32)        { r.woke++ }

func TestPending(t *testing.T) {
	to, l, d := &replier{}, &loader{}, &Dispatcher{}
	c := Call{Op: OpMemcpyDtoH, Slot: 5, Seq: 9, Replier: to}
	if _, _, err := d.Dispatch(l, &c, record(t, &Encoder{}, &MemcpyDtoHArgs{Size: 3}), nil); err != nil || !c.Taken() {
		t.Fatalf("taken %v, %v", c.Taken(), err)
	}
	l.later.Done(cuda.Success, &MemcpyDtoHReply{Dst: []byte("abc")})
	l.later.Done(cuda.ErrorUnknown, nil)
	l.later.Wake()
	var r MemcpyDtoHReply
	if err := DecodeReply(to.payload, &r); err != nil || string(r.Dst) != "abc" || to.n != 1 || to.woke != 0 || to.res != 0 {
		t.Errorf("%q %v, %d replies, %d wakes, %v", r.Dst, err, to.n, to.woke, to.res)
	}
	c = Call{Op: OpStreamSynchronize, Slot: 5, Seq: 10, Replier: to}
	if _, _, err := d.Dispatch(l, &c, record(t, &Encoder{}, &StreamSynchronizeArgs{Stream: 1}), nil); err != nil || !c.Taken() {
		t.Fatal(err)
	}
	if addr, seq, ok := l.later.GPUDone(); addr != 0x40 || seq != 10 || !ok {
		t.Errorf("GPUDone %#x %d %v", addr, seq, ok)
	}
	if l.later.Wake(); to.woke != 1 || to.n != 1 {
		t.Errorf("%d wakes, %d replies", to.woke, to.n)
	}
}

// TestNoAllocation holds the hot path to what the doc promises.
func TestNoAllocation(t *testing.T) {
	l, d := &loader{}, &Dispatcher{}
	rec := record(t, &Encoder{}, &LaunchArgs{Func: 20, Params: make([]byte, 64)})
	var c Call
	n := testing.AllocsPerRun(100, func() {
		c = Call{Op: OpLaunch}
		if _, _, err := d.Dispatch(l, &c, rec, nil); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("a launch allocates %v times", n)
	}
}

func BenchmarkDispatchLaunch(b *testing.B) {
	l, d := &loader{}, &Dispatcher{}
	rec := record(b, &Encoder{}, &LaunchArgs{Func: 20, Params: make([]byte, 64)})
	c := Call{}
	for b.Loop() {
		c = Call{Op: OpLaunch}
		d.Dispatch(l, &c, rec, nil)
	}
}

func TestUnsupported(t *testing.T) {
	var d Dispatcher
	for op := Op(1); op <= OpCount; op++ {
		c := Call{Op: op}
		_, res, err := d.Dispatch(Unsupported{}, &c, record(t, &Encoder{}, NewArgs(op)), nil)
		if res != cuda.ErrorNotSupported || err != nil {
			t.Errorf("%s: %v %v", op, res, err)
		}
	}
}

// judge deals with everything that it is asked about.
type judge struct {
	Unsupported
	asked []Op
	left  int
}

func (j *judge) Admit(c *Call, a Args, _ Reply) (bool, cuda.Result) {
	if a.Op() != c.Op {
		panic("other arguments")
	}
	j.asked = append(j.asked, c.Op)
	c.AtReturn(func() { j.left++ })
	return c.Op != OpMemFree, cuda.ErrorStreamCaptureUnsupported
}

// TestAdmit: exactly what a capture may change or forbid is asked about, and what was dealt with is
// not done.
func TestAdmit(t *testing.T) {
	var d Dispatcher
	j := &judge{}
	do := func(a Args) cuda.Result {
		t.Helper()
		_, res, err := d.Dispatch(j, &Call{Op: a.Op()}, record(t, &Encoder{}, a), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for op := Op(1); op <= OpCount; op++ {
		a, want := NewArgs(op), op.Info().Capture != CaptureAny
		if r, ok := a.(*RegionAddArgs); ok {
			if do(r); len(j.asked) > 0 && j.asked[len(j.asked)-1] == op {
				t.Error("asked about a region that is not pinned")
			}
			r.Kind = RegionPinned
		}
		n := len(j.asked)
		res := do(a)
		if asked := len(j.asked) > n; asked != want || j.left != len(j.asked) {
			t.Errorf("%s: asked %v, %d of %d calls were left", op, asked, j.left, len(j.asked))
		}
		if denied := res == cuda.ErrorStreamCaptureUnsupported; denied != (want && op != OpMemFree) {
			t.Errorf("%s: %v", op, res)
		}
		if _, ok := a.(Streamed); ok != (want && hasStream(op)) {
			t.Errorf("%s: on a stream %v", op, ok)
		}
	}
}

// hasStream reports whether a request names the stream that it works on.
func hasStream(op Op) bool {
	for _, r := range op.Info().Refs {
		if r.Name == "stream" && !r.New && r.Kind == KindStream {
			return true
		}
	}
	return false
}
