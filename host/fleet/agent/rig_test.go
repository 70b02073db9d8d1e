package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// host is a causewayd with one GPU of 4 GiB, and a libvirt with domains.
type host struct {
	mu      sync.Mutex
	vgpus   map[string]api.Wish
	lost    string // key of a vGPU whose device process has ended
	down    bool
	domains map[string][]string // what each has plugged in
	deaf    bool                // guests let go of nothing
	plugs   int
}

func (h *host) GPUs(context.Context) ([]api.GPU, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return nil, api.ErrNotRunning
	}
	return []api.GPU{{ID: "GPU-1", Backend: "soft", Name: "soft", Memory: 4 << 30}}, nil
}

func (h *host) VGPUs(context.Context) ([]api.VGPU, error) { return nil, nil }

func (h *host) Ensure(_ context.Context, w api.Wish) (api.VGPU, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := uint64(4 << 30)
	for key, had := range h.vgpus {
		if key != w.Key() {
			left -= uint64(*had.Memory)
		}
	}
	switch {
	case h.down:
		return api.VGPU{}, api.ErrNotRunning
	case w.Owner != "":
		return api.VGPU{}, &api.Error{Status: http.StatusBadRequest, Text: "QEMU's user is the host's own affair"}
	case w.Remote == "" && uint64(*w.Memory) > left:
		return api.VGPU{}, &api.Error{Status: http.StatusInsufficientStorage, Text: "no room"}
	}
	h.vgpus[w.Key()] = w
	v := api.VGPU{State: api.Waiting}
	if w.Key() == h.lost {
		v.State, v.Why = api.Lost, "killed"
	}
	return v, nil
}

func (h *host) Release(_ context.Context, vm, name string, _ bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down {
		return api.ErrNotRunning
	}
	if _, there := h.vgpus[vm+"/"+name]; !there {
		return &api.Error{Status: http.StatusNotFound, Text: "no such vGPU"}
	}
	delete(h.vgpus, vm+"/"+name)
	return nil
}

func (h *host) Plug(_ context.Context, domain, vgpu string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plugs++
	had, there := h.domains[domain]
	if !there {
		return fmt.Errorf("%w: %s", ErrNoDomain, domain)
	}
	if !slices.Contains(had, vgpu) {
		h.domains[domain] = append(had, vgpu)
	}
	return nil
}

func (h *host) Unplug(_ context.Context, domain, vgpu string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	had, there := h.domains[domain]
	switch {
	case !there:
		return ErrNoDomain
	case h.deaf && slices.Contains(had, vgpu):
		return errors.New("the guest has not let go of the vGPU")
	}
	h.domains[domain] = slices.DeleteFunc(had, func(v string) bool { return v == vgpu })
	return nil
}

// has says what a domain has plugged in and causewayd has made, together.
func (h *host) has(domain string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d made, %d in %s", len(h.vgpus), len(h.domains[domain]), domain)
}

func (h *host) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// rig is an agent that runs, over an API server that is a fake.
type rig struct {
	*Agent
	t      *testing.T
	h      *host
	client *fake.Clientset
	events *record.FakeRecorder
	stop   func()
}

func newRig(t *testing.T, domains ...string) *rig {
	t.Helper()
	r := &rig{t: t, h: &host{vgpus: map[string]api.Wish{}, domains: map[string][]string{}}, client: fake.NewClientset(), events: record.NewFakeRecorder(1000)}
	for _, d := range domains {
		r.h.domains[d] = nil
	}
	r.start(Dir(t.TempDir()))
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start(records Dir, namespaces ...string) {
	r.Agent = &Agent{Client: r.client, Node: "host1", Namespaces: namespaces, Causewayd: r.h, Domains: r.h, Records: records, Events: r.events, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func(a *Agent) { done <- a.Run(ctx) }(r.Agent)
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) until(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not in time: %s; %s", what, r.h.has("vm1"))
		}
	}
}

func (r *rig) phase(name string) corev1.PodPhase {
	p, err := r.client.CoreV1().Pods("team").Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return p.Status.Phase
}

func (r *rig) is(name string, phase corev1.PodPhase) {
	r.t.Helper()
	r.until(name+" is "+string(phase), func() bool { return r.phase(name) == phase })
}

// event awaits one with these words.
func (r *rig) event(says string) {
	r.t.Helper()
	for {
		select {
		case e := <-r.events.Events:
			if strings.Contains(e, says) {
				return
			}
		case <-time.After(20 * time.Second):
			r.t.Fatalf("no event says %q", says)
		}
	}
}

const forVM = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm"}`

// claim makes one that the scheduler has given a GPU of the host, for a pod.
func (r *rig) claim(name, memory, parameters string, pods ...string) *resourceapi.ResourceClaim {
	r.t.Helper()
	c := &resourceapi.ResourceClaim{}
	c.Namespace, c.Name, c.UID = "team", name, types.UID(fmt.Sprintf("%x", name))
	a := &resourceapi.AllocationResult{}
	a.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: claim.Driver, Pool: "host1", Device: "gpu-1",
		ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse(memory)}}}
	if parameters != "" {
		o := &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver}
		o.Parameters.Raw = []byte(parameters)
		a.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: o}}}
	}
	c.Status.Allocation = a
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: podUID(p)})
	}
	if _, err := r.client.ResourceV1().ResourceClaims("team").Create(r.t.Context(), c, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	return c
}

func podUID(name string) types.UID { return types.UID("pod-" + name) }

func (r *rig) pod(name, domain string, claims ...string) *corev1.Pod {
	r.t.Helper()
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID, p.Spec.NodeName, p.Status.Phase = "team", name, podUID(name), "host1", corev1.PodPending
	p.Spec.Containers = []corev1.Container{{Name: "vgpu", Image: "none"}}
	if domain != "" {
		p.Annotations = map[string]string{DomainKey: domain}
	}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
	}
	p, err := r.client.CoreV1().Pods("team").Create(r.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// leave has a pod be deleted as people do: the API server marks it, and the node has it go.
func (r *rig) leave(name string) {
	r.t.Helper()
	p, err := r.client.CoreV1().Pods("team").Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	now := metav1.Now()
	p.DeletionTimestamp = &now
	if _, err := r.client.CoreV1().Pods("team").Update(r.t.Context(), p, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) gone(name string) {
	r.t.Helper()
	r.until(name+" is gone", func() bool {
		_, err := r.client.CoreV1().Pods("team").Get(r.t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func (r *rig) holds(want string) {
	r.t.Helper()
	r.until(want, func() bool { return r.h.has("vm1") == want })
}
