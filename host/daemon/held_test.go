package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/limit"
)

// TestWhatAHostHasGot: a host is told which of the GPUs its lease's device process has, as it is
// offered; of one that is not among them what that process says. It has said so when it got ready,
// and is not asked again, as it may be slow to answer.
func TestWhatAHostHasGot(t *testing.T) {
	gpus := []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 1 << 30, NUMA: -1}, {ID: "GPU-b", Backend: "cuda", Memory: 2 << 30, NUMA: -1}}
	for uuid, want := range map[string]api.GPU{"GPU-a": {ID: "GPU-a", Memory: 1 << 30}, "GPU-b": {ID: "GPU-b", Memory: 2 << 30}, "GPU-c": {ID: "GPU-c", Name: "its name", Memory: 77}} {
		d := onMachine(t, Reading{GPUs: gpus})
		v := &vgpu{rec: record{Spec: api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta", Limits: api.Limits{Memory: 77}, Profile: "half"}}}
		d.add(v)
		var asked atomic.Int32
		servesAt(t, v.rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) > 1 {
				<-r.Context().Done()
				return
			}
			_ = json.NewEncoder(w).Encode(api.Status{UUID: uuid, GPU: "its name"})
		})
		f, err := newLeaseFile(hostNamed(t, "hosta"), [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := d.leaseOf(t.Context(), v, f, lease.Request{})
		own, _ := f.Identity.Hash()
		if err != nil || l.ID != f.ID || l.Key != own || l.Limits.Memory != 77 || l.Profile != "half" || l.Term != d.leases.Term {
			t.Errorf("%s: %+v, %v", uuid, l, err)
		}
		if l.GPU.ID != want.ID || l.GPU.Memory != want.Memory || l.GPU.Name != want.Name {
			t.Errorf("%s: %+v", uuid, l.GPU)
		}
		if again, err := d.leaseOf(t.Context(), v, f, lease.Request{}); err != nil || again.GPU.ID != l.GPU.ID || again.GPU.Name != l.GPU.Name || asked.Load() != 1 {
			t.Errorf("%s: %+v, %v, asked %d times", uuid, again.GPU, err, asked.Load())
		}
	}
}

// TestHolds: a share or a cap is refused where nobody holds it: a share without the scheduler, both
// where that does not run.
func TestHolds(t *testing.T) {
	share, usual, capped, none := limit.Share(300), limit.Share(limit.DefaultShare), limit.Cap(25), limit.Cap(0)
	most := limit.HostMemory(1 << 62)
	ended, cancel := context.WithCancel(t.Context()) // nobody waits for a scheduler here
	cancel()
	for what, c := range map[string]struct {
		change         api.Change
		without, stuck int // the status without a scheduler, and with one that does not run
	}{
		"nothing":         {api.Change{}, 0, 0},
		"the usual":       {api.Change{Share: &usual, Cap: &none}, 0, 0},
		"a cap":           {api.Change{Cap: &capped}, 0, http.StatusConflict},
		"a share":         {api.Change{Share: &share}, http.StatusConflict, http.StatusConflict},
		"both":            {api.Change{Share: &share, Cap: &capped}, http.StatusConflict, http.StatusConflict},
		"too much memory": {api.Change{HostMemory: &most}, http.StatusBadRequest, http.StatusBadRequest},
	} {
		d := bare(t)
		for _, d.opt.Scheduler = range []bool{false, true} {
			for _, d.cfg.Scheduler.Enabled = range []bool{false, true} {
				want := c.without
				if d.opt.Scheduler && d.cfg.Scheduler.Enabled {
					want = c.stuck
				}
				if err := d.holds(ended, c.change); status(err) != want {
					t.Errorf("%s, with a scheduler %v and %v: %v", what, d.opt.Scheduler, d.cfg.Scheduler.Enabled, err)
				}
			}
		}
		servesAt(t, d.schedulerSocket(), func(http.ResponseWriter, *http.Request) {})
		if err := d.holds(t.Context(), c.change); (err == nil) != (c.change.HostMemory == nil) {
			t.Errorf("%s, with a scheduler that runs: %v", what, err)
		}
	}
}

// TestChanges: a device process is told of limits that it does not hold, or that are not written
// down; what is so already changes nothing. What it refuses is as it was.
func TestChanges(t *testing.T) {
	const gib = 1 << 30
	reading := Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib, NUMA: -1}}}
	to := limit.Memory(2 * gib)
	for what, c := range map[string]struct {
		change         api.Change
		holds, written uint64 // memory
		refuses, told  bool
		after          uint64
	}{
		"nothing":           {api.Change{}, gib, gib, false, false, gib},
		"something":         {api.Change{Memory: &to}, gib, gib, false, true, 2 * gib},
		"what is so":        {api.Change{Memory: &to}, 2 * gib, 2 * gib, false, false, 2 * gib},
		"what is not held":  {api.Change{Memory: &to}, gib, 2 * gib, false, true, 2 * gib},
		"what is held only": {api.Change{Memory: &to}, 2 * gib, gib, false, true, 2 * gib},
		"what is refused":   {api.Change{Memory: &to}, gib, gib, true, true, gib},
	} {
		d := onMachine(t, reading)
		d.opt.Obey = handTime
		spec := api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: c.written, Share: limit.DefaultShare}}
		v := &vgpu{rec: record{Format: recordFormat, Spec: spec, GPU: "GPU-a"}}
		d.add(v)
		path := recordPath(d.run, &spec)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeJSON(path, &v.rec); err != nil {
			t.Fatal(err)
		}
		told := false
		held := spec.Limits
		held.Memory = c.holds
		servesAt(t, spec.ControlPath(d.run), func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet {
				_ = json.NewEncoder(w).Encode(api.Status{Limits: held})
				return
			}
			told = true
			var got api.Change
			if err := json.NewDecoder(req.Body).Decode(&got); err != nil || req.URL.Path != "/v1/limits" || got.Profile != "" {
				t.Errorf("%s: told %s, %+v, %v", what, req.URL.Path, got, err)
			}
			if c.refuses {
				w.WriteHeader(http.StatusConflict)
				return
			}
			_ = json.NewEncoder(w).Encode(got.On(held))
		})
		l, err := d.SetLimits(t.Context(), "vm1/gpu0", c.change)
		if told != c.told || (err == nil) == c.refuses || err == nil && l.Memory != c.after || v.rec.Spec.Memory != c.after {
			t.Errorf("%s: told %v, %+v, %v, it has %d", what, told, l, err, v.rec.Spec.Memory)
		}
		if rec, err := readRecord(d.run, "vm1", "gpu0"); err != nil || rec.Spec.Memory != c.after {
			t.Errorf("%s: written is %d, %v", what, rec.Spec.Memory, err)
		}
	}
	d := bare(t)
	d.add(&vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Lost: true}})
	if _, err := d.SetLimits(t.Context(), "vm1/gpu0", api.Change{Memory: &to}); status(err) != http.StatusConflict {
		t.Errorf("of one that is lost: %v", err)
	}
	if _, err := d.SetLimits(t.Context(), "vm2/gpu0", api.Change{Memory: &to}); status(err) != http.StatusNotFound {
		t.Errorf("of one that there is not: %v", err)
	}
}

