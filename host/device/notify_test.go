package device_test

import (
	gocontext "context"
	"sync/atomic"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/inventory"
	"causeway/host/worker/workertest"
)

// told is a session that has asked to be told of its budget.
type told struct {
	t    *testing.T
	from *workertest.Callbacks
}

func watch(t *testing.T, g *workertest.Guest) *told {
	t.Helper()
	if res, err := g.Call(0, &wire.WatchBudgetArgs{Wanted: 1}, nil); err != nil || res != cuda.ErrorInvalidValue {
		t.Fatal("before it can be told anything:", res, err)
	}
	from, err := g.OpenCallbacks(9)
	if err != nil {
		t.Fatal(err)
	}
	must(t, g, &wire.WatchBudgetArgs{Wanted: 1}, nil)
	return &told{t, from}
}

// event takes the next event, which is expected to be this one.
func (d *told) event(want uint32, over uint64) {
	d.t.Helper()
	n, event, done, err := d.from.Take()
	if err != nil {
		d.t.Fatal(err)
	}
	done()
	if uint32(event) != want || n != over {
		d.t.Errorf("event %d with %d, want %d with %d", event, n, want, over)
	}
}

// TestToldOfLimit: a session that asked for it is told when the limit falls below what is
// allocated, once for each time that this becomes so or becomes worse, also after it moved.
func TestToldOfLimit(t *testing.T) {
	const over, still = wire.CallbackOverBudget, wire.CallbackStillOver
	v := bootWith(t, func(o *device.Options) { o.Limits.Memory = 100 << 20 })
	_, a := start(t, v)
	_, b := start(t, v) // does not ask
	alloc(t, b, 40<<20, cuda.Success)
	ptr := alloc(t, a, 20<<20, cuda.Success)
	limit := func(n uint64) {
		t.Helper()
		if _, err := v.device.SetLimits(api.Limits{Memory: n}.All()); err != nil {
			t.Fatal(err)
		}
	}
	d := watch(t, a)
	limit(80 << 20)
	limit(60 << 20) // just what is used
	limit(50 << 20)
	d.event(over, 10<<20)
	limit(50 << 20)
	limit(30 << 20)
	d.event(over, 30<<20)
	limit(55 << 20) // better
	limit(50 << 20)
	d.event(over, 10<<20)
	must(t, a, &wire.WatchBudgetArgs{Wanted: 1}, nil) // somebody else in the process
	d.event(still, 10<<20)
	limit(0)
	limit(59 << 20)
	d.event(over, 1<<20)
	if n, err := v.device.Rebuild(context()); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	limit(58 << 20)
	d.event(over, 2<<20)
	must(t, a, &wire.MemFreeArgs{Ptr: ptr}, nil) // 40
	limit(57 << 20)
	limit(39 << 20)
	d.event(over, 1<<20)
	must(t, a, &wire.WatchBudgetArgs{}, nil)
	limit(38 << 20)
	must(t, a, &wire.WatchBudgetArgs{Wanted: 1}, nil)
	d.event(over, 2<<20) // it is so already
	if res, err := a.Call(0, &wire.WatchBudgetArgs{Wanted: 2}, nil); err != nil || res != cuda.ErrorInvalidValue {
		t.Error(res, err)
	}
	for _, g := range []*workertest.Guest{a, b} {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestUntakenEvent: events that a guest does not take become one, which says what was so last.
func TestUntakenEvent(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Limits.Memory = 100 << 20 })
	_, g := start(t, v)
	alloc(t, g, 100<<20, cuda.Success)
	d := watch(t, g)
	for n := uint64(99); n > 49; n-- {
		if _, err := v.device.SetLimits(api.Limits{Memory: n << 20}.All()); err != nil {
			t.Fatal(err)
		}
		must(t, g, &wire.WatchBudgetArgs{Wanted: 1}, nil)
	}
	for n := uint64(0); n != 50<<20; {
		var event cuda.Result
		var done func()
		var err error
		if n, event, done, err = d.from.Take(); err != nil || event != wire.CallbackOverBudget {
			t.Fatal(n, event, err)
		}
		done()
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestToldOfContexts: what the driver tells beside allocations may be too much as well.
func TestToldOfContexts(t *testing.T) {
	var used atomic.Uint64
	var worker atomic.Int64
	v := bootWith(t, func(o *device.Options) {
		o.Limits.Memory, o.Audit = 1<<30, 10*time.Millisecond
		o.Machine = func(gocontext.Context) (*inventory.Reading, error) {
			return &inventory.Reading{Used: []map[int]uint64{{int(worker.Load()): used.Load()}}}, nil
		}
	})
	_, g := start(t, v)
	alloc(t, g, 900<<20, cuda.Success)
	d := watch(t, g)
	worker.Store(int64(v.device.Status().Sessions[0].Worker))
	for _, n := range []uint64{1200, 1100} {
		used.Store(n << 20)
		d.event(wire.CallbackOverBudget, (n-1024)<<20)
		used.Store(1000 << 20)
		eventually(t, "still over", func() bool { return v.device.Status().Memory == 1000<<20 })
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
