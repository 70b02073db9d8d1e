package overview

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/fleet/claim"
)

// fake is an API server with a node, its GPU of 2 GiB, and what a test adds.
type fake struct {
	nodes  []corev1.Node
	slices []resourceapi.ResourceSlice
	claims []resourceapi.ResourceClaim
	pods   []corev1.Pod
	events []corev1.Event
	asked  int
	// looked is called at each reading of claims, with its number.
	looked                            func(n int)
	noNodes, noSlices, noPods, noText error
}

func (f *fake) Nodes(context.Context) ([]corev1.Node, error) { return f.nodes, f.noNodes }
func (f *fake) Slices(context.Context) ([]resourceapi.ResourceSlice, error) {
	return f.slices, f.noSlices
}
func (f *fake) Pods(context.Context, string) ([]corev1.Pod, error)     { return f.pods, f.noPods }
func (f *fake) Events(context.Context, string) ([]corev1.Event, error) { return f.events, f.noText }

func (f *fake) Classes(context.Context) ([]resourceapi.DeviceClass, error) {
	c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "h200"}}
	c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'gpu.causeway.dev'"}}}
	return []resourceapi.DeviceClass{c, {ObjectMeta: metav1.ObjectMeta{Name: "other"}}}, nil
}

func (f *fake) Claims(_ context.Context, namespace string) (list []resourceapi.ResourceClaim, _ error) {
	f.asked++
	if f.looked != nil {
		f.looked(f.asked)
	}
	for _, c := range f.claims {
		if namespace == "" || c.Namespace == namespace {
			list = append(list, c)
		}
	}
	return list, nil
}

func newFake() *fake {
	name, model := "node1", "soft\x1b[2J"
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s := resourceapi.ResourceSlice{}
	s.Spec.Driver, s.Spec.NodeName = claim.Driver, &name
	d := resourceapi.Device{Name: "gpu-1"}
	d.Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"model": {StringValue: &model}}
	d.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{claim.Memory: {Value: resource.MustParse("2Gi")}}
	s.Spec.Devices = []resourceapi.Device{d}
	other := *s.DeepCopy()
	other.Spec.Driver = "gpu.example.com"
	return &fake{nodes: []corev1.Node{n}, slices: []resourceapi.ResourceSlice{other, s}}
}

// add makes a claim of a class, and a pod that names it in a phase; "": no pod.
func (f *fake) add(name, class, memory string, phase corev1.PodPhase) *resourceapi.ResourceClaim {
	c := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class,
		Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse(memory)}}}}}
	f.claims = append(f.claims, c)
	if phase != "" {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pod-" + name, UID: types.UID("pod-uid-" + name)}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimName: &name}}
		p.Status.Phase = phase
		f.pods = append(f.pods, p)
	}
	return &f.claims[len(f.claims)-1]
}

// allocate gives a claim a part of the GPU.
func allocate(c *resourceapi.ResourceClaim, memory, compute string) {
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: claim.Driver, Pool: "node1", Device: "gpu-1",
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse(memory), claim.Compute: resource.MustParse(compute)}}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod-" + c.Name}}
}

func (f *fake) event(kind, uid, reason, text string, at time.Time) {
	e := corev1.Event{Type: corev1.EventTypeWarning, Reason: reason, Message: text, LastTimestamp: metav1.NewTime(at)}
	e.Namespace, e.InvolvedObject = "team", corev1.ObjectReference{Kind: kind, Namespace: "team", UID: types.UID(uid)}
	f.events = append(f.events, e)
}

