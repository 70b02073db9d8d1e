package overview

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"causeway/host/fleet/claim"
)

// Class is the class that host/fleet/deploy makes.
const Class = "causeway"

// classNames are the classes whose selectors name the driver.
func classNames(all []resourceapi.DeviceClass) []string {
	names := []string{Class}
	for i := range all {
		for _, s := range all[i].Spec.Selectors {
			if s.CEL != nil && strings.Contains(s.CEL.Expression, claim.Driver) {
				names = append(names, all[i].Name)
			}
		}
	}
	return names
}

// isOurs: the claim has a GPU of Causeway's, or asks for one.
func isOurs(c *resourceapi.ResourceClaim, classes []string) bool {
	if a := c.Status.Allocation; a != nil {
		return slices.ContainsFunc(a.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == claim.Driver })
	}
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		if r.Exactly != nil && slices.Contains(classes, r.Exactly.DeviceClassName) {
			return true
		}
		for _, sub := range r.FirstAvailable {
			if slices.Contains(classes, sub.DeviceClassName) {
				return true
			}
		}
	}
	return false
}

// claim adds one to the overview, and what it has to its GPUs.
func (f *Fleet) claim(c *resourceapi.ResourceClaim, about *index) {
	v := Claim{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), Created: c.CreationTimestamp.Time, State: Waiting,
		Memory: asked(c, claim.Memory, wholeGPU), Compute: asked(c, claim.Compute, "0")}
	if a := c.Status.Allocation; a != nil {
		v.State = Allocated
		for i := range a.Devices.Results {
			v.part(c, &a.Devices.Results[i], about)
		}
	}
	users := v.users(c, about)
	if v.State == Allocated && len(c.Status.ReservedFor) > 0 {
		v.State = InUse
	}
	v.explain(c, users, about)
	if c.DeletionTimestamp != nil {
		v.State = Leaving
	}
	f.Claims = append(f.Claims, v)
}

// asked is how much of a capacity each GPU of the claim was to have, as it is written, and the
// least where alternatives are named; none: it says nothing of it.
func asked(c *resourceapi.ResourceClaim, capacity resourceapi.QualifiedName, none string) string {
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			if q, ok := amount(r.Exactly.Capacity, capacity); ok {
				return q.String()
			}
			continue
		}
		var least []resource.Quantity
		for j := range r.FirstAvailable {
			q, ok := amount(r.FirstAvailable[j].Capacity, capacity)
			if !ok {
				var err error
				if q, err = resource.ParseQuantity(none); err != nil {
					// All of a GPU, which is more than any.
					continue
				}
			}
			least = append(least, q)
		}
		if len(least) > 0 {
			q := slices.MinFunc(least, func(a, b resource.Quantity) int { return a.Cmp(b) })
			return q.String()
		}
	}
	return none
}

// amount is what a request names of a capacity.
func amount(asks *resourceapi.CapacityRequirements, capacity resourceapi.QualifiedName) (resource.Quantity, bool) {
	if asks == nil {
		return resource.Quantity{}, false
	}
	for _, name := range []resourceapi.QualifiedName{capacity, claim.Driver + "/" + capacity} {
		if q, ok := asks.Requests[name]; ok {
			return q, true
		}
	}
	return resource.Quantity{}, false
}

// wholeGPU is what a claim asks for that names no amount.
const wholeGPU = "all"

func (v *Claim) part(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult, about *index) {
	if r.Driver != claim.Driver {
		return
	}
	p := Part{Node: nodeOf(r.Pool), Device: r.Device}
	for name, q := range r.ConsumedCapacity {
		n := uint64(max(q.Value(), 0))
		switch strings.TrimPrefix(string(name), claim.Driver+"/") {
		case claim.Memory:
			p.Memory = n
		case claim.Compute:
			p.Compute = n
		}
	}
	p.details(c, r)
	v.Parts = append(v.Parts, p)
	if g := about.gpus[[2]string{p.Node, p.Device}]; g != nil {
		g.Claimed += p.Memory
		g.Compute += p.Compute
		g.Claims++
	}
}

// users are the pods that have the claim or wait with it.
func (v *Claim) users(c *resourceapi.ResourceClaim, about *index) []*corev1.Pod {
	with := about.pods[[2]string{c.Namespace, c.Name}]
	for _, p := range with {
		v.Pods = append(v.Pods, p.Name)
	}
	for _, r := range c.Status.ReservedFor { // of those that may not be read
		if !slices.Contains(v.Pods, r.Name) {
			v.Pods = append(v.Pods, r.Name)
		}
	}
	slices.Sort(v.Pods)
	return with
}

// explain says why a claim waits or is refused: by the last event of it that says so, else of its
// pods.
func (v *Claim) explain(c *resourceapi.ResourceClaim, pods []*corev1.Pod, about *index) {
	last := about.refused[object{c.Namespace, c.UID}]
	if v.State == Waiting {
		for _, p := range pods {
			last = later(last, about.unscheduled[object{p.Namespace, p.UID}])
		}
	}
	switch {
	case v.State != Waiting:
		// An event stays for an hour: a pod that runs says that the node serves the claim after
		// all.
		running := slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		if last != nil && v.State == InUse && !running {
			v.State, v.Why = Refused, last.Message
		}
	case last != nil:
		v.Why = last.Message
	case len(v.Pods) == 0:
		v.Why = noPod
	default:
		v.Why = "the scheduler has not come to its pod yet"
	}
}

// noPod: Kubernetes allocates to claims of pods only.
const noPod = "no pod names it: Kubernetes gives a claim its GPU when a pod with it is scheduled"

// when an event happened last, by whichever field its writer sets.
func when(e *corev1.Event) time.Time {
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time, e.FirstTimestamp.Time} {
		if !t.IsZero() {
			return t
		}
	}
	return e.CreationTimestamp.Time
}
