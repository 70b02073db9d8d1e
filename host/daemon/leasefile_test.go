package daemon

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote"
)

func leaseID(n byte) (id remote.LeaseID) {
	id[0] = n
	return id
}

// TestLeaseFileEndsAsTheLease: what is written down of a lease is what is so, whoever changes it at once: a renewal that says that the VM has come, and a VM that brings another lease;
// at the server, hosts that let others take over a lease, and one that takes it.
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
