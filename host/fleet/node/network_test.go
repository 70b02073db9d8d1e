package node

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// TestPrepareNetwork: a GPU of another host is prepared when its lease is ready, where the claim's
// status says, and not before; one of this node that the fleet publishes is this node's.
func TestPrepareNetwork(t *testing.T) {
	r := newRig(t)
	c := newClaim("1-a", "8Gi", 1, "")
	result := &c.Status.Allocation.Devices.Results[0]
	share := types.UID("2-b")
	result.Pool, result.Device, result.ShareID, result.BindingConditions = claim.PoolOf("gpu9"), "gpu-9-net", &share, []string{claim.LeaseReady}
	if _, err := r.prepared(t, c); !errors.Is(err, publish.ErrLease) || len(r.f.vgpus) != 0 {
		t.Fatalf("%v", err)
	}
	data, err := claim.Lease{Server: "gpu9:7745", GPU: "GPU-9", Epoch: 3}.Data()
	if err != nil {
		t.Fatal(err)
	}
	id := string(share)
	status := resourceapi.AllocatedDeviceStatus{Driver: claim.Driver, Pool: result.Pool, Device: result.Device, ShareID: &id, Data: data,
		Conditions: []metav1.Condition{{Type: claim.LeaseReady, Status: metav1.ConditionFalse}}}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{status}
	if _, err := r.prepared(t, c); !errors.Is(err, publish.ErrLease) {
		t.Fatalf("%v", err)
	}
	c.Status.Devices[0].Conditions[0].Status = metav1.ConditionTrue
	devices, err := r.prepared(t, c)
	if err != nil || devices[0].PoolName != "fleet/gpu9" || *devices[0].ShareID != share || r.f.vgpus[0].Spec.Remote != "gpu9:7745" || r.f.vgpus[0].Spec.GPU != "GPU-9" {
		t.Fatalf("%+v %v %+v", devices, err, r.f.vgpus)
	}
	if err := r.takenBack(t, c); err != nil || len(r.f.vgpus) != 0 {
		t.Errorf("%v %+v", err, r.f.vgpus)
	}
	for _, odd := range []string{"{", `{"apiVersion":"causeway.dev/v1alpha1","kind":"Lease","server":"any","gpu":"GPU-9"}`, `{"apiVersion":"causeway.dev/v1alpha1","kind":"Lease","server":"gpu9","gpu":"../x"}`,
		`{"apiVersion":"causeway.dev/v1alpha1","kind":"Lease","server":"gpu9","gpu":"GPU-9","more":1}`, `{"apiVersion":"v1","kind":"Lease","server":"gpu9","gpu":"GPU-9"}`} {
		c.Status.Devices[0].Data.Raw = []byte(odd)
		if _, err := r.prepared(t, c); !errors.Is(err, claim.ErrClaim) {
			t.Errorf("%s: %v", odd, err)
		}
	}
	own := newClaim("1-c", "1Gi", 1, "")
	own.Status.Allocation.Devices.Results[0].Pool = claim.PoolOf("node1")
	if _, err := r.prepared(t, own); err != nil || r.f.vgpus[0].Spec.Remote != "" {
		t.Errorf("%v %+v", err, r.f.vgpus)
	}
	own.Status.Allocation.Devices.Results[0].Pool = claim.PoolOf("node2")
	if _, err := r.prepared(t, own); !errors.Is(err, publish.ErrDevice) {
		t.Errorf("another node's: %v", err)
	}
}

// TestOfferedByFleet: of a node whose GPUs the fleet's controller offers its driver says that it
// runs, and how they are.
func TestOfferedByFleet(t *testing.T) {
	r := newRig(t)
	var got []resourceslice.DriverResources
	p := &publish.Publisher{Node: "node1", Causewayd: r.f, Every: time.Second, Patience: time.Minute, OfferedByFleet: true, Log: r.Log,
		Publish: func(_ context.Context, n resourceslice.DriverResources) error { got = append(got, n); return nil }}
	p.Look(t.Context(), time.Now())
	r.f.gpu.Drained, r.f.gpu.Why = true, "XID 79"
	p.Look(t.Context(), time.Now())
	if len(got) != 1 || len(got[0].Pools["node1"].Slices) != 1 || len(got[0].Pools["node1"].Slices[0].Devices) != 0 {
		t.Fatalf("%+v", got)
	}
	r.Devices, r.Pool = p.Devices, claim.PoolOf("node1")
	if h := r.health(time.Now()); len(h) != 1 || h[0].Device.PoolName != "fleet/node1" || h[0].Message == "" {
		t.Errorf("%+v", h)
	}
}

