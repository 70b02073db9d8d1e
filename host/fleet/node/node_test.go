package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"causeway/host/api"
	"causeway/host/fleet/cdi"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// fake is a causewayd with one GPU, which promises no more memory than there is.
type fake struct {
	gpu     api.GPU
	vgpus   []api.VGPU
	down    bool // it does not answer
	old     bool // it knows nothing of programs
	ensured int
}

var errDown = errors.New("causewayd does not run")

func (f *fake) GPUs(context.Context) ([]api.GPU, error) {
	if f.down {
		return nil, errDown
	}
	return []api.GPU{f.gpu}, nil
}

func (f *fake) VGPUs(context.Context) ([]api.VGPU, error) {
	if f.down {
		return nil, errDown
	}
	return slices.Clone(f.vgpus), nil
}

func (f *fake) Ensure(_ context.Context, w api.Wish) (api.VGPU, error) {
	if f.down {
		return api.VGPU{}, errDown
	}
	f.ensured++
	if err := w.Check(); err != nil {
		return api.VGPU{}, &api.Error{Status: http.StatusBadRequest, Text: err.Error()}
	}
	at, left := -1, f.gpu.Memory
	for i := range f.vgpus {
		if f.vgpus[i].Spec.Key() == w.Key() {
			at = i
			continue
		}
		left -= f.vgpus[i].Spec.Memory
	}
	if w.Remote == "" && (uint64(*w.Memory) > left || w.GPU != f.gpu.ID) {
		return api.VGPU{}, &api.Error{Status: http.StatusInsufficientStorage, Text: "no room"}
	}
	s := api.Spec{VM: w.VM, Name: w.Name, GPU: w.GPU, Remote: w.Remote, Programs: *w.Programs && !f.old, Owner: w.Owner, Limits: w.On(api.Limits{})}
	v := api.VGPU{Spec: s, GPU: f.gpu.ID, Socket: s.SocketPath("/run/causeway")}
	if at < 0 {
		f.vgpus = append(f.vgpus, v)
	} else {
		f.vgpus[at] = v
	}
	return v, nil
}

func (f *fake) Release(_ context.Context, vm, name string, _ bool) error {
	if f.down {
		return errDown
	}
	n := len(f.vgpus)
	f.vgpus = slices.DeleteFunc(f.vgpus, func(v api.VGPU) bool { return v.Spec.VM == vm && v.Spec.Name == name })
	if len(f.vgpus) == n {
		return &api.Error{Status: http.StatusNotFound, Text: "there is no such vGPU"}
	}
	return nil
}

// rig is a driver with a fake behind it.
type rig struct {
	*Driver
	f       *fake
	refused []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	lib := t.TempDir()
	if err := os.WriteFile(filepath.Join(lib, "libcuda.so.1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{f: &fake{gpu: api.GPU{ID: "GPU-1", Backend: "soft", Name: "soft", Memory: 4 << 30}}}
	r.Driver = &Driver{Node: "node1", RunDir: "/run/causeway", Causewayd: r.f, CDI: cdi.Dir(filepath.Join(t.TempDir(), "cdi")), Libraries: cdi.Libraries{Folder: lib},
		Refused: func(c claim.ID, why error) { r.refused = append(r.refused, c.String()+": "+why.Error()) },
		Fatal:   func(err error) { t.Errorf("fatal: %v", err) }, Log: slog.New(slog.DiscardHandler)}
	return r
}

func newClaim(uid types.UID, memory string, devices int, parameters string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{}
	c.Namespace, c.Name, c.UID = "team", "c-"+string(uid), uid
	a := &resourceapi.AllocationResult{}
	for range devices {
		a.Devices.Results = append(a.Devices.Results, resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: claim.Driver, Pool: "node1", Device: "gpu-1",
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{claim.Memory: resource.MustParse(memory)}})
	}
	if parameters != "" {
		o := &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver}
		o.Parameters.Raw = []byte(parameters)
		a.Devices.Config = append(a.Devices.Config, resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: o}})
	}
	c.Status.Allocation = a
	return c
}

const forVM = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm"}`

func (r *rig) prepared(t *testing.T, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	t.Helper()
	got, err := r.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{c})
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return got[c.UID].Devices, got[c.UID].Err
}

func (r *rig) takenBack(t *testing.T, c *resourceapi.ResourceClaim) error {
	t.Helper()
	got, err := r.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: c.UID}})
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return got[c.UID]
}

