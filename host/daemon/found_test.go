package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/semaphore"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
)

// still is a machine whose GPUs are as they are.
type still struct{ r Reading }

func (m still) Read(context.Context) (Reading, error) { return m.r, nil }
func (still) Close()                                  {}

// onMachine is a causewayd that runs nothing, on a machine.
func onMachine(t *testing.T, r Reading) *Daemon {
	t.Helper()
	d := bare(t)
	ctx, stop := context.WithCancel(t.Context())
	d.ctx, d.closing, d.starts = ctx, ctx, semaphore.NewWeighted(mostStarts)
	d.gpus.spawn, d.gpus.ctx, d.gpus.note = d.wg.Go, ctx, func(Reading) {}
	if err := d.gpus.open(still{r}, d.run); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		d.wg.Wait()
	})
	return d
}

// TestFoundAgain: what an earlier causewayd wrote down of a vGPU is taken up as it is by now, and
// what is new is written down; of one that was never ready nothing is left.
func TestFoundAgain(t *testing.T) {
	p := sleeper(t)
	defer p.Close()
	for what, c := range map[string]struct {
		rec      record
		answers  bool
		state    api.State // empty: nothing is left
		version  string    // as written afterwards
		lost     bool
		asFormer bool // the file is as it was
	}{
		"it runs, another version": {record{PID: p.PID(), Start: p.StartTime(), Version: "older"}, true, api.Connected, "newer", false, false},
		"it runs, as it was":       {record{PID: p.PID(), Start: p.StartTime(), Version: "newer"}, true, api.Connected, "newer", false, true},
		"it does not answer":       {record{PID: p.PID(), Start: p.StartTime(), Version: "older"}, false, api.Waiting, "older", false, true},
		"another process":          {record{PID: p.PID(), Start: p.StartTime() + 1, Version: "older"}, true, api.Lost, "older", true, false},
		"it was lost":              {record{PID: p.PID(), Start: p.StartTime(), Version: "older", Lost: true}, true, api.Lost, "older", true, true},
		"it was never ready":       {record{Version: "older"}, false, "", "", false, false},
	} {
		d := onMachine(t, Reading{})
		c.rec.Format, c.rec.Spec = recordFormat, api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Share: 100}}
		path := recordPath(d.run, &c.rec.Spec)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &c.rec)); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.answers {
			servesAt(t, c.rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/v1/status" {
					_ = json.NewEncoder(w).Encode(api.Status{Connected: true, Version: "newer"})
					return
				}
				<-req.Context().Done() // what waits for news
			})
		}
		d.findAgain(t.Context(), "vm1", "gpu0")
		v := d.find("vm1/gpu0")
		if (v != nil) != (c.state != "") {
			t.Fatalf("%s: %+v", what, v)
		}
		if v == nil {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: its record: %v", what, err)
			}
			continue
		}
		if got := d.view(t.Context(), v); got.State != c.state || v.rec.Lost != c.lost || (v.proc != nil) == c.lost || v.ready == c.lost {
			t.Errorf("%s: %v, %+v", what, got.State, v.rec)
		}
		rec, err := readRecord(d.run, "vm1", "gpu0")
		if err != nil || rec.Version != c.version || rec.Lost != c.lost {
			t.Errorf("%s: written is %+v, %v", what, rec, err)
		}
		if after, err := os.Lstat(path); err != nil || os.SameFile(before, after) != c.asFormer {
			t.Errorf("%s: written anew: %v, %v", what, !c.asFormer, err)
		}
		if v.proc != nil {
			v.proc.Close()
		}
	}
}

