package node

import (
	"context"
	"errors"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// TestSessions: a VM's claim says at once that programs have sessions, and half a minute after the
// last that none has; what was said is not said again, a write that failed is done again, and
// claims of containers say nothing.
func TestSessions(t *testing.T) {
	r := newRig(t)
	share := types.UID("5-a")
	vm, container := newClaim("1-a", "1Gi", 1, forVM), newClaim("1-b", "1Gi", 1, "")
	vm.Status.Allocation.Devices.Results[0].ShareID = &share
	for _, c := range []*resourceapi.ResourceClaim{vm, container} {
		if _, err := r.prepared(t, c); err != nil {
			t.Fatal(err)
		}
	}
	var written []metav1.Condition
	var fails error
	s := &Sessions{Causewayd: r.f, CDI: r.CDI, Log: r.Log,
		Claims: func(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
			switch name {
			case vm.Name:
				return vm.DeepCopy(), nil
			case container.Name:
				t.Error("a container's claim is asked for")
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
		},
		Write: func(_ context.Context, rc *resourceapi.ResourceClaim) error {
			if fails != nil {
				return fails
			}
			d := rc.Status.Devices
			if len(d) != 1 || d[0].Pool != "node1" || d[0].Device != "gpu-1" || *d[0].ShareID != "5-a" || len(d[0].Conditions) != 1 {
				t.Fatalf("%+v", d)
			}
			vm = rc
			written = append(written, d[0].Conditions[0])
			return nil
		}}
	now := time.Now()
	step := func(after time.Duration, status *api.Status, fail error, want ...metav1.ConditionStatus) {
		t.Helper()
		now = now.Add(after)
		for i := range r.f.vgpus {
			r.f.vgpus[i].Status = status
		}
		written, fails = nil, fail
		if err := s.Look(t.Context(), now); !errors.Is(err, fail) {
			t.Errorf("%v", err)
		}
		if len(written) != len(want) || len(want) == 1 && written[0].Status != want[0] {
			t.Errorf("written: %+v, want %v", written, want)
		}
	}
	busy, idle := &api.Status{Sessions: []api.Session{{}}}, &api.Status{}
	step(0, nil, nil, metav1.ConditionUnknown)
	step(time.Second, idle, nil, metav1.ConditionFalse)
	step(time.Second, idle, nil)
	step(time.Second, busy, errDown)
	step(time.Second, busy, nil, metav1.ConditionTrue)
	step(time.Second, idle, nil)
	step(20*time.Second, busy, nil)
	step(29*time.Second, idle, nil)
	step(2*time.Second, idle, nil, metav1.ConditionFalse)
	// Of a vGPU that is migratable it is said, too, what of a program cannot move, when it was seen
	// twice.
	capturing := &api.Status{Sessions: []api.Session{{}, {GuestPID: 230, Unmovable: "a stream\ncaptures"}}}
	reason := func(want, message string) {
		t.Helper()
		if c := vm.Status.Devices[0].Conditions[0]; c.Reason != want || c.Message != message {
			t.Errorf("%s, %q", c.Reason, c.Message)
		}
	}
	step(time.Second, capturing, nil, metav1.ConditionTrue)
	step(time.Second, capturing, nil)
	reason(claim.HaveSessions, "programs in the VM have sessions with the GPU")
	for i := range r.f.vgpus {
		r.f.vgpus[i].Spec.Migratable = true
	}
	step(time.Second, capturing, nil)
	step(time.Second, busy, nil)
	step(time.Second, capturing, nil)
	step(time.Second, capturing, nil, metav1.ConditionTrue)
	reason(claim.ProgramsStay, "process 230: a stream?captures")
	step(time.Second, capturing, nil)
	step(time.Second, busy, nil, metav1.ConditionTrue)
	reason(claim.HaveSessions, "programs in the VM have sessions with the GPU")
	// Its claim is gone, or another's of the name: nothing is written, and nothing is wrong.
	vm.UID = "1-c"
	step(time.Second, busy, nil)
	r.f.down = true
	step(time.Second, idle, errDown)
}

// TestSessionsAnew: a claim that has been allocated to this node again, as nobody has looked
// meanwhile, has a status in which nothing stands yet.
func TestSessionsAnew(t *testing.T) {
	r := newRig(t)
	vm := newClaim("1-a", "1Gi", 1, forVM)
	written := 0
	s := &Sessions{Causewayd: r.f, CDI: r.CDI, Log: r.Log,
		Claims: func(context.Context, string, string) (*resourceapi.ResourceClaim, error) { return vm.DeepCopy(), nil },
		Write: func(_ context.Context, rc *resourceapi.ResourceClaim) error {
			vm = rc
			written++
			return nil
		}}
	for i, share := range []types.UID{"5-a", "5-b"} {
		vm.Status.Devices, vm.Status.Allocation.Devices.Results[0].ShareID = nil, &share
		if _, err := r.prepared(t, vm); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.Look(t.Context(), time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		if d := vm.Status.Devices; written != i+1 || len(d) != 1 || *d[0].ShareID != string(share) {
			t.Errorf("the allocation %s: written %d times, %+v", share, written, d)
		}
	}
}
