package overview

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"causeway/host/fleet/claim"
	"causeway/host/limit"
)

// ErrWaited says that a wait has come to its end.
var ErrWaited = errors.New("the time is up")

// Paths to a GPU.
const (
	Local   = "local"
	Network = "network" // also the state of a GPU host that is no node
)

// Ask is what a person wants of a claim.
type Ask struct {
	Namespace, Name, Class string
	Memory                 string // as 16GiB, or 16Gi; "": all that one GPU has
	Compute                uint32 // hundredths of the GPU's time that are promised
	Cap                    uint32 // most hundredths; 0: no cap
	Count                  int    // GPUs, of one host
	VM                     bool   // for QEMU in a pod, not for programs of a container
	Path                   string // "": any
}

// Claim is the object, as the API server takes it. What could never be served is refused here,
// where who asks sees it.
func (a *Ask) Claim() (*resourceapi.ResourceClaim, error) {
	switch {
	case a.Path != "" && a.Path != Local && a.Path != Network:
		return nil, fmt.Errorf("--path %q: use %s or %s", a.Path, Local, Network)
	case a.Compute > claim.MostCompute:
		return nil, fmt.Errorf("--compute %d: use 0 to %d, hundredths of a GPU's time", a.Compute, claim.MostCompute)
	case a.Count < 1 || a.Count > resourceapi.AllocationResultsMaxSize:
		return nil, fmt.Errorf("--count %d: use 1 to %d", a.Count, resourceapi.AllocationResultsMaxSize)
	case a.Count > 1 && !a.VM:
		return nil, fmt.Errorf("--count %d: a container gets one GPU: make a claim for each container, or add --vm for QEMU in a pod", a.Count)
	}
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: a.Class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(a.Count),
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			claim.Compute: *resource.NewQuantity(int64(a.Compute), resource.DecimalSI)}}}
	if a.Memory != "" {
		n, err := memory(a.Memory)
		if err != nil {
			return nil, fmt.Errorf("--memory: %w", err)
		}
		exactly.Capacity.Requests[claim.Memory] = *resource.NewQuantity(n, resource.BinarySI)
	}
	if a.Path != "" {
		exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes[%q].path == %q", claim.Driver, a.Path)}}}
	}
	c := &resourceapi.ResourceClaim{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}}
	c.Namespace, c.Name = a.Namespace, a.Name
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}
	if a.Count > 1 {
		host, uuid := resourceapi.FullyQualifiedName(claim.Driver+"/host"), resourceapi.FullyQualifiedName(claim.Driver+"/uuid")
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &host}, {DistinctAttribute: &uuid}}
	}
	return c, a.parameters(c)
}

// memory is a size that claims are counted in. Who has a manifest before him writes it as there,
// 16Gi.
func memory(text string) (int64, error) {
	size := text
	if t := strings.TrimSpace(text); strings.HasSuffix(t, "Mi") || strings.HasSuffix(t, "Gi") || strings.HasSuffix(t, "Ti") {
		size = t + "B"
	}
	n, err := limit.ParseSize(size)
	switch {
	case err != nil:
		return 0, err
	case n > math.MaxInt64:
		return 0, fmt.Errorf("%q is more than Kubernetes counts", text)
	case n%(1<<20) != 0:
		return 0, fmt.Errorf("%q: claims are counted in steps of 1MiB", text)
	}
	return int64(n), limit.Memory(n).Check()
}

// parameters adds those that no quota counts.
func (a *Ask) parameters(c *resourceapi.ResourceClaim) error {
	if !a.VM && a.Cap == 0 {
		return nil
	}
	p := map[string]any{"apiVersion": claim.APIVersion, "kind": claim.Kind}
	if a.VM {
		p["serves"] = claim.VirtualMachine
	}
	if a.Cap != 0 {
		p["cap"] = a.Cap
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if _, err := claim.ParseParameters(raw); err != nil {
		return err
	}
	c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver, Parameters: runtime.RawExtension{Raw: raw}}}}}
	return nil
}

// AwaitAllocated waits until a claim has its GPU, and says why it has not whenever the reason is
// another.
func AwaitAllocated(ctx context.Context, c Cluster, namespace, name string, say func(string)) error {
	return until(ctx, func() (string, bool, error) {
		f, err := Read(ctx, c, namespace)
		if err != nil {
			return "", false, err
		}
		for i := range f.Claims {
			if f.Claims[i].Name == name && f.Claims[i].Namespace == namespace {
				return f.progress(&f.Claims[i])
			}
		}
		return "", false, fmt.Errorf("the claim %s/%s is gone: somebody deleted it", namespace, name)
	}, say)
}

// progress is how it stands with a claim, in a sentence.
func (f *Fleet) progress(c *Claim) (string, bool, error) {
	switch {
	case c.State == Leaving:
		return "", false, fmt.Errorf("the claim %s is being deleted", c.Key())
	case c.State == Refused:
		return "", false, fmt.Errorf("the claim %s has a GPU of %s, and its node refuses it: %s", c.Key(), c.Parts[0].Node, c.Why)
	case c.State != Waiting:
		text := c.Key() + " has"
		for i, p := range c.Parts {
			if i > 0 {
				text += " and"
			}
			text += fmt.Sprintf(" %s of %s on %s", limit.FormatSize(p.Memory), p.Device, p.Node)
		}
		return text, true, nil
	}
	return "waits: " + strings.TrimSuffix(c.Why, ".") + f.room(c) + f.away(c), false, nil
}

// room adds what a claim waits for, where no GPU is large enough or free enough; "": it is
// something else. What claims have that were not read (of other namespaces) is not taken off.
func (f *Fleet) room(c *Claim) string {
	memory, err := resource.ParseQuantity(c.Memory)
	if err != nil { // all of a GPU
		return ""
	}
	compute, _ := resource.ParseQuantity(c.Compute)
	var free, all, unpromised uint64
	want, part := uint64(max(memory.Value(), 0)), uint64(max(compute.Value(), 0))
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for j := range n.GPUs {
			g := &n.GPUs[j]
			all = max(all, g.Memory)
			if n.Away() {
				continue
			}
			free = max(free, g.Free())
			if g.Free() >= want {
				unpromised = max(unpromised, claim.MostCompute-min(claim.MostCompute, g.Compute))
			}
		}
	}
	switch {
	case all == 0:
		return "; the fleet offers no GPU (is causeway-dra running on a node with GPUs?)"
	case want > all:
		return fmt.Sprintf("; it asks for %s, and the largest GPU of the fleet has %s: ask for less, or add a larger GPU", limit.FormatSize(want), limit.FormatSize(all))
	case want > free:
		return fmt.Sprintf("; it asks for %s, and no GPU has more than %s free: wait, or ask for less", limit.FormatSize(want), limit.FormatSize(free))
	case part > unpromised:
		return fmt.Sprintf("; it asks for %d hundredths of a GPU's time, and no GPU with room has more than %d left: wait, or ask for less", part, unpromised)
	}
	return ""
}

// away names the nodes that take no pods, which a claim may wait for.
func (f *Fleet) away(c *Claim) string {
	want, err := resource.ParseQuantity(c.Memory)
	var names []string
	large := false
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Away() {
			names = append(names, n.Name)
		}
		for j := range n.GPUs {
			large = large || n.GPUs[j].Memory >= uint64(max(want.Value(), 0))
		}
	}
	if err != nil || !large || len(names) == 0 {
		return ""
	}
	return "; these nodes take no pods (`causeway-fleet ls` says why): " + strings.Join(names, ", ")
}
