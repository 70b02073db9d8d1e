package pool

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// cluster is the scheduler's own allocator over what the fleet's hosts and nodes publish, without a
// server.
type cluster struct {
	t       *testing.T
	hosts   map[*Host]*State
	nodes   []*publish.Node
	state   structured.AllocatedState
	claimed int
	moves   bool // claims of hosts bind to no node
	last    resourceapi.AllocationResult
}

var class = resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "causeway"}}

type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{&class}, nil
}
func (classes) Get(string) (*resourceapi.DeviceClass, error) { return &class, nil }

func newCluster(t *testing.T) *cluster {
	return &cluster{t: t, hosts: map[*Host]*State{}, state: structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}}
}

func (c *cluster) slices() (list []*resourceapi.ResourceSlice) {
	for h, s := range c.hosts {
		p := h.Pool(s)
		for i, part := range p.Slices {
			list = append(list, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, h.Name)}, Spec: resourceapi.ResourceSliceSpec{
				Driver: claim.Driver, NodeSelector: p.NodeSelector, Devices: part.Devices, SharedCounters: part.SharedCounters, PerDeviceNodeSelection: part.PerDeviceNodeSelection,
				Pool: resourceapi.ResourcePool{Name: claim.PoolOf(h.Name), Generation: 1, ResourceSliceCount: int64(len(p.Slices))}}})
		}
	}
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

