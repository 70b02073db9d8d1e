package overview

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/fleet/claim"
)

// TestStatus: what a claim's status says of its vGPUs is shown, by the share that is meant.
func TestStatus(t *testing.T) {
	f := newFake()
	share, other := types.UID("s-1"), "s-2"
	mine := string(share)
	c := f.add("vm", "causeway", "1Gi", corev1.PodRunning)
	allocate(c, "1Gi", "0")
	r := &c.Status.Allocation.Devices.Results[0]
	r.ShareID, r.BindingConditions = &share, []string{claim.LeaseReady}
	is := func(s metav1.ConditionStatus, types ...string) (list []metav1.Condition) {
		for _, name := range types {
			list = append(list, metav1.Condition{Type: name, Status: s})
		}
		return list
	}
	for _, want := range []struct {
		share           *string
		conditions      []metav1.Condition
		sessions, lease string
	}{
		{&other, is(metav1.ConditionTrue, claim.Sessions, claim.LeaseReady), "", Asked},
		{nil, is(metav1.ConditionTrue, claim.Sessions), "", Asked},
		{&mine, is(metav1.ConditionTrue, claim.Sessions, claim.LeaseReady), Open, Held},
		{&mine, is(metav1.ConditionFalse, claim.Sessions), None, Asked},
		{&mine, is(metav1.ConditionUnknown, claim.Sessions), "", Asked},
		{&mine, is(metav1.ConditionTrue, claim.LeaseRefused), "", Refuses},
	} {
		c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: claim.Driver, Pool: "node1", Device: "gpu-1", ShareID: want.share, Conditions: want.conditions}}
		got, err := Read(t.Context(), f, "")
		if err != nil || got.Claims[0].Parts[0].Sessions != want.sessions || got.Claims[0].Parts[0].Lease != want.lease {
			t.Errorf("%v, %+v, want %q %q", err, got.Claims[0].Parts, want.sessions, want.lease)
		}
	}
}

// TestMoves: a VM is on its way while two pods are of it, from the older one's node to the other's.
func TestMoves(t *testing.T) {
	now := time.Now()
	pod := func(vm, node string, age time.Duration, phase corev1.PodPhase) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Annotations: map[string]string{"kubevirt.io/domain": vm},
			Labels: map[string]string{"causeway.dev/vgpu": "vgpu"}, CreationTimestamp: metav1.NewTime(now.Add(-age))}}
		p.Spec.NodeName, p.Status.Phase = node, phase
		return p
	}
	plain := pod("plain", "a", 0, corev1.PodRunning)
	plain.Labels = nil
	got := moves([]corev1.Pod{pod("z", "", 0, corev1.PodPending), pod("z", "node1", time.Hour, corev1.PodRunning), pod("still", "node1", 0, corev1.PodRunning),
		pod("done", "node2", 0, corev1.PodRunning), pod("done", "node1", time.Hour, corev1.PodSucceeded), plain, plain,
		pod("a", "node3", 0, corev1.PodRunning), pod("a", "node2", time.Minute, corev1.PodRunning)})
	if want := []Move{{"team", "a", "node2", "node3"}, {"team", "z", "node1", ""}}; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// TestStranded: memory is stranded that is free while claims wait, and too little for any of them.
func TestStranded(t *testing.T) {
	n := &Node{Name: "n", State: Ready}
	g := &GPU{Memory: 10 << 30, Claimed: 4 << 30}
	for _, c := range []struct {
		waiting string // amounts
		want    uint64
	}{
		{"", 0}, {"7Gi", 6 << 30}, {"6Gi", 0}, {"8Gi 1Gi", 0}, {"all", 6 << 30}, {"all 7Gi", 6 << 30}, {"all 2Gi", 0},
	} {
		f := &Fleet{Claims: []Claim{{State: InUse, Memory: "1Ki"}}}
		for _, m := range strings.Fields(c.waiting) {
			f.Claims = append(f.Claims, Claim{State: Waiting, Memory: m})
		}
		if got := f.Wanted().Stranded(n, g); got != c.want {
			t.Errorf("%q: %d, want %d", c.waiting, got, c.want)
		}
	}
	w := Wanted{Claims: 1, Whole: true}
	if w.Stranded(n, &GPU{Memory: 5}) != 0 || w.Stranded(&Node{State: Gone}, g) != 0 || w.Stranded(n, &GPU{Memory: 5, Claimed: 1, Taints: []string{"drained"}}) != 0 {
		t.Error("a whole GPU that is free, or one that takes no claims, is not stranded")
	}
}

// TestLacking: a pod that names another namespace's claim, or none that there is, is said; one that
// a node has, that goes, or whose claim is still to be made of a template is not.
func TestLacking(t *testing.T) {
	f := newFake()
	mine, template, now := "mine", "template", metav1.Now()
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: mine, UID: "1"}}
	f.claims = append(f.claims, c)
	pod := func(namespace, name string) *corev1.Pod {
		f.pods = append(f.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimName: &mine}}}})
		return &f.pods[len(f.pods)-1]
	}
	pod("team", "own")
	pod("other", "theirs\x1b[2J")
	pod("other", "runs").Spec.NodeName = "node1"
	pod("other", "goes").DeletionTimestamp = &now
	pod("other", "later").Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimTemplateName: &template}}
	v, err := Read(t.Context(), f, "")
	if err != nil || len(v.Lacking) != 1 || v.Lacking[0].Claim != mine || v.Lacking[0].Namespace != "other" {
		t.Fatalf("%+v %v", v.Lacking, err)
	}
	var b strings.Builder
	if err := v.Table(&b, time.Now()); err != nil || !strings.Contains(b.String(), "names the claim mine, which its namespace has not") || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q %v", b.String(), err)
	}
}
