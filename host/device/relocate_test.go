package device_test

import (
	gocontext "context"
	"errors"
	"strings"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/inventory"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// neighbour is the second of two software GPUs, as a device would find it.
func neighbour(from *device.Place) *device.Place {
	to := *from
	to.UUID, to.Machine, to.Leave = "GPU-second", nil, nil
	to.Worker.GPU, to.Worker.Devices = "soft:2", []int{1}
	return &to
}

// withNeighbour is onSoft with a second software GPU, which judge may change or refuse.
func withNeighbour(t *testing.T, judge func(*device.Place) error) *vm {
	t.Helper()
	return onSoft(t, func(o *device.Options) {
		o.UUID, o.Worker.Devices, o.Limits.Memory = "GPU-first", []int{0}, 1<<30
		o.Elsewhere = func(_ gocontext.Context, from *device.Place, c api.Relocation) (*device.Place, error) {
			if c.GPU == "0" {
				to := *from
				to.UUID, to.Worker.GPU, to.Worker.Devices = "GPU-first", "soft", []int{0}
				return &to, nil
			}
			to := neighbour(from)
			if judge != nil {
				if err := judge(to); err != nil {
					return nil, err
				}
			}
			return to, nil
		}
	})
}

// TestRelocate: sessions that work, that are suspended and that come later are on the other GPU,
// with what they had, and come back.
func TestRelocate(t *testing.T) {
	v := withNeighbour(t, nil)
	a, b := hold(t, v, 1), hold(t, v, 2)
	time.Sleep(30 * time.Millisecond)
	if did, err := v.device.Suspend(context(), device.Suspension{}); err != nil || did.Sessions != 2 {
		t.Fatal(did, err)
	}
	a.check(t) // is back; b is not
	used := v.device.Status().Memory
	for _, to := range []struct{ gpu, uuid string }{{"1", "GPU-second"}, {"0", "GPU-first"}, {"1", "GPU-second"}} {
		did, err := v.device.Relocate(context(), api.Relocation{GPU: to.gpu})
		if err != nil || did.UUID != to.uuid || did.Sessions == 0 || did.Nanos == 0 {
			t.Fatalf("%+v, %v", did, err)
		}
		st := v.device.Status()
		if st.UUID != to.uuid || st.Relocation != nil || st.Limits.Memory != 1<<30 {
			t.Errorf("%+v", st)
		}
		if st.Memory < used {
			t.Errorf("%d bytes are counted, %d were", st.Memory, used)
		}
		a.check(t)
	}
	b.check(t)
	c := hold(t, v, 3)
	c.check(t)
	uses := v.workerUses(t)
	if len(uses) != 3 {
		t.Errorf("%d sessions use GPUs", len(uses))
	}
	for _, u := range uses {
		if u != uses[0] {
			t.Errorf("sessions are on different GPUs: %x, %x", u, uses[0])
		}
	}
	for _, h := range []*holding{a, b, c} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	nothingIn(t, v)
}

// workerUses is the GPU of each session, as its worker says.
func (v *vm) workerUses(t *testing.T) (list [][16]byte) {
	t.Helper()
	uses, err := v.device.Uses(context())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range uses {
		for _, d := range u.Devices {
			list = append(list, d.UUID)
		}
	}
	return list
}

var errJudge = errors.New("another model")

// TestRelocateRefused: what is known to be in the way is said by name, nothing stops, and the
// session goes on where it was.
func TestRelocateRefused(t *testing.T) {
	busy := false
	var judge func(*device.Place) error
	v := withNeighbour(t, func(to *device.Place) error { return judge(to) })
	h := hold(t, v, 1)
	for what, c := range map[string]struct {
		judge func(*device.Place) error
		words string
	}{
		"judged":         {func(*device.Place) error { return errJudge }, "another model"},
		"no room":        {func(to *device.Place) error { to.Machine = withFree(1000); return nil }, "1000 free"},
		"no driver":      {func(to *device.Place) error { to.Machine = machineGone; return nil }, "cannot be told"},
		"no worker":      {func(to *device.Place) error { to.Spawner = &spawn.Spawner{Command: []string{"/bin/false"}}; return nil }, "guest process 4711"},
		"no such device": {func(to *device.Place) error { to.Worker.Devices = []int{7}; return nil }, "software GPU 7"},
		"captures":       {func(*device.Place) error { busy = true; return nil }, "captures"},
	} {
		t.Run(what, func(t *testing.T) {
			judge = c.judge
			if what == "captures" {
				must(t, h.Guest, &wire.StreamCreateArgs{Stream: 40}, nil)
				must(t, h.Guest, &wire.StreamBeginCaptureArgs{Stream: 40}, nil)
			}
			_, err := v.device.Relocate(context(), api.Relocation{GPU: "1"})
			if err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v does not say %q", err, c.words)
			}
			if st := v.device.Status(); st.UUID != "GPU-first" || st.Relocation != nil || len(st.Sessions) != 1 || st.Sessions[0].State != "running" {
				t.Errorf("%+v", st)
			}
			if what != "captures" {
				h.check(t)
			}
			if busy {
				must(t, h.Guest, &wire.StreamEndCaptureArgs{Stream: 40}, nil)
				busy = false
			}
		})
	}
	judge = func(*device.Place) error { return nil }
	if did, err := v.device.Relocate(context(), api.Relocation{GPU: "1"}); err != nil || did.Sessions != 1 {
		t.Errorf("%+v, %v", did, err)
	}
	h.check(t)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func withFree(n uint64) func(gocontext.Context) (*inventory.Reading, error) {
	return func(gocontext.Context) (*inventory.Reading, error) {
		d := inventory.Unknown()
		d.MemoryFree = n
		return &inventory.Reading{Devices: []inventory.Device{d}}, nil
	}
}

func machineGone(gocontext.Context) (*inventory.Reading, error) { return nil, errors.New("gone") }

// TestRelocateTakesAllBack: if one of several sessions cannot move, those that did are back, and so
// is where new ones open.
func TestRelocateTakesAllBack(t *testing.T) {
	v := withNeighbour(t, nil)
	a, b := hold(t, v, 1), hold(t, v, 2)
	must(t, b.Guest, &wire.StreamCreateArgs{Stream: 40}, nil)
	done := make(chan error, 1)
	go func() {
		_, err := v.device.Relocate(context(), api.Relocation{GPU: "1"})
		done <- err
	}()
	// Whether the capture begins before it is asked for, while it is copied or afterwards is
	// chance: all must be right.
	must(t, b.Guest, &wire.StreamBeginCaptureArgs{Stream: 40}, nil)
	err := await(t, "the move does not end", done)
	want := "GPU-second"
	if err != nil {
		want = "GPU-first"
	}
	if st := v.device.Status(); st.UUID != want {
		t.Errorf("%+v, %v", st, err)
	}
	must(t, b.Guest, &wire.StreamEndCaptureArgs{Stream: 40}, nil)
	a.check(t)
	b.check(t)
	if uses := v.workerUses(t); len(uses) != 2 || uses[0] != uses[1] {
		t.Errorf("%x", uses)
	}
	for _, h := range []*holding{a, b} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRelocateOnce: a second move waits for nobody, and a device without neighbours says so.
func TestRelocateOnce(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	v := withNeighbour(t, func(*device.Place) error { close(inside); <-goOn; return errJudge })
	done := make(chan error, 1)
	go func() {
		_, err := v.device.Relocate(context(), api.Relocation{GPU: "1"})
		done <- err
	}()
	await(t, "the other GPU is not judged", inside)
	if _, err := v.device.Relocate(context(), api.Relocation{GPU: "1"}); !errors.Is(err, device.ErrRelocating) {
		t.Error(err)
	}
	close(goOn)
	if err := await(t, "the move does not end", done); !errors.Is(err, errJudge) {
		t.Error(err)
	}
	if _, err := v.device.Relocate(context(), api.Relocation{GPU: "1", Throttle: true}); !errors.Is(err, device.ErrElsewhere) || !strings.Contains(err.Error(), "held back") {
		t.Error(err)
	}
	alone := onSoft(t, func(o *device.Options) { o.Worker = link.Config{GPU: "soft"} })
	if _, err := alone.device.Relocate(context(), api.Relocation{GPU: "1"}); !errors.Is(err, device.ErrElsewhere) {
		t.Error(err)
	}
}

// TestRelocateOnGPU: a VM's programs go to the other of two GPUs of gpuEnv's kind and back, whose
// workers reach both, as `linked_gpus` has it. scripts/nested.sh looks at how their memory went.
func TestRelocateOnGPU(t *testing.T) {
	v := movingVMWith(t, func(o *device.Options) {
		o.UUID, o.Limits.Memory = "GPU-first", 1<<30
		o.Elsewhere = func(_ gocontext.Context, from *device.Place, c api.Relocation) (*device.Place, error) {
			to := *from
			to.UUID, to.Leave = "GPU-"+c.GPU, nil
			to.Worker.Devices = []int{int(c.GPU[0] - '0')}
			if to.Worker.GPU == "soft" {
				to.Worker.GPU = "soft:2"
			}
			return &to, nil
		}
	}, 0)
	a, b := tally(t, v, 1), tally(t, v, 2)
	for round := range 4 {
		did, err := v.device.Relocate(context(), api.Relocation{GPU: []string{"1", "0"}[round%2]})
		if err != nil || did.Sessions != 2 {
			t.Fatalf("%d: %+v, %v", round, did, err)
		}
		a.check(t)
		b.check(t)
	}
	uses := v.workerUses(t)
	if len(uses) != 2 || uses[0] != uses[1] {
		t.Errorf("the programs use %x", uses)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}
