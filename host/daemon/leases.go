package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote"
	"causeway/remote/mtls"
	"causeway/remote/sys"
)

/*
A GPU server's side of leases. A lease is a vGPU of this causewayd, HOST/VM:NAME, and all that holds
for one holds for it; its device process takes programs' connections instead of a VM's. It lives as
long as its host renews it, and its folder's file keeps its keys.
*/

// grant gives a host the vGPU that it asks for. One that it has of that name already is ended
// first: the host knows best what it has.
func (d *Daemon) grant(ctx context.Context, h lease.Host, r lease.Request) (api.Lease, error) {
	w := d.besideMoved(r.Wish(h), h)
	if err := d.checkWish(ctx, &w); err != nil {
		return api.Lease{}, err
	}
	leave, err := d.locks.enter(ctx, w.Key())
	if err != nil {
		return api.Lease{}, err
	}
	defer leave()
	if err := d.asReserved(&w, h, r); err != nil {
		return api.Lease{}, err
	}
	if err := d.endMoved(ctx, w.Key(), h, r); err != nil {
		return api.Lease{}, err
	}
	if err := d.endFormer(ctx, w.Key(), h); err != nil {
		return api.Lease{}, err
	}
	f, err := newLeaseFile(h, r.Key())
	if err != nil {
		return api.Lease{}, err
	}
	if err := d.leases.Add(f.ID, h.String(), w.Key(), 0); err != nil {
		return api.Lease{}, err
	}
	v, err := d.startLease(ctx, w, h, f)
	if err != nil {
		d.leases.Remove(w.Key())
		d.log.Warn("lease not granted", "host", h, "vgpu", w.Key(), "error", err)
		return api.Lease{}, err
	}
	// What it took to start counts for nobody's term.
	if _, _, err := d.leases.Renew(f.ID, h.String(), 0, false); err != nil {
		return api.Lease{}, errors.Join(err, d.end(context.WithoutCancel(ctx), v))
	}
	l, err := d.leaseOf(ctx, v, f, r)
	if err != nil {
		return api.Lease{}, errors.Join(err, d.end(context.WithoutCancel(ctx), v))
	}
	d.log.Info("lease granted", "host", h, "vgpu", w.Key(), "lease", f.ID)
	return l, nil
}

// endFormer ends what a host has of a name. Its lock is held.
func (d *Daemon) endFormer(ctx context.Context, key string, h lease.Host) error {
	v := d.find(key)
	if v == nil {
		return nil
	}
	rec, _ := d.copyOf(v)
	if rec.Spec.Lease != h.String() {
		return refuse(http.StatusConflict, "use another name for the VM or the host", "the server has a vGPU %s that is none of %s's", key, h)
	}
	d.log.Info("a lease is replaced", "host", h, "vgpu", key)
	return d.end(ctx, v)
}

func newLeaseFile(h lease.Host, peer mtls.KeyHash) (*lease.File, error) {
	keys, err := mtls.NewPinned()
	if err != nil {
		return nil, err
	}
	keys.Peer = peer
	return &lease.File{ID: remote.NewLeaseID(), Identity: keys, Host: h.String()}, nil
}

// startLease starts the vGPU of a lease.
func (d *Daemon) startLease(ctx context.Context, w api.Wish, h lease.Host, f *lease.File) (*vgpu, error) {
	spec := d.wanted(&w, nil)
	spec.Lease, spec.Owner = h.String(), ""
	path := spec.LeasePath(d.run)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("write down a lease: %w", err)
	}
	if err := f.Write(path); err != nil {
		return nil, err
	}
	if err := d.starts.Acquire(ctx, 1); err != nil {
		return nil, errors.Join(err, removeAll(path))
	}
	defer d.starts.Release(1)
	v, err := d.start(ctx, w, newRecord(spec))
	if err != nil {
		return nil, errors.Join(err, removeAll(path))
	}
	return v, nil
}

// leaseOf tells a host what it has got.
func (d *Daemon) leaseOf(ctx context.Context, v *vgpu, f *lease.File, r lease.Request) (api.Lease, error) {
	rec, _ := d.copyOf(v)
	own, err := f.Identity.Hash()
	if err != nil {
		return api.Lease{}, err
	}
	gpus, err := d.offered(ctx)
	if err != nil {
		return api.Lease{}, err
	}
	l := api.Lease{ID: f.ID, Key: own, VM: r.VM(), Name: r.Name(), Limits: rec.Spec.Limits, Profile: rec.Spec.Profile, Term: d.leases.Term, Migratable: rec.Spec.Migratable}
	d.mu.Lock()
	// It has said so when it got ready; on a busy machine it may not say it again in time.
	st := v.last
	d.mu.Unlock()
	if st == nil {
		if st, err = d.ask(ctx, v); err != nil {
			return api.Lease{}, err
		}
	}
	l.GPU = api.GPU{ID: st.UUID, Name: st.GPU, Memory: rec.Spec.Memory}
	id := cmp.Or(st.UUID, rec.GPU) // one that does not say has that on which it was placed
	for _, g := range gpus {
		if g.ID == id {
			l.GPU = g
		}
	}
	return l, nil
}

// offered are the GPUs as a host is told of them: not what others have there.
func (d *Daemon) offered(ctx context.Context) ([]api.GPU, error) {
	list, err := d.GPUs(ctx)
	forHosts(list)
	return list, err
}

func forHosts(list []api.GPU) {
	for i := range list {
		list[i].VGPUs = nil
		if list[i].Drained {
			list[i].Why = "drained"
		}
	}
}

