package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/remote"
	"causeway/remote/mtls"
)

/*
A host's side of leases: a vGPU of it lies on a GPU server, whose causewayd gave this one a lease.
The vGPU's device process starts relays in place of workers, which have the lease's keys; causewayd
renews the lease, and finds it again after its restart.
*/

// Times of what is asked of a server.
const (
	renewTime    = 4 * time.Second // less than a renewal's interval
	grantTime    = 90 * time.Second
	endLeaseTime = 5 * time.Second
	promiseTime  = 10 * time.Second // a migration waits for it, once, and fails without it
)

// lostRemedy is what there is to do about a vGPU whose GPU server is lost.
const lostRemedy = "it has another lease by itself once that server is back and its programs have ended (`causeway inspect` shows it), or is deleted and made elsewhere"

// server is a client of a GPU server that the configuration names.
func (d *Daemon) server(address string) (*api.Client, error) {
	return api.NewServerClient(address, func(host string) (*tls.Config, error) { return d.identity().Client(api.RemoteProtocol, host) })
}

// called asks a server, and reads its answer by a check.
func called[T any](ctx context.Context, c *api.Client, method, path string, in any, read func(io.Reader) (T, error)) (T, error) {
	var none T
	body, err := c.Open(ctx, method, path, in)
	if err != nil {
		return none, err
	}
	defer body.Close()
	return read(body)
}

func leasePath(id remote.LeaseID) string { return "/v1/leases/" + id.String() }

// startRemote has a server lease a vGPU, and starts its device process here. Its lock is held. What
// fails is undone.
func (d *Daemon) startRemote(ctx context.Context, w api.Wish, rec record) (*vgpu, error) {
	spec := rec.Spec
	servers, err := d.serversFor(ctx, &spec)
	if err != nil {
		return nil, err
	}
	return d.startFar(ctx, rec, func(v *vgpu) error {
		err := d.leaseFirst(ctx, v, servers, remoteChange(&w, &spec))
		if len(servers) == 1 && movesHere(err) && !spec.Programs {
			return d.leaseKept(ctx, v, servers[0], err)
		}
		return err
	})
}

// startFar starts the device process of a vGPU on a GPU server, for which leased sees to a lease.
// Its lock is held.
func (d *Daemon) startFar(ctx context.Context, rec record, leased func(*vgpu) error) (*vgpu, error) {
	v, spec := &vgpu{rec: rec}, rec.Spec
	d.add(v)
	err := os.MkdirAll(filepath.Dir(recordPath(d.run, &spec)), 0o755)
	if err == nil {
		err = writeJSON(recordPath(d.run, &spec), &v.rec)
	}
	if err == nil {
		err = leased(v)
	}
	if err == nil {
		err = d.launch(ctx, v, "")
	}
	if err != nil {
		return nil, errors.Join(err, d.undo(v))
	}
	_, p := d.copyOf(v)
	d.wg.Go(func() { d.routineRenew(v, p) })
	return v, nil
}

// remoteChange is which limits a server is asked for: those of the host's memory are the server's,
// unless somebody names them.
func remoteChange(w *api.Wish, spec *api.Spec) api.Change {
	if w.Profile != "" {
		return w.Change
	}
	c := spec.Limits.Change()
	if w.HostMemory == nil {
		c.HostMemory = nil
	}
	return c
}

// leaseFirst takes the first server that gives a lease.
func (d *Daemon) leaseFirst(ctx context.Context, v *vgpu, servers []string, c api.Change) error {
	var errs []error
	for _, name := range servers {
		err := d.leaseFrom(ctx, v, name, c)
		if err == nil {
			return nil
		}
		d.log.Warn("a GPU server gives no lease", "server", name, "vgpu", v.rec.Spec.Key(), "error", err)
		errs = append(errs, atServer(name, err))
	}
	return errors.Join(errs...)
}

// atServer is a server's error with the server's name; what it is, and its remedy, stay.
func atServer(name string, err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return &api.Error{Status: e.Status, Text: "GPU server " + name + ": " + e.Text, Remedy: e.Remedy}
	}
	return refuse(http.StatusBadGateway, "see `causeway gpus --all`", "GPU server %s: %s", name, besideName(name, err))
}

// besideName is an error's text for where it stands behind a server's name: errors of the way there
// begin with the address, which may be all the name that it has.
func besideName(name string, err error) string { return strings.TrimPrefix(err.Error(), name+": ") }