// place allocates memory on a node, by a path if it is named; "": there is no room. What it gives
// is POOL/DEVICE.
func (c *cluster) place(node, memory, path string) string {
	c.t.Helper()
	c.claimed++
	r := resourceapi.ExactDeviceRequest{DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse(memory)}}}
	if path != "" {
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["` + claim.Driver + `"].path == "` + path + `"`}}}
	}
	return c.request(node, resourceapi.DeviceRequest{Name: "gpu", Exactly: &r})
}

// request allocates what a claim says.
func (c *cluster) request(node string, r resourceapi.DeviceRequest) string {
	c.t.Helper()
	rc := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: types.UID(fmt.Sprintf("0-%d", c.claimed))}}
	rc.Spec.Devices.Requests = []resourceapi.DeviceRequest{r}
	a, err := structured.NewAllocator(c.t.Context(), structured.Features{ConsumableCapacity: true, DeviceTaints: true, PrioritizedList: true, PartitionableDevices: true, DeviceBindingAndStatus: true},
		c.state, classes{}, c.slices(), cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}))
	if err != nil {
		c.t.Fatal(err)
	}
	got, err := a.Allocate(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"fabric": "f1"}}}, []*resourceapi.ResourceClaim{rc})
	if err != nil {
		c.t.Fatal(err)
	}
	if len(got) == 0 {
		return ""
	}
	d := got[0].Devices.Results[0]
	id := structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
	c.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, d.ConsumedCapacity))
	c.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, d.ShareID))
	c.last = got[0]
	if claim.OnNetwork(&d) && !c.moves {
		if s := got[0].NodeSelector; s == nil || s.NodeSelectorTerms[0].MatchFields[0].Values[0] != node {
			c.t.Errorf("a device on the network that is not bound to the node: %+v", s)
		}
	}
	return d.Pool + "/" + d.Device
}

func gpu(n int, gib uint64) api.FleetGPU {
	return api.FleetGPU{GPU: api.GPU{ID: fmt.Sprintf("GPU-%08d", n), Index: n, Backend: "cuda", Name: "NVIDIA H200", Memory: gib << 30, Driver: "580.95.05", NUMA: n % 2}, Claimable: gib << 30}
}

var fabric = map[string]string{"fabric": "f1"}

// TestBothWays: a GPU that is offered locally and over the network is used one way at a time, in
// parts, and when it is free either way again.
func TestBothWays(t *testing.T) {
	c := newCluster(t)
	c.hosts[&Host{Name: "node7", Nodes: fabric, Local: true}] = &State{GPUs: []api.FleetGPU{gpu(0, 141), gpu(1, 141)}}
	for i, step := range []struct{ node, memory, path, want string }{
		{"node1", "100Gi", "", "fleet/node7/gpu-00000000-net"},
		{"node7", "100Gi", "", "fleet/node7/gpu-00000001"}, // the first is used over the network
		{"node1", "40Gi", "", "fleet/node7/gpu-00000000-net"},
		{"node2", "40Gi", "", ""}, // the second is used locally, and has room
		{"node7", "40Gi", "", "fleet/node7/gpu-00000001"},
		{"node7", "1Gi", "network", ""}, // the host itself goes no detour
		{"node1", "1Gi", "local", ""},
	} {
		if got := c.place(step.node, step.memory, step.path); got != step.want {
			t.Fatalf("claim %d, %+v: %q", i, step, got)
		}
	}
	c.state.AllocatedSharedDeviceIDs, c.state.AggregatedCapacity = sets.New[structured.SharedDeviceID](), structured.NewConsumedCapacityCollection()
	if got := c.place("node7", "141Gi", ""); got != "fleet/node7/gpu-00000000" {
		t.Errorf("when all is free: %q", got)
	}
}

// TestMoves: a claim of a host whose claims move is for every node that reaches it, so that another
// pod may hold it there; of one that is local as well it is for no pod of its own.
func TestMoves(t *testing.T) {
	c := newCluster(t)
	c.moves = true
	c.hosts[&Host{Name: "gpu1", Nodes: fabric, Moves: true}] = &State{GPUs: []api.FleetGPU{gpu(0, 80)}}
	if got := c.place("node1", "20Gi", Network); got != "fleet/gpu1/gpu-00000000-net" {
		t.Fatal(got)
	}
	if node, bound := claim.NodeOf(&c.last); bound || c.last.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Key != "fabric" {
		t.Errorf("bound to %q: %+v", node, c.last.NodeSelector)
	}
	c.hosts = map[*Host]*State{{Name: "node7", Nodes: fabric, Local: true, Moves: true}: {GPUs: []api.FleetGPU{gpu(1, 80)}}}
	if got := c.place("node7", "20Gi", ""); got != "fleet/node7/gpu-00000001" {
		t.Fatal(got)
	}
	if node, _ := claim.NodeOf(&c.last); node != "node7" {
		t.Errorf("a GPU of the node's own is for %q", node)
	}
}

// TestPacked: GPUs over the network are filled one after the other, host by host, whatever node a
// pod is on, and a node's own GPUs first.
func TestPacked(t *testing.T) {
	c := newCluster(t)
	for n := range 3 {
		c.hosts[&Host{Name: fmt.Sprintf("gpu%d", n), Nodes: fabric}] = &State{GPUs: []api.FleetGPU{gpu(2*n, 80), gpu(2*n+1, 80)}}
	}
	c.nodes = []*publish.Node{{Name: "node1", GPUs: []api.GPU{gpu(9, 80).GPU}}}
	if got := c.place("node1", "20Gi", ""); got != "node1/gpu-00000009" {
		t.Errorf("its own first: %q", got)
	}
	for i := range 24 { // 4 on each of 6
		want := fmt.Sprintf("fleet/gpu%d/gpu-%08d-net", i/8, i/4)
		if got := c.place(fmt.Sprintf("node%d", i%5), "20Gi", Network); got != want {
			t.Fatalf("claim %d: %q, not %q", i, got, want)
		}
	}
	if got := c.place("node3", "20Gi", ""); got != "" {
		t.Errorf("beyond all: %q", got)
	}
}

// TestNotOffered: who is silent, has refused, is drained, leaves, or is offered elsewhere gets no
// new claims.
func TestNotOffered(t *testing.T) {
	h := &Host{Name: "gpu1", Nodes: fabric}
	drained := gpu(0, 80)
	drained.Drained, drained.Why = true, "drained by root"
	few := gpu(0, 80)
	few.Claimable = 10 << 30
	for name, s := range map[string]*State{
		"silent": {GPUs: []api.FleetGPU{gpu(0, 80)}, Unreachable: true}, "refused": {GPUs: []api.FleetGPU{gpu(0, 80)}, Refused: map[string]bool{"GPU-00000000": true}},
		"drained": {GPUs: []api.FleetGPU{drained}}, "leaves": {GPUs: []api.FleetGPU{gpu(0, 80)}, Leaving: true},
		"elsewhere": {GPUs: []api.FleetGPU{gpu(0, 80)}, Elsewhere: map[string]string{"GPU-00000000": "node1"}}, "promised to others": {GPUs: []api.FleetGPU{few}},
	} {
		c := newCluster(t)
		c.hosts[h] = s
		if got := c.place("node1", "20Gi", ""); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	c := newCluster(t)
	c.hosts[&Host{Name: "node7", Nodes: fabric, Local: true}] = &State{GPUs: []api.FleetGPU{gpu(0, 80)}, NoDriver: true}
	if got := c.place("node7", "20Gi", ""); got != "" {
		t.Errorf("a pod on a node without a driver: %q", got)
	}
	if got := c.place("node1", "20Gi", ""); got != "fleet/node7/gpu-00000000-net" {
		t.Errorf("others need no driver there: %q", got)
	}
}

// TestPool: what hosts say becomes slices that the API server takes, and is found again in them.
func TestPool(t *testing.T) {
	many := &State{}
	for n := range 70 {
		many.GPUs = append(many.GPUs, gpu(n, 80))
	}
	for _, local := range []bool{false, true} {
		h := &Host{Name: "gpu1", Nodes: fabric, Local: local}
		found := 0
		for _, s := range h.Pool(many).Slices {
			if len(s.Devices) > perSlice || len(s.SharedCounters) > 8 || s.Devices != nil && s.SharedCounters != nil {
				t.Errorf("%d devices, %d counters", len(s.Devices), len(s.SharedCounters))
			}
			for i := range s.Devices {
				if len(s.Devices[i].Name) > 63 || strings.ToLower(s.Devices[i].Name) != s.Devices[i].Name {
					t.Errorf("%q", s.Devices[i].Name)
				}
				if g, ok := GPUOf(&s.Devices[i]); ok {
					found++
					want := many.GPUs[g.Index]
					want.NUMA = -1
					if fmt.Sprint(g) != fmt.Sprint(want) {
						t.Errorf("%+v, not %+v", g, want)
					}
				}
			}
		}
		if found != 70 {
			t.Errorf("found %d again", found)
		}
		if p := h.Pool(&State{}); len(p.Slices) != 1 {
			t.Errorf("no GPU: %+v", p)
		}
	}
}

// TestLocalFirst: of a firstAvailable of the two a claim has its node's GPU while there is room,
// and then one over the network, which is charged for it.
func TestLocalFirst(t *testing.T) {
	c := newCluster(t)
	c.hosts[&Host{Name: "gpu0", Nodes: fabric}] = &State{GPUs: []api.FleetGPU{gpu(0, 80)}}
	c.nodes = []*publish.Node{{Name: "node1", GPUs: []api.GPU{gpu(9, 80).GPU}}}
	r := resourceapi.DeviceRequest{Name: "gpu"}
	for _, path := range []string{Local, Network} {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: path, DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.attributes["` + claim.Driver + `"].path == "` + path + `"`}}},
			Capacity:  &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse("50Gi")}}})
	}
	for i, want := range []string{"node1/gpu-00000009", "fleet/gpu0/gpu-00000000-net", ""} {
		c.claimed++
		if got := c.request("node1", r); got != want {
			t.Errorf("claim %d: %q, not %q", i, got, want)
		}
	}
}
