package worker

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/state"
)

// stepsOf lists what a fresh worker would be given of contexts' local memory, and modules, in
// order.
func stepsOf(t *testing.T, r *recorder) (list []string) {
	t.Helper()
	for _, e := range r.entries() {
		_, op, err := wire.ParseHeader(e.rec)
		if err != nil {
			t.Fatal(err)
		}
		a, err := wire.Decode(op, e.rec, &blobStore{})
		switch a := a.(type) {
		case *wire.LocalMemoryArgs:
			list = append(list, fmt.Sprint("local ", a.Bytes))
		case *wire.CtxSetLimitArgs:
			list = append(list, fmt.Sprintf("limit %d %d", a.Limit, a.Value))
		case *wire.EventCreateArgs:
			list = append(list, fmt.Sprint("event ", a.Event))
		case nil:
			t.Fatal(err)
		}
	}
	return list
}

// TestLocalSteps: all changes of a context's local memory are made again between which something
// was made that lives, in their order, and of others the last of each kind. Nothing of them is
// booked when the context is gone.
func TestLocalSteps(t *testing.T) {
	local := func(n uint32) wire.Args { return &wire.LocalMemoryArgs{Bytes: n} }
	limit := func(n uint64) wire.Args { return &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize, Value: n} }
	heap := func(n uint64) wire.Args {
		return &wire.CtxSetLimitArgs{Limit: cuda.LimitMallocHeapSize, Value: n}
	}
	event := func(id wire.ID) wire.Args { return &wire.EventCreateArgs{Event: id} }
	end := func(id wire.ID) wire.Args { return &wire.EventDestroyArgs{Event: id} }
	for name, x := range map[string]struct {
		list []wire.Args
		want []string
	}{
		"one":                          {[]wire.Args{local(4), event(20)}, []string{"local 4", "event 20"}},
		"two without anything between": {[]wire.Args{local(4), local(8), event(20)}, []string{"local 8", "event 20"}},
		"two with something between":   {[]wire.Args{local(4), event(20), local(8)}, []string{"local 4", "event 20", "local 8"}},
		"which is gone":                {[]wire.Args{local(4), event(20), end(20), local(8), event(21), local(12)}, []string{"local 8", "event 21", "local 12"}},
		"which goes later":             {[]wire.Args{local(4), event(20), local(8), end(20), local(12)}, []string{"local 12"}},
		"a limit that was lowered":     {[]wire.Args{limit(4), event(20), limit(1), event(21)}, []string{"limit 0 4", "event 20", "limit 0 1", "event 21"}},
		"set again at once":            {[]wire.Args{limit(4), limit(1), event(21)}, []string{"limit 0 1", "event 21"}},
		"by turns":                     {[]wire.Args{limit(1), local(4), limit(1), local(4), limit(1), local(4)}, []string{"limit 0 1", "local 4"}},
		"by turns, and used once":      {[]wire.Args{limit(1), local(4), event(20), limit(1), local(4), limit(1), local(4)}, []string{"local 4", "event 20", "limit 0 1", "local 4"}},
		"other limits":                 {[]wire.Args{heap(1), local(4), event(20), heap(2)}, []string{"local 4", "event 20", fmt.Sprintf("limit %d 2", cuda.LimitMallocHeapSize)}},
	} {
		h := &hostMemory{limit: 1 << 20}
		r := newRecorder(h)
		note := func(ctx wire.ID, a wire.Args) {
			t.Helper()
			if err := r.note(&wire.Call{Op: a.Op(), Ctx: ctx}, a.Op().Info(), a, nil, 0); err != nil {
				t.Fatal(err)
			}
		}
		note(0, &wire.CtxCreateArgs{Ctx: 16})
		for _, a := range x.list {
			note(16, a)
		}
		if got := stepsOf(t, r); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
		used := h.used
		for range 1000 {
			note(16, limit(1))
			note(16, local(4))
		}
		if got := stepsOf(t, r); len(got) > len(x.want)+2 || h.used > used+4096 {
			t.Errorf("%s: %v behind a thousand turns, %d bytes are booked, %d before", name, got, h.used, used)
		}
		if note(16, &wire.CtxDestroyArgs{Ctx: 16}); h.used != 0 || len(r.entries()) != 0 {
			t.Errorf("%s: %d bytes and %d requests are left", name, h.used, len(r.entries()))
		}
	}
}

// growingGPU says of a launch that it has local memory taken, as much as there are blocks, and
// hears which are to be taken again.
type growingGPU struct {
	*plainGPU
	did []string
}

func (g *growingGPU) Launch(c *wire.Call, a *wire.LaunchArgs) cuda.Result {
	if !c.MayKeep(0) {
		return cuda.ErrorOutOfMemory
	}
	c.In(c.Ctx).Grew(wire.Local{Ctx: c.Ctx, Bytes: a.Gx})
	return cuda.Success
}

func (g *growingGPU) LocalMemory(c *wire.Call, a *wire.LocalMemoryArgs) cuda.Result {
	g.did = append(g.did, fmt.Sprint("local ", c.Ctx, a.Bytes, c.Replay))
	return cuda.Success
}

