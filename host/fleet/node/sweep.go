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

// RoutineSweep takes back, now and then until ctx ends, what the kubelet will not: claims that are gone from the API server while the node was away and its
// kubelet forgot them.
func (d *Driver) RoutineSweep(ctx context.Context, claims Claims, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if err := d.Sweep(ctx, claims); err != nil && ctx.Err() == nil {
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
func (d *Driver) Sweep(ctx context.Context, claims Claims) error {
	list, err := d.CDI.Claims()
	errs := []error{err}
	for _, c := range list {
		over, err := isOver(ctx, claims, c)
		if err == nil && over {
			d.Log.Warn("a claim is gone that was prepared here: it is taken back", "claim", c.Namespace+"/"+c.Name, "uid", c.UID)
			err = d.unprepare(ctx, c.UID)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func isOver(ctx context.Context, claims Claims, c cdi.Claim) (bool, error) {
	now, err := claims(ctx, c.Namespace, c.Name)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case now.UID != c.UID:
		return true, nil
	}
	return !allocated(now), nil
}

// allocated: a claim that has a device of ours still.
func allocated(c *resourceapi.ResourceClaim) bool {
	if c.Status.Allocation == nil {
		return false
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == claim.Driver {
			return true
		}
	}
	return false
}