func (r *rig) files(t *testing.T) int {
	t.Helper()
	list, err := r.CDI.Claims()
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestPrepare: asked again, by this driver or the next, after a reboot too, a claim has the same
// vGPU and its file; taken back, nothing, once and again.
func TestPrepare(t *testing.T) {
	r := newRig(t)
	c := newClaim("1-a", "1Gi", 1, "")
	for range 2 {
		devices, err := r.prepared(t, c)
		if err != nil || len(devices) != 1 || devices[0].CDIDeviceIDs[0] != "causeway.dev/vgpu=1-a-gpu0" || devices[0].DeviceName != "gpu-1" || devices[0].Requests[0] != "gpu" {
			t.Fatalf("%+v %v", devices, err)
		}
		if len(r.f.vgpus) != 1 || r.files(t) != 1 {
			t.Fatalf("%+v, %d files", r.f.vgpus, r.files(t))
		}
		if err := r.CDI.Remove(c.UID); err != nil { // as a reboot does
			t.Fatal(err)
		}
		d := r.Driver
		r.Driver = &Driver{Node: d.Node, RunDir: d.RunDir, Causewayd: d.Causewayd, CDI: d.CDI, Libraries: d.Libraries, Refused: d.Refused, Fatal: d.Fatal, Log: d.Log}
	}
	r.f.vgpus = nil // also of causewayd's
	if _, err := r.prepared(t, c); err != nil || len(r.f.vgpus) != 1 || r.files(t) != 1 {
		t.Fatalf("%v %+v", err, r.f.vgpus)
	}
	for range 2 {
		if err := r.takenBack(t, c); err != nil || len(r.f.vgpus) != 0 || r.files(t) != 0 {
			t.Fatalf("%v %+v", err, r.f.vgpus)
		}
	}
}

// TestPrepareVM: each GPU of a VM's claim is a socket of a name of its own.
func TestPrepareVM(t *testing.T) {
	r := newRig(t)
	devices, err := r.prepared(t, newClaim("1-a", "1Gi", 2, forVM))
	if err != nil || len(devices) != 2 || devices[1].CDIDeviceIDs[0] != "causeway.dev/vgpu=1-a-gpu1" {
		t.Fatalf("%+v %v", devices, err)
	}
	if v := r.f.vgpus[1]; v.Spec.Programs || v.Spec.Owner != "107:107" || v.Spec.Name != "gpu1" {
		t.Errorf("%+v", v)
	}
}

// TestPrepareRefused: what cannot be is refused with its reason, told to who looks at the claim,
// and leaves nothing.
func TestPrepareRefused(t *testing.T) {
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		change func(*rig)
		says   string
	}{
		"no room":            {newClaim("1-a", "5Gi", 1, ""), nil, "no room"},
		"no room for two":    {newClaim("1-a", "3Gi", 2, forVM), nil, "no room"},
		"bad parameters":     {newClaim("1-a", "1Gi", 1, `{"kind":"GpuConfig"}`), nil, "use causeway.dev/v1alpha1"},
		"another node's GPU": {newClaim("1-a", "1Gi", 1, ""), func(r *rig) { r.Node = "node2" }, "no such GPU"},
		"a GPU that is gone": {newClaim("1-a", "1Gi", 1, ""), func(r *rig) { r.f.gpu.ID = "GPU-2" }, "no such GPU"},
		"causewayd is down":  {newClaim("1-a", "1Gi", 1, ""), func(r *rig) { r.f.down = true }, "does not run"},
		"causewayd is old":   {newClaim("1-a", "1Gi", 1, ""), func(r *rig) { r.f.old = true }, "too old"},
		"no libraries":       {newClaim("1-a", "1Gi", 1, ""), func(r *rig) { r.Libraries.Folder += "/gone" }, "libraries"},
		"no folder": {newClaim("1-a", "1Gi", 1, ""), func(r *rig) {
			r.CDI = cdi.Dir(filepath.Join(r.Libraries.Folder, "libcuda.so.1", "x"))
		}, "container specification"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if c.change != nil {
				c.change(r)
			}
			_, err := r.prepared(t, c.claim)
			if err == nil || !strings.Contains(err.Error(), c.says) || len(r.refused) != 1 || !strings.HasPrefix(r.refused[0], "team/c-1-a: ") {
				t.Errorf("%v; told: %q", err, r.refused)
			}
			if len(r.f.vgpus) != 0 {
				t.Errorf("left: %+v", r.f.vgpus)
			}
		})
	}
}

// TestPrepareKeeps: a claim that was prepared, and cannot be again at this moment, keeps what its
// containers use.
func TestPrepareKeeps(t *testing.T) {
	r := newRig(t)
	c := newClaim("1-a", "1Gi", 1, "")
	if _, err := r.prepared(t, c); err != nil {
		t.Fatal(err)
	}
	r.Libraries.Folder += "/gone"
	if _, err := r.prepared(t, c); err == nil || len(r.f.vgpus) != 1 {
		t.Errorf("%v, %+v", err, r.f.vgpus)
	}
}

// TestTakenBackLater: while causewayd does not answer a claim is not taken back, and is found
// again.
func TestTakenBackLater(t *testing.T) {
	r := newRig(t)
	c := newClaim("1-a", "1Gi", 1, "")
	if _, err := r.prepared(t, c); err != nil {
		t.Fatal(err)
	}
	r.f.down = true
	if err := r.takenBack(t, c); !errors.Is(err, errDown) || r.files(t) != 1 {
		t.Errorf("%v, %d files", err, r.files(t))
	}
	r.f.down = false
	if err := r.takenBack(t, c); err != nil || len(r.f.vgpus) != 0 || r.files(t) != 0 {
		t.Errorf("%v, %+v", err, r.f.vgpus)
	}
}

