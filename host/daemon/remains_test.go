package daemon

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/host/limit"
)

// TestManyAreListed: however many vGPUs there are, all are listed, by name; for somebody who is
// gone none.
func TestManyAreListed(t *testing.T) {
	d := bare(t)
	const n = 40 // more than are asked at once
	for i := range n {
		v := &vgpu{rec: record{Spec: api.Spec{VM: fmt.Sprintf("vm%02d", i), Name: "gpu0"}, Lost: i%2 == 0}}
		d.vgpus[v.rec.Spec.Key()] = v
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := d.VGPUs(ctx)
	if err != nil || len(list) != n {
		t.Fatalf("%d, %v", len(list), err)
	}
	for i, v := range list {
		want := api.Waiting
		if i%2 == 0 {
			want = api.Lost
		}
		if v.Spec.VM != fmt.Sprintf("vm%02d", i) || v.State != want {
			t.Errorf("%d: %+v", i, v)
		}
	}
	cancel()
	if list, err := d.VGPUs(ctx); err == nil {
		t.Errorf("%d for somebody who is gone", len(list))
	}
}

// TestReleaseWithoutProcess: a vGPU that has no process, or is lost, is unused.
func TestReleaseWithoutProcess(t *testing.T) {
	for _, lost := range []bool{false, true} {
		d := bare(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Lost: lost}}
		d.vgpus[v.rec.Spec.Key()] = v
		if err := d.Release(t.Context(), "vm1/gpu0", true); err != nil || len(d.vgpus) != 0 {
			t.Errorf("lost %v: %v, %d are left", lost, err, len(d.vgpus))
		}
		if err := d.Release(t.Context(), "vm1/gpu0", true); status(err) != http.StatusNotFound {
			t.Errorf("again: %v", err)
		}
	}
}

// TestForgotten: of a vGPU whose process has ended nothing is kept: neither its place in the table,
// nor its files, nor its lease, nor who watched the process; of one that has taken its name all
// stays but the files.
func TestForgotten(t *testing.T) {
	d := bare(t)
	spec := api.Spec{VM: "vm1", Name: "gpu0", Lease: "hosta"}
	path := recordPath(d.run, &spec)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &record{Spec: spec}), d.leases.Add(leaseID(1), "hosta", spec.Key(), 0)); err != nil {
		t.Fatal(err)
	}
	p, err := process.Adopt(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	v := &vgpu{rec: record{Spec: spec}, proc: p}
	d.add(v)
	if err := d.forget(v); err != nil || d.find(spec.Key()) != nil {
		t.Errorf("%v", err)
	}
	if err := p.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("its process is watched: %v", err)
	}
	if _, ok := d.leases.At(spec.Key()); ok {
		t.Error("its lease is left")
	}
	if _, err := os.Lstat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its folder is left: %v", err)
	}
	other := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}}
	d.add(other)
	if err := d.forget(v); err != nil || d.find(spec.Key()) != other {
		t.Errorf("%v, the other is %v", err, d.find(spec.Key()))
	}
}

// TestEndOfALeaseWithoutVGPU: a lease of a vGPU that is gone leaves the book.
func TestEndOfALeaseWithoutVGPU(t *testing.T) {
	d := bare(t)
	if err := d.leases.Add(leaseID(1), "hosta", "hosta/vm1:gpu0", 0); err != nil {
		t.Fatal(err)
	}
	e, _ := d.leases.Find(leaseID(1))
	if err := d.endLease(t.Context(), e, "a test"); err != nil || len(d.leases.Of("hosta")) != 0 {
		t.Errorf("%v, %v are left", err, d.leases.Of("hosta"))
	}
}

// TestStraySockets: a socket without a record is removed, unless somebody serves it; what is no
// socket of a vGPU stays, and so does one of a vGPU that is there.
func TestStraySockets(t *testing.T) {
	d := bare(t)
	dir := filepath.Join(d.run, "vm1")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	dead := func(name string) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, name)}), unix.Close(fd))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stays := map[string]bool{"a.sock": false, "a.ctl": false, "b.other": true, "lost.sock": false, "known.sock": true, "known.ctl": true, "served.sock": true, "file.sock": true}
	for name := range stays {
		if name != "served.sock" && name != "file.sock" {
			dead(name)
		}
	}
	servesAt(t, filepath.Join(dir, "served.sock"), func(http.ResponseWriter, *http.Request) {})
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d.add(&vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "known"}}})
	d.add(&vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "lost"}, Lost: true}})
	d.removeStray(dir, "vm1")
	for name, want := range stays {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.removeStray(filepath.Join(dir, "none"), "vm1")
}

