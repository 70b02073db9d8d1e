package publish

import (
	"math"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/limit"
)

// Taints of devices. All keep new claims away and none ends what runs: a VM's programs may go on
// with a GPU that gets no new ones.
const (
	// An operator, or a fault, keeps new vGPUs away from it.
	TaintDrained     = claim.Driver + "/drained"
	TaintUnreachable = claim.Driver + "/unreachable" // the node's causewayd does not answer
)

// Node is what a node offers.
type Node struct {
	Name string
	GPUs []api.GPU
	// VGPUs are all of the node's: what was promised to others than claims is not there for claims.
	VGPUs []api.VGPU
	// Unreachable: causewayd does not answer any more, and the rest is as it last was.
	Unreachable bool
}

// DrainedFault is TaintDrained's value where a fault drained the GPU, drainedByPerson where
// somebody did.
const (
	DrainedFault    = "fault"
	drainedByPerson = "operator"
)

// step is what a claim's memory is counted in. The smallest claim on a real GPU has room for a CUDA
// context.
const (
	step     = 1 << 20
	mostText = 64 // bytes of an attribute
	perSlice = 64 // devices, where taints are used
)

// Resources are the node's pool, of the node's name.
func (n *Node) Resources() resourceslice.DriverResources {
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{}}
	for part := range slices.Chunk(n.Devices(), perSlice) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: part})
	}
	if len(pool.Slices) == 0 {
		pool.Slices = append(pool.Slices, resourceslice.Slice{}) // it runs, and has none
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{n.Name: pool}}
}

// DeviceName is what a GPU's device is called: its UUID, as Kubernetes writes names; "": it has
// none that would do.
func DeviceName(g *api.GPU) string {
	name := strings.ToLower(g.ID)
	if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Trim(name, "-") != name {
		return ""
	}
	return name
}

// Devices are those of the node, by the GPUs' numbers. A GPU that is divided into MIG slices is not
// offered, nor one without room for any claim.
func (n *Node) Devices() []resourceapi.Device {
	var list []resourceapi.Device
	gpus := slices.Clone(n.GPUs)
	slices.SortStableFunc(gpus, func(a, b api.GPU) int { return a.Index - b.Index })
	for i := range gpus {
		g := &gpus[i]
		if len(g.MIG) > 0 || DeviceName(g) == "" {
			continue
		}
		if d, ok := n.device(g); ok {
			list = append(list, d)
		}
	}
	return list
}

func (n *Node) device(g *api.GPU) (resourceapi.Device, bool) {
	least := uint64(limit.GPU{Soft: g.Backend == "soft", Name: g.Name, Memory: g.Memory}.Least())
	memory := n.memory(g)
	if memory < least {
		return resourceapi.Device{}, false
	}
	shared := true
	d := resourceapi.Device{
		Name:                     DeviceName(g),
		AllowMultipleAllocations: &shared,
		Attributes:               n.attributes(g),
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			claim.Memory:  capacity(memory, memory, least, step, resource.BinarySI),
			claim.Compute: capacity(claim.MostCompute, 0, 0, 1, resource.DecimalSI),
		},
	}
	taint := func(key, value string) {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if g.Drained {
		reason := DrainedFault
		if strings.HasPrefix(g.Why, drainedBy) {
			reason = drainedByPerson
		}
		taint(TaintDrained, reason)
	}
	if n.Unreachable {
		taint(TaintUnreachable, "")
	}
	return d, true
}

// drainedBy begins causewayd's reason where a person drained a GPU.
const drainedBy = "drained by "

// memory is what claims may have of a GPU: all that nobody else was promised, in whole steps.
func (n *Node) memory(g *api.GPU) uint64 {
	left := min(g.Memory, math.MaxInt64)
	for i := range n.VGPUs {
		v := &n.VGPUs[i]
		if _, is := claim.UIDOf(v.Spec.VM); is || !slices.Contains(strings.Split(v.GPU, ","), g.ID) {
			continue
		}
		promised := v.Spec.Memory
		if promised == 0 { // all of it
			return 0
		}
		left -= min(left, promised)
	}
	return left / step * step
}

func capacity(value, unnamed, least, step uint64, format resource.Format) resourceapi.DeviceCapacity {
	q := func(n uint64) *resource.Quantity { return resource.NewQuantity(int64(n), format) }
	return resourceapi.DeviceCapacity{Value: *q(value), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: q(unnamed), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q(least), Step: q(step), Max: q(value)},
	}}
}

func (n *Node) attributes(g *api.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	m := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for name, value := range map[resourceapi.QualifiedName]string{"model": g.Name, "driver": g.Driver, "uuid": g.ID, "host": n.Name, "backend": g.Backend, "path": "local"} {
		if text := attribute(value); text != "" {
			m[name] = resourceapi.DeviceAttribute{StringValue: &text}
		}
	}
	number := func(name resourceapi.QualifiedName, n int) {
		v := int64(n)
		m[name] = resourceapi.DeviceAttribute{IntValue: &v}
	}
	number("index", g.Index)
	if g.NUMA >= 0 {
		number("numa", g.NUMA)
	}
	return m
}

// attribute is a text as an attribute may have it.
func attribute(s string) string {
	if len(s) > mostText {
		s = s[:mostText]
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s))
}