// TestSweep: claims of which the API server says that they are over, or another node's, are taken
// back; if it does not answer, or only says so of a moment ago, none is.
func TestSweep(t *testing.T) {
	r := newRig(t)
	server := map[string]*resourceapi.ResourceClaim{}
	for _, uid := range []types.UID{"1-a", "1-b", "1-c", "1-d", "1-e", "1-f"} {
		c := newClaim(uid, "256Mi", 1, "")
		if _, err := r.prepared(t, c); err != nil {
			t.Fatal(err)
		}
		server[c.Name] = c
	}
	silent := true
	get := func(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
		if silent {
			return nil, errors.New("no route")
		}
		if c := server[name]; c != nil {
			return c, nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, name)
	}
	old := func(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "resourceclaims"}, "all")
	}
	bound := func(c *resourceapi.ResourceClaim, node string) {
		c.Status.Allocation.Devices.Results[0].Pool, c.Status.Allocation.Devices.Results[0].BindingConditions = claim.PoolOf("gpu9"), []string{claim.LeaseReady}
		c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}
	}
	if err := r.Sweep(t.Context(), old, get); err == nil || len(r.f.vgpus) != 6 {
		t.Errorf("%v, %d vGPUs", err, len(r.f.vgpus))
	}
	silent = false
	if err := r.Sweep(t.Context(), old, get); err != nil || len(r.f.vgpus) != 6 {
		t.Errorf("what was a moment ago: %v, %d vGPUs", err, len(r.f.vgpus))
	}
	delete(server, "c-1-a")
	server["c-1-b"] = newClaim("2-b", "1Gi", 1, "")
	server["c-1-c"].Status.Allocation = nil
	server["c-1-e"].Status.Allocation.Devices.Results[0].Pool = "node2"
	bound(server["c-1-f"], "node2")
	bound(server["c-1-d"], "node1")
	silent = true
	if err := r.Sweep(t.Context(), get, get); err == nil || len(r.f.vgpus) != 6 {
		t.Errorf("%v, %d vGPUs", err, len(r.f.vgpus))
	}
	silent = false
	if err := r.Sweep(t.Context(), get, get); err != nil || len(r.f.vgpus) != 1 || r.f.vgpus[0].Spec.VM != "claim-1-d" || r.files(t) != 1 {
		t.Errorf("%v, %+v", err, r.f.vgpus)
	}
}

// TestPublisher: what changes is published, and what does not is not; a causewayd that is silent
// for long has its GPUs tainted, and loses none.
func TestPublisher(t *testing.T) {
	r := newRig(t)
	var got []resourceslice.DriverResources
	refuse := false
	p := &publish.Publisher{Node: "node1", Causewayd: r.f, Every: time.Second, Patience: time.Minute, Log: r.Log,
		Publish: func(_ context.Context, n resourceslice.DriverResources) error {
			if refuse {
				return errors.New("no API server")
			}
			got = append(got, n)
			return nil
		}}
	now := time.Now()
	last := func() resourceapi.Device { return got[len(got)-1].Pools["node1"].Slices[0].Devices[0] }
	p.Look(t.Context(), now)
	p.Look(t.Context(), now)
	if len(got) != 1 || last().Name != "gpu-1" {
		t.Fatalf("%+v", got)
	}
	r.f.gpu.Drained, r.f.gpu.Why, refuse = true, "XID 79", true
	p.Look(t.Context(), now)
	refuse = false
	p.Look(t.Context(), now)
	if len(got) != 2 || last().Taints[0].Key != publish.TaintDrained || last().Taints[0].Value != "fault" {
		t.Fatalf("%+v", last())
	}
	r.f.down = true
	p.Look(t.Context(), now.Add(30*time.Second))
	if len(got) != 2 {
		t.Fatal("it was silent for a moment only")
	}
	health := func() *v1alpha1.DeviceHealth {
		r.Driver.Devices = p.Devices
		return r.health(now)[0]
	}
	if h := health(); h.Health != v1alpha1.HealthStatus_UNHEALTHY || h.Device.PoolName != "node1" || h.Device.DeviceName != "gpu-1" {
		t.Errorf("a GPU with a fault: %v", h)
	}
	p.Look(t.Context(), now.Add(2*time.Minute))
	if h := health(); h.Health == v1alpha1.HealthStatus_HEALTHY {
		t.Errorf("nobody answers for it: %v", h)
	}
	if len(got) != 3 || len(last().Taints) != 2 {
		t.Fatalf("%+v", last())
	}
	r.f.down, r.f.gpu.Drained = false, false
	p.Look(t.Context(), now.Add(3*time.Minute))
	if len(got) != 4 || len(last().Taints) != 0 {
		t.Fatalf("%+v", last())
	}
	if h := health(); h.Health != v1alpha1.HealthStatus_HEALTHY {
		t.Errorf("%v", h)
	}
	r.f.gpu.Drained, r.f.gpu.Why = true, "drained by root"
	p.Look(t.Context(), now.Add(4*time.Minute))
	if h := health(); h.Health != v1alpha1.HealthStatus_HEALTHY || len(last().Taints) != 1 {
		t.Errorf("a GPU that an operator drained: %v", h)
	}
}