// TestRead: each claim is shown in its state with its reason, and counted at its GPU; what is
// others' is not shown.
func TestRead(t *testing.T) {
	now := time.Now()
	f := newFake()
	allocate(f.add("runs", "causeway", "512Mi", corev1.PodRunning), "512Mi", "25")
	// An hour ago, and over.
	f.event("ResourceClaim", "uid-runs", "CausewayRefused", "causewayd does not run", now)
	allocate(f.add("bad", "causeway", "256Mi", corev1.PodPending), "256Mi", "0")
	f.event("ResourceClaim", "uid-bad", "CausewayRefused", "unknown field\nshare", now)
	allocate(f.add("idle", "causeway", "64Mi", corev1.PodSucceeded), "64Mi", "10")
	f.claims[len(f.claims)-1].Status.ReservedFor = nil
	f.add("waits", "h200", "2Gi", corev1.PodPending)
	f.event("Pod", "pod-uid-waits", "FailedScheduling", "too old", now.Add(-time.Minute))
	f.event("Pod", "pod-uid-waits", "FailedScheduling", "cannot allocate all claims", now)
	f.event("Pod", "pod-uid-bad", "FailedScheduling", "of another pod", now.Add(time.Minute))
	f.event("Pod", "pod-uid-waits", "FailedScheduling", "another namespace's word", now.Add(time.Minute))
	f.event("ResourceClaim", "uid-bad", "CausewayRefused", "another namespace's word", now.Add(time.Minute))
	for i := range 2 {
		e := &f.events[len(f.events)-1-i]
		e.Namespace, e.InvolvedObject.Namespace = "other", "other"
	}
	f.add("alone", "causeway", "1Gi", "")
	f.add("fresh", "causeway", "1Gi", corev1.PodPending)
	gone := f.add("leaves", "causeway", "1Gi", "")
	gone.DeletionTimestamp = &metav1.Time{Time: now}
	f.add("foreign", "other", "1Gi", corev1.PodPending)

	got, err := Read(t.Context(), f, "")
	if err != nil || len(got.Unread) != 0 {
		t.Fatal(err, got.Unread)
	}
	want := map[string][3]string{
		"runs": {InUse, "pod-runs", ""}, "bad": {Refused, "pod-bad", "unknown field\nshare"}, "idle": {Allocated, "", ""},
		"waits": {Waiting, "pod-waits", "cannot allocate all claims"}, "alone": {Waiting, "", noPod}, "leaves": {Leaving, "", noPod},
		"fresh": {Waiting, "pod-fresh", "the scheduler has not come to its pod yet"},
	}
	if len(got.Claims) != len(want) {
		t.Errorf("%d claims: %+v", len(got.Claims), got.Claims)
	}
	for i := range got.Claims {
		c := &got.Claims[i]
		if is := [3]string{c.State, strings.Join(c.Pods, ","), c.Why}; is != want[c.Name] {
			t.Errorf("%s: %q, want %q", c.Name, is, want[c.Name])
		}
	}
	if len(got.Nodes) != 1 || len(got.Nodes[0].GPUs) != 1 || got.Nodes[0].State != Ready {
		t.Fatalf("%+v", got.Nodes)
	}
	if g := got.Nodes[0].GPUs[0]; g.Claimed != 832<<20 || g.Compute != 35 || g.Claims != 3 || g.Free() != (2048-832)<<20 {
		t.Errorf("%+v", g)
	}
	if some, err := Read(t.Context(), f, "nobody"); err != nil || len(some.Claims) != 0 {
		t.Errorf("%v, %+v", err, some)
	}
}

