package daemon

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/process"
)

/*
A migration that others begin (`virsh migrate`) of a VM with a vGPU on a GPU server: the device
process sees QEMU begin, and the lease is handed to the peer that awaits the VM, long before that
stands. Whoever has handed a lease over, it is taken back when the VM goes on here.
*/

// handedPatience is how long another host may take over a lease while the VM runs here, and no
// migration is under way. `causeway migrate` says again that it may.
const handedPatience = 10 * time.Minute

// errNoPeers is why nobody is asked.
var errNoPeers = errors.New("migration.peers of this host's causewayd names no host")

// nobodyAwaits is why no peer takes a VM, by what each has said.
func nobodyAwaits(said []error) error {
	if len(said) == 0 {
		return errNoPeers
	}
	return errors.Join(said...)
}

// handAhead hands the lease of a VM that leaves to the peer that awaits it, or tells the device
// process why it cannot be. A lease that is just being taken back after the last migration is
// handed over again behind that.
func (d *Daemon) handAhead(ctx context.Context, v *vgpu, near *api.Client) {
	rec, _ := d.copyOf(v)
	log := d.log.With("vgpu", rec.Spec.Key())
	leave, err := d.handing.enter(ctx, rec.Spec.Key())
	if err != nil {
		return
	}
	defer leave()
	st, err := d.ask(ctx, v)
	if err != nil {
		return
	}
	d.mu.Lock()
	ours := v.departs
	d.mu.Unlock()
	if st.Heir != "" && !ours { // `causeway migrate` has seen to it
		return
	}
	peers := d.peersOf(ctx, v)
	var no []error
	for n, a := 0, d.askPeers(ctx, peers, &rec.Spec, awaitedTime); n < len(peers); n++ {
		one := <-a
		if one.err == nil {
			one.err = d.handOver(ctx, v, rec.Spec.Key(), api.Handover{Host: one.peer, Awaited: true})
		}
		if one.err == nil {
			d.mu.Lock()
			v.departs = true
			d.mu.Unlock()
			return
		}
		log.Info("a lease is not handed to this peer", "host", one.peer, "reason", one.err)
		no = append(no, one.err)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := near.Do(ctx, http.MethodPut, "/v1/handover", api.Handover{Why: shortened(nobodyAwaits(no).Error())}, nil); err != nil {
		log.Warn("a device process is not told that no host takes its VM over", "error", err)
	}
}

// peersOf are the hosts that may await a vGPU's VM: of a fleet's claim first the one to which the
// fleet lets it move.
func (d *Daemon) peersOf(ctx context.Context, v *vgpu) []string {
	peers := d.config().Migration.Peers
	heir := d.heirOf(ctx, v)
	if heir == "" || slices.Contains(peers, heir) {
		return peers
	}
	return append([]string{heir}, peers...)
}

// heirOf is the host to which a fleet lets a claim's lease move: by the server's word of now, for
// since the last renewal the VM may have got its pod there. Of a server that does not answer it is
// what was heard last.
func (d *Daemon) heirOf(ctx context.Context, v *vgpu) string {
	d.mu.Lock()
	up, epoch, claim := v.up, v.epoch, strings.HasPrefix(v.rec.Spec.VM, api.ClaimPrefix)
	d.mu.Unlock()
	if up == nil || !claim {
		return ""
	}
	st, err := d.leaseNow(ctx, awaitedTime, up.Server, up.Lease, epoch)
	if err == nil {
		return st.Heir
	}
	d.log.Info("whether a fleet lets a lease move is known by its last renewal alone", "server", up.Server, "error", err)
	if up.State == nil {
		return ""
	}
	return up.State.Heir
}

// awaitedTime bounds how long a peer may take to say whether it awaits a VM: the VM is on its way.
const awaitedTime = 3 * time.Second

type peerAnswer struct {
	peer string
	host [sha256.Size]byte // of its certificate, if it does: a host may have several names
	err  error             // why it does not await the VM
}

// askPeers asks all at once which awaits a VM: one that cannot be reached holds nobody up.
func (d *Daemon) askPeers(ctx context.Context, peers []string, s *api.Spec, limit time.Duration) <-chan peerAnswer {
	m, answers := d.config().Migration, make(chan peerAnswer, len(peers))
	for _, peer := range peers {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			var host atomic.Pointer[[sha256.Size]byte]
			far, err := api.NewHostClient(peer, func(name string) (*tls.Config, error) {
				c, err := m.Files().Client(api.HostProtocol, name)
				if err == nil {
					c.VerifyConnection = whoIs(&host, c.VerifyConnection)
				}
				return c, err
			})
			if err == nil {
				err = far.Do(ctx, http.MethodGet, api.AwaitedPath(s), nil, nil)
				far.Close()
			}
			if err != nil {
				answers <- peerAnswer{peer: peer, err: atOther(peer, err)}
				return
			}
			answers <- peerAnswer{peer: peer, host: *host.Load()}
		}()
	}
	return answers
}

