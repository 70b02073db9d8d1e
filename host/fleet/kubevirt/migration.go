package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"causeway/host/fleet/claim"
)

// ErrStays says that a VM may not be migrated now.
var ErrStays = errors.New("the VM stays where it is")

func stays(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrStays, fmt.Errorf(format, args...))
}

// CheckMigration says why a VM may not be migrated. KubeVirt takes every virtiofs filesystem for
// one that moves; a vGPU moves while no program has a session with it, to a GPU of the other node
// that another claim of the same template brings, and with its programs where the claim says
// vm.migratable, unless one of them has what cannot be moved. A GPU of another host that binds its
// claim to no node stays where it is, and the VM moves with its programs. A VM without vGPUs may go
// where it likes.
func CheckMigration(ctx context.Context, c Cluster, namespace string, m *Migration) error {
	pods, err := c.Launchers(ctx, namespace)
	if err != nil {
		return fmt.Errorf("the pods of the VM %s/%s: %w", namespace, m.VMI, err)
	}
	for i := range pods {
		pod := &pods[i]
		if pod.Annotations[domainAnnotation] != m.VMI || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if err := checkPod(ctx, c, pod); err != nil {
			return err
		}
	}
	return nil
}

func checkPod(ctx context.Context, c Cluster, pod *corev1.Pod) error {
	ref := pod.Labels[Label]
	name := claim.OfPod(pod, ref)
	if name == "" { // nothing is there yet that could be lost
		return nil
	}
	rc, err := c.Claim(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the claim %s/%s of the VM's vGPUs: %w", pod.Namespace, name, err)
	}
	if rc.Status.Allocation == nil {
		return nil
	}
	direct := slices.ContainsFunc(pod.Spec.ResourceClaims, func(r corev1.PodResourceClaim) bool { return r.Name == ref && r.ResourceClaimName != nil })
	_, bound := claim.NodeOf(rc.Status.Allocation)
	for i := range rc.Status.Allocation.Devices.Results {
		r := &rc.Status.Allocation.Devices.Results[i]
		if r.Driver != claim.Driver {
			continue
		}
		said := sessions(rc, r)
		is := said.Status
		switch {
		case direct && claim.OnNetwork(r) && !bound:
			// Its pods of two nodes have it while the VM moves, with its programs.
		case direct: // for one node, also where the GPU is another host's: its lease is
			return stays("its claim %s/%s holds the GPU %s of %s for the node %s; with a resourceClaimTemplateName in place of a resourceClaimName it could have another's",
				pod.Namespace, name, r.Device, r.Pool, pod.Spec.NodeName)
		case is == metav1.ConditionTrue && claim.Migratable(rc, r):
			if said.Reason == claim.ProgramsStay {
				return stays("programs in it have sessions with the GPU %s of %s, and not all of it can be moved now: %s", r.Device, r.Pool, said.Message)
			}
		case is == metav1.ConditionTrue:
			return stays("programs in it have sessions with the GPU %s of %s, which would end: end the programs, or shut the VM down, and migrate then; VMs with a claim of the class %s move with their programs",
				r.Device, r.Pool, ClassMigratable)
		case claim.OnNetwork(r) && !bound: // nobody says it of these
			return stays("its claim %s/%s is of a template, and the VM would leave the GPU %s of %s, where its programs are: with a resourceClaimName in place of a resourceClaimTemplateName it moves with them",
				pod.Namespace, name, r.Device, r.Pool)
		case is != metav1.ConditionFalse:
			return stays("nobody says whether programs in it have sessions with the GPU %s of %s: is causeway-dra running on the VM's node?", r.Device, r.Pool)
		}
	}
	return nil
}

// sessions says whether programs have any with a device of a claim, by its node's word.
func sessions(rc *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) metav1.Condition {
	for i := range rc.Status.Devices {
		d := &rc.Status.Devices[i]
		if d.Driver != r.Driver || d.Pool != r.Pool || d.Device != r.Device || !claim.SameShare(d.ShareID, r.ShareID) {
			continue
		}
		for _, c := range d.Conditions {
			if c.Type == claim.Sessions {
				return c
			}
		}
	}
	return metav1.Condition{Status: metav1.ConditionUnknown}
}