// leaseFrom has a server lease the vGPU, and writes the lease down.
func (d *Daemon) leaseFrom(ctx context.Context, v *vgpu, name string, change api.Change) error {
	rec, _ := d.copyOf(v)
	spec := rec.Spec
	f, l, err := d.askLease(ctx, &spec, name, change)
	if err != nil {
		return err
	}
	spec.Remote, spec.Limits, spec.Profile = name, l.Limits, l.Profile
	if err := d.granted(v, spec, f); err != nil {
		return errors.Join(err, d.giveBack(v))
	}
	return nil
}

// askLease has a server lease a vGPU, of which nothing is noted or written down yet.
func (d *Daemon) askLease(ctx context.Context, spec *api.Spec, name string, change api.Change) (*lease.File, api.Lease, error) {
	var none api.Lease
	ctx, cancel := context.WithTimeout(ctx, grantTime)
	defer cancel()
	keys, err := mtls.NewPinned()
	if err != nil {
		return nil, none, err
	}
	own, err := keys.Hash()
	if err != nil {
		return nil, none, err
	}
	addresses, err := resolve(ctx, name)
	if err != nil {
		return nil, none, err
	}
	c, err := d.leasing.take(name, d.server)
	if err != nil {
		return nil, none, err
	}
	defer d.leasing.leave(name)
	wish := api.LeaseWish{VM: spec.VM, Name: spec.Name, GPU: spec.GPU, MIG: spec.MIG, Change: change, Protocol: remote.ProtocolVersion, Key: own}
	if spec.Migratable { // else as the server is configured, as for its own vGPUs
		wish.Migratable = &spec.Migratable
	}
	g, err := called(ctx, c, http.MethodPost, "/v1/leases", wish, lease.DecodeGrant)
	if err != nil {
		return nil, none, err
	}
	l := g.Lease()
	keys.Peer = l.Key
	up := &api.Upstream{Server: name, Address: api.ServerAddress(name), Lease: l.ID, GPU: l.GPU.Name, UUID: l.GPU.ID, Memory: l.GPU.Memory, Driver: l.GPU.Driver, Migratable: l.Migratable, Renewed: time.Now()}
	return &lease.File{ID: l.ID, Identity: keys, Epoch: 1, Upstream: up, Addresses: addresses}, l, nil
}

// granted notes a lease that is new, what it is of, and writes it down.
func (d *Daemon) granted(v *vgpu, spec api.Spec, f *lease.File) error {
	v.written.Lock()
	defer v.written.Unlock()
	d.mu.Lock()
	v.rec.Spec, v.up, v.epoch, v.comes = spec, f.Upstream, f.Epoch, f.Comes
	d.mu.Unlock()
	return f.Write(spec.LeasePath(d.run))
}

// resolve are a server's addresses, for processes that cannot ask for them.
func resolve(ctx context.Context, name string) ([]string, error) {
	host, port, err := net.SplitHostPort(api.ServerAddress(name))
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupHost(ctx, host)
	for i := range ips {
		ips[i] = net.JoinHostPort(ips[i], port)
	}
	return ips, err
}

// giveBack has the server end the lease of a vGPU that is at its end here. A server that does not
// hear of it ends it after its term.
func (d *Daemon) giveBack(v *vgpu) error {
	d.mu.Lock()
	up, beside := v.up, v.beside
	v.up, v.beside = nil, nil
	d.mu.Unlock()
	return errors.Join(d.leave(up), d.leave(beside))
}

// leave has the server end a lease, or leave it to its heir. nil: there is none.
func (d *Daemon) leave(up *api.Upstream) error {
	if up == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endLeaseTime)
	defer cancel()
	c, err := d.server(up.Server)
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Do(ctx, http.MethodDelete, leasePath(up.Lease), nil, nil)
	if renewalOf(api.LeaseState{}, err) != leaseHolds { // it is over, or another's
		return nil
	}
	return err
}

// routineRenew renews a vGPU's lease until its device process or causewayd ends.
func (d *Daemon) routineRenew(v *vgpu, p *process.Process) {
	d.mu.Lock()
	was := v.renew
	v.renew = true
	d.mu.Unlock()
	if was {
		return
	}
	rec, _ := d.copyOf(v)
	servers := serverClient{clients: &d.renewing, connect: d.server}
	defer servers.close()
	t := time.NewTicker(d.opt.Renew)
	defer t.Stop()
	for name := rec.Spec.Remote; ; {
		d.mu.Lock()
		if v.up != nil && v.up.Server != name { // its programs may have gone to another
			name = v.up.Server
		}
		d.mu.Unlock()
		log := d.log.With("vgpu", rec.Spec.Key(), "server", name)
		c, err := servers.of(name)
		if err != nil {
			log.Error("the lease of a vGPU is not renewed", "error", err)
			return
		}
		if end := d.renewOnce(c, name, v, log); end != leaseHolds {
			d.notRenewed(v, p, end, log)
			return
		}
		select {
		case <-t.C:
		case <-p.Done():
			d.mu.Lock()
			ended := v.end // who ends it gives the lease back
			d.mu.Unlock()
			if !ended {
				if err := d.giveBack(v); err != nil {
					log.Warn("the lease of a lost vGPU is not given back: it ends at the server after its term", "error", err)
				}
			}
			return
		case <-d.ctx.Done():
			return
		}
	}
}

