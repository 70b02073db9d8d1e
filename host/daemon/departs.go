package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/process"
)

// peersLook is how often a configuration without peers is looked at again, and a device process
// that does not answer asked again.
const peersLook = 5 * time.Second

// aheadTime bounds how long a peer may take to say whether it awaits a VM whose memory is to go
// ahead: whatever goes ahead later is as good.
const aheadTime = 15 * time.Second

// routineDeparts sends a vGPU's memory ahead when QEMU begins to send its VM, as long as the device
// process lives and there are peers. Of one on a GPU server the lease goes ahead.
func (d *Daemon) routineDeparts(v *vgpu, p *process.Process) {
	pause := peersLook
	if rec, _ := d.copyOf(v); rec.Spec.Remote != "" {
		pause = staysAgain // the VM stands soon, and waits for what is found
	}
	d.whileItLives(v, p, pause, func(ctx context.Context, c *api.Client) error {
		var a api.Departs
		rec, _ := d.copyOf(v)
		if rec.Spec.Remote == "" && len(d.config().Migration.Peers) == 0 {
			return errLater
		}
		err := c.Do(ctx, http.MethodGet, "/v1/departs", nil, &a)
		switch {
		case err != nil || !a.Departs:
		case rec.Spec.Remote != "":
			d.handAhead(ctx, v, c)
		default:
			d.sendAhead(ctx, v, c)
		}
		return err
	})
}

// sendAhead sends a vGPU's memory to the peer that awaits its VM, if there is one and nobody does
// it already, until that ends.
func (d *Daemon) sendAhead(ctx context.Context, v *vgpu, near *api.Client) {
	rec, _ := d.copyOf(v)
	log := d.log.With("vgpu", rec.Spec.Key())
	if st, err := d.ask(ctx, v); err != nil || st.Copy != nil {
		return
	}
	peer, err := d.awaitedBy(ctx, d.config().Migration.Peers, &rec.Spec)
	if err == nil {
		err = d.sendTo(ctx, peer, &rec.Spec, near)
	}
	if err != nil {
		log.Info("memory does not go ahead", "reason", err)
		return
	}
	log.Info("memory went ahead", "host", peer)
}

// errTwoAwait says that a VM is awaited where it cannot be.
var errTwoAwait = errors.New("two hosts say that they await this VM, of which one is mistaken or lies: its memory goes to neither")

// awaitedBy is the peer that awaits a VM. If two hosts do it is neither: that one was the first to
// answer does not make it the right one.
func (d *Daemon) awaitedBy(ctx context.Context, peers []string, s *api.Spec) (string, error) {
	var yes peerAnswer
	var late <-chan time.Time
	var no []error
	answers := d.askPeers(ctx, peers, s, aheadTime)
	for range peers {
		select {
		case <-late:
			return yes.peer, nil
		case one := <-answers:
			switch {
			case one.err == nil && yes.peer == "":
				yes, late = one, time.After(d.opt.Agree)
			case one.err == nil && yes.host != one.host:
				return "", fmt.Errorf("%w: %s and %s", errTwoAwait, yes.peer, one.peer)
			case one.err != nil:
				no = append(no, one.err)
			}
		}
	}
	if yes.peer == "" {
		return "", nobodyAwaits(no)
	}
	return yes.peer, nil
}

// sendTo returns when the pre-copy ends, or does not begin.
func (d *Daemon) sendTo(ctx context.Context, peer string, s *api.Spec, near *api.Client) error {
	m := d.config().Migration
	far, err := api.NewHostClient(peer, func(host string) (*tls.Config, error) { return m.Files().Client(api.HostProtocol, host) })
	if err != nil {
		return err
	}
	defer far.Close()
	c, err := api.Cross(ctx, near, far, s.Wish(), true, api.Copying{Connections: api.DefaultConnections})
	if err != nil {
		return err
	}
	defer c.Close()
	d.log.Info("a migration begins: memory goes ahead", "vgpu", s.Key(), "host", peer)
	select {
	case <-c.Done(): // the device process says why it ended
	case <-ctx.Done():
	}
	return nil
}
