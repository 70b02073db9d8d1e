package daemon

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/remote"
)

func leaseID(n byte) (id remote.LeaseID) {
	id[0] = n
	return id
}

// TestLeaseFileEndsAsTheLease: what is written down of a lease is what is so, whoever changes it at
// once: a renewal that says that the VM has come, and a VM that brings another lease; at the
// server, hosts that let others take over a lease, and one that takes it.
func TestLeaseFileEndsAsTheLease(t *testing.T) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	d := &Daemon{run: t.TempDir(), log: quiet, vgpus: map[string]*vgpu{}}
	d.leases.Term, d.leases.Now = time.Hour, time.Now
	v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}}
	path := v.rec.Spec.LeasePath(d.run)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	coming := func(n byte) *lease.File {
		return &lease.File{ID: leaseID(n), Epoch: 1, Upstream: &api.Upstream{Lease: leaseID(n)}, Comes: lease.ComesHad}
	}
	var wg sync.WaitGroup
	for range 200 {
		if err := d.hasLease(v, coming(1)); err != nil {
			t.Fatal(err)
		}
		up := v.up
		wg.Go(func() { d.hasCome(v, up, quiet) })
		wg.Go(func() {
			if err := d.hasLease(v, coming(2)); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		f, err := lease.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.ID != v.up.Lease || f.Comes != v.comes {
			t.Fatalf("the vGPU has the lease %v, %q, and %v, %q is written down", v.up.Lease, v.comes, f.ID, f.Comes)
		}
	}

	if err := d.leases.Add(leaseID(3), "hosta", "hosta/vm1:gpu0", 1); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		for _, heir := range []string{"hostb", "hostc", ""} {
			wg.Go(func() {
				d.leases.Allow(leaseID(3), heir, "")
				if err := d.noteHeir(v, leaseID(3)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		e, _ := d.leases.Find(leaseID(3))
		f, err := lease.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		if f.Heir != e.Heir {
			t.Fatalf("round %d: %q may take the lease over, and %q is written down", i, e.Heir, f.Heir)
		}
	}
}

// TestDeletedAsItIsLost: of a vGPU that is deleted just as its device process's end is noted
// nothing is written down: the next causewayd would find it.
func TestDeletedAsItIsLost(t *testing.T) {
	d := &Daemon{run: t.TempDir(), log: slog.New(slog.DiscardHandler), vgpus: map[string]*vgpu{}}
	for i := range 200 {
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}, ready: true}
		path := recordPath(d.run, &v.rec.Spec)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &v.rec)); err != nil {
			t.Fatal(err)
		}
		d.vgpus[v.rec.Spec.Key()] = v
		var wg sync.WaitGroup
		wg.Go(func() { d.lose(v, nil, "killed") })
		wg.Go(func() {
			d.mu.Lock()
			v.end = true
			d.mu.Unlock()
			if err := d.forget(v); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("round %d: its record is there: %v", i, err)
		}
	}
}

// TestLossIsWrittenDown: of one that nobody deletes it is, with its reason; not of one that has
// another process by now, or that is being ended.
func TestLossIsWrittenDown(t *testing.T) {
	for what, c := range map[string]struct {
		end   bool
		other bool
		want  bool
	}{"lost": {want: true}, "being ended": {end: true}, "of the process before": {other: true}} {
		d := &Daemon{run: t.TempDir(), log: slog.New(slog.DiscardHandler), vgpus: map[string]*vgpu{}}
		v := &vgpu{rec: record{Format: recordFormat, Spec: api.Spec{VM: "vm1", Name: "gpu0"}}, end: c.end}
		if c.other {
			v.proc = &process.Process{}
		}
		path := recordPath(d.run, &v.rec.Spec)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := d.lose(v, nil, "killed"); got != c.want || v.rec.Lost != c.want {
			t.Errorf("%s: %v, %+v", what, got, v.rec)
		}
		var r record
		if err := readJSON(path, &r); (err == nil) != c.want || c.want && (!r.Lost || r.Why != "killed") {
			t.Errorf("%s: %+v is written down, %v", what, r, err)
		}
	}
}

// TestNothingToEnd: a lease whose vGPU is gone is over; a vGPU without a process is released
// without asking it.
func TestNothingToEnd(t *testing.T) {
	d := &Daemon{run: t.TempDir(), ctx: t.Context(), log: slog.New(slog.DiscardHandler), vgpus: map[string]*vgpu{}, locks: keyedLocks{of: map[string]*keyedLock{}}}
	d.leases.Term, d.leases.Now = time.Hour, time.Now
	if err := d.leases.Add(leaseID(3), "hosta", "hosta/vm1:gpu0", 1); err != nil {
		t.Fatal(err)
	}
	e, _ := d.leases.Find(leaseID(3))
	if err := d.endLease(t.Context(), e, "the test's"); err != nil {
		t.Error(err)
	}
	if _, ok := d.leases.Find(leaseID(3)); ok {
		t.Error("the lease is there")
	}
	v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}}
	d.vgpus[v.rec.Spec.Key()] = v
	if err := d.Release(t.Context(), v.rec.Spec.Key(), true); err != nil || len(d.vgpus) > 0 {
		t.Errorf("%v, %d vGPUs", err, len(d.vgpus))
	}
}
