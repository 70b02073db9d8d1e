package kubevirt

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"causeway/host/fleet/claim"
)

// fake is an API server. Names are as they are: one namespace.
type fake struct {
	claims    map[string]*resourceapi.ResourceClaim
	templates map[string]*resourceapi.ResourceClaimTemplate
	classes   map[string]*resourceapi.DeviceClass
	pods      []corev1.Pod
	fails     error
}

func get[T any](f *fake, from map[string]*T, name string) (*T, error) {
	if f.fails != nil {
		return nil, f.fails
	}
	if found := from[name]; found != nil {
		return found, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

func (f *fake) Claim(_ context.Context, _, name string) (*resourceapi.ResourceClaim, error) {
	return get(f, f.claims, name)
}
func (f *fake) Template(_ context.Context, _, name string) (*resourceapi.ResourceClaimTemplate, error) {
	return get(f, f.templates, name)
}
func (f *fake) Class(_ context.Context, name string) (*resourceapi.DeviceClass, error) {
	return get(f, f.classes, name)
}
func (f *fake) Launchers(context.Context, string) ([]corev1.Pod, error) { return f.pods, f.fails }

func opaque(parameters string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: claim.Driver,
		Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}
}

const (
	forKubeVirt = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm","vm":{"folder":"/var/run/kubevirt/virtiofs-containers"}}`
	elsewhere   = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm"}`
	thatMoves   = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm","vm":{"folder":"/var/run/kubevirt/virtiofs-containers","migratable":true}}`
	asRoot      = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","serves":"vm","vm":{"folder":"/var/run/kubevirt/virtiofs-containers","runAsUser":0}}`
	unknown     = `{"apiVersion":"causeway.dev/v1alpha1","kind":"VGPU","share":5}`
)

func newFake() *fake {
	class := func(parameters string) *resourceapi.DeviceClass {
		c := &resourceapi.DeviceClass{}
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device.driver == 'gpu.causeway.dev'"}}}
		if parameters != "" {
			c.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: opaque(parameters)}}
		}
		return c
	}
	return &fake{claims: map[string]*resourceapi.ResourceClaim{}, templates: map[string]*resourceapi.ResourceClaimTemplate{},
		classes: map[string]*resourceapi.DeviceClass{"causeway": class(""), Class: class(forKubeVirt), ClassMigratable: class(thatMoves), "nic": {}}}
}

// request is one of a claim's.
func request(class string, count int64) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}}
}

func firstOf(counts ...int64) resourceapi.DeviceRequest {
	r := resourceapi.DeviceRequest{Name: "gpu"}
	for i, n := range counts {
		r.FirstAvailable = append(r.FirstAvailable, resourceapi.DeviceSubRequest{Name: string(rune('a' + i)), DeviceClassName: Class, Count: n})
	}
	return r
}

// TestCheckClaim: a claim that would leave QEMU without its socket is refused, by name, before the
// VM is tried.
func TestCheckClaim(t *testing.T) {
	all := request(Class, 1)
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	for name, c := range map[string]struct {
		requests   []resourceapi.DeviceRequest
		parameters string // the claim's own
		vgpus      int
		says       string // "": it does
	}{
		"by the class":         {[]resourceapi.DeviceRequest{request(Class, 1)}, "", 1, ""},
		"one that moves":       {[]resourceapi.DeviceRequest{request(ClassMigratable, 1)}, "", 1, ""},
		"by itself":            {[]resourceapi.DeviceRequest{request("causeway", 1)}, forKubeVirt, 1, ""},
		"two":                  {[]resourceapi.DeviceRequest{request(Class, 2)}, "", 2, ""},
		"with a NIC":           {[]resourceapi.DeviceRequest{request("nic", 1), request(Class, 1)}, "", 1, ""},
		"the first of two":     {[]resourceapi.DeviceRequest{firstOf(1, 1)}, "", 1, ""},
		"one too many":         {[]resourceapi.DeviceRequest{request(Class, 2)}, "", 1, "is for 2 GPUs of Causeway's, and the VM has 1 filesystems"},
		"a NIC alone":          {[]resourceapi.DeviceRequest{request("nic", 1)}, "", 1, "is for 0 GPUs"},
		"for a container":      {[]resourceapi.DeviceRequest{request("causeway", 1)}, "", 1, "for programs of a container: use a class for KubeVirt (causeway-kubevirt)"},
		"sockets elsewhere":    {[]resourceapi.DeviceRequest{request(Class, 1)}, elsewhere, 1, "vm.folder is /run/causeway-vm"},
		"another user":         {[]resourceapi.DeviceRequest{request(Class, 1)}, asRoot, 1, "vm.runAsUser is 0"},
		"parameters of nobody": {[]resourceapi.DeviceRequest{request(Class, 1)}, unknown, 1, `unknown field "share"`},
		"all there are":        {[]resourceapi.DeviceRequest{all}, "", 1, "allocationMode All"},
		"alternatives":         {[]resourceapi.DeviceRequest{firstOf(1, 2)}, "", 1, "alternatives are of 1 and 2 GPUs"},
		"no class":             {[]resourceapi.DeviceRequest{request("none", 1)}, "", 1, "no such object: the DeviceClass none"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			rc := &resourceapi.ResourceClaim{}
			rc.Spec.Devices.Requests = c.requests
			if c.parameters != "" {
				rc.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque(c.parameters)}}
			}
			template := &resourceapi.ResourceClaimTemplate{}
			template.Spec.Spec = rc.Spec
			f.claims["c"], f.templates["t"] = rc, template
			one, other := "c", "t"
			for _, ref := range []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimName: &one}, {Name: "vgpu", ResourceClaimTemplateName: &other}} {
				s := &Swap{Claim: ref, VGPUs: c.vgpus}
				err := s.CheckClaim(t.Context(), f, "team")
				if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrVM) || !strings.Contains(err.Error(), c.says)) {
					t.Errorf("%v, want %q", err, c.says)
				}
			}
		})
	}
	none := "none"
	for _, ref := range []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimName: &none}, {Name: "vgpu", ResourceClaimTemplateName: &none}, {Name: "vgpu"}} {
		if err := (&Swap{Claim: ref, VGPUs: 1}).CheckClaim(t.Context(), newFake(), "team"); !errors.Is(err, ErrVM) {
			t.Errorf("%+v: %v", ref, err)
		}
	}
}

