package claim

import corev1 "k8s.io/api/core/v1"

// OfPod is the claim that a pod calls so; "": none.
func OfPod(pod *corev1.Pod, name string) string {
	for _, r := range pod.Spec.ResourceClaims {
		if r.Name == name && r.ResourceClaimName != nil {
			return *r.ResourceClaimName
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name == name && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return ""
}
