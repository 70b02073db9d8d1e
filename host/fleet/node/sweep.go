package node

import (
	"context"
	"errors"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"causeway/host/fleet/cdi"
	"causeway/host/fleet/claim"
)

// Claims finds a claim in the API server.
type Claims func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)

// RoutineSweep fences what the kubelet does not: until ctx ends it looks again and again for claims
// that are gone, or allocated elsewhere, by the API server's word, and takes back what this node
// has of them. The kubelet may be frozen, or have been while the node was declared out of service,
// or a pod was deleted by force, and its containers may run on: their sessions end, with an error.
// cached may be old; what it says is over is asked of now.
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

// Sweep looks once. A claim is over only if the API server says so: one that does not answer says
// nothing.
func (d *Driver) Sweep(ctx context.Context, cached, now Claims) error {
	list, err := d.CDI.Claims()
	errs := []error{err}
	for _, c := range list {
		is, _, err := d.stands(ctx, cached, c)
		if err == nil && is != holds {
			err = d.fence(ctx, now, c)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// standing is how it stands with a claim that was prepared here.
type standing int

const (
	holds standing = iota
	over           // it is gone, or elsewhere
	anew           // what was prepared here is over, and it has been allocated to this node again
)

// fence takes a claim back that is over at this moment. The kubelet's calls wait meanwhile: a claim
// that is allocated to this node again is prepared after that.
func (d *Driver) fence(ctx context.Context, now Claims, c cdi.Claim) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	is, rc, err := d.stands(ctx, now, c)
	switch {
	case err != nil || is == holds:
		return err
	case is == anew:
		return d.again(ctx, rc)
	}
	d.Log.Warn("a claim that was prepared here is gone, or elsewhere: it is taken back, and its programs' sessions end", "claim", c.Namespace+"/"+c.Name, "uid", c.UID)
	return d.unprepare(ctx, c.UID)
}

// again takes back what a claim had here and prepares what it has now. While a pod that had it is
// not gone from the node, as one deleted by force, the kubelet takes the claim for prepared, also
// for a pod that came after, and asks for nothing.
func (d *Driver) again(ctx context.Context, rc *resourceapi.ResourceClaim) error {
	d.Log.Warn("a claim that was prepared here has been allocated to this node again: its programs' sessions end, and it is prepared anew", "claim", rc.Namespace+"/"+rc.Name, "uid", rc.UID)
	names, err := d.vgpusOf(ctx, rc.UID)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := d.release(ctx, rc.UID, name); err != nil {
			return err
		}
	}
	if _, err = d.prepare(ctx, rc); err != nil && d.Refused != nil {
		// The file says that it is tried again.
		d.Refused(claim.ID{Namespace: rc.Namespace, Name: rc.Name, UID: rc.UID}, err)
	}
	return err
}

func (d *Driver) stands(ctx context.Context, claims Claims, c cdi.Claim) (standing, *resourceapi.ResourceClaim, error) {
	rc, err := claims(ctx, c.Namespace, c.Name)
	switch {
	case apierrors.IsNotFound(err):
		return over, nil, nil
	case err != nil:
		return holds, nil, err
	case rc.UID != c.UID || !d.here(rc):
		return over, rc, nil
	}
	if has := sharesOf(rc); c.Shares != "" && has != "" && has != c.Shares {
		return anew, rc, nil
	}
	return holds, rc, nil
}

// sharesOf names a claim's allocation, by its shares of this driver's devices: each allocation has
// others. "": it has none.
func sharesOf(rc *resourceapi.ResourceClaim) string {
	var list []string
	for i := range rc.Status.Allocation.Devices.Results {
		if r := &rc.Status.Allocation.Devices.Results[i]; r.Driver == claim.Driver && r.ShareID != nil {
			list = append(list, string(*r.ShareID))
		}
	}
	return strings.Join(list, ",")
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
