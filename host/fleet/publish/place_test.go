package publish

import (
	"cmp"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// cluster is the scheduler's own allocator over what nodes publish, without a server.
type cluster struct {
	t       *testing.T
	nodes   []*Node
	state   structured.AllocatedState
	claimed int
	lies    []*resourceapi.ResourceSlice
}

type classes struct{}

var class = resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "causeway"}, Spec: resourceapi.DeviceClassSpec{
	Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == '" + claim.Driver + "'"}}}}}

func (classes) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{&class}, nil
}

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if name != class.Name {
		return nil, fmt.Errorf("there is no class %s", name)
	}
	return &class, nil
}

func newCluster(t *testing.T, nodes ...*Node) *cluster {
	return &cluster{t: t, nodes: nodes, state: structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}}
}

// ask is a request; its amounts are "" where it names none.
type ask struct {
	memory, compute string
	qualified       bool // their names have the driver's ahead
	count           int64
	distinct        bool
	selector        string
	class           string
}

func (c *cluster) slices() (list []*resourceapi.ResourceSlice) {
	list = append(list, c.lies...)
	for _, n := range c.nodes {
		for name, pool := range n.Resources().Pools {
			for i, s := range pool.Slices {
				list = append(list, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, i)}, Spec: resourceapi.ResourceSliceSpec{
					Driver: claim.Driver, NodeName: &n.Name, Devices: s.Devices, Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))}}})
			}
		}
	}
	return list
}

func (a ask) claim(n int) *resourceapi.ResourceClaim {
	amounts := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, text := range map[resourceapi.QualifiedName]string{claim.Memory: a.memory, claim.Compute: a.compute} {
		if a.qualified {
			name = claim.Driver + "/" + name
		}
		if text != "" {
			amounts[name] = resource.MustParse(text)
		}
	}
	r := resourceapi.ExactDeviceRequest{DeviceClassName: cmp.Or(a.class, class.Name), AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: max(a.count, 1),
		Capacity: &resourceapi.CapacityRequirements{Requests: amounts}}
	if a.selector != "" {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: a.selector}}}
	}
	out := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: types.UID(fmt.Sprintf("0-%d", n))}}
	out.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &r}}
	if a.distinct {
		uuid := resourceapi.FullyQualifiedName(claim.Driver + "/uuid")
		out.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: &uuid}}
	}
	return out
}

// place allocates on a node; nil: there is no room. What it gives the driver reads as it was asked.
func (c *cluster) place(node string, a ask) *claim.Claim {
	c.t.Helper()
	read, err := c.allocate(node, a)
	if err != nil {
		c.t.Fatal(err)
	}
	return read
}

// allocate is place; an error is what the scheduler's allocator, or this driver, says of the claim.
func (c *cluster) allocate(node string, a ask) (*claim.Claim, error) {
	c.t.Helper()
	c.claimed++
	rc := a.claim(c.claimed)
	allocator, err := structured.NewAllocator(c.t.Context(), structured.Features{ConsumableCapacity: true, DeviceTaints: true, PrioritizedList: true, PartitionableDevices: true},
		c.state, classes{}, c.slices(), cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		c.t.Fatal(err)
	}
	got, err := allocator.Allocate(c.t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, []*resourceapi.ResourceClaim{rc})
	if err != nil || len(got) == 0 {
		return nil, err
	}
	for _, r := range got[0].Devices.Results {
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		c.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		c.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
	}
	rc.Status.Allocation = &got[0]
	if a.count > 1 { // which is for VMs
		rc.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{vmConfig}
	}
	return claim.Read(rc)
}

var vmConfig = func() resourceapi.DeviceAllocationConfiguration {
	o := &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver}
	o.Parameters.Raw = []byte(`{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm"}`)
	return resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: o}}
}()

func gpu(n int, gib uint64) api.GPU {
	return api.GPU{ID: fmt.Sprintf("GPU-0000000%d", n), Index: n, Backend: "cuda", Name: "NVIDIA H200", Memory: gib << 30, Driver: "580.95.05", NUMA: n % 2}
}

