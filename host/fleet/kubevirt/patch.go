package kubevirt

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// operation is one of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Patch is the swap as a JSON patch of the pod. It names single fields: what a newer API server
// knows of containers beside stays.
func (s *Swap) Patch(pod *corev1.Pod) ([]byte, error) {
	var list []operation
	to := fmt.Sprintf("/spec/containers/%d", s.compute)
	if !s.held {
		list = append(list, operation{"test", to + "/name", compute})
		claims := slices.Clone(pod.Spec.Containers[s.compute].Resources.Claims)
		claims = append(claims, corev1.ResourceClaim{Name: s.Claim.Name})
		if isEmpty(&pod.Spec.Containers[s.compute].Resources) { // the field itself may be missing
			list = append(list, operation{"add", to + "/resources", map[string]any{"claims": claims}})
		} else {
			list = append(list, operation{"add", to + "/resources/claims", claims})
		}
	}
	for _, i := range slices.Backward(s.remove) { // from the end: each removal moves those behind
		at := fmt.Sprintf("/spec/containers/%d", i)
		list = append(list, operation{"test", at + "/name", pod.Spec.Containers[i].Name}, operation{Op: "remove", Path: at})
	}
	return json.Marshal(list)
}

func isEmpty(r *corev1.ResourceRequirements) bool {
	return len(r.Claims) == 0 && len(r.Limits) == 0 && len(r.Requests) == 0
}
