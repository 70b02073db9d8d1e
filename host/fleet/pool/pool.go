package pool

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// Host is a GPU host of the fleet.
type Host struct {
	Name string
	// Nodes are the labels of the nodes that reach it and run causeway-dra.
	Nodes map[string]string
	// Local: it is the Node of its name, whose pods have its GPUs without a network.
	Local bool
	// Moves: its devices bind a claim to no node, so that pods of two nodes hold it while a VM
	// moves between them.
	Moves bool
}

// Taints of devices, besides those that nodes' drivers give (publish.TaintDrained,
// publish.TaintUnreachable). None ends what runs.
const (
	TaintRefused = claim.Driver + "/refused" // the host has just refused a claim
	TaintDriver  = claim.Driver + "/driver"  // causeway-dra does not run on the node
)

// Values of the attribute path.
const (
	Local   = "local"
	Network = "network"
)

// State is how a host is.
type State struct {
	GPUs []api.FleetGPU
	// Unreachable: its causewayd does not answer, and the rest is as it last was.
	Unreachable bool
	// NoDriver: causeway-dra does not run there.
	NoDriver bool
	// Refused are GPUs, by UUID, which get no new claims for a while.
	Refused map[string]bool
	// Elsewhere are GPUs, by UUID, that are offered by another: they are not offered here.
	Elsewhere map[string]string
	// Leaving: the host is not to be in the fleet any more.
	Leaving bool
}

// networkSuffix ends the name of a GPU's device for other hosts.
const networkSuffix = "-net"

// DeviceName is what a GPU's device for other hosts is called; "": it has no name that would do.
func DeviceName(g *api.GPU) string {
	if name := publish.DeviceName(g); name != "" {
		return name + networkSuffix
	}
	return ""
}

// Bounds of a slice.
const (
	perSlice        = 64 // devices, where taints or counters are used
	countersInSlice = resourceapi.ResourceSliceMaxCounterSets
)

// Pool is what the host offers.
func (h *Host) Pool(s *State) resourceslice.Pool {
	list := h.offered(s)
	if !h.Local {
		p := resourceslice.Pool{NodeSelector: h.selector(), Slices: []resourceslice.Slice{}}
		for part := range slices.Chunk(h.network(s, list), perSlice) {
			p.Slices = append(p.Slices, resourceslice.Slice{Devices: part})
		}
		if len(p.Slices) == 0 {
			p.Slices = append(p.Slices, resourceslice.Slice{})
		}
		return p
	}
	return h.bothWays(s, list)
}

// bothWays has each GPU twice, and counts that it is used once.
func (h *Host) bothWays(s *State, list []resourceapi.Device) resourceslice.Pool {
	each, p := true, resourceslice.Pool{}
	var counters []resourceapi.CounterSet
	for i := range list {
		counters = append(counters, resourceapi.CounterSet{Name: list[i].Name, Counters: map[string]resourceapi.Counter{attachment: {Value: resource.MustParse("1")}}})
	}
	for part := range slices.Chunk(counters, countersInSlice) {
		p.Slices = append(p.Slices, resourceslice.Slice{SharedCounters: part, PerDeviceNodeSelection: &each})
	}
	var devices []resourceapi.Device
	for _, d := range list {
		d.ConsumesCounters = consumes(d.Name)
		d.NodeName = &h.Name
		if s.NoDriver {
			d.Taints = append(slices.Clone(d.Taints), noNew(TaintDriver))
		}
		devices = append(devices, d)
	}
	for i, d := range h.network(s, list) {
		d.ConsumesCounters = consumes(list[i].Name)
		d.NodeSelector = h.selector()
		devices = append(devices, d)
	}
	for part := range slices.Chunk(devices, perSlice) {
		p.Slices = append(p.Slices, resourceslice.Slice{Devices: part, PerDeviceNodeSelection: &each})
	}
	if len(p.Slices) == 0 {
		p.Slices = append(p.Slices, resourceslice.Slice{PerDeviceNodeSelection: &each})
	}
	return p
}

// attachment counts the ways in which a GPU is used at a time.
const attachment = "attachment"

func consumes(set string) []resourceapi.DeviceCounterConsumption {
	return []resourceapi.DeviceCounterConsumption{{CounterSet: set, Counters: map[string]resourceapi.Counter{attachment: {Value: resource.MustParse("1")}}}}
}

// offered are the GPUs as the host's own node would publish them.
func (h *Host) offered(s *State) []resourceapi.Device {
	n := publish.Node{Name: h.Name, Unreachable: s.Unreachable}
	for i := range s.GPUs {
		g := s.GPUs[i].GPU
		if _, elsewhere := s.Elsewhere[g.ID]; elsewhere || s.Leaving {
			continue
		}
		g.Memory = s.GPUs[i].Claimable
		n.GPUs = append(n.GPUs, g)
	}
	list := n.Devices()
	for i := range list {
		if s.Refused[uuidOf(&list[i])] {
			list[i].Taints = append(list[i].Taints, noNew(TaintRefused))
		}
	}
	return list
}

// network are devices as other hosts' pods have them: a pod is bound when the host has said that
// there is a lease for its node.
func (h *Host) network(s *State, list []resourceapi.Device) []resourceapi.Device {
	var out []resourceapi.Device
	for _, d := range list {
		path, bound := Network, true
		d = *d.DeepCopy()
		d.Name += networkSuffix
		d.Attributes["path"] = resourceapi.DeviceAttribute{StringValue: &path}
		delete(d.Attributes, "numa") // is nothing to another host
		if !h.Moves {
			d.BindsToNode = &bound
		}
		d.BindingConditions, d.BindingFailureConditions = []string{claim.LeaseReady}, []string{claim.LeaseRefused}
		out = append(out, d)
	}
	return out
}

func noNew(key string) resourceapi.DeviceTaint {
	return resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule}
}

func uuidOf(d *resourceapi.Device) string {
	if a := d.Attributes["uuid"].StringValue; a != nil {
		return *a
	}
	return ""
}

// selector are the nodes that have the GPUs over the network. The host itself is none of them: a
// pod there has the GPU as its own.
func (h *Host) selector() *corev1.NodeSelector {
	var t corev1.NodeSelectorTerm
	for key, value := range h.Nodes {
		t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	slices.SortFunc(t.MatchExpressions, func(a, b corev1.NodeSelectorRequirement) int { return strings.Compare(a.Key, b.Key) })
	if h.Local {
		t.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{h.Name}}}
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{t}}
}

// GPUOf is the GPU of a device for other hosts, as far as what is published tells; false: it is no
// such device.
func GPUOf(d *resourceapi.Device) (api.FleetGPU, bool) {
	text := func(name resourceapi.QualifiedName) string {
		if a := d.Attributes[name].StringValue; a != nil {
			return *a
		}
		return ""
	}
	memory := d.Capacity[claim.Memory]
	n, ok := memory.Value.AsInt64()
	g := api.FleetGPU{GPU: api.GPU{ID: text("uuid"), Name: text("model"), Driver: text("driver"), Backend: text("backend"), NUMA: -1}}
	if a := d.Attributes["index"].IntValue; a != nil {
		g.Index = int(*a)
	}
	if !ok || n <= 0 || text("path") != Network || DeviceName(&g.GPU) != d.Name {
		return g, false
	}
	g.Memory, g.Claimable = uint64(n), uint64(n)
	return g, true
}