// renewOnce renews a lease, and notes how it is.
func (d *Daemon) renewOnce(c *api.Client, server string, v *vgpu, log *slog.Logger) (came renewal) {
	d.mu.Lock()
	up, epoch := v.up, v.epoch
	v.renew = up != nil
	d.mu.Unlock()
	switch {
	case up == nil:
		return leaseOver
	case up.Server != server: // since a moment ago
		return leaseHolds
	}
	ctx, cancel := context.WithTimeout(d.ctx, renewTime)
	defer cancel()
	begin, take := time.Now(), d.runsHere(ctx, v)
	st, err := called(ctx, c, http.MethodPost, leasePath(up.Lease)+"/renew", api.LeaseRenewal{Epoch: epoch, Take: take}, lease.DecodeState)
	if d.ctx.Err() != nil {
		return leaseOver
	}
	next := *up
	came = renewalOf(st, err)
	switch {
	case err == nil:
		next.RoundTrip, next.Renewed, next.State, next.Error, next.Lost = time.Since(begin), time.Now(), &st, st.Why, st.Why != ""
	case came != leaseHolds:
		next.Error, next.Lost = besideName(server, err), true
	default:
		next.Error, next.Lost = besideName(server, err), time.Since(next.Renewed) > api.LeaseTerm
	}
	next.Revoked = errors.Is(err, mtls.ErrRevoked)
	switch {
	case next.Lost && !up.Lost:
		log.Error("the GPU server of a vGPU is lost: its programs get errors", "why", next.Error)
	case next.Error != "" && up.Error == "":
		log.Warn("the lease of a vGPU is not renewed", "error", next.Error)
	case next.Error == "" && up.Error != "":
		log.Info("the lease of a vGPU is renewed again")
	}
	d.mu.Lock()
	tell := v.mute
	if v.up == up {
		v.up, v.renew, tell = &next, came == leaseHolds, tell || next.Lost != up.Lost || next.Lost && next.Revoked && !up.Revoked
	} else { // it has another by now
		came = leaseHolds
	}
	d.mu.Unlock()
	if err == nil && take {
		d.hasCome(v, up, log)
	}
	if tell {
		d.tellUpstream(v)
	}
	return came
}

// tellUpstream has the device process refuse new programs, or take them again: by what is so now,
// as others may tell it at once.
func (d *Daemon) tellUpstream(v *vgpu) {
	v.telling.Lock()
	defer v.telling.Unlock()
	d.mu.Lock()
	up, spec := v.up, v.rec.Spec
	d.mu.Unlock()
	if up == nil {
		return
	}
	st := api.UpstreamState{Lease: up.Lease}
	if up.Lost { // a server that is what it should be has ended its programs, too
		st.Why, st.Ends = "the GPU server "+up.Server+" is lost: "+up.Error, up.Revoked
	}
	c := api.NewClient(spec.ControlPath(d.run))
	defer c.Close()
	ctx, cancel := context.WithTimeout(d.ctx, askTimeout)
	defer cancel()
	err := c.Do(ctx, http.MethodPut, "/v1/upstream", st, nil)
	d.mu.Lock()
	v.mute = err != nil
	d.mu.Unlock()
	if err != nil && d.ctx.Err() == nil {
		d.log.Warn("a device process is not told how its GPU server is", "vgpu", spec.Key(), "error", err)
	}
}

// upstreamFound takes up the lease of a vGPU that an earlier causewayd started. Of that one the
// server takes no renewal any more.
func (d *Daemon) upstreamFound(v *vgpu) error {
	path := v.rec.Spec.LeasePath(d.run)
	f, err := lease.Read(path)
	if err == nil && (f.Upstream == nil || f.ID.IsZero()) {
		err = fmt.Errorf("%s is no lease that this host has", path)
	}
	if err != nil {
		return err
	}
	f.Epoch++
	v.up, v.epoch, v.comes = f.Upstream, f.Epoch, f.Comes
	if f.Beside != nil && f.Beside.Upstream != nil {
		f.Beside.Epoch++
		v.beside = f.Beside.Upstream
	}
	return f.Write(path)
}