func (g *growingGPU) EventCreate(c *wire.Call, a *wire.EventCreateArgs) cuda.Result {
	g.did = append(g.did, fmt.Sprint("event ", a.Event))
	return g.plainGPU.EventCreate(c, a)
}

// growing is a session on such a GPU.
func growing(t *testing.T) (*recorded, *growingGPU) {
	t.Helper()
	s := newRecorded(t)
	g := &growingGPU{plainGPU: s.gpu}
	s.w.session, s.w.front.Session = g, driver.Session(g)
	return s, g
}

// TestLocalsAreRecorded: what a launch has had a driver take is taken again where the session is
// made again, at its place between what was made before and behind it; what recording it takes is
// booked, and a session that has no room for it is refused the launch.
func TestLocalsAreRecorded(t *testing.T) {
	from, _ := growing(t)
	launch := func(n uint32) *wire.LaunchArgs { return &wire.LaunchArgs{Gx: n, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1} }
	from.must(1, &wire.CtxCreateArgs{Ctx: 1}, &wire.EventCreateArgs{Event: 20}, launch(5), &wire.EventCreateArgs{Event: 21}, launch(7))
	if used := from.w.host.used; from.w.instanceFee != 0 || used == 0 {
		t.Errorf("%d bytes are booked, and %d reserved", used, from.w.instanceFee)
	}
	to, gpu := growing(t)
	if err := to.w.restore(from.snapshot()); err != nil {
		t.Fatal(err)
	}
	want := []string{"event 20", "local 1 5 true", "event 21", "local 1 7 true"}
	if !slices.Equal(gpu.did, want) {
		t.Errorf("%v, want %v", gpu.did, want)
	}
	again, gpu := growing(t)
	if err := again.w.restore(to.snapshot()); err != nil || !slices.Equal(gpu.did, want) {
		t.Errorf("and from there: %v, %v", gpu.did, err)
	}
	from.w.host.limit = from.w.host.used + 16
	if res := from.do(1, launch(9)); res != cuda.ErrorOutOfMemory || len(stepsOf(t, from.w.record)) != 4 {
		t.Errorf("without room: %v, %v", res, stepsOf(t, from.w.record))
	}
}

// TestManySteps: a program that has contexts' local memory grow, and something made behind it, over
// and over has no more of that recorded than can be done again in a while; what recording it takes
// does not grow with what there is already, here or where the session is made again.
func TestManySteps(t *testing.T) {
	const rounds, most = 4 * mostSteps, mostSteps + 2
	from, _ := growing(t)
	from.w.host.limit = 1 << 30
	from.must(1, &wire.CtxCreateArgs{Ctx: 1})
	for i := range wire.ID(rounds) {
		from.must(1, &wire.CtxSetLimitArgs{Limit: cuda.LimitStackSize, Value: 1},
			&wire.LaunchArgs{Gx: 64, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1}, &wire.EventCreateArgs{Event: 20 + i})
		if n := from.w.record.steps; n > 2*most {
			t.Fatalf("%d steps are kept after %d rounds", n, i)
		}
	}
	snap := from.snapshot()
	to, gpu := growing(t)
	if err := to.w.restore(snap); err != nil {
		t.Fatal(err)
	}
	locals := slices.DeleteFunc(gpu.did, func(what string) bool { return strings.HasPrefix(what, "event") })
	if n := len(snap.Requests) - rounds - 1; n > most || n < mostSteps || len(locals) > most {
		t.Errorf("%d steps are recorded, and %d done again", n, len(locals))
	}
	// The last ones are as they were.
	if list := stepsOf(t, from.w.record); !slices.Equal(list[len(list)-3:], []string{"limit 0 1", "local 64", fmt.Sprint("event ", 20+rounds-1)}) {
		t.Errorf("the last ones are %v", list[len(list)-3:])
	}
	for i := range wire.ID(rounds) {
		from.must(1, &wire.EventDestroyArgs{Event: 20 + i})
	}
	if list := stepsOf(t, from.w.record); len(list) != 2 || from.w.record.steps != 2 {
		t.Errorf("%d are kept, %v, and nothing lives that was made behind them", from.w.record.steps, list)
	}
	if from.must(1, &wire.CtxDestroyArgs{Ctx: 1}); from.w.record.steps != 0 {
		t.Errorf("%d are kept without a context", from.w.record.steps)
	}
}

// TestSnapshotOfLocals: what a driver compiles for is bounded where a session's state is read.
func TestSnapshotOfLocals(t *testing.T) {
	rec, err := wire.AppendRecord(nil, wire.Header{Ctx: 1}, &wire.LocalMemoryArgs{Bytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	for n, fine := range map[int]bool{mostLocals: true, mostLocals + 1: false} {
		var b bytes.Buffer
		w := state.NewWriter(&b)
		s := &snapshot{Virtiofs: &virtiofsState{}, Requests: slices.Repeat([]request{{Record: rec}}, n)}
		s.write(w)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if _, err := readSnapshot(state.NewReader(&b, 1<<30)); fine != (err == nil) || !fine && !errors.Is(err, state.ErrState) {
			t.Errorf("%d: %v", n, err)
		}
	}
}