// TestTable: others' text steers no terminal and breaks no line.
func TestTable(t *testing.T) {
	f := newFake()
	allocate(f.add("bad", "causeway", "256Mi", corev1.PodPending), "256Mi", "5")
	f.event("ResourceClaim", "uid-bad", "CausewayRefused", "unknown\nfield \x1b]0;x", time.Now())
	f.add("large", "causeway", "64Gi", "")
	f.nodes[0].Spec.Unschedulable = true
	SetDrained(&f.nodes[0], true)
	f.slices[1].Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "gpu.causeway.dev/drained", Value: "fault"}}
	got, err := Read(t.Context(), f, "")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := got.Table(&b, got.Claims[0].Created.Add(90*time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"node1  Ready,draining,cordoned  gpu-1  soft?[2J  256 MiB/2 GiB  5/100    1       drained=fault",
		"team/bad    Refused  256 MiB  5        node1  gpu-1  pod-bad  1m", "team/bad: unknown field ?]0;x",
		"team/large  Waiting  64Gi     0        -", "the largest GPU of the fleet has 2GiB: ask for less"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	if err := (&Fleet{}).Table(&b, time.Now()); err != nil || !strings.Contains(b.String(), "no node offers") || !strings.Contains(b.String(), "no claim") {
		t.Errorf("%v, %s", err, b.String())
	}
}

// TestUnread: who may not read nodes, pods or events sees the rest, and what is missing; without
// slices nothing is shown.
func TestUnread(t *testing.T) {
	forbidden := errors.New("forbidden")
	f := newFake()
	f.noNodes, f.noPods, f.noText = forbidden, forbidden, forbidden
	allocate(f.add("runs", "causeway", "512Mi", ""), "512Mi", "0")
	got, err := Read(t.Context(), f, "")
	if err != nil || len(got.Unread) != 3 || got.Nodes[0].State != "-" || got.Claims[0].State != InUse || got.Claims[0].Pods[0] != "pod-runs" {
		t.Errorf("%v, %+v", err, got)
	}
	f.noNodes, f.nodes = nil, nil
	if got, err = Read(t.Context(), f, ""); err != nil || got.Nodes[0].State != Gone {
		t.Errorf("%v, %+v", err, got)
	}
	f.noSlices = forbidden
	if _, err := Read(t.Context(), f, ""); !errors.Is(err, forbidden) {
		t.Error(err)
	}
}

// TestAsk: what is asked for is a claim that the driver reads, and what could never be served is
// refused by name.
func TestAsk(t *testing.T) {
	for says, a := range map[string]Ask{
		"no unit":              {Memory: "4", Count: 1},
		"no size":              {Memory: "-4GiB", Count: 1},
		"more than Kubernetes": {Memory: "9000000000GiB", Count: 1},
		"steps of 1MiB":        {Memory: "1025KiB", Count: 1},
		"--compute 101":        {Compute: 101, Count: 1},
		"cap: 101":             {Cap: 101, Count: 1},
		"--count 0":            {},
		"--count 33":           {Count: 33, VM: true},
		"a container gets one": {Count: 2},
		`--path "moon"`:        {Count: 1, Path: "moon"},
	} {
		if _, err := a.Claim(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", a, err, says)
		}
	}
	for _, text := range []string{"512Mi", "512MiB", " 512Mi", "512M"} {
		// As manifests have it, too.
		c, err := (&Ask{Memory: text, Count: 1}).Claim()
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if q := c.Spec.Devices.Requests[0].Exactly.Capacity.Requests[claim.Memory]; q.String() != "512Mi" {
			t.Errorf("%q: %s", text, q.String())
		}
	}
	c, err := (&Ask{Namespace: "team", Name: "vm1", Class: Class, Memory: "16GiB", Compute: 25, Cap: 50, Count: 2, VM: true, Path: Local}).Claim()
	if err != nil {
		t.Fatal(err)
	}
	e := c.Spec.Devices.Requests[0].Exactly
	if q := e.Capacity.Requests[claim.Memory]; q.String() != "16Gi" || e.Count != 2 || e.DeviceClassName != "causeway" || len(c.Spec.Devices.Constraints) != 2 {
		t.Errorf("%+v", c.Spec)
	}
	if s := e.Selectors[0].CEL.Expression; s != `device.attributes["gpu.causeway.dev"].path == "local"` {
		t.Error(s)
	}
	p, err := claim.ParseParameters(c.Spec.Devices.Config[0].Opaque.Parameters.Raw)
	if err != nil || p.Serves != claim.VirtualMachine || p.Cap != 50 {
		t.Errorf("%v, %+v", err, p)
	}
	if b, err := json.Marshal(c); err != nil || !strings.Contains(string(b), `"kind":"ResourceClaim"`) {
		t.Errorf("%v, %s", err, b)
	}
}

// TestAlternatives: a claim that names several asks for the least of them, so what is said of room
// holds for all.
func TestAlternatives(t *testing.T) {
	sub := func(name string, requests string) resourceapi.DeviceSubRequest {
		r := resourceapi.DeviceSubRequest{Name: name, DeviceClassName: Class}
		for _, f := range strings.Fields(requests) {
			if r.Capacity == nil {
				r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
			}
			k, v, _ := strings.Cut(f, "=")
			r.Capacity.Requests[resourceapi.QualifiedName(k)] = resource.MustParse(v)
		}
		return r
	}
	for _, c := range []struct{ first, second, memory, compute string }{
		{"memory=2Gi compute=25", "memory=1Gi compute=50", "1Gi", "25"},
		{"memory=2Gi compute=25", "", "2Gi", "0"},
		{"", "gpu.causeway.dev/memory=1Gi", "1Gi", "0"},
		{"", "compute=5", wholeGPU, "0"},
	} {
		rc := &resourceapi.ResourceClaim{}
		rc.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{sub("local", c.first), sub("network", c.second)}}}
		if memory, compute := asked(rc, claim.Memory, wholeGPU), asked(rc, claim.Compute, "0"); memory != c.memory || compute != c.compute {
			t.Errorf("%q, %q: %s, %s, want %s, %s", c.first, c.second, memory, compute, c.memory, c.compute)
		}
	}
}

// TestNetwork: a GPU host of the fleet is seen with its GPUs and who has them, be it a node or not.
func TestNetwork(t *testing.T) {
	f := newFake()
	far := *f.slices[1].DeepCopy()
	far.Spec.NodeName, far.Spec.Pool.Name = nil, claim.PoolOf("gpu9")
	far.Spec.Devices[0].Name = "gpu-9-net"
	own := *far.DeepCopy()
	own.Spec.Pool.Name = claim.PoolOf("node1")
	own.Spec.Devices[0].Name = "gpu-1-net"
	f.slices = append(f.slices, far, own)
	c := f.add("c", "h200", "1Gi", corev1.PodRunning)
	c.Status.Allocation = &resourceapi.AllocationResult{}
	c.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: claim.Driver, Pool: far.Spec.Pool.Name, Device: "gpu-9-net",
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse("1Gi")}}}
	got, err := Read(t.Context(), f, "")
	if err != nil || len(got.Nodes) != 2 || got.Nodes[0].Name != "gpu9" || got.Nodes[0].State != Network || got.Nodes[0].GPUs[0].Claimed != 1<<30 || got.Nodes[0].Away() {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := got.Nodes[1]; n.Name != "node1" || n.State != Ready || len(n.GPUs) != 2 {
		t.Errorf("%+v", n)
	}
	if p := got.Claims[0].Parts; len(p) != 1 || p[0].Node != "gpu9" {
		t.Errorf("%+v", got.Claims)
	}
}