// TestLeasesFoundAgain: a server's lease of before its restart is the host's that its file names,
// if that is the record's, or has taken the lease over from it; who may have it next is as it was.
func TestLeasesFoundAgain(t *testing.T) {
	for what, c := range map[string]struct {
		change func(f *lease.File)
		ok     bool
		is     lease.Entry
	}{
		"as it was":      {func(*lease.File) {}, true, lease.Entry{Host: "hosta", Epoch: 3}},
		"with an heir":   {func(f *lease.File) { f.Heir = "hostb" }, true, lease.Entry{Host: "hosta", Heir: "hostb", Epoch: 3}},
		"taken over":     {func(f *lease.File) { f.Host, f.Before = "hostb", "hosta" }, true, lease.Entry{Host: "hostb", Before: "hosta", Epoch: 3}},
		"another host's": {func(f *lease.File) { f.Host = "hostb" }, false, lease.Entry{}},
		"nobody's":       {func(f *lease.File) { f.Host, f.Before = "", "hosta" }, false, lease.Entry{}},
		"none":           {func(f *lease.File) { f.ID = [16]byte{} }, false, lease.Entry{}},
	} {
		d := bare(t)
		spec := api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta"}
		f, err := newLeaseFile(hostNamed(t, "hosta"), [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		f.Epoch = 3
		c.change(f)
		path := spec.LeasePath(d.run)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := f.Write(path); err != nil {
			t.Fatal(err)
		}
		if err := d.leaseFound(&spec); (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
		e, is := d.leases.Find(f.ID)
		if is != c.ok || is && (e.Host != c.is.Host || e.Heir != c.is.Heir || e.Before != c.is.Before || e.Epoch != c.is.Epoch || e.VGPU != spec.Key() || spec.Lease != c.is.Host) {
			t.Errorf("%s: %+v of %q", what, e, spec.Lease)
		}
	}
}

// TestAwaitsSlowly: on a busy machine a device process takes longer to say whether it awaits a VM
// than it may where a list is made; one that says nothing is no word that it awaits none.
func TestAwaitsSlowly(t *testing.T) {
	d := onMachine(t, Reading{})
	v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}}
	d.add(v)
	slow := make(chan struct{})
	servesAt(t, v.rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-slow:
			_ = json.NewEncoder(w).Encode(api.Status{Connected: true})
		case <-r.Context().Done():
		}
	})
	brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.awaits(brief, v, "vm1/gpu0"); err == nil || !strings.Contains(err.Error(), "does not say whether it awaits") {
		t.Error(err)
	}
	time.AfterFunc(askTimeout+askTimeout/2, func() { close(slow) })
	if err := d.awaits(t.Context(), v, "vm1/gpu0"); err != nil {
		t.Error(err)
	}
}
