package node

import (
	"context"
	"errors"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// TestPrepareNetwork: a GPU of another host is prepared when its lease is ready, where the claim's status says, and not before; one of this node that the fleet publishes is this node's.
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

// TestOfferedByFleet: of a node whose GPUs the fleet's controller offers its driver says that it runs, and how they are.
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
