package daemon

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/semaphore"

	"causeway/host/api"
)

// TestTurnsAreGivenBack: whatever becomes of a request, the next one for the same vGPU has its
// turn, and one of the few that start something.
func TestTurnsAreGivenBack(t *testing.T) {
	d := onMachine(t, Reading{})
	d.starts = semaphore.NewWeighted(1)
	wish := api.Wish{VM: "vm1", Name: "gpu0"}
	for what, ask := range map[string]func() error{
		"that cannot be placed": func() error { _, err := d.Ensure(t.Context(), wish); return err },
		"of no such GPU server": func() error {
			w := wish
			w.Owner = "nobody-of-that-name"
			_, err := d.Ensure(t.Context(), w)
			return err
		},
		"of limits": func() error { _, err := d.SetLimits(t.Context(), "vm1/gpu0", api.Change{}); return err },
		"of an end": func() error { return d.Release(t.Context(), "vm1/gpu0", false) },
	} {
		for range 3 {
			if err := ask(); err == nil || t.Context().Err() != nil {
				t.Errorf("a request %s: %v", what, err)
			}
		}
	}
	if !d.starts.TryAcquire(1) {
		t.Error("nothing can be started any more")
	}
	for _, key := range []string{"vm1/gpu0"} {
		leave, err := d.locks.enter(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}
	if len(d.vgpus) != 0 {
		t.Errorf("%d vGPUs are left", len(d.vgpus))
	}
}

// TestDescribedWhole: what a vGPU is, all of it.
func TestDescribedWhole(t *testing.T) {
	s := api.Spec{GPU: "0", Remote: "gpu1", MIG: "1g", Migratable: true, Programs: true, Owner: "7"}
	if got, want := describe(&s), "GPU 0 of the server gpu1, MIG 1g, migratable, for programs of this host, owner 7"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

// TestKeepsWhatDoes: a vGPU that does as it is stays; another is made in its place unless a VM has
// it, or nobody is there any more.
func TestKeepsWhatDoes(t *testing.T) {
	same, other := api.Wish{VM: "vm1", Name: "gpu0"}, api.Wish{VM: "vm1", Name: "gpu0", GPU: "1"}
	for what, c := range map[string]struct {
		w                     api.Wish
		ends, lost, connected bool
		silent                bool
		done                  bool
		refused               int
	}{
		"as it is":                      {w: same, done: true},
		"as it is, with a VM":           {w: same, connected: true, done: true},
		"another":                       {w: other},
		"another, with a VM":            {w: other, connected: true, refused: http.StatusConflict},
		"another, and it says nothing":  {w: other, connected: true, silent: true},
		"lost":                          {w: same, lost: true},
		"its process has ended":         {w: same, ends: true},
		"another, and it ended with it": {w: other, ends: true, connected: true},
	} {
		d := onMachine(t, Reading{})
		p := sleeper(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", GPU: "any", Limits: api.Limits{Share: 100}}, Lost: c.lost}, proc: p, ready: true}
		d.add(v)
		if c.ends {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
		}
		if !c.silent {
			servesAt(t, v.rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(api.Status{Connected: c.connected})
			})
		}
		if done, err := d.keep(t.Context(), v, &c.w); done != c.done || status(err) != c.refused || err != nil && !strings.Contains(err.Error(), "GPU any") {
			t.Errorf("%s: %v, %v", what, done, err)
		}
		_ = p.Close()
	}
}

// TestLostOnce: the end of a process is the loss of the vGPU that has it, and is written down,
// unless that is being ended, was never ready, or has another process by then.
func TestLostOnce(t *testing.T) {
	for what, c := range map[string]struct {
		set  func(v *vgpu)
		lost bool
	}{
		"it ended":                     {func(*vgpu) {}, true},
		"as it was being ended":        {func(v *vgpu) { v.end = true }, false},
		"before it was ready":          {func(v *vgpu) { v.ready = false }, false},
		"and another was in its place": {func(v *vgpu) { v.proc = nil }, false},
	} {
		d := onMachine(t, Reading{})
		p := sleeper(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Share: 100}}}, proc: p, ready: true}
		path := recordPath(d.run, &v.rec.Spec)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &v.rec)); err != nil {
			t.Fatal(err)
		}
		d.add(v)
		c.set(v)
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		d.routineWatch(v, p)
		if rec, err := readRecord(d.run, "vm1", "gpu0"); err != nil || rec.Lost != c.lost || v.rec.Lost != c.lost || (rec.Why != "") != c.lost {
			t.Errorf("%s: %+v, written as %+v, %v", what, v.rec, rec, err)
		}
		if d.lose(v, p, "again") != (c.lost || what == "before it was ready") {
			t.Errorf("%s: lost again", what)
		}
		_ = p.Close()
	}
}

// TestReservesRoom: a vGPU on a GPU of which more is promised than there is has its sessions wait
// for room, and so is it written down; one of several GPUs does not.
func TestReservesRoom(t *testing.T) {
	for overcommit, swaps := range map[float64]bool{1: false, 1.5: true} {
		d := onMachine(t, Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 << 30, NUMA: -1}, {ID: "GPU-b", Index: 1, Backend: "cuda", Memory: 8 << 30, NUMA: -1}}})
		d.cfg.Placement.Overcommit = overcommit
		for gpu, several := range map[string]bool{"0": false, "0,1": true} {
			name := "gpu" + gpu[len(gpu)-1:]
			v, told, err := d.reserve(t.Context(), api.Wish{}, newRecord(api.Spec{VM: "vm1", Name: name, GPU: gpu, Limits: api.Limits{Memory: 1 << 30, Share: 100}}))
			if err != nil || told == "" {
				t.Fatal(told, err)
			}
			rec, err := readRecord(d.run, "vm1", name)
			if want := swaps && !several; err != nil || rec.Swap != want || v.rec.Swap != want || !rec.Starting {
				t.Errorf("overcommit %v, GPU %s: %+v, %v", overcommit, gpu, rec, err)
			}
		}
	}
}

// TestGivesBackOnce: a vGPU at its end has its leases given back, both, once; a server that does
// not hear of it is an error, and no lease is none.
func TestGivesBackOnce(t *testing.T) {
	d := bare(t)
	// Nobody is there.
	far := func() *api.Upstream { return &api.Upstream{Server: "[::1]:1", Lease: leaseID(1)} }
	if err := errors.Join(d.leave(nil), d.giveBack(&vgpu{})); err != nil {
		t.Error(err)
	}
	for what, v := range map[string]*vgpu{"its lease": {up: far()}, "the one beside it": {beside: far()}, "both": {up: far(), beside: far()}} {
		if err := d.giveBack(v); err == nil || v.up != nil || v.beside != nil {
			t.Errorf("%s: %v, and it has %v and %v", what, err, v.up, v.beside)
		}
		if err := d.giveBack(v); err != nil {
			t.Errorf("%s, again: %v", what, err)
		}
	}
}
