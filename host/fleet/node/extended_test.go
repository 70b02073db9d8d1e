package node

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"causeway/host/fleet/claim"
)

// extendedClaim is what the scheduler of 1.36 makes of pods' limits by a class
// (pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go): a request for
// each container that asks, without amounts, and all that a GPU has is allocated.
func extendedClaim(memory string, requests ...string) *resourceapi.ResourceClaim {
	c := newClaim("1-e", memory, len(requests), "")
	c.Name, c.Annotations = "p-extended-resources-x7k2p", map[string]string{resourceapi.ExtendedResourceClaimAnnotation: "true"}
	for i, r := range requests {
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: r,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "causeway", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}})
		c.Status.Allocation.Devices.Results[i].Request = r
	}
	return c
}

// TestExtendedResource: the claim of a pod's limits is prepared and taken back as any, under the
// request's name by which the kubelet finds the container's device; one for two containers is
// refused by name, and leaves nothing.
func TestExtendedResource(t *testing.T) {
	r := newRig(t)
	c := extendedClaim("4Gi", "container-0-request-0")
	for range 2 { // the kubelet asks again after its restart
		devices, err := r.prepared(t, c)
		if err != nil || len(devices) != 1 || len(devices[0].Requests) != 1 || devices[0].Requests[0] != "container-0-request-0" || len(devices[0].CDIDeviceIDs) != 1 {
			t.Fatalf("%+v, %v", devices, err)
		}
	}
	if len(r.f.vgpus) != 1 || r.f.vgpus[0].Spec.Memory != 4<<30 || !r.f.vgpus[0].Spec.Programs || r.f.vgpus[0].Spec.VM != claim.VM(c.UID) || r.files(t) != 1 {
		t.Errorf("%+v, %d files", r.f.vgpus, r.files(t))
	}
	if err := r.takenBack(t, c); err != nil || len(r.f.vgpus) != 0 || r.files(t) != 0 {
		t.Errorf("%v; left: %+v, %d files", err, r.f.vgpus, r.files(t))
	}
	two := extendedClaim("1Gi", "container-0-request-0", "container-1-request-0")
	if _, err := r.prepared(t, two); err == nil || !strings.Contains(err.Error(), "2 GPUs for a container") {
		t.Error(err)
	}
	if len(r.refused) != 1 || len(r.f.vgpus) != 0 || r.files(t) != 0 {
		t.Errorf("told: %q; left: %+v", r.refused, r.f.vgpus)
	}
}