// TestPlace: claims are packed by memory and by time, never beyond either; without amounts a claim
// gets all memory; two GPUs are two.
func TestPlace(t *testing.T) {
	c := newCluster(t, &Node{Name: "a", GPUs: []api.GPU{gpu(0, 141), gpu(1, 141)}})
	for i, step := range []struct {
		ask    ask
		device string // "": no room
	}{
		{ask{memory: "100Gi", compute: "50"}, "gpu-00000000"},
		{ask{memory: "100Gi"}, "gpu-00000001"},
		{ask{memory: "60Gi"}, ""},
		{ask{memory: "40Gi", compute: "51"}, "gpu-00000001"}, // the first has not so much time
		{ask{memory: "41Gi", compute: "50"}, "gpu-00000000"},
		{ask{memory: "1Gi"}, "gpu-00000001"},
		{ask{memory: "1Mi"}, ""}, // what a context takes is counted: 640 MiB, which are nowhere
		{ask{}, ""},
	} {
		got := c.place("a", step.ask)
		device := ""
		if got != nil {
			device = got.Devices()[0].Device
		}
		if device != step.device {
			t.Fatalf("claim %d, %+v: on %q, not %q", i, step.ask, device, step.device)
		}
	}
}

// TestPlaceQualified: the scheduler finds an amount under the name that a device has it by, and no
// other, so the policy causeway-claims refuses the driver's name ahead of it.
func TestPlaceQualified(t *testing.T) {
	c := newCluster(t, &Node{Name: "a", GPUs: []api.GPU{gpu(0, 141)}})
	if got, err := c.allocate("a", ask{memory: "1Gi", qualified: true}); got != nil {
		t.Errorf("%+v, %v: the policy may let it", got, err)
	}
}

func TestPlaceWhole(t *testing.T) {
	c := newCluster(t, &Node{Name: "a", GPUs: []api.GPU{gpu(0, 141)}}, &Node{Name: "b", GPUs: []api.GPU{gpu(2, 80)}})
	whole := c.place("a", ask{})
	if whole == nil || whole.Devices()[0].Memory != 141<<30 || whole.Devices()[0].Compute != 0 {
		t.Fatalf("%+v", whole)
	}
	if got := c.place("a", ask{memory: "1Gi"}); got != nil {
		t.Errorf("beside one that has all: %+v", got)
	}
	if got := c.place("b", ask{memory: "1000000"}); got == nil || got.Devices()[0].Memory != 640<<20 {
		t.Errorf("less than a context takes: %+v", got)
	}
	if got := c.place("b", ask{memory: "1073741825"}); got == nil || got.Devices()[0].Memory != 1<<30+1<<20 {
		t.Errorf("whole steps: %+v", got)
	}
}

func TestPlaceTwo(t *testing.T) {
	c := newCluster(t, &Node{Name: "a", GPUs: []api.GPU{gpu(0, 141), gpu(1, 141)}}, &Node{Name: "b", GPUs: []api.GPU{gpu(2, 141)}})
	if got := c.place("b", ask{memory: "1Gi", count: 2, distinct: true}); got != nil {
		t.Errorf("one GPU for two: %+v", got.Devices())
	}
	got := c.place("a", ask{memory: "1Gi", count: 2, distinct: true})
	if got == nil || len(got.Devices()) != 2 || got.Devices()[0].Device == got.Devices()[1].Device || got.Devices()[1].Name != "gpu1" {
		t.Errorf("%+v", got)
	}
}