// whoIs notes whose certificate a connection has that verify, if it is not nil, lets pass: what a
// host says of itself is its word.
func whoIs(host *atomic.Pointer[[sha256.Size]byte], verify func(tls.ConnectionState) error) func(tls.ConnectionState) error {
	return func(st tls.ConnectionState) error {
		if verify != nil {
			if err := verify(st); err != nil {
				return err
			}
		}
		sum := sha256.Sum256(st.PeerCertificates[0].Raw)
		host.Store(&sum)
		return nil
	}
}

// watchHanded sees to it that a lease which another host may take over stays here if the VM does.
// The vGPU's lock of hand-overs is held.
func (d *Daemon) watchHanded(v *vgpu) {
	d.mu.Lock()
	was, p := v.watched, v.proc
	v.handed, v.watched = time.Now(), p != nil
	d.mu.Unlock()
	if !was && p != nil {
		d.wg.Go(func() { d.routineHanded(v, p) })
	}
}

// routineHanded looks until the lease is nobody else's to take, or is taken.
func (d *Daemon) routineHanded(v *vgpu, p *process.Process) {
	t := time.NewTicker(d.opt.Renew)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-p.Done():
			d.unwatch(v)
			return
		case <-d.ctx.Done():
			return
		}
		if d.lookHanded(v) {
			return
		}
	}
}

// takeBack has a server let no host take over a lease of which the device process was told of none:
// an earlier causewayd may have ended between the two.
func (d *Daemon) takeBack(v *vgpu) error {
	d.mu.Lock()
	up := v.up
	d.mu.Unlock()
	if up == nil {
		return nil
	}
	err := d.promise(d.ctx, up, "")
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		v.promised = false
	}
	return err
}

func (d *Daemon) unwatch(v *vgpu) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.watched, v.departs = false, false
}

// lookHanded takes back a lease whose VM stays, and reports whether there is nothing more to watch.
// The lock is held from the look on: who hands the lease over for a migration that begins meanwhile
// does it behind this, and has it watched again.
func (d *Daemon) lookHanded(v *vgpu) (over bool) {
	rec, _ := d.copyOf(v)
	leave, err := d.handing.enter(d.ctx, rec.Spec.Key())
	if err != nil {
		return true
	}
	defer leave()
	defer func() {
		if over {
			d.unwatch(v)
		}
	}()
	st, err := d.ask(d.ctx, v)
	d.mu.Lock()
	idle, departs, lost := time.Since(v.handed), v.departs, v.end || v.up == nil || v.up.Lost
	promised := v.promised && v.comes == "" // else it is no lease of this host's yet
	if err == nil && (st.Migrating || !st.Runs) {
		// It is under way, or the VM stands, here or because it has left.
		v.handed = time.Now()
	}
	d.mu.Unlock()
	switch {
	case lost || err == nil && st.Heir == "" && !promised:
		return true
	case err != nil:
		return false
	case st.Heir == "": // so no host can have gone on with it
		if err := d.takeBack(v); err != nil {
			d.log.Warn("whether another host may take over a lease is not known", "vgpu", rec.Spec.Key(), "error", err)
			return false
		}
		return true
	case st.Migrating || !st.Runs, idle < handedPatience && !departs:
		return false
	}
	if err := d.handOver(d.ctx, v, rec.Spec.Key(), api.Handover{}); err != nil {
		d.log.Warn("the lease of a VM that stays may still be taken over", "vgpu", rec.Spec.Key(), "host", st.Heir, "error", err)
		return false
	}
	d.log.Info("a VM stays: no other host may take over its lease any more", "vgpu", rec.Spec.Key(), "host", st.Heir)
	return true
}
