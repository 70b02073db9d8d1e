package agent

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// TestLife: a pod's domain gets the vGPU of its claim, keeps it over restarts of the agent and a
// reboot of the host, and has it no more when the pod goes, which a guest that does not let go
// holds up.
func TestLife(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1")
	r.claim("a", "1Gi", forVM, "p")
	r.pod("p", "vm1", "a")
	r.is("p", corev1.PodRunning)
	r.holds("1 made, 1 in vm1")
	r.stop()
	// A reboot: the domain's definition has it, causewayd has nothing.
	r.h.set(func() { r.h.vgpus = map[string]api.Wish{} })
	r.start(r.Records)
	r.holds("1 made, 1 in vm1")
	r.h.set(func() { r.h.deaf = true })
	r.leave("p")
	r.event("has not let go")
	r.holds("1 made, 1 in vm1")
	if r.phase("p") != corev1.PodRunning {
		t.Errorf("the pod is %q while the guest has its GPU", r.phase("p"))
	}
	r.h.set(func() { r.h.deaf = false })
	r.gone("p")
	r.holds("0 made, 0 in vm1")
	if left, err := r.Records.All(); len(left) != 0 || err != nil {
		t.Errorf("%v %v", left, err)
	}
}

// TestForced: what a pod had that somebody deleted by force, also while the agent was away, is
// taken back.
func TestForced(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		r := newRig(t, "vm1")
		r.claim("a", "1Gi", forVM, "p")
		r.pod("p", "vm1", "a")
		r.is("p", corev1.PodRunning)
		if away {
			r.stop()
		}
		if err := r.client.CoreV1().Pods("team").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if away {
			r.holds("1 made, 1 in vm1")
			r.start(r.Records)
		}
		r.holds("0 made, 0 in vm1")
	}
}

// TestWaits: a domain that is not there yet, claims that are not allocated yet, a causewayd that is
// away, a GPU without room: the pod waits, says why, and goes on by itself.
func TestWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claim("a", "3Gi", forVM, "p")
	r.claim("b", "3Gi", forVM, "q")
	r.h.down = true
	r.pod("p", "vm1", "a")
	r.event("causewayd does not run")
	r.h.set(func() { r.h.down = false })
	r.event("no such domain: vm1")
	r.holds("0 made, 0 in vm1")
	r.h.set(func() { r.h.domains["vm1"] = nil })
	r.is("p", corev1.PodRunning)
	r.pod("q", "vm1", "b")
	r.event("no room")
	r.leave("p")
	r.is("q", corev1.PodRunning)
	r.holds("1 made, 1 in vm1")
	r.pod("s", "vm1", "c")
	time.Sleep(50 * time.Millisecond)
	if r.phase("s") != corev1.PodPending {
		t.Errorf("a pod whose claim is not there is %q", r.phase("s"))
	}
}

// TestRefused: what will never be is Failed, with the reason on the pod, and leaves nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1", "vm2")
	for name, c := range map[string]struct{ domain, parameters, says string }{
		"none":      {"", forVM, "the pod names no domain"},
		"option":    {"--config", forVM, "not a dash first"},
		"slash":     {"../vm1", forVM, "without slashes"},
		"container": {"vm1", "", "is for a container"},
		"foreign":   {"vm1", `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","share":1}`, "unknown field"},
	} {
		r.claim(name, "256Mi", c.parameters, name)
		r.pod(name, c.domain, name)
		r.is(name, corev1.PodFailed)
		p, _ := r.client.CoreV1().Pods("team").Get(t.Context(), name, metav1.GetOptions{})
		if !strings.Contains(p.Status.Message, c.says) {
			t.Errorf("%s: %q", name, p.Status.Message)
		}
		r.event(c.says)
	}
	r.holds("0 made, 0 in vm1")
	// One claim of two pods: the first domain has it.
	r.claim("shared", "256Mi", forVM, "one", "two")
	r.pod("one", "vm1", "shared")
	r.is("one", corev1.PodRunning)
	r.pod("two", "vm2", "shared")
	r.is("two", corev1.PodFailed)
	r.holds("1 made, 1 in vm1")
	if got := r.h.has("vm2"); got != "1 made, 0 in vm2" {
		t.Error(got)
	}
	r.stop()
	r.start(r.Records, "others")
	r.claim("foreign-namespace", "256Mi", forVM, "elsewhere")
	r.pod("elsewhere", "vm1", "foreign-namespace")
	r.is("elsewhere", corev1.PodFailed)
	r.event("not for pods of this namespace")
	// A pod that is no placeholder.
	r.pod("plain", "")
	r.is("plain", corev1.PodFailed)
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "proxy", UID: "proxy", OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "proxy", Controller: &yes}}},
		Spec: corev1.PodSpec{NodeName: "host1"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	if _, err := r.client.CoreV1().Pods("team").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.event("runs no containers")
	if r.phase("proxy") != corev1.PodPending {
		t.Errorf("a daemon's pod is %q: its controller would make it again and again", r.phase("proxy"))
	}
}

