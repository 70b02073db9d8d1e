package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"causeway/host/fleet/claim"
)

// Cluster is what the driver reads of the API server.
type Cluster interface {
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
}

// ErrCollide says that two claims would be in each other's place in a container.
var ErrCollide = errors.New("two claims in one container")

// alone refuses a claim that a container of this node's has beside another which would be in its place there: the runtime would let one of them win, and say nothing.
func (d *Driver) alone(ctx context.Context, rc *resourceapi.ResourceClaim, c *claim.Claim) error {
	if d.Cluster == nil {
		return nil
	}
	for _, user := range rc.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" {
			continue
		}
		pod, err := d.Cluster.Pod(ctx, rc.Namespace, user.Name)
		switch {
		case apierrors.IsNotFound(err): // deleted meanwhile
			continue
		case err != nil:
			return fmt.Errorf("the claim's pod %s: %w", user.Name, err)
		case pod.UID != user.UID || pod.Spec.NodeName != d.Node:
			continue
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if err := d.aloneIn(ctx, pod, &container, rc, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// aloneIn is alone for a container.
func (d *Driver) aloneIn(ctx context.Context, pod *corev1.Pod, container *corev1.Container, rc *resourceapi.ResourceClaim, c *claim.Claim) error {
	var names []string // claims, each once
	for _, used := range container.Resources.Claims {
		if name := claim.OfPod(pod, used.Name); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if name := extended(pod, container); name != "" && !slices.Contains(names, name) {
		names = append(names, name)
	}
	if !slices.Contains(names, rc.Name) {
		return nil
	}
	for _, name := range names {
		if name == rc.Name {
			continue
		}
		other, err := d.Cluster.Claim(ctx, rc.Namespace, name)
		switch {
		case apierrors.IsNotFound(err): // this one's pod will not start
			continue
		case err != nil:
			return fmt.Errorf("the claim %s of the pod %s: %w", name, pod.Name, err)
		}
		o, err := claim.Read(other)
		if err != nil { // another driver's, or it is refused itself
			continue
		}
		for _, place := range o.Places() {
			if slices.Contains(c.Places(), place) {
				return fmt.Errorf("%w: the container %s of the pod %s has also the claim %s, and both would be %s; give each a container of its own, or claim one GPU with more memory",
					ErrCollide, container.Name, pod.Name, name, place)
			}
		}
	}
	return nil
}

// extended is the claim that the scheduler has made for what a container asks of a class as an extended resource (deviceclass.resource.kubernetes.io/CLASS); "": it asks for none.
func extended(pod *corev1.Pod, container *corev1.Container) string {
	made := pod.Status.ExtendedResourceClaimStatus
	if made == nil || !slices.ContainsFunc(made.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool { return m.ContainerName == container.Name }) {
		return ""
	}
	return made.ResourceClaimName
}
