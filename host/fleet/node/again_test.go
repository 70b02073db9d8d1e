package node

import (
	"context"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSweepAnew: of a claim that was deallocated and allocated to this node again while the kubelet
// takes it for prepared, the former allocation's vGPU ends, and there is one as it is allocated
// now, as soon as there is room. What holds is let be.
func TestSweepAnew(t *testing.T) {
	r := newRig(t)
	shared := func(share types.UID, memory string) *resourceapi.ResourceClaim {
		c := newClaim("1-a", memory, 1, "")
		c.Status.Allocation.Devices.Results[0].ShareID = &share
		return c
	}
	server := shared("5-a", "1Gi")
	get := func(context.Context, string, string) (*resourceapi.ResourceClaim, error) { return server, nil }
	if _, err := r.prepared(t, server); err != nil {
		t.Fatal(err)
	}
	sweep := func(ensured int, memory uint64, says string) {
		t.Helper()
		err := r.Sweep(t.Context(), get, get)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) || r.f.ensured != ensured || r.files(t) != 1 {
			t.Fatalf("%v, ensured %d times, %d files", err, r.f.ensured, r.files(t))
		}
		if memory == 0 && len(r.f.vgpus) == 0 || len(r.f.vgpus) == 1 && r.f.vgpus[0].Spec.Memory == memory {
			return
		}
		t.Fatalf("%+v", r.f.vgpus)
	}
	sweep(1, 1<<30, "")
	server = shared("5-b", "5Gi") // more than there is
	sweep(2, 0, "no room")
	if len(r.refused) != 1 {
		t.Errorf("told: %q", r.refused)
	}
	sweep(3, 0, "no room")
	server = shared("5-c", "2Gi")
	sweep(4, 2<<30, "")
	sweep(4, 2<<30, "")
}
