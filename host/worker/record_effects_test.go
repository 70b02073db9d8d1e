package worker

import (
	"bytes"
	"slices"
	"testing"

	"causeway/cuda/wire"
)

// did is a request that succeeded, with the current context and what it answered.
type did struct {
	ctx   uint32
	args  wire.Args
	reply []byte
}

// kept notes requests and returns the operations that a fresh worker would be given, in order.
func kept(t *testing.T, list []did) (ops []wire.Op) {
	t.Helper()
	r := newRecorder(nil)
	for _, d := range list {
		c := &wire.Call{Op: d.args.Op(), Ctx: d.ctx}
		if info := c.Op.Info(); info.Effect != wire.NoEffect {
			if err := r.note(c, info, d.args, d.reply, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, e := range r.entries() {
		_, op, err := wire.ParseHeader(e.rec)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	return ops
}

// TestEffects: what each effect of cuda/api/ops.idl leaves of a session's requests.
func TestEffects(t *testing.T) {
	retain, release := &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxReleaseArgs{Ctx: 16}
	reset := &wire.PrimaryCtxResetArgs{Ctx: 16}
	event, record := &wire.EventCreateArgs{Event: 20}, &wire.EventRecordArgs{Event: 20}
	attr := func(a, dev int32) wire.Args { return &wire.FuncSetAttributeArgs{Func: 30, Attr: a, Value: 1, Dev: dev} }
	get, pool := &wire.ModuleGetFunctionArgs{Func: 30}, &wire.PoolCreateArgs{Pool: 40}
	access := func(dev uint32) wire.Args { return &wire.PoolSetAccessArgs{Pool: 40, Dev: dev} }
	for name, c := range map[string]struct {
		list []did
		want []wire.Op
	}{
		"retained twice, released once": {[]did{{0, retain, nil}, {0, retain, nil}, {16, event, nil}, {0, release, nil}},
			[]wire.Op{wire.OpPrimaryCtxRetain, wire.OpEventCreate}},
		"retained three times": {[]did{{0, retain, nil}, {16, event, nil}, {0, retain, nil}, {0, retain, nil}},
			[]wire.Op{wire.OpPrimaryCtxRetain, wire.OpPrimaryCtxRetain, wire.OpPrimaryCtxRetain, wire.OpEventCreate}},
		"the last release":        {[]did{{0, retain, nil}, {16, event, nil}, {0, release, nil}}, nil},
		"reset":                   {[]did{{0, retain, nil}, {16, event, nil}, {0, reset, nil}}, []wire.Op{wire.OpPrimaryCtxRetain, wire.OpPrimaryCtxReset}},
		"a mark":                  {[]did{{0, event, nil}, {0, record, nil}, {0, record, nil}}, []wire.Op{wire.OpEventCreate, wire.OpEventRecord}},
		"a mark of nothing":       {[]did{{0, record, nil}}, nil},
		"a mark goes":             {[]did{{0, event, nil}, {0, record, nil}, {0, &wire.EventDestroyArgs{Event: 20}, nil}}, nil},
		"an attribute, set again": {[]did{{0, get, nil}, {0, attr(8, 0), nil}, {0, attr(9, 0), nil}, {0, attr(8, 0), nil}}, []wire.Op{wire.OpModuleGetFunction, wire.OpFuncSetAttribute, wire.OpFuncSetAttribute}},
		"for another device":      {[]did{{0, get, nil}, {0, attr(8, 0), nil}, {0, attr(8, 1), nil}}, []wire.Op{wire.OpModuleGetFunction, wire.OpFuncSetAttribute, wire.OpFuncSetAttribute}},
		"access to a pool":        {[]did{{0, pool, nil}, {0, access(0), nil}, {0, access(1), nil}, {0, access(0), nil}}, []wire.Op{wire.OpPoolCreate, wire.OpPoolSetAccess, wire.OpPoolSetAccess}},
		"of the current context":  {[]did{{0, retain, nil}, {16, &wire.CtxSetCacheConfigArgs{Config: 1}, nil}, {16, &wire.CtxSetCacheConfigArgs{Config: 2}, nil}, {16, &wire.CtxSetLimitArgs{}, nil}}, []wire.Op{wire.OpPrimaryCtxRetain, wire.OpCtxSetCacheConfig, wire.OpCtxSetLimit}},
		"of no context":           {[]did{{0, &wire.CtxSetLimitArgs{}, nil}}, nil},
		"session and regions": {[]did{{0, &wire.SessionInitArgs{}, nil}, {0, &wire.RegionAddArgs{Region: 1}, nil}, {0, &wire.RegionAddArgs{Region: 2}, nil}, {0, &wire.RegionDropArgs{Region: 1}, nil}},
			[]wire.Op{wire.OpSessionInit, wire.OpRegionAdd}},
		"regions outlive contexts": {[]did{{0, retain, nil}, {16, &wire.RegionAddArgs{Region: 16}, nil}, {0, release, nil}}, []wire.Op{wire.OpRegionAdd}},
		"memory by its address":    {[]did{{0, &wire.MemAllocArgs{Size: 1}, wire.AppendReply(nil, &wire.MemAllocReply{Ptr: 16})}, {0, retain, nil}, {0, &wire.MemFreeArgs{Ptr: 16}, nil}}, []wire.Op{wire.OpPrimaryCtxRetain}},
		"what leaves nothing":      {[]did{{0, &wire.LaunchArgs{}, nil}, {0, &wire.MemGetInfoArgs{}, nil}}, nil},
	} {
		if got := kept(t, c.list); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// marks is a recorder with an event, and that event's recording.
func marks(t testing.TB) func() {
	r := newRecorder(nil)
	create := &wire.EventCreateArgs{Event: 20}
	if err := r.note(&wire.Call{Op: create.Op()}, create.Op().Info(), create, nil, 0); err != nil {
		t.Fatal(err)
	}
	a, c := &wire.EventRecordArgs{Event: 20}, &wire.Call{Op: wire.OpEventRecord}
	return func() { _ = r.note(c, c.Op.Info(), a, nil, 0) }
}

// TestMarksKeepTheirMemory: events are recorded all the time, and the same again is not encoded.
func TestMarksKeepTheirMemory(t *testing.T) {
	if n := testing.AllocsPerRun(100, marks(t)); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestMarkIsTheLast: of an event's records the last counts, in its place among all, whether it is
// as the one before or in another stream, thread or context; of an event that is another's number
// by now nothing does.
func TestMarkIsTheLast(t *testing.T) {
	r := newRecorder(nil)
	note := func(c wire.Call, a wire.Args) {
		t.Helper()
		c.Op = a.Op()
		if err := r.note(&c, c.Op.Info(), a, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	marked := func() *entry {
		t.Helper()
		es := r.entries()
		last := es[len(es)-1]
		for _, e := range es[:len(es)-1] {
			if _, op, _ := wire.ParseHeader(e.rec); op == wire.OpEventRecord {
				t.Error("another mark of the event is kept")
			}
		}
		return last
	}
	note(wire.Call{}, &wire.PrimaryCtxRetainArgs{Ctx: 16})
	note(wire.Call{Ctx: 16}, &wire.EventCreateArgs{Event: 20})
	for _, x := range []struct {
		c wire.Call
		a wire.EventRecordArgs
	}{
		{wire.Call{Ctx: 16, Thread: 1}, wire.EventRecordArgs{Event: 20, Stream: 1}},
		{wire.Call{Ctx: 16, Thread: 1}, wire.EventRecordArgs{Event: 20, Stream: 1}},
		{wire.Call{Ctx: 16, Thread: 1}, wire.EventRecordArgs{Event: 20, Stream: 2}},
		{wire.Call{Ctx: 16, Thread: 2}, wire.EventRecordArgs{Event: 20, Stream: 2}},
		{wire.Call{Ctx: 16, Thread: 2}, wire.EventRecordArgs{Event: 20, Stream: 2, Flags: 1}},
	} {
		note(wire.Call{Ctx: 16}, &wire.StreamCreateArgs{Stream: 30})
		note(x.c, &x.a)
		note(wire.Call{Ctx: 16}, &wire.StreamDestroyArgs{Stream: 30})
		want, err := wire.AppendRecord(nil, header(&x.c), &x.a)
		if err != nil {
			t.Fatal(err)
		}
		if got := marked(); !bytes.Equal(got.rec, want) || got.order != r.clock-1 {
			t.Errorf("%+v: % x at %d of %d", x, got.rec, got.order, r.clock)
		}
	}
	note(wire.Call{Ctx: 16}, &wire.EventDestroyArgs{Event: 20})
	note(wire.Call{Ctx: 16}, &wire.EventRecordArgs{Event: 20, Stream: 1}) // refused by a driver
	note(wire.Call{Ctx: 16}, &wire.EventCreateArgs{Event: 20})
	if _, op, _ := wire.ParseHeader(marked().rec); op != wire.OpEventCreate {
		t.Errorf("behind an event's end %v is kept", op)
	}
	note(wire.Call{Ctx: 16}, &wire.EventRecordArgs{Event: 20, Stream: 1})
	if _, op, _ := wire.ParseHeader(marked().rec); op != wire.OpEventRecord {
		t.Errorf("of the next event of that number %v is kept", op)
	}
}

// BenchmarkMark is what recording adds to the recording of an event.
func BenchmarkMark(b *testing.B) {
	mark := marks(b)
	for b.Loop() {
		mark()
	}
}

// TestRecordIsBooked: what is recorded is in the budget of host memory, once where bytes are equal,
// and nothing is when all is gone. Resets, which nobody may be refused, do not add up.
func TestRecordIsBooked(t *testing.T) {
	h := &hostMemory{limit: 1 << 30}
	r := newRecorder(h)
	note := func(a wire.Args, ctx wire.ID, extra uint64) {
		t.Helper()
		if err := r.note(&wire.Call{Op: a.Op(), Ctx: ctx}, a.Op().Info(), a, nil, extra); err != nil {
			t.Fatal(err)
		}
	}
	note(&wire.PrimaryCtxRetainArgs{Ctx: 16}, 0, 0)
	empty := h.used
	image := make([]byte, 1<<20)
	for i := range uint32(3) {
		note(&wire.ModuleLoadArgs{Module: 20 + i, Image: image}, 16, 1<<20)
		r.blobs.forget()
	}
	if n := h.used - empty; n < 4<<20 || n > 4<<20+8<<10 {
		t.Errorf("%d bytes are booked for one image and three modules of 1 MiB", n)
	}
	note(&wire.PrimaryCtxResetArgs{Ctx: 16}, 0, 0)
	once := h.used
	for range 1000 {
		note(&wire.PrimaryCtxResetArgs{Ctx: 16}, 0, 0)
	}
	if h.used != once || once-empty > 1<<10 {
		t.Errorf("%d bytes are booked without a reset, %d with one, %d with 1001", empty, once, h.used)
	}
	note(&wire.PrimaryCtxReleaseArgs{Ctx: 16}, 0, 0)
	if h.used != 0 || len(r.objects) != 0 || len(r.blobs.byID) != 0 {
		t.Errorf("%d bytes are booked for %d objects and %d images", h.used, len(r.objects), len(r.blobs.byID))
	}
}

// TestWhatIsGone: requests that name objects which are gone cannot be done again. A mark stays,
// behind a stream that is there.
func TestWhatIsGone(t *testing.T) {
	array, ref := &wire.ArrayCreateArgs{Array: 30}, &wire.TexRefCreateArgs{Texref: 31}
	set, gone := &wire.TexRefSetArgs{Texref: 31, What: wire.TexRefArray, Array: 30}, &wire.ArrayDestroyArgs{Array: 30}
	if got := kept(t, []did{{0, array, nil}, {0, ref, nil}, {0, set, nil}}); !slices.Contains(got, wire.OpTexRefSet) {
		t.Errorf("%v lacks what an array is bound by", got)
	}
	for name, list := range map[string][]did{
		"an array that is gone": {{0, array, nil}, {0, ref, nil}, {0, set, nil}, {0, gone, nil}},
		"another of its number": {{0, array, nil}, {0, ref, nil}, {0, set, nil}, {0, gone, nil}, {0, array, nil}},
	} {
		if got := kept(t, list); slices.Contains(got, wire.OpTexRefSet) {
			t.Errorf("%s: %v", name, got)
		}
	}
	r := newRecorder(nil)
	for _, d := range []did{{0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil}, {16, &wire.StreamCreateArgs{Stream: 18}, nil}, {16, &wire.EventCreateArgs{Event: 20}, nil},
		{0, &wire.EventRecordArgs{Event: 20, Stream: 18}, nil}, {16, &wire.StreamDestroyArgs{Stream: 18}, nil}} {
		if err := r.note(&wire.Call{Op: d.args.Op(), Ctx: d.ctx}, d.args.Op().Info(), d.args, d.reply, 0); err != nil {
			t.Fatal(err)
		}
	}
	list := r.entries()
	last := list[len(list)-1].rec
	hdr, op, err := wire.ParseHeader(last)
	if err != nil {
		t.Fatal(err)
	}
	a, err := wire.Decode(op, last, nil)
	if m, ok := a.(*wire.EventRecordArgs); err != nil || !ok || *m != (wire.EventRecordArgs{Event: 20, Stream: wire.StreamLegacy}) || hdr.Ctx != 16 {
		t.Errorf("the mark is %v %+v in context %d, %v", op, a, hdr.Ctx, err)
	}
}

// TestWithoutContext: what was set of a library or its kernel is no context's: made again it names
// none that is gone, and not another in its place.
func TestWithoutContext(t *testing.T) {
	const first, second, lib, kernel = 16, 17, 20, 21
	r := newRecorder(nil)
	for _, d := range []did{{0, &wire.CtxCreateArgs{Ctx: first}, nil}, {0, &wire.CtxCreateArgs{Ctx: second}, nil}, {first, &wire.LibraryLoadArgs{Library: lib}, nil},
		{second, &wire.LibraryManageArgs{Library: lib, Region: 1}, nil}, {first, &wire.LibraryGetKernelArgs{Library: lib, Kernel: kernel}, nil},
		{second, &wire.FuncSetAttributeArgs{Func: kernel, Attr: 8, Value: 1}, nil}, {second, &wire.FuncSetCacheConfigArgs{Func: kernel}, nil}} {
		if err := r.note(&wire.Call{Op: d.args.Op(), Ctx: d.ctx}, d.args.Op().Info(), d.args, d.reply, 0); err != nil {
			t.Fatal(err)
		}
	}
	for gone, want := range map[uint64][]wire.ID{0: {first, second, first, second, second}, second: {first, 0, first, 0, 0}, first: {0, second, 0, second, second}} {
		o := r.objects[objectKey{id: gone}]
		delete(r.objects, objectKey{id: gone})
		var got []wire.ID
		for _, e := range r.entries() {
			hdr, op, err := wire.ParseHeader(e.rec)
			if err != nil {
				t.Fatal(err)
			}
			if op != wire.OpCtxCreate {
				got = append(got, hdr.Ctx)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("context %d is gone: made again in %v, want %v", gone, got, want)
		}
		if o != nil {
			r.objects[o.key] = o
		}
	}
}
