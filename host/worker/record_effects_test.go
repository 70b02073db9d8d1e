package worker

import (
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
	r := newRecorder()
	for _, d := range list {
		c := &wire.Call{Op: d.args.Op(), Ctx: d.ctx}
		if info := c.Op.Info(); info.Effect != wire.NoEffect {
			if err := r.note(c, info, d.args, d.reply); err != nil {
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
			[]wire.Op{wire.OpPrimaryCtxRetain, wire.OpPrimaryCtxRetain, wire.OpEventCreate, wire.OpPrimaryCtxRelease}},
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
	r := newRecorder()
	create := &wire.EventCreateArgs{Event: 20}
	if err := r.note(&wire.Call{Op: create.Op()}, create.Op().Info(), create, nil); err != nil {
		t.Fatal(err)
	}
	a, c := &wire.EventRecordArgs{Event: 20}, &wire.Call{Op: wire.OpEventRecord}
	return func() { _ = r.note(c, c.Op.Info(), a, nil) }
}

// TestMarksKeepTheirMemory: events are recorded all the time. What an encoding allocates is all.
func TestMarksKeepTheirMemory(t *testing.T) {
	if n := testing.AllocsPerRun(100, marks(t)); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkMark is what recording adds to the recording of an event.
func BenchmarkMark(b *testing.B) {
	mark := marks(b)
	for b.Loop() {
		mark()
	}
}