// named is one of the servers.
func (d *Daemon) named(ctx context.Context, name string) (string, error) {
	list, found := d.serverNames(ctx)
	for _, s := range list {
		host, _, err := net.SplitHostPort(s)
		if err == nil && host == name || api.ServerAddress(s) == api.ServerAddress(name) {
			return s, nil
		}
	}
	if found != nil {
		return "", refuse(http.StatusServiceUnavailable, "correct remote.domain in "+api.ConfigFile+", or see to DNS", "GPU server %q: %v", name, found)
	}
	if len(list) == 0 {
		return "", refuse(http.StatusBadRequest, "list GPU servers in remote.servers of "+api.ConfigFile+", or leave `remote` out", "this host is configured with no GPU server")
	}
	return "", refuse(http.StatusBadRequest, "`causeway gpus --all` lists them; an administrator adds others to remote.servers in "+api.ConfigFile, "no GPU server %q is configured", name)
}

// serversFor are the servers on which a vGPU may be placed, the best first.
func (d *Daemon) serversFor(ctx context.Context, s *api.Spec) ([]string, error) {
	if s.Remote != api.RemoteAny {
		name, err := d.named(ctx, s.Remote)
		return []string{name}, err
	}
	list := d.Servers(ctx)
	if len(list) == 0 {
		_, err := d.named(ctx, s.Remote)
		return nil, err
	}
	var names []string
	for _, i := range rank(list, s) {
		names = append(names, list[i].Name)
	}
	if len(names) > 0 {
		return names, nil
	}
	return nil, nobodyTakes(list, s)
}

// nobodyTakes says why no server takes a vGPU, by what each has answered. Less memory helps only
// where one has answered that it has no room.
func nobodyTakes(list []api.Server, s *api.Spec) error {
	var errs []error
	status, remedy := http.StatusConflict, "`causeway gpus --all` shows them"
	for i := range list {
		why, full := unfit(&list[i], s)
		errs = append(errs, errors.New(list[i].Name+": "+why))
		if full {
			status, remedy = http.StatusInsufficientStorage, "`causeway gpus --all` shows them; ask for less memory, or another GPU"
		}
	}
	return refuse(status, remedy, "no GPU server takes it: %v", errors.Join(errs...))
}

// changeRemote has the server change limits; the device process here holds what it can.
func (d *Daemon) changeRemote(ctx context.Context, v *vgpu, c api.Change) (api.Limits, error) {
	d.mu.Lock()
	up, beside, spec, comes := v.up, v.beside, v.rec.Spec, v.comes
	d.mu.Unlock()
	if comes == lease.ComesKept && up != nil && up.Lost && c.On(spec.Limits) == spec.Limits {
		// As it waits, so it was asked for.
		return spec.Limits, nil
	}
	if up == nil || up.Lost {
		return api.Limits{}, refuse(http.StatusConflict, "try again when it has a lease again: `causeway inspect` shows it", "the GPU server %s of %s is lost", spec.Remote, spec.Key())
	}
	if c.On(spec.Limits) == spec.Limits && c.Profile == spec.Profile {
		return spec.Limits, nil
	}
	if beside != nil { // the other lease has those of before
		return api.Limits{}, refuse(http.StatusConflict, "try again in a moment", "whether %s has moved to the GPU server %s is not known yet", spec.Key(), beside.Server)
	}
	far, err := d.server(up.Server)
	if err != nil {
		return api.Limits{}, err
	}
	defer far.Close()
	l, err := called(ctx, far, http.MethodPut, leasePath(up.Lease)+"/limits", c, lease.DecodeLimits)
	if err != nil {
		return api.Limits{}, atServer(up.Server, err)
	}
	here := l.All()
	here.Share, here.Cap, here.HostMemory = nil, nil, nil
	if _, err := d.changeLimits(ctx, &spec, here); err != nil {
		d.log.Warn("the device process does not hold limits that its GPU server holds", "vgpu", spec.Key(), "error", err)
	}
	d.mu.Lock()
	v.rec.Spec.Limits, v.rec.Spec.Profile, v.agreed = l, c.Profile, time.Now()
	rec := v.rec
	d.mu.Unlock()
	return l, writeJSON(recordPath(d.run, &spec), &rec)
}
