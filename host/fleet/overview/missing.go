package overview

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Missing is a claim that a pod names and its namespace has not.
type Missing struct {
	Namespace, Pod string
	UID            types.UID // of the pod
	Claim          string
}

// MissingClaims are those that pods wait for which are not scheduled yet. Kubernetes 1.36 keeps
// such a pod out of scheduling, and says so nowhere. Claims of templates are made by Kubernetes,
// which has an event where it cannot.
func MissingClaims(pods []corev1.Pod, claims []resourceapi.ResourceClaim) []Missing {
	there := make(map[[2]string]bool, len(claims))
	for i := range claims {
		there[[2]string{claims[i].Namespace, claims[i].Name}] = true
	}
	var list []Missing
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != "" || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, r := range p.Spec.ResourceClaims {
			if r.ResourceClaimName != nil && !there[[2]string{p.Namespace, *r.ResourceClaimName}] {
				list = append(list, Missing{p.Namespace, p.Name, p.UID, *r.ResourceClaimName})
			}
		}
	}
	slices.SortFunc(list, func(a, b Missing) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Claim, b.Claim))
	})
	return slices.Compact(list)
}