// TestFarHealth: how a GPU of another host is says the node's causewayd, also of claims that were
// prepared before the driver began; of two leases of one GPU the worse is said.
func TestFarHealth(t *testing.T) {
	r := newRig(t)
	network := func(uid types.UID, device string) *resourceapi.ResourceClaim {
		c := newClaim(uid, "1Gi", 1, "")
		result, share, id := &c.Status.Allocation.Devices.Results[0], uid, string(uid)
		result.Pool, result.Device, result.ShareID, result.BindingConditions = claim.PoolOf("gpu9"), device, &share, []string{claim.LeaseReady}
		data, err := claim.Lease{Server: "gpu9:7745", GPU: "GPU-9", Epoch: 3}.Data()
		if err != nil {
			t.Fatal(err)
		}
		c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: claim.Driver, Pool: result.Pool, Device: result.Device, ShareID: &id, Data: data,
			Conditions: []metav1.Condition{{Type: claim.LeaseReady, Status: metav1.ConditionTrue}}}}
		return c
	}
	all := claims{}
	for uid, device := range map[types.UID]string{"1-a": "gpu-9-net", "1-b": "gpu-9-net", "1-c": "gpu-8-net"} {
		c := network(uid, device)
		all[c.Name] = c
		if _, err := r.prepared(t, c); err != nil {
			t.Fatal(err)
		}
	}
	own := newClaim("1-d", "1Gi", 1, "")
	if _, err := r.prepared(t, own); err != nil {
		t.Fatal(err)
	}
	for i := range r.f.vgpus {
		if r.f.vgpus[i].Spec.Remote != "" {
			r.f.vgpus[i].Upstream = &api.Upstream{Server: "gpu9"}
		}
		if r.f.vgpus[i].Spec.VM == "claim-1-b" {
			r.f.vgpus[i].Upstream.Error = "no route to host"
		}
	}
	check := func(what string, far, other v1alpha1.HealthStatus) {
		t.Helper()
		got := r.farHealth(t.Context(), time.Now())
		if len(got) != 2 || got[0].Device.PoolName != "fleet/gpu9" {
			t.Fatalf("%s: %v", what, got)
		}
		for _, h := range got {
			want := far
			if h.Device.DeviceName == "gpu-8-net" {
				want = other
			}
			if h.Health != want || (h.Message == "") != (want == v1alpha1.HealthStatus_HEALTHY) {
				t.Errorf("%s: %v", what, h)
			}
		}
	}
	check("one is not reached", v1alpha1.HealthStatus_UNHEALTHY, v1alpha1.HealthStatus_HEALTHY)
	before := r.f.vgpus
	r.Driver.remote.has = nil // a driver that has just begun
	if got := r.farHealth(t.Context(), time.Now()); len(got) != 0 {
		t.Errorf("nobody tells of claims: %v", got)
	}
	all[own.Name] = own
	r.Cluster = all
	check("after a restart", v1alpha1.HealthStatus_UNHEALTHY, v1alpha1.HealthStatus_HEALTHY)
	r.f.down = true
	check("causewayd is silent", v1alpha1.HealthStatus_UNKNOWN, v1alpha1.HealthStatus_UNKNOWN)
	r.f.down = false
	for i := range before {
		if before[i].Spec.VM == "claim-1-b" {
			before[i].Upstream.Error, before[i].Upstream.Lost = "", true
		}
	}
	check("a lease that ended", v1alpha1.HealthStatus_UNHEALTHY, v1alpha1.HealthStatus_HEALTHY)
	if err := r.takenBack(t, all["c-1-b"]); err != nil {
		t.Fatal(err)
	}
	check("and is taken back", v1alpha1.HealthStatus_HEALTHY, v1alpha1.HealthStatus_HEALTHY)
}

// claims is an API server with those, by name.
type claims map[string]*resourceapi.ResourceClaim

func (c claims) Pod(context.Context, string, string) (*corev1.Pod, error) {
	return nil, errors.New("no pod is asked for")
}

func (c claims) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	if rc := c[name]; rc != nil {
		return rc, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}
