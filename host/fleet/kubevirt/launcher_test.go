package kubevirt

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
)

// recorded is a pod that KubeVirt's own template made: testdata/README.md says which.
func recorded(t testing.TB, name string) (*corev1.Pod, []byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(b, pod); err != nil {
		t.Fatal(err)
	}
	return pod, b
}

// swapped is a pod after its patch, as the API server applies it.
func swapped(t *testing.T, pod *corev1.Pod, text []byte) *corev1.Pod {
	t.Helper()
	s, err := ReadPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := s.Patch(pod)
	if err != nil {
		t.Fatal(err)
	}
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	after, err := p.Apply(text)
	if err != nil {
		t.Fatalf("%s: %v", patch, err)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func names(pod *corev1.Pod) (list []string) {
	for i := range pod.Spec.Containers {
		list = append(list, pod.Spec.Containers[i].Name)
	}
	return list
}

// TestSwap: in pods of KubeVirt's the virtiofsd of vGPUs goes and QEMU's container has the claim;
// everything else is as it was, and asked again nothing changes.
func TestSwap(t *testing.T) {
	for file, want := range map[string]struct {
		containers []string
		vgpus      int
	}{
		"train": {[]string{"compute"}, 1},
		"disks": {[]string{"compute", "volumeroot"}, 1},
		"two":   {[]string{"compute", "virtiofs-settings"}, 2},
	} {
		t.Run(file, func(t *testing.T) {
			pod, text := recorded(t, file)
			if !IsLauncher(pod) {
				t.Fatalf("labels: %v", pod.Labels)
			}
			s, err := ReadPod(pod)
			if err != nil || s.Done() || s.VGPUs != want.vgpus || s.Claim.Name != "vgpu" {
				t.Fatalf("%+v, %v", s, err)
			}
			got := swapped(t, pod, text)
			if !slices.Equal(names(got), want.containers) {
				t.Errorf("containers: %v, want %v", names(got), want.containers)
			}
			claims := got.Spec.Containers[0].Resources.Claims
			if len(claims) != 1 || claims[0] != (corev1.ResourceClaim{Name: "vgpu"}) {
				t.Errorf("claims: %v", claims)
			}
			// Undone by hand it is the pod of before.
			got.Spec.Containers[0].Resources.Claims = nil
			kept := slices.DeleteFunc(slices.Clone(pod.Spec.Containers), func(c corev1.Container) bool { return strings.HasPrefix(c.Name, "virtiofs-gpu") })
			before := pod.DeepCopy()
			before.Spec.Containers = kept
			if a, b := encoded(t, got), encoded(t, before); a != b {
				t.Errorf("changed beside:\n%s\nwas\n%s", a, b)
			}
			again, err := ReadPod(swapped(t, pod, text))
			if err != nil || !again.Done() {
				t.Errorf("again: %+v, %v", again, err)
			}
		})
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestUntouched: pods of VMs without vGPUs, and pods of others, are none of the webhook's.
func TestUntouched(t *testing.T) {
	plain, _ := recorded(t, "plain")
	if IsLauncher(plain) {
		t.Errorf("a VM without vGPUs: %v", plain.Labels)
	}
	pod, _ := recorded(t, "train")
	pod.Labels["kubevirt.io"] = "hotplug-disk"
	if IsLauncher(pod) {
		t.Error("a pod that only carries a volume")
	}
}

// TestRefusedPods: what is not as KubeVirt makes it, or not as a VM with vGPUs has to be, is
// refused by name and not half changed.
func TestRefusedPods(t *testing.T) {
	virtiofsd := func(p *corev1.Pod) *corev1.Container {
		return &p.Spec.Containers[slices.Index(names(p), "virtiofs-gpu0")]
	}
	for says, change := range map[string]func(*corev1.Pod){
		"no container compute":                 func(p *corev1.Pod) { p.Spec.Containers[0].Name = "qemu" },
		"resourceClaims are empty":             func(p *corev1.Pod) { p.Spec.ResourceClaims = nil },
		"resourceClaims are other":             func(p *corev1.Pod) { p.Spec.ResourceClaims[0].Name = "other" },
		`the claim ""`:                         func(p *corev1.Pod) { p.Labels[Label] = "" },
		"no filesystem gpu0":                   func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
		"no filesystem gpu1":                   func(p *corev1.Pod) { add(p, "gpu2") },
		"not a virtiofsd":                      func(p *corev1.Pod) { virtiofsd(p).Args[0] = "--socket-path=/tmp/gpu0.sock" },
		"newer":                                func(p *corev1.Pod) { virtiofsd(p).Command[0] = "/usr/bin/other" },
		"the container compute does not mount": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil },
	} {
		pod, _ := recorded(t, "train")
		change(pod)
		if s, err := ReadPod(pod); !errors.Is(err, ErrVM) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v, %v; want %q", s, err, says)
		}
	}
}

// add gives a pod another virtiofsd, as KubeVirt starts it.
func add(p *corev1.Pod, name string) {
	c := p.Spec.Containers[slices.Index(names(p), "virtiofs-gpu0")].DeepCopy()
	c.Name, c.Args[0] = virtiofsPrefix+name, socketArgument+name+".sock"
	p.Spec.Containers = append(p.Spec.Containers, *c)
}

// TestEmptyResources: a container that has no resources, or none written, gets the field as well.
func TestEmptyResources(t *testing.T) {
	pod, _ := recorded(t, "train")
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	text := strings.Replace(encoded(t, pod), `"resources":{},`, "", 1)
	if got := swapped(t, pod, []byte(text)); len(got.Spec.Containers[0].Resources.Claims) != 1 {
		t.Errorf("%+v", got.Spec.Containers[0].Resources)
	}
}

// TestOtherClaims: a claim that QEMU's container has for something else stays.
func TestOtherClaims(t *testing.T) {
	pod, _ := recorded(t, "train")
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "nic", Request: "port"}}
	if got := swapped(t, pod, []byte(encoded(t, pod))).Spec.Containers[0].Resources.Claims; len(got) != 2 || got[0].Name != "nic" || got[1].Name != "vgpu" {
		t.Errorf("%+v", got)
	}
}
