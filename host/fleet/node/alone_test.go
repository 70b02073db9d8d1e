package node

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// fakeCluster has one pod, called p, and claims.
type fakeCluster struct {
	pod    *corev1.Pod
	claims []*resourceapi.ResourceClaim
	down   error
}

func (f *fakeCluster) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	if f.pod == nil && f.down == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return f.pod, f.down
}

func (f *fakeCluster) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	for _, c := range f.claims {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
}

// podOf is a pod whose containers use claims, by their names in the pod: a by its own name, b of a template, c of nobody.
func podOf(containers ...string) *corev1.Pod {
	a, b := "c-1-a", "c-1-b"
	p := &corev1.Pod{}
	p.Name, p.UID, p.Spec.NodeName = "p", "pod-1", "node1"
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: &a}, {Name: "b"}, {Name: "c"}}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: &b}}
	for _, names := range containers {
		c := corev1.Container{Name: "of-" + names}
		for n := range strings.SplitSeq(names, "") {
			c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: n})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// withExtended is a pod for one of whose containers the scheduler has made a claim, c-1-b.
func withExtended(p *corev1.Pod, container string) *corev1.Pod {
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c-1-b",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: container, ResourceName: "deviceclass.resource.kubernetes.io/causeway", RequestName: "container-0-request-0"}}}
	return p
}

// TestAlone: two claims that would be in each other's place in a container are refused by name before it starts; those that would not are served.
func TestAlone(t *testing.T) {
	const elsewhere = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm","vm":{"folder":"/run/second"}}`
	down := errors.New("the API server is away")
	for name, c := range map[string]struct {
		a, b   string // parameters
		pod    *corev1.Pod
		change func(*rig, *fakeCluster)
		says   string
	}{
		"one container":             {"", "", podOf("ab"), nil, "container of-ab of the pod p has also the claim c-1-b"},
		"one of several containers": {"", "", podOf("a", "ba"), nil, "container of-ba"},
		"before its containers": {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) {
			f.pod.Spec.InitContainers, f.pod.Spec.Containers = f.pod.Spec.Containers, nil
		}, "of-ab"},
		"a container each":         {"", "", podOf("a", "b"), nil, ""},
		"the same claim twice":     {"", "", podOf("aa", "ac"), nil, ""},
		"two VMs' in one folder":   {forVM, forVM, podOf("ab"), nil, "the socket /run/causeway-vm/gpu0.sock"},
		"two VMs' in folders":      {forVM, elsewhere, podOf("ab"), nil, ""},
		"a VM's and a container's": {forVM, "", podOf("ab"), nil, ""},
		"another driver's": {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) {
			f.claims[1].Status.Allocation.Devices.Results[0].Driver = "gpu.example.com"
		}, ""},
		"one that is not allocated":      {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.claims[1].Status.Allocation = nil }, ""},
		"one that is gone":               {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.claims = f.claims[:1] }, ""},
		"an extended resource beside it": {"", "", withExtended(podOf("a"), "of-a"), nil, "has also the claim c-1-b"},
		"another container's extended":   {"", "", withExtended(podOf("a", "c"), "of-c"), nil, ""},
		"another node's pod":             {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.pod.Spec.NodeName = "node2" }, ""},
		"another pod of that name":       {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.pod.UID = "pod-2" }, ""},
		"a pod that is gone":             {"", "", nil, nil, ""},
		"an API server that is away":     {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.down = down }, down.Error()},
		"reserved for no pod":            {"", "", podOf("ab"), func(_ *rig, f *fakeCluster) { f.claims[0].Status.ReservedFor[0].Resource = "jobs" }, ""},
		"nobody tells of pods at all":    {"", "", podOf("ab"), func(r *rig, _ *fakeCluster) { r.Cluster = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			f := &fakeCluster{pod: c.pod, claims: []*resourceapi.ResourceClaim{newClaim("1-a", "1Gi", 1, c.a), newClaim("1-b", "1Gi", 1, c.b)}}
			first := f.claims[0]
			first.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: types.UID("pod-1")}}
			r.Cluster = f
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