// TestPlaceAround: drained GPUs, those of a node that does not answer, those that are divided and
// those promised to others get no claim; attributes choose.
func TestPlaceAround(t *testing.T) {
	drained, sliced := gpu(0, 141), gpu(1, 141)
	drained.Drained, drained.Why = true, "XID 79"
	sliced.MIG = []string{"MIG-1"}
	n := &Node{Name: "a", GPUs: []api.GPU{drained, sliced, gpu(2, 141)}, VGPUs: []api.VGPU{
		{Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 100 << 30}}, GPU: "GPU-00000002"},
		{Spec: api.Spec{VM: "claim-5", Name: "gpu0", Limits: api.Limits{Memory: 9 << 30}}, GPU: "GPU-00000002"},
	}}
	c := newCluster(t, n)
	if got := c.place("a", ask{memory: "42Gi"}); got != nil {
		t.Errorf("more than others leave: %+v", got.Devices())
	}
	if got := c.place("a", ask{memory: "1Gi", selector: `device.attributes["gpu.causeway.dev"].numa == 1`}); got != nil {
		t.Errorf("another NUMA node: %+v", got.Devices())
	}
	if got := c.place("a", ask{memory: "41Gi", selector: `device.attributes["gpu.causeway.dev"].model == "NVIDIA H200" && device.attributes["gpu.causeway.dev"].host == "a"`}); got == nil {
		t.Error("what others leave is not had")
	}
	n.GPUs[0].Drained = false
	if got := c.place("a", ask{memory: "41Gi"}); got == nil {
		t.Error("a GPU is drained no more")
	}
	n.Unreachable = true
	if got := c.place("a", ask{memory: "1Gi"}); got != nil {
		t.Errorf("on a node that does not answer: %+v", got.Devices())
	}
}

// TestPlaceImpossible: amounts that are negative, fractions, or beyond all numbers get nothing, or
// no more than there is; a class that names no device, or that is none, gets nothing. Nothing of it
// is in the way of others.
func TestPlaceImpossible(t *testing.T) {
	c := newCluster(t, &Node{Name: "a", GPUs: []api.GPU{gpu(0, 141)}})
	for _, a := range []ask{
		{memory: "9Ei"}, {memory: "18446744073709551616"}, {memory: "1000000Ei"}, {memory: "142Gi"}, {memory: "1Gi", compute: "101"}, {memory: "1Gi", compute: "9223372036854775808"},
		{memory: "1Gi", class: "none"}, {memory: "1Gi", selector: `device.attributes["gpu.causeway.dev"].model == "none"`}, {memory: "1Gi", selector: `device.attributes["gpu.example.com"].model == "none"`},
	} {
		if got, err := c.allocate("a", a); got != nil {
			t.Errorf("%+v has %+v, %v", a, got.Devices(), err)
		}
	}
	for _, a := range []ask{{memory: "-1Gi"}, {memory: "0"}, {memory: "1m"}, {memory: "1Gi", compute: "-5"}, {memory: "1Gi", compute: "500m"}} {
		got, err := c.allocate("a", a)
		if err != nil || got == nil {
			continue
		}
		if d := got.Devices()[0]; d.Memory < 640<<20 || d.Memory > 1<<30 || d.Compute > 1 {
			t.Errorf("%+v has %+v", a, d)
		}
	}
	if got := c.place("a", ask{memory: "130Gi", compute: "90"}); got == nil {
		t.Error("they are in the way of one that fits")
	}
}

// TestPlaceLie is why a policy holds nodes to their own pools: a slice with counters is looked at
// for every node, and one of a higher generation has all GPUs of its pool be gone.
func TestPlaceLie(t *testing.T) {
	c := newCluster(t, &Node{Name: "a", GPUs: []api.GPU{gpu(0, 141)}})
	liar := "b"
	c.lies = []*resourceapi.ResourceSlice{{ObjectMeta: metav1.ObjectMeta{Name: "lie"}, Spec: resourceapi.ResourceSliceSpec{Driver: claim.Driver, NodeName: &liar,
		Pool:           resourceapi.ResourcePool{Name: "a", Generation: 9, ResourceSliceCount: 1},
		SharedCounters: []resourceapi.CounterSet{{Name: "c", Counters: map[string]resourceapi.Counter{"n": {Value: resource.MustParse("1")}}}}}}}
	if got := c.place("a", ask{memory: "1Gi"}); got != nil {
		t.Errorf("the scheduler looks at it no more: %+v", got.Devices())
	}
	c.lies[0].Spec.Pool.Name = liar
	if got := c.place("a", ask{memory: "1Gi"}); got == nil {
		t.Error("a lie of one's own pool is in the way of others")
	}
}