// hostNamed is one that has shown its certificate.
func hostNamed(t *testing.T, name string) lease.Host {
	t.Helper()
	h, err := lease.HostOf(&x509.Certificate{Subject: pkix.Name{CommonName: name}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestBesideMoved: a host's wish keeps its name where nobody, or the host itself, has that; beside
// leases that have left with their VMs it gets the next that is free.
func TestBesideMoved(t *testing.T) {
	d, h := bare(t), hostNamed(t, "hosta")
	w := api.Wish{VM: "hosta", Name: "vm1:gpu0"}
	has := func(name, of string) {
		d.add(&vgpu{rec: record{Spec: api.Spec{VM: "hosta", Name: name, Lease: of}}})
	}
	is := func(what, want string) {
		t.Helper()
		if got := d.besideMoved(w, h).Name; got != want {
			t.Errorf("%s: %s", what, got)
		}
	}
	is("nobody has it", "vm1:gpu0")
	has("vm1:gpu0", "")
	is("a vGPU that is no lease has it", "vm1:gpu0")
	has("vm1:gpu0", "hosta")
	is("the host itself", "vm1:gpu0")
	has("vm1:gpu0", "hostb")
	is("another", "vm1:gpu0:2")
	has("vm1:gpu0:2", "hosta")
	is("of which the host has the next", "vm1:gpu0:2")
	has("vm1:gpu0:2", "hostc")
	is("two others", "vm1:gpu0:3")
	for n := 2; n < lease.MostPerHost; n++ {
		has(fmt.Sprint("vm1:gpu0:", n), "hostb")
	}
	is("all others", fmt.Sprint("vm1:gpu0:", lease.MostPerHost))
}

// TestHeirs: who may name a lease's heir, and whom.
func TestHeirs(t *testing.T) {
	for what, c := range map[string]struct {
		by, heir string
		allow    []string
		status   int // of the refusal
	}{
		"its host":                      {"hosta", "hostb", nil, 0},
		"another":                       {"hostb", "hostb", nil, http.StatusForbidden},
		"itself":                        {"hosta", "hosta", nil, http.StatusConflict},
		"nobody":                        {"hosta", "", []string{"hosta"}, 0},
		"one that is allowed":           {"hosta", "hostb", []string{"hosta", "hostb"}, 0},
		"one that is not":               {"hosta", "hostb", []string{"hosta"}, http.StatusForbidden},
		"the one that had it before":    {"hosta", "hostz", nil, 0},
		"a third, who is known before":  {"hosta", "hostc", nil, 0},
		"of a claim, as its fleet says": {"hosta", "hostf", nil, 0},
		"of a claim, another":           {"hosta", "hostb", nil, http.StatusForbidden},
		"of a claim, nobody":            {"hosta", "", nil, 0},
	} {
		d := bare(t)
		d.cfg.Remote.Allow = c.allow
		spec := api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta"}
		if strings.HasPrefix(what, "of a claim") {
			r := api.Reservation{VM: "vm1", Name: "gpu0", ID: "1", Of: "default/claim", Host: "hosta", Heir: "hostf"}
			if err := d.fleet.Put(lease.Kept{Reservation: r}); err != nil || r.Lease() != spec.Key() {
				t.Fatal(r.Lease(), err)
			}
		}
		f, err := newLeaseFile(hostNamed(t, "hosta"), [32]byte{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(spec.LeasePath(d.run)), 0o755), f.Write(spec.LeasePath(d.run)), d.leases.Add(f.ID, "hosta", spec.Key(), 0)); err != nil {
			t.Fatal(err)
		}
		d.leases.Allow(f.ID, "", "hostz")
		d.add(&vgpu{rec: record{Spec: spec}})
		e, _ := d.leases.Find(f.ID)
		err = d.setHeir(hostNamed(t, c.by), e, c.heir)
		if status(err) != c.status || (err == nil) != (c.status == 0) {
			t.Errorf("%s: %v", what, err)
		}
		heir, before := "", "hostz"
		if c.status == 0 {
			heir = c.heir
		}
		if c.status == 0 && heir == before { // it has it no more
			before = ""
		}
		now, _ := d.leases.Find(f.ID)
		if now.Heir != heir || now.Before != before || now.Host != "hosta" {
			t.Errorf("%s: %+v", what, now)
		}
		if written, err := lease.Read(spec.LeasePath(d.run)); c.status == 0 && (err != nil || written.Heir != heir || written.Before != before || written.Host != "hosta") {
			t.Errorf("%s: written is %+v, %v", what, written, err)
		}
	}
	d := bare(t)
	gone := &vgpu{rec: record{Spec: api.Spec{VM: "hosta", Name: "vm1:gpu0"}}}
	if err := d.noteHeir(gone, leaseID(1)); !errors.Is(err, lease.ErrUnknown) {
		t.Errorf("of a lease that is over: %v", err)
	}
	if err := d.leases.Add(leaseID(1), "hosta", "hosta/vm1:gpu0", 0); err != nil {
		t.Fatal(err)
	}
	e, _ := d.leases.Find(leaseID(1))
	if err := d.setHeir(hostNamed(t, "hosta"), e, "hostb"); !errors.Is(err, lease.ErrUnknown) {
		t.Errorf("of a vGPU that is gone: %v", err)
	}
}

// TestTakenOver: a lease that its heir has taken over is the heir's in what is written down of it,
// and the host's from which it came no more.
func TestTakenOver(t *testing.T) {
	d := bare(t)
	spec := api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta"}
	f, err := newLeaseFile(hostNamed(t, "hosta"), [32]byte{7})
	if err != nil || f.Identity.Peer != [32]byte{7} || f.Host != "hosta" || f.ID.IsZero() {
		t.Fatalf("%+v, %v", f, err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(spec.LeasePath(d.run)), 0o755), f.Write(spec.LeasePath(d.run)), d.leases.Add(f.ID, "hosta", spec.Key(), 0)); err != nil {
		t.Fatal(err)
	}
	v := &vgpu{rec: record{Format: recordFormat, Spec: spec}}
	d.add(v)
	d.leases.Allow(f.ID, "hostb", "")
	if _, took, err := d.leases.Renew(f.ID, "hostb", 1, true); err != nil || !took {
		t.Fatal(took, err)
	}
	if err := d.noteHeir(v, f.ID); err != nil || v.rec.Spec.Lease != "hostb" {
		t.Errorf("%+v, %v", v.rec.Spec, err)
	}
	written, err := lease.Read(spec.LeasePath(d.run))
	if rec, err2 := readRecord(d.run, spec.VM, spec.Name); err != nil || err2 != nil || written.Host != "hostb" || written.Heir != "" || written.Before != "hosta" || rec.Spec.Lease != "hostb" {
		t.Errorf("%+v, %+v, %v, %v", written, rec.Spec, err, err2)
	}
}

// TestRecordsOfOthers: a record is of its place, of a form that is known, and of a process that
// there may be.
func TestRecordsOfOthers(t *testing.T) {
	run := t.TempDir()
	good := record{Format: recordFormat, Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Share: 70}}}
	for what, c := range map[string]struct {
		change func(r *record)
		ok     bool
	}{
		"as written": {func(*record) {}, true}, "older": {func(r *record) { r.Format-- }, true}, "newer": {func(r *record) { r.Format++ }, false},
		"of another VM": {func(r *record) { r.Spec.VM = "vm2" }, false}, "of another name": {func(r *record) { r.Spec.Name = "gpu1" }, false},
		"process 0": {func(r *record) { r.PID = 0 }, true}, "process -1": {func(r *record) { r.PID = -1 }, false}, "process 1": {func(r *record) { r.PID = 1 }, true},
		"no share": {func(r *record) { r.Spec.Share = 0 }, true}, "a share that is none": {func(r *record) { r.Spec.Cap = 1000 }, false},
	} {
		r := good
		c.change(&r)
		path := recordPath(run, &good.Spec)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &r)); err != nil {
			t.Fatal(err)
		}
		got, err := readRecord(run, "vm1", "gpu0")
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
		if r.Spec.Share == 0 {
			r.Spec.Share = limit.DefaultShare
		}
		if c.ok && got != r {
			t.Errorf("%s: %+v", what, got)
		}
	}
	if _, err := readRecord(run, "vm1", "gpu7"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	dir := filepath.Join(run, "vm1")
	if err := removeAll(filepath.Join(run, "none"), recordPath(run, &good.Spec), filepath.Join(run, "none")); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), nil, 0o600), os.WriteFile(filepath.Join(run, "b"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(dir, filepath.Join(run, "b")); !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		t.Errorf("what cannot be removed: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(run, "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("what stands behind it is left")
	}
}
