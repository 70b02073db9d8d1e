package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"causeway/host/fleet/claim"
)

// Cluster is what the driver reads of the API server.
type Cluster interface {
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
}

// ErrCollide says that two claims would be in each other's place in a container.
var ErrCollide = errors.New("two claims in one container")

// checkCollisions refuses a claim that a container of this node's has beside another which would be
// in its place there: the runtime would let one of them win, and say nothing.
func (d *Driver) checkCollisions(ctx context.Context, rc *resourceapi.ResourceClaim, c *claim.Claim) error {
	if d.Cluster == nil || d.Pods == nil {
		return nil
	}
	for _, user := range rc.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" {
			continue
		}
		containers, err := d.Pods.Containers(ctx, rc.Namespace, user.Name)
		switch {
		case errors.Is(err, ErrNoPod): // another node's, or deleted meanwhile
			continue
		case err != nil:
			return fmt.Errorf("the claim's pod %s: %w", user.Name, err)
		}
		for i := range containers {
			if err := d.checkContainer(ctx, user.Name, &containers[i], rc, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkContainer is checkCollisions for a container.
func (d *Driver) checkContainer(ctx context.Context, pod string, container *Container, rc *resourceapi.ResourceClaim, c *claim.Claim) error {
	if !slices.Contains(container.Claims, rc.Name) {
		return nil
	}
	for _, name := range container.Claims {
		if name == rc.Name {
			continue
		}
		other, err := d.Cluster.Claim(ctx, rc.Namespace, name)
		switch {
		case apierrors.IsNotFound(err): // this one's pod will not start
			continue
		case err != nil:
			return fmt.Errorf("the claim %s of the pod %s: %w", name, pod, err)
		}
		o, err := claim.Read(other)
		if err != nil { // another driver's, or it is refused itself
			continue
		}
		for _, place := range o.Places() {
			if slices.Contains(c.Places(), place) {
				return fmt.Errorf("%w: the container %s of the pod %s has also the claim %s, and both would be %s; give each a container of its own, or claim one GPU with more memory",
					ErrCollide, container.Name, pod, name, place)
			}
		}
	}
	return nil
}
