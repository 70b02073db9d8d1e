package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// fakeCluster has claims, and a kubelet with one pod, called p.
type fakeCluster struct {
	containers []Container // nil: there is no such pod
	claims     []*resourceapi.ResourceClaim
	down       error
}

func (f *fakeCluster) Containers(_ context.Context, _, pod string) ([]Container, error) {
	if f.down != nil {
		return nil, f.down
	}
	if f.containers == nil || pod != "p" {
		return nil, ErrNoPod
	}
	return f.containers, nil
}

func (f *fakeCluster) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	for _, c := range f.claims {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
}

// podOf is a pod whose containers use claims: a is c-1-a, b c-1-b.
func podOf(containers ...string) []Container {
	list := []Container{}
	for _, names := range containers {
		c := Container{Name: "of-" + names}
		for n := range strings.SplitSeq(names, "") {
			c.Claims = append(c.Claims, "c-1-"+n)
		}
		list = append(list, c)
	}
	return list
}

// TestCollision: two claims that would be in each other's place in a container are refused by name
// before it starts; those that would not are served.
func TestCollision(t *testing.T) {
	const elsewhere = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm","vm":{"folder":"/run/second"}}`
	down := errors.New("the API server is away")
	for name, c := range map[string]struct {
		a, b   string // parameters
		pod    []Container
		change func(*rig, *fakeCluster)
		says   string
	}{
		"one container":             {"", "", podOf("ab"), nil, "container of-ab of the pod p has also the claim c-1-b"},
		"one of several containers": {"", "", podOf("a", "ba"), nil, "container of-ba"},
		"a container each":          {"", "", podOf("a", "b"), nil, ""},
		"the same claim twice":      {"", "", podOf("aa", "ac"), nil, ""},
		"two VMs' in one folder":    {forVM, forVM, podOf("ab"), nil, "the socket /run/causeway-vm/gpu0.sock"},
		"two VMs' in folders":       {forVM, elsewhere, podOf("ab"), nil, ""},
		"a VM's and a container's":  {forVM, "", podOf("ab"), nil, ""},
		"another driver's": {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) {
			f.claims[1].Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
		}, ""},
		"one that is not allocated":      {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.claims[1].Status.Allocation = nil }, ""},
		"one that is gone":               {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.claims = f.claims[:1] }, ""},
		"another node's, or gone":        {"", "", nil, nil, ""},
		"a kubelet that does not answer": {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.down = down }, down.Error()},
		"reserved for no pod":            {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.claims[0].Status.ReservedFor[0].Resource = "jobs" }, ""},
		"nobody tells of pods at all":    {"", "", podOf("ab"), func(r *rig, _ *fakeCluster) { r.Pods = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			f := &fakeCluster{containers: c.pod, claims: []*resourceapi.ResourceClaim{newClaim("1-a", "1Gi", 1, c.a), newClaim("1-b", "1Gi", 1, c.b)}}
			first := f.claims[0]
			first.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: types.UID("pod-1")}}
			r.Cluster, r.Pods = f, f
			if c.change != nil {
				c.change(r, f)
			}
			_, err := r.prepared(t, first)
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if err != nil && (len(r.refused) != 1 || len(r.f.vgpus) != 0) {
				t.Errorf("told: %q; left: %+v", r.refused, r.f.vgpus)
			}
		})
	}
}
