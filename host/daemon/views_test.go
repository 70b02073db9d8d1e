package daemon

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
)

// sleeper is a process that does nothing until it is ended.
func sleeper(t *testing.T) *process.Process {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	p, err := process.Adopt(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestViews: what a vGPU looks like from outside: by what its device process says, if it has one
// that serves, and what its GPU server says of memory.
func TestViews(t *testing.T) {
	here := &api.Status{Connected: true, Memory: 5, Version: "test"}
	far := &api.Upstream{Server: "gpu1", State: &api.LeaseState{Memory: 77}}
	for what, c := range map[string]struct {
		proc, serves, lost bool
		last               *api.Status
		up                 *api.Upstream
		state              api.State
		memory             int // of the status; -1: there is none
	}{
		"it is being started":           {false, true, false, nil, nil, api.Waiting, -1},
		"it serves":                     {true, true, false, nil, nil, api.Connected, 5},
		"it does not answer":            {true, false, false, nil, nil, api.Waiting, -1},
		"any more":                      {true, false, false, here, nil, api.Connected, -1},
		"it had no VM":                  {true, false, false, &api.Status{}, nil, api.Waiting, -1},
		"it is lost":                    {true, true, true, here, nil, api.Lost, -1},
		"on a server":                   {true, true, false, nil, far, api.Connected, 77},
		"of which nothing is known yet": {true, true, false, nil, &api.Upstream{Server: "gpu1"}, api.Connected, 5},
		"and does not answer":           {true, false, false, here, far, api.Connected, -1},
	} {
		d := bare(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Lost: c.lost, GPU: "GPU-a", PID: 7, Why: "why"}, last: c.last, up: c.up}
		if c.proc {
			p, err := process.Adopt(os.Getpid(), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			v.proc = p
		}
		if c.serves {
			servesAt(t, v.rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(here) })
		}
		d.add(v)
		got, err := d.VGPU(t.Context(), "vm1/gpu0")
		if err != nil || got.State != c.state || got.GPU != "GPU-a" || got.PID != 7 || got.Why != "why" || got.Upstream != c.up {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		if c.memory < 0 && got.Status != nil || c.memory >= 0 && (got.Status == nil || got.Status.Memory != uint64(c.memory) || got.Status.Version != "test") {
			t.Errorf("%s: %+v", what, got.Status)
		}
		if c.memory >= 0 && (v.last == nil || v.last.Memory != 5) {
			t.Errorf("%s: what it said last is %+v", what, v.last)
		}
	}
	if _, err := bare(t).VGPU(t.Context(), "vm1/gpu0"); status(err) != http.StatusNotFound {
		t.Errorf("one that there is not: %v", err)
	}
}

// TestReleased: a vGPU that is ended has its process ended, and its folder for programs removed;
// one whose process cannot say whether it is used stays. Of a lease the host hears that it was
// ended here.
func TestReleased(t *testing.T) {
	d := bare(t)
	d.opt.Grace = time.Minute // for a process that ends at once, on whatever host
	spec := api.Spec{VM: "vm1", Name: "gpu0", Programs: true, Lease: "hosta"}
	if err := d.leases.Add(leaseID(1), "hosta", spec.Key(), 0); err != nil {
		t.Fatal(err)
	}
	p := sleeper(t)
	v := &vgpu{rec: record{Spec: spec}, proc: p}
	d.add(v)
	folder := spec.ProgramsPath(d.run)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.Release(t.Context(), spec.Key(), true); status(err) != http.StatusConflict || !p.Alive() || d.find(spec.Key()) != v {
		t.Errorf("one that does not say whether it is used: %v", err)
	}
	if err := d.Release(t.Context(), spec.Key(), false); err != nil || p.Alive() || !v.end || len(d.vgpus) != 0 {
		t.Errorf("%v, it runs %v, is at its end %v", err, p.Alive(), v.end)
	}
	if _, err := os.Lstat(filepath.Dir(folder)); err == nil {
		t.Error("its folder for programs is left")
	}
	if _, _, err := d.leases.Renew(leaseID(1), "hosta", 1, false); err == nil || !errors.Is(err, lease.ErrEnded) {
		t.Errorf("its host hears %v", err)
	}
	for _, programs := range []bool{false, true} {
		// Of one that had no such folder another's is left alone.
		other := api.Spec{VM: "vm2", Name: "gpu0", Programs: programs}
		if err := os.MkdirAll(other.ProgramsPath(d.run), 0o755); err != nil {
			t.Fatal(err)
		}
		d.add(&vgpu{rec: record{Spec: other}})
		if err := d.Release(t.Context(), other.Key(), false); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(other.ProgramsPath(d.run)); (err == nil) == programs {
			t.Errorf("for programs %v: its folder: %v", programs, err)
		}
	}
}
