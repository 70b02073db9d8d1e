package daemon_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon/daemontest"
	"causeway/host/limit"
)

// change reads one as a request has it.
func change(t *testing.T, text string) (c api.Change) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

// shared is a host with a scheduler, so that shares hold.
func shared(t *testing.T) *host {
	h := newHost(t, daemontest.Soft(1<<30))
	h.cfg.Scheduler.Enabled = true
	return h
}

// TestLimits: changed while it runs, or not at all; what is not named stays.
func TestLimits(t *testing.T) {
	h := shared(t).start()
	v := h.ensure(one)
	h.tell(one, api.Status{Connected: true})
	set := func(text string) error {
		_, err := h.c.SetLimits(t.Context(), one.VM, one.Name, change(t, text))
		return err
	}
	check := func(what string, want api.Limits) {
		t.Helper()
		if got := h.vgpu(one); got.Spec.Limits != want || got.Status.Limits != want || got.PID != v.PID {
			t.Errorf("%s: %+v, its process has %+v, want %+v", what, got.Spec.Limits, got.Status.Limits, want)
		}
	}
	for _, c := range []struct {
		text string
		want api.Limits
	}{
		{`{"memory":"2MiB","share":300,"cap":"25%","sessions":3}`, api.Limits{Memory: 2 << 20, Share: 300, Cap: 25, Sessions: 3}},
		{`{}`, api.Limits{Memory: 2 << 20, Share: 300, Cap: 25, Sessions: 3}},
		{`{"cap":"none"}`, api.Limits{Memory: 2 << 20, Share: 300, Sessions: 3}},
		{`{"memory":"none","cap":50}`, api.Limits{Share: 300, Cap: 50, Sessions: 3}},
		{`{"memory":3145728,"cap":0}`, api.Limits{Memory: 3 << 20, Share: 300, Sessions: 3}},
		{`{"profile":"quarter","cap":10}`, api.Limits{Memory: 256 << 20, Share: 25, Cap: 10, Sessions: 3}},
		{`{"profile":"half","memory":"8MiB"}`, api.Limits{Memory: 8 << 20, Share: 50, Sessions: 3}},
		{`{"host_memory":"1GiB","user_sessions":2}`, api.Limits{Memory: 8 << 20, Share: 50, Sessions: 3, HostMemory: 1 << 30, UserSessions: 2}},
	} {
		if err := set(c.text); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		c.want.HostMemory = cmp.Or(c.want.HostMemory, limit.DefaultHostMemory)
		check(c.text, c.want)
	}
	before := h.vgpu(one).Spec.Limits
	refused(t, set(`{"memory":"2GiB"}`), 507, "2 GiB do not fit", "0 vGPUs")
	refused(t, set(`{"memory":"13MiB"}`), 409, "too few")
	refused(t, set(`{"memory":4}`), 400, "4 B of GPU memory", "none")
	refused(t, set(`{"cap":101}`), 400, "cap")
	refused(t, set(`{"share":0}`), 400, "1 to 10000")
	refused(t, set(`{"host_memory":1048576}`), 400, "64 MiB or more")
	refused(t, set(`{"sessions":0}`), 400, "1 to 1000")
	refused(t, set(`{"profile":"third"}`), 400, "there are eighth, full, half, quarter")
	check("after what was refused", before)
	h.stop()
	h.start()
	check("after a restart", before)
	h.ensure(api.Spec{VM: one.VM, Name: one.Name})
	check("asked for again without limits", before)
	before.Memory = one.Memory
	h.ensure(one)
	check("asked for again with its first memory", before)
	before.Share = 70
	h.ensure(api.Spec{VM: one.VM, Name: one.Name, Limits: api.Limits{Share: 70}})
	check("asked for again with another share", before)
	moved := api.Spec{VM: one.VM, Name: one.Name, GPU: "soft"}
	_, err := h.c.Ensure(t.Context(), moved.Wish())
	refused(t, err, 409, "in use, as GPU any")
	h.tell(one, api.Status{})
	if got := h.ensure(moved); got.PID == v.PID || got.Spec.GPU != "soft" || got.Spec.Limits != before || runs(v.PID) {
		t.Errorf("on another GPU once it is not in use: %+v", got)
	}
}

// TestKeeps: a vGPU that is made anew, because it was lost, has the limits that it had.
func TestKeeps(t *testing.T) {
	h := shared(t).start()
	v := h.ensure(api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 7 << 20, Share: 250}})
	_ = syscall.Kill(v.PID, syscall.SIGKILL)
	until(t, "lost", func() bool { return h.vgpu(one).State == api.Lost })
	if got := h.ensure(api.Spec{VM: "vm1", Name: "gpu0"}); got.PID == v.PID || got.Spec.Memory != 7<<20 || got.Status.Limits.Share != 250 {
		t.Errorf("%+v", got)
	}
}

