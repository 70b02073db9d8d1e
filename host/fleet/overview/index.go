package overview

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/fleet/claim"
)

// index finds what concerns a claim, so that a fleet's claims are not held against all of its pods
// and events each.
type index struct {
	gpus map[[2]string]*GPU // by node and device
	// That have not ended, by the namespace and name of claims that they name.
	pods        map[[2]string][]*corev1.Pod
	refused     map[object]*corev1.Event // the last warning of a claim
	unscheduled map[object]*corev1.Event // the last word of the scheduler of why a pod waits
}

// object is what an event is of. Who may make events in a namespace can name any UID in them: those
// of other namespaces' objects say nothing.
type object struct {
	namespace string
	uid       types.UID
}

// newIndex is of a fleet whose nodes are all there.
func newIndex(f *Fleet, pods []corev1.Pod, events []corev1.Event) *index {
	x := &index{gpus: map[[2]string]*GPU{}, pods: map[[2]string][]*corev1.Pod{}, refused: map[object]*corev1.Event{}, unscheduled: map[object]*corev1.Event{}}
	for i := range f.Nodes {
		for j := range f.Nodes[i].GPUs {
			key := [2]string{f.Nodes[i].Name, f.Nodes[i].GPUs[j].Device}
			if x.gpus[key] == nil { // one device in two slices is the first
				x.gpus[key] = &f.Nodes[i].GPUs[j]
			}
		}
	}
	for i := range pods {
		p := &pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		seen := map[string]bool{}
		for _, r := range p.Spec.ResourceClaims {
			if name := claim.OfPod(p, r.Name); name != "" && !seen[name] {
				seen[name] = true
				key := [2]string{p.Namespace, name}
				x.pods[key] = append(x.pods[key], p)
			}
		}
	}
	for i := range events {
		e := &events[i]
		of := object{e.Namespace, e.InvolvedObject.UID}
		switch o := &e.InvolvedObject; {
		case o.Kind == "ResourceClaim" && e.Type == corev1.EventTypeWarning:
			x.refused[of] = later(x.refused[of], e)
		case o.Kind == "Pod" && e.Reason == "FailedScheduling":
			x.unscheduled[of] = later(x.unscheduled[of], e)
		}
	}
	return x
}

// later is the event that happened last; of two at once the second.
func later(a, b *corev1.Event) *corev1.Event {
	if a == nil || b != nil && when(b).Compare(when(a)) >= 0 {
		return b
	}
	return a
}

// Lacking is a pod that names a claim which its namespace has not, as where it is another
// namespace's.
type Lacking struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Claim     string `json:"claim"`
}

// lacking finds pods that no node has and whose claims are not among those that there are, of
// whatever driver.
func lacking(pods []corev1.Pod, all []resourceapi.ResourceClaim) (list []Lacking) {
	there := make(map[[2]string]bool, len(all))
	for i := range all {
		there[[2]string{all[i].Namespace, all[i].Name}] = true
	}
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
			continue
		}
		for _, r := range p.Spec.ResourceClaims {
			if r.ResourceClaimName != nil && !there[[2]string{p.Namespace, *r.ResourceClaimName}] {
				list = append(list, Lacking{p.Namespace, p.Name, *r.ResourceClaimName})
			}
		}
	}
	slices.SortFunc(list, func(a, b Lacking) int {
		return slices.Compare([]string{a.Namespace, a.Pod, a.Claim}, []string{b.Namespace, b.Pod, b.Claim})
	})
	return list
}
