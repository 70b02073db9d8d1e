package overview

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"causeway/host/fleet/claim"
)

// Details of a vGPU that stand in its claim's status; "": nobody says.
const (
	Open    = "open"    // programs of the VM have sessions
	None    = "none"    // none has
	Held    = "ready"   // the GPU is another host's, and its lease is there
	Refuses = "refused" // the GPU's host has no room for it
	Asked   = "asked"   // the lease is waited for
)

// details adds what the claim's status says of one of its devices.
func (p *Part) details(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
	if claim.OnNetwork(r) {
		p.Lease = Asked
	}
	status := claim.StatusOf(c, r)
	if status == nil {
		return
	}
	for _, is := range status.Conditions {
		switch {
		case is.Type == claim.Sessions && is.Status == metav1.ConditionTrue:
			p.Sessions = Open
		case is.Type == claim.Sessions && is.Status == metav1.ConditionFalse:
			p.Sessions = None
		case is.Type == claim.LeaseReady && is.Status == metav1.ConditionTrue:
			p.Lease = Held
		case is.Type == claim.LeaseRefused && is.Status == metav1.ConditionTrue:
			p.Lease = Refuses
		}
	}
}

// Move is a VM of KubeVirt's that is on its way: two pods are of it.
type Move struct {
	Namespace string `json:"namespace"`
	VM        string `json:"vm"`
	From      string `json:"from"` // nodes; "": none yet
	To        string `json:"to"`
}

// moves finds VMs with vGPUs that have a pod which runs and a newer one.
func moves(pods []corev1.Pod) []Move {
	byVM := map[[2]string][]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		vm := p.Annotations["kubevirt.io/domain"]
		if vm == "" || p.Labels["causeway.dev/vgpu"] == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil {
			continue
		}
		byVM[[2]string{p.Namespace, vm}] = append(byVM[[2]string{p.Namespace, vm}], p)
	}
	list := []Move{}
	for vm, of := range byVM {
		if len(of) < 2 {
			continue
		}
		slices.SortFunc(of, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		list = append(list, Move{vm[0], vm[1], of[0].Spec.NodeName, of[len(of)-1].Spec.NodeName})
	}
	slices.SortFunc(list, func(a, b Move) int { return slices.Compare([]string{a.Namespace, a.VM}, []string{b.Namespace, b.VM}) })
	return list
}

// Wanted is what claims wait for.
type Wanted struct {
	Claims int
	Least  uint64 // bytes that the smallest of those asks for that name an amount; 0: none does
	Whole  bool   // one asks for all of a GPU
}

// Wanted is what claims wait for now.
func (f *Fleet) Wanted() (w Wanted) {
	for i := range f.Claims {
		c := &f.Claims[i]
		if c.State != Waiting {
			continue
		}
		w.Claims++
		if c.Memory == wholeGPU {
			w.Whole = true
			continue
		}
		if q, err := resource.ParseQuantity(c.Memory); err == nil && q.Sign() > 0 && (w.Least == 0 || uint64(q.Value()) < w.Least) {
			w.Least = uint64(q.Value())
		}
	}
	return w
}

// Stranded are bytes of a GPU that are free while claims wait, and too few for any of them.
func (w Wanted) Stranded(n *Node, g *GPU) uint64 {
	free := g.Free()
	switch {
	case w.Claims == 0, n.Away():
		return 0
	case w.Least != 0 && w.Least <= free, w.Whole && free == g.Memory:
		return 0
	}
	return free
}