// renew has a lease go on.
func (d *Daemon) renew(ctx context.Context, h lease.Host, id remote.LeaseID, n api.LeaseRenewal) (api.LeaseState, error) {
	e, took, err := d.leases.Renew(id, h.String(), n.Epoch, n.Take)
	if err != nil {
		return api.LeaseState{}, err
	}
	v := d.find(e.VGPU)
	if v == nil {
		return api.LeaseState{}, lease.ErrUnknown
	}
	if took {
		d.log.Info("a lease has moved with its VM", "host", h, "from", e.Before, "vgpu", e.VGPU, "lease", id)
		if err := d.noteHeir(v, e.ID); err != nil {
			return api.LeaseState{}, err
		}
	}
	rec, _ := d.copyOf(v)
	s := api.LeaseState{Limits: rec.Spec.Limits}
	if s.Heir, err = d.movesOn(h, e); err != nil {
		return api.LeaseState{}, err
	}
	if rec.Lost {
		s.Why = "its device process on the server ended: that server's log says why"
		return s, nil
	}
	if st, err := d.ask(ctx, v); err == nil {
		s.Memory, s.Sessions = st.Memory, len(st.Sessions)
	}
	return s, nil
}

// endLease ends one at its host's wish, or because it is overdue.
func (d *Daemon) endLease(ctx context.Context, e lease.Entry, why string) error {
	leave, err := d.locks.enter(ctx, e.VGPU)
	if err != nil {
		return err
	}
	defer leave()
	v := d.find(e.VGPU)
	if v == nil {
		d.leases.Remove(e.VGPU)
		return nil
	}
	if f, err := lease.Read((&v.rec.Spec).LeasePath(d.run)); err == nil && f.ID != e.ID {
		return nil // it has been replaced meanwhile
	}
	d.log.Info("a lease ends", "host", e.Host, "vgpu", e.VGPU, "lease", e.ID, "why", why)
	return d.end(ctx, v)
}

// leasesLook is how often it is looked for leases that are overdue.
const leasesLook = time.Second

// routineLeases ends leases that are not renewed, until causewayd ends.
func (d *Daemon) routineLeases() {
	t := time.NewTicker(leasesLook)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			d.EndOverdue()
		case <-d.ctx.Done():
			return
		}
	}
}

// EndOverdue ends the leases that were not renewed in time, side by side: a host that is gone may
// have had many.
func (d *Daemon) EndOverdue() {
	var wg sync.WaitGroup
	for _, e := range d.leases.Overdue() {
		wg.Go(func() {
			if err := d.endLease(d.ctx, e, fmt.Sprintf("it was not renewed for %v", d.leases.Term)); err != nil && d.ctx.Err() == nil {
				d.log.Error("a lease that is over is not ended", "vgpu", e.VGPU, "error", err)
			}
		})
	}
	wg.Wait()
}

// leaseFound takes up a lease of before causewayd's restart, which has a term from now on.
func (d *Daemon) leaseFound(s *api.Spec) error {
	f, err := lease.Read(s.LeasePath(d.run))
	if err == nil && (f.Host != s.Lease && f.Before != s.Lease || f.Host == "" || f.ID.IsZero()) {
		err = fmt.Errorf("the lease of %s is of %q", s.Key(), f.Host)
	}
	if err == nil {
		err = d.leases.Add(f.ID, f.Host, s.Key(), f.Epoch)
	}
	if err == nil {
		s.Lease = f.Host // which is written first
		d.leases.Allow(f.ID, f.Heir, f.Before)
	}
	return err
}

// endUnleased ends a vGPU that nobody can renew.
func (d *Daemon) endUnleased(ctx context.Context, v *vgpu) {
	if d.find(v.rec.Spec.Key()) != v {
		return
	}
	if err := d.end(ctx, v); err != nil {
		d.log.Error("a vGPU without a lease is not ended", "vgpu", v.rec.Spec.Key(), "error", err)
	}
}

// handTime bounds how long a device process may take to be given a connection.
const handTime = 5 * time.Second

// session hands a program's connection to the device process of its lease, whose worker does the
// handshake.
func (d *Daemon) session(ctx context.Context, p remote.Preface, c *net.TCPConn) {
	defer c.Close()
	e, ok := d.leases.Find(p.Lease)
	if !ok {
		d.log.Info("a connection is for no lease that holds", "address", c.RemoteAddr(), "lease", p.Lease)
		said := remote.NoLease
		if p.Again {
			said = remote.Gone
		}
		remote.Refuse(c, said)
		return
	}
	if err := d.hand(ctx, e.VGPU, p, c); err != nil {
		d.log.Warn("a program's connection is not handed over", "vgpu", e.VGPU, "address", c.RemoteAddr(), "error", err)
	}
}

func (d *Daemon) hand(ctx context.Context, key string, p remote.Preface, c *net.TCPConn) error {
	v := d.find(key)
	if v == nil {
		return unknown(key)
	}
	rec, _ := d.copyOf(v)
	f, err := c.File()
	if err != nil {
		return err
	}
	defer f.Close()
	dialer := net.Dialer{Timeout: handTime}
	to, err := dialer.DialContext(ctx, "unix", rec.Spec.SocketPath(d.run))
	if err != nil {
		return err
	}
	defer to.Close()
	_ = to.SetDeadline(time.Now().Add(handTime))
	return sys.SendPacket(to.(*net.UnixConn), append(p.Encode(), c.RemoteAddr().String()...), []int{int(f.Fd())})
}
