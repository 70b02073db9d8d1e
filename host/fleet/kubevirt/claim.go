package kubevirt

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"causeway/host/fleet/claim"
)

// Cluster is what is read of the API server.
type Cluster interface {
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	Template(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaimTemplate, error)
	Class(ctx context.Context, name string) (*resourceapi.DeviceClass, error)
	// Launchers are the pods of a namespace for which IsLauncher holds.
	Launchers(ctx context.Context, namespace string) ([]corev1.Pod, error)
}

// CheckClaim says why QEMU would not find its sockets where KubeVirt has them: the claim is
// another's, for containers, or of another number of GPUs. Otherwise the VM would stop in its
// start, with a connection refused as the reason.
func (s *Swap) CheckClaim(ctx context.Context, c Cluster, namespace string) error {
	what, devices, err := specOf(ctx, c, namespace, &s.Claim)
	if err != nil {
		return err
	}
	n := 0
	for i := range devices.Requests {
		r := &devices.Requests[i]
		count, err := countOf(ctx, c, devices, r)
		if err != nil {
			return wrong("%s, request %q: %w", what, r.Name, err)
		}
		n += count
	}
	if n != s.VGPUs {
		return wrong("%s is for %d GPUs of Causeway's, and the VM has %d filesystems gpu0 and on: they have to be as many", what, n, s.VGPUs)
	}
	return nil
}

// specOf is what a pod's claim asks for, by its template or as it is.
func specOf(ctx context.Context, c Cluster, namespace string, ref *corev1.PodResourceClaim) (what string, _ *resourceapi.DeviceClaim, err error) {
	switch {
	case ref.ResourceClaimTemplateName != nil:
		what = fmt.Sprintf("the ResourceClaimTemplate %s/%s", namespace, *ref.ResourceClaimTemplateName)
		t, err := c.Template(ctx, namespace, *ref.ResourceClaimTemplateName)
		if err != nil {
			return "", nil, missing(what, err)
		}
		return what, &t.Spec.Spec.Devices, nil
	case ref.ResourceClaimName != nil:
		what = fmt.Sprintf("the ResourceClaim %s/%s", namespace, *ref.ResourceClaimName)
		rc, err := c.Claim(ctx, namespace, *ref.ResourceClaimName)
		if err != nil {
			return "", nil, missing(what, err)
		}
		return what, &rc.Spec.Devices, nil
	}
	return "", nil, wrong("the claim %q names neither a ResourceClaim nor a template", ref.Name)
}

func missing(what string, err error) error {
	if apierrors.IsNotFound(err) {
		return wrong("there is no such object: %s", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// countOf is how many vGPUs for KubeVirt a request brings; 0: it is another driver's.
func countOf(ctx context.Context, c Cluster, devices *resourceapi.DeviceClaim, r *resourceapi.DeviceRequest) (int, error) {
	if e := r.Exactly; e != nil {
		return countOne(ctx, c, devices, r.Name, e.DeviceClassName, e.AllocationMode, e.Count)
	}
	first := -1
	for i := range r.FirstAvailable {
		sub := &r.FirstAvailable[i]
		n, err := countOne(ctx, c, devices, r.Name+"/"+sub.Name, sub.DeviceClassName, sub.AllocationMode, sub.Count)
		if err != nil {
			return 0, fmt.Errorf("alternative %q: %w", sub.Name, err)
		}
		if first >= 0 && n != first {
			return 0, fmt.Errorf("its alternatives are of %d and %d GPUs: a VM has as many as its filesystems", first, n)
		}
		first = n
	}
	return max(first, 0), nil
}

func countOne(ctx context.Context, c Cluster, devices *resourceapi.DeviceClaim, request, className string, mode resourceapi.DeviceAllocationMode, count int64) (int, error) {
	class, err := c.Class(ctx, className)
	if err != nil {
		return 0, missing("the DeviceClass "+className, err)
	}
	if !isOurs(class) {
		return 0, nil
	}
	if mode == resourceapi.DeviceAllocationModeAll {
		return 0, fmt.Errorf("allocationMode All: a VM has as many GPUs as its filesystems, use a count")
	}
	p, err := claim.ParametersOf(request, class.Spec.Config, devices.Config)
	switch {
	case err != nil:
		return 0, err
	case p.Serves != claim.VirtualMachine:
		return 0, fmt.Errorf("it is for programs of a container: use a class for KubeVirt (%s), or parameters with serves: %s and vm.folder: %s", Class, claim.VirtualMachine, SocketFolder)
	case p.Folder != SocketFolder:
		return 0, fmt.Errorf("vm.folder is %s, and KubeVirt has its sockets in %s: use the class %s", p.Folder, SocketFolder, Class)
	case p.User != User:
		return 0, fmt.Errorf("vm.runAsUser is %d, and KubeVirt runs QEMU as %d: leave it out", p.User, User)
	}
	return int(max(count, 1)), nil
}

// Classes of host/fleet/deploy that say all this of a claim; of the second VMs move with their
// programs.
const (
	Class           = "causeway-kubevirt"
	ClassMigratable = "causeway-kubevirt-migratable"
)

// isOurs: devices of the class are Causeway's, by its selectors or its parameters.
func isOurs(class *resourceapi.DeviceClass) bool {
	for _, s := range class.Spec.Selectors {
		if s.CEL != nil && strings.Contains(s.CEL.Expression, claim.Driver) {
			return true
		}
	}
	for _, c := range class.Spec.Config {
		if c.Opaque != nil && c.Opaque.Driver == claim.Driver {
			return true
		}
	}
	return false
}