// running is a VM's pod with a claim that has a GPU.
func (f *fake) running(vmi, node, pool string, direct bool, sessions ...metav1.ConditionStatus) {
	name := "claim-of-" + vmi
	pod := corev1.Pod{}
	pod.Name, pod.Namespace = "virt-launcher-"+vmi+"-1", "team"
	pod.Labels, pod.Annotations = map[string]string{Label: "vgpu", launcherLabel: launcher}, map[string]string{domainAnnotation: vmi}
	pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "vgpu"}}
	if direct {
		pod.Spec.ResourceClaims[0].ResourceClaimName = &name
	} else {
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "vgpu", ResourceClaimName: &name}}
	}
	rc := &resourceapi.ResourceClaim{}
	rc.Status.Allocation = &resourceapi.AllocationResult{}
	rc.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{Driver: "nic"}, {Driver: claim.Driver, Pool: pool, Device: "gpu-1"}}
	rc.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "nic"}}
	for _, s := range sessions {
		rc.Status.Devices = append(rc.Status.Devices, resourceapi.AllocatedDeviceStatus{Driver: claim.Driver, Pool: pool, Device: "gpu-1",
			Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}, {Type: claim.Sessions, Status: s}}})
	}
	f.pods, f.claims[name] = append(f.pods, pod), rc
}

// TestMigration: a VM moves where nothing would be lost, and stays otherwise, also where its node
// says nothing.
func TestMigration(t *testing.T) {
	f := newFake()
	f.running("idle", "node1", "node1", false, metav1.ConditionFalse)
	f.running("busy", "node1", "node1", false, metav1.ConditionTrue)
	f.running("silent", "node1", "node1", false)
	f.running("unknown", "node1", "node1", false, metav1.ConditionUnknown)
	f.running("direct", "node1", "node1", true, metav1.ConditionFalse)
	f.running("network", "node1", "servers", true, metav1.ConditionFalse)
	f.running("working", "node1", "servers", false, metav1.ConditionTrue)
	for _, vmi := range []string{"migratable", "stuck", "both"} {
		f.running(vmi, "node1", "node1", vmi == "both", metav1.ConditionTrue)
		rc := f.claims["claim-of-"+vmi]
		rc.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: opaque(thatMoves)}}
		if is := &rc.Status.Devices[1].Conditions[1]; vmi == "stuck" {
			is.Reason, is.Message = claim.ProgramsStay, "process 230: a stream captures"
		}
	}
	for _, vmi := range []string{"moves", "template", "bound"} {
		f.running(vmi, "node1", "fleet/gpu1", vmi != "template")
		a := f.claims["claim-of-"+vmi].Status.Allocation
		a.Devices.Results[1].BindingConditions = []string{claim.LeaseReady}
		a.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "fabric", Operator: "In", Values: []string{"f1"}}}}}}
		if vmi == "bound" {
			a.NodeSelector.NodeSelectorTerms[0].MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"node1"}}}
		}
	}
	f.running("over", "node1", "node1", false, metav1.ConditionTrue)
	f.pods[len(f.pods)-1].Status.Phase = corev1.PodSucceeded
	f.running("gone", "node1", "node1", false, metav1.ConditionTrue)
	delete(f.claims, "claim-of-gone")
	f.running("waits", "node1", "node1", false)
	f.claims["claim-of-waits"].Status.Allocation = nil
	f.running("fresh", "node1", "node1", false)
	f.pods[len(f.pods)-1].Status.ResourceClaimStatuses = nil
	for vmi, says := range map[string]string{
		// With its programs.
		"idle": "", "plain": "", "over": "", "gone": "", "waits": "", "fresh": "", "moves": "", "migratable": "",
		"stuck": "not all of it can be moved now: process 230: a stream captures", "both": "holds the GPU gpu-1 of node1 for the node node1",
		"template": "is of a template, and the VM would leave the GPU gpu-1 of fleet/gpu1", "bound": "holds the GPU gpu-1 of fleet/gpu1 for the node node1",
		"busy": "which would end: end the programs, or shut the VM down, and migrate then; VMs with a claim of the class causeway-kubevirt-migratable", "silent": "nobody says whether programs in it have", "unknown": "is causeway-dra running on the VM's node?",
		"direct": "holds the GPU gpu-1 of node1 for the node node1", "network": "holds the GPU gpu-1 of servers for the node node1", "working": "have sessions with the GPU gpu-1 of servers",
	} {
		err := CheckMigration(t.Context(), f, "team", &Migration{VMI: vmi})
		if says == "" && err != nil || says != "" && (!errors.Is(err, ErrStays) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", vmi, err, says)
		}
	}
	f.fails = errors.New("the API server is away")
	if err := CheckMigration(t.Context(), f, "team", &Migration{VMI: "idle"}); !errors.Is(err, f.fails) {
		t.Error(err)
	}
}