// TestPartly: of a pod whose second claim is not had nothing is left while it waits.
func TestPartly(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1")
	r.claim("a", "1Gi", forVM, "p")
	r.claim("b", "9Gi", forVM, "p")
	r.pod("p", "vm1", "a", "b")
	r.event("no room")
	r.holds("0 made, 0 in vm1")
}

// TestFar: a claim of another host's GPU waits for its lease, and is asked of causewayd as one of
// that server.
func TestFar(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1")
	c := r.claim("a", "80Gi", forVM, "p")
	result, share := &c.Status.Allocation.Devices.Results[0], "5-e"
	uid := types.UID(share)
	result.Pool, result.Device, result.ShareID, result.BindingConditions = claim.PoolOf("gpu9"), "gpu-9-net", &uid, []string{claim.LeaseReady}
	if _, err := r.client.ResourceV1().ResourceClaims("team").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.pod("p", "vm1", "a")
	r.event("its lease is not ready")
	data, err := claim.Lease{Server: "gpu9:7745", GPU: "GPU-9", Epoch: 3}.Data()
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: claim.Driver, Pool: result.Pool, Device: result.Device, ShareID: &share, Data: data,
		Conditions: []metav1.Condition{{Type: claim.LeaseReady, Status: metav1.ConditionTrue}}}}
	if _, err := r.client.ResourceV1().ResourceClaims("team").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.is("p", corev1.PodRunning)
	r.h.set(func() {
		if w := r.h.vgpus[claim.VM(c.UID)+"/gpu0"]; w.Remote != "gpu9:7745" || w.GPU != "GPU-9" {
			t.Errorf("%+v", w)
		}
	})
}

// TestLost: a domain that is gone, or a vGPU whose process has ended, is a pod that has failed, and
// what it had is taken back.
func TestLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, "vm1", "vm2")
	a := r.claim("a", "1Gi", forVM, "p")
	r.claim("b", "1Gi", forVM, "q")
	r.pod("p", "vm1", "a")
	r.pod("q", "vm2", "b")
	r.is("p", corev1.PodRunning)
	r.is("q", corev1.PodRunning)
	r.h.set(func() { r.h.lost = claim.VM(a.UID) + "/gpu0"; delete(r.h.domains, "vm2") })
	for _, name := range []string{"p", "q"} {
		r.queue.Add("team/" + name)
		r.is(name, corev1.PodFailed)
	}
	r.holds("0 made, 0 in vm1")
}

// TestNode: the Node has the taint, a Lease that is renewed, and is another's where a kubelet has
// it; one that was deleted ends the agent.
func TestNode(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	at := time.Now()
	n := &Node{Client: client, Name: "host1", Version: "1", Log: slog.New(slog.DiscardHandler), now: func() time.Time { return at }}
	node, err := n.Register(t.Context())
	if err != nil || !tainted(node) {
		t.Fatalf("%+v %v", node, err)
	}
	at = at.Add(time.Minute)
	if err := n.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := client.CoordinationV1().Leases(leaseNamespace).Get(t.Context(), "host1", metav1.GetOptions{})
	if err != nil || l.Spec.RenewTime.Sub(at).Abs() > time.Millisecond || *l.Spec.LeaseDurationSeconds != 40 {
		t.Errorf("%+v %v", l, err)
	}
	have, err := client.CoreV1().Nodes().Get(t.Context(), "host1", metav1.GetOptions{})
	if err != nil || !isReady(have) || have.Status.Allocatable.Cpu().Sign() != 0 || have.Status.Allocatable.Pods().Value() != mostPods {
		t.Errorf("%+v %v", have, err)
	}
	if _, err := n.Register(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kubelet"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	other := *n
	other.Name = "kubelet"
	if _, err := other.Register(t.Context()); !errors.Is(err, ErrForeign) {
		t.Errorf("a kubelet's node: %v", err)
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "host1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := n.Beat(t.Context()); !apierrors.IsNotFound(err) {
		t.Errorf("a node that is gone: %v", err)
	}
}