// TestUnheld: a share or a cap that nobody would hold is refused, and nothing is left of the vGPU.
func TestUnheld(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start() // scheduler.enabled = false
	wish := func(l api.Limits) error {
		_, err := h.c.Ensure(t.Context(), api.Spec{VM: "vm1", Name: "gpu0", Limits: l}.Wish())
		return err
	}
	refused(t, wish(api.Limits{Share: 300}), http.StatusConflict, "a share of 300 cannot hold", "scheduler.enabled")
	if len(h.below()) > 0 {
		t.Errorf("left: %v", h.below())
	}
	if err := wish(api.Limits{Cap: 25, Share: limit.DefaultShare}); err != nil {
		// Which its device process holds.
		t.Error(err)
	}
	_, err := h.c.SetLimits(t.Context(), "vm1", "gpu0", change(t, `{"share":50}`))
	refused(t, err, http.StatusConflict, "cannot hold")
	_, err = h.c.SetLimits(t.Context(), "vm1", "gpu0", change(t, `{"host_memory":"4096TiB"}`))
	refused(t, err, http.StatusBadRequest, "more than this host has")
	h.stop()
	h = shared(t)
	h.env(daemontest.NoSchedulerEnv, "1").start()
	var both sync.WaitGroup // each waits for the scheduler
	for vm, l := range map[string]api.Limits{"vm2": {Cap: 25}, "vm3": {Share: 300}} {
		both.Go(func() {
			_, err := h.c.Ensure(t.Context(), api.Spec{VM: vm, Name: "gpu0", Limits: l}.Wish())
			refused(t, err, http.StatusConflict, "the scheduler of GPU time does not run")
		})
	}
	both.Wait()
	if err := wish(api.Limits{}); err != nil {
		t.Error(err)
	}
}

// TestCreated: of several who wish for the same vGPU at once one is told that it was made, the
// others that it was there.
func TestCreated(t *testing.T) {
	h := shared(t).start()
	created := make(chan bool)
	for range 6 {
		go func() {
			v, err := h.c.Ensure(t.Context(), one.Wish())
			if err != nil {
				t.Error(err)
			}
			created <- v.Created
		}()
	}
	n := 0
	for range 6 {
		if <-created {
			n++
		}
	}
	if n != 1 || h.vgpu(one).Created {
		t.Errorf("%d were told that they made it, and a look at it says %v", n, h.vgpu(one).Created)
	}
}

// TestProfiles: as parts of the GPU that a vGPU is placed on.
func TestProfiles(t *testing.T) {
	h := shared(t).start()
	for i, want := range []struct {
		profile       string
		memory, share uint64
	}{{"half", 512 << 20, 50}, {"quarter", 256 << 20, 25}, {"quarter", 256 << 20, 25}} {
		w := api.Wish{VM: "vm" + itoa(i), Name: "gpu0", Change: api.Change{Profile: want.profile}}
		v, err := h.c.Ensure(t.Context(), w)
		if err == nil && v.Status == nil {
			v = h.vgpu(v.Spec)
		}
		if err != nil || v.Spec.Memory != want.memory || v.Status == nil || uint64(v.Status.Limits.Share) != want.share || v.Spec.Profile != want.profile {
			t.Errorf("%s: %+v, %v", want.profile, v.Spec, err)
		}
	}
	capped := change(t, `{"profile":"quarter","cap":25}`)
	for range 2 {
		v, err := h.c.Ensure(t.Context(), api.Wish{VM: "vm2", Name: "gpu0", Change: capped})
		if err != nil || v.Spec.Profile != "" || v.Spec.Memory != 256<<20 || v.Spec.Share != 25 || v.Spec.Cap != 25 {
			t.Errorf("the profile's name is not all that holds: %+v, %v", v.Spec, err)
		}
	}
	_, err := h.c.Ensure(t.Context(), api.Wish{VM: "vm9", Name: "gpu0", Change: api.Change{Profile: "eighth"}})
	refused(t, err, 507, "do not fit")
	_, err = h.c.Ensure(t.Context(), api.Wish{VM: "vm9", Name: "gpu0", Change: api.Change{Profile: "huge"}})
	refused(t, err, 400, "no profile \"huge\"", "causeway profiles")
	list, err := h.c.Profiles(t.Context())
	if err != nil || len(list) != 4 || list[0].Name != "full" || list[1].On[0].Memory != 512<<20 || list[1].On[0].Room != 0 || list[1].Memory.String() != "1/2" {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := h.c.SetLimits(t.Context(), "vm0", "gpu0", change(t, `{"memory":"100MiB"}`)); err != nil || h.vgpu(api.Spec{VM: "vm0", Name: "gpu0"}).Spec.Profile != "" {
		t.Errorf("changed by hand it is no half any more: %v", err)
	}
}

// TestTooLittle: a real GPU's context needs more than some limits.
func TestTooLittle(t *testing.T) {
	h := newHost(t, daemontest.Real(1, "NVIDIA H200", 140<<30)).start()
	_, err := h.c.Ensure(t.Context(), one.Wish())
	refused(t, err, 400, "1 MiB of memory is too little on NVIDIA H200", "640 MiB or more")
	if len(h.below()) > 0 {
		t.Errorf("left: %v", h.below())
	}
	h.ensure(api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 1 << 30}})
	_, err = h.c.SetLimits(t.Context(), "vm1", "gpu0", change(t, `{"memory":"64MiB"}`))
	refused(t, err, 400, "too little")
	if v := h.vgpu(one); v.Spec.Memory != 1<<30 || !strings.HasPrefix(v.GPU, "GPU") {
		t.Errorf("%+v", v)
	}
}