// TestReservedOnDisk: a vGPU is written down before anything of it runs; what others use of a GPU
// is judged by what vGPUs say now.
func TestReservedOnDisk(t *testing.T) {
	const gib = 1 << 30
	d := onMachine(t, Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib, NUMA: -1, Used: 5 * gib}}})
	p, err := process.Adopt(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	has := &vgpu{rec: record{Spec: api.Spec{VM: "vm2", Name: "gpu0", Limits: api.Limits{Memory: 4 * gib}}, GPU: "GPU-a"}, proc: p}
	d.add(has)
	servesAt(t, has.rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Status{Memory: 4 * gib})
	})
	// 4 are promised, and one is others'
	spec := api.Spec{VM: "vm1", Name: "gpu0", GPU: "any", Limits: api.Limits{Memory: 3 * gib, Share: 100}}
	v, gpu, err := d.reserve(t.Context(), api.Wish{}, newRecord(spec))
	if err != nil || gpu != "GPU-a" || d.find("vm1/gpu0") != v {
		t.Fatalf("%q, %v", gpu, err)
	}
	if rec, err := readRecord(d.run, "vm1", "gpu0"); err != nil || rec.GPU != "GPU-a" || rec.PID != 0 || rec.Spec.Memory != 3*gib {
		t.Errorf("%+v, %v", rec, err)
	}
	spec.Name = "gpu1"
	if _, _, err := d.reserve(t.Context(), api.Wish{}, newRecord(spec)); status(err) != http.StatusInsufficientStorage || d.find("vm1/gpu1") != nil {
		t.Errorf("twice: %v", err)
	}
	spec.Memory, spec.Share = 0, 300 // without a scheduler
	if _, _, err := d.reserve(t.Context(), api.Wish{}, newRecord(spec)); status(err) != http.StatusConflict || d.find("vm1/gpu1") != nil {
		t.Errorf("a share that nobody holds: %v", err)
	}
	if _, err := readRecord(d.run, "vm1", "gpu1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was refused is written down: %v", err)
	}
}

// TestEnsureOfALease: a lease's vGPU is its host's to ask for; one without a process is made anew.
func TestEnsureOfALease(t *testing.T) {
	d := onMachine(t, Reading{})
	d.add(&vgpu{rec: record{Spec: api.Spec{VM: "hosta", Name: "gpu0", Lease: "hosta"}}})
	if _, err := d.Ensure(t.Context(), api.Wish{VM: "hosta", Name: "gpu0"}); status(err) != http.StatusConflict || !strings.Contains(err.Error(), "lease of the host hosta") {
		t.Errorf("%v", err)
	}
	for _, lost := range []bool{false, true} {
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Lost: lost}}
		if done, err := d.keep(t.Context(), v, &api.Wish{VM: "vm1", Name: "gpu0"}); done || err != nil {
			t.Errorf("lost %v: it does as it is: %v, %v", lost, done, err)
		}
	}
	for owner, ok := range map[string]bool{"": true, "0": true, "nobody-of-that-name": false} {
		if err := d.checkWish(t.Context(), &api.Wish{VM: "vm1", Name: "gpu0", Owner: owner}); (err == nil) != ok {
			t.Errorf("owner %q: %v", owner, err)
		}
	}
	for n, ok := range map[int]bool{maxSocketPath: true, maxSocketPath + 1: false} {
		w := api.Wish{VM: "vm1", Name: "gpu0"}
		d.run = "/" + strings.Repeat("x", n-1-len(w.SocketPath("/")))
		if got := len(w.SocketPath(d.run)); got != n {
			t.Fatalf("%d bytes, not %d", got, n)
		}
		if err := d.checkWish(t.Context(), &w); (err == nil) != ok {
			t.Errorf("a path of %d bytes: %v", n, err)
		}
	}
}

// TestDescribed: what a vGPU is, in words.
func TestDescribed(t *testing.T) {
	for want, s := range map[string]api.Spec{
		"GPU any": {}, "GPU 1": {GPU: "1"}, "GPU any of the server gpu1": {Remote: "gpu1"}, "GPU 0, MIG 1g.18gb": {GPU: "0", MIG: "1g.18gb"}, "GPU any, migratable": {Migratable: true},
		"GPU any, for programs of this host": {Programs: true}, "GPU any, owner 7": {Owner: "7"},
	} {
		if got := describe(&s); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// TestRenewalOfNoVGPU: a lease whose vGPU is gone is none.
func TestRenewalOfNoVGPU(t *testing.T) {
	d := bare(t)
	if err := d.leases.Add(leaseID(1), "hosta", "hosta/vm1:gpu0", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := d.renew(t.Context(), hostNamed(t, "hosta"), leaseID(1), api.LeaseRenewal{}); !errors.Is(err, lease.ErrUnknown) {
		t.Errorf("%v", err)
	}
	v := &vgpu{rec: record{Spec: api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta", Limits: api.Limits{Memory: 7}}, Lost: true}}
	d.add(v)
	if s, err := d.renew(t.Context(), hostNamed(t, "hosta"), leaseID(1), api.LeaseRenewal{}); err != nil || s.Why == "" || s.Limits.Memory != 7 {
		t.Errorf("of one that is lost: %+v, %v", s, err)
	}
	if _, err := d.renew(t.Context(), hostNamed(t, "hostb"), leaseID(1), api.LeaseRenewal{}); err == nil {
		t.Error("another host renews it")
	}
}
