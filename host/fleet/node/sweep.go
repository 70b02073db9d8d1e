package node

import (
	"context"
	"errors"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"causeway/host/fleet/cdi"
	"causeway/host/fleet/claim"
)

// Claims finds a claim in the API server.
type Claims func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)

// RoutineSweep fences what the kubelet does not: until ctx ends it looks again and again for claims that are gone, or allocated elsewhere, by the API server's word, and takes back what this node has of them. The kubelet may be
// frozen, or have been while the node was declared out of service, or a pod was deleted by force, and its containers may run on: their sessions end, with an error. cached may be old; what it says is over is asked of now.
func (d *Driver) RoutineSweep(ctx context.Context, cached, now Claims, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := d.Sweep(ctx, cached, now); err != nil && ctx.Err() == nil {
			d.Log.Warn("what was left of claims is looked for later", "error", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Sweep looks once. A claim is over only if the API server says so: one that does not answer says nothing.
func (d *Driver) Sweep(ctx context.Context, cached, now Claims) error {
	list, err := d.CDI.Claims()
	errs := []error{err}
	for _, c := range list {
		over, err := d.isOver(ctx, cached, c)
		if err == nil && over {
			err = d.fence(ctx, now, c)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// fence takes a claim back that is over at this moment. The kubelet's calls wait meanwhile: a claim that is allocated to this node again is prepared after that.
func (d *Driver) fence(ctx context.Context, now Claims, c cdi.Claim) error {
	d.turn.Lock()
	defer d.turn.Unlock()
	over, err := d.isOver(ctx, now, c)
	if err != nil || !over {
		return err
	}
	d.Log.Warn("a claim that was prepared here is gone, or elsewhere: it is taken back, and its programs' sessions end", "claim", c.Namespace+"/"+c.Name, "uid", c.UID)
	return d.unprepare(ctx, c.UID)
}

func (d *Driver) isOver(ctx context.Context, claims Claims, c cdi.Claim) (bool, error) {
	rc, err := claims(ctx, c.Namespace, c.Name)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case rc.UID != c.UID:
		return true, nil
	}
	return !d.here(rc), nil
}

// here: a claim has a device of this node, or one of the network's that is this node's to use.
func (d *Driver) here(c *resourceapi.ResourceClaim) bool {
	a := c.Status.Allocation
	if a == nil {
		return false
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.Driver != claim.Driver {
			continue
		}
		if claim.OnNetwork(r) {
			if node, bound := claim.NodeOf(a); !bound || node == d.Node {
				return true
			}
		} else if r.Pool == d.Node || r.Pool == claim.PoolOf(d.Node) {
			return true
		}
	}
	return false
}
