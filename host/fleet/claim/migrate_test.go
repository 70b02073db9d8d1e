package claim

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// of has a claim be made for a pod.
func of(c *resourceapi.ResourceClaim, kind, pod string) {
	yes := true
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: pod, Controller: &yes}}
}

// TestMovesAs: claims of the pods of one VM of KubeVirt's have one name for it, those of others
// another or none.
func TestMovesAs(t *testing.T) {
	long := "virt-launcher-" + strings.Repeat("n", 43)
	for _, c := range []struct{ kind, pod, want string }{
		{"Pod", long + "-x7k2p", "team/" + long}, // 63 bytes
		// And cut off: all of these 58 are the name's.
		{"Pod", long + "nx7k2p", "team/" + long + "n"},
		{"Pod", long + "n9zzzz", "team/" + long + "n"},
		{"Pod", long + "nx7k2", ""},
		{"Pod", strings.Repeat("n", 63), ""},
		{"Pod", "virt-launcher-train-x7k2p", "team/virt-launcher-train"},
		{"Pod", "virt-launcher-train-9zzzz", "team/virt-launcher-train"},
		{"Pod", "virt-launcher-train-1-9zzzz", "team/virt-launcher-train-1"},
		{"Pod", "virt-launcher-train", ""},
		{"Pod", "virt-launcher-x7k2p", ""},
		{"Pod", "virt-launcher--x7k2p", ""},
		{"Pod", "virt-launcher-", ""},
		{"Pod", "train-x7k2p", ""},
		{"Pod", "", ""},
		{"Job", "virt-launcher-train-x7k2p", ""},
	} {
		rc := allocated(func(rc *resourceapi.ResourceClaim, _ *resourceapi.DeviceRequestAllocationResult) {
			of(rc, c.kind, c.pod)
		})
		if got := MovesAs(rc); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.kind, c.pod, got, c.want)
		}
	}
	if got := MovesAs(allocated(nil)); got != "" {
		t.Errorf("a claim of nobody's: %q", got)
	}
}

// TestMigratable: a VM's claim that says so has a vGPU that moves, and the name by which it is
// found; one that does not say it, or whose GPU is another host's, has neither.
func TestMigratable(t *testing.T) {
	for name, c := range map[string]struct {
		parameters string
		network    bool
		want       bool
	}{
		"said":             {`"serves":"vm","vm":{"migratable":true}`, false, true},
		"not said":         {`"serves":"vm"`, false, false},
		"denied":           {`"serves":"vm","vm":{"migratable":false}`, false, false},
		"of another host":  {`"serves":"vm","vm":{"migratable":true}`, true, false},
		"for a container":  {``, false, false},
		"longest of names": {`"serves":"vm","vm":{"migratable":true}`, false, true},
	} {
		rc := allocated(func(rc *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
			pod := "virt-launcher-train-x7k2p"
			if strings.HasPrefix(name, "longest") {
				rc.Namespace, pod = strings.Repeat("n", 63), "virt-launcher-"+strings.Repeat("p", 253-len("virt-launcher-")-suffixLength)+"-x7k2p"
			}
			of(rc, "Pod", pod)
			rc.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{config(fromClass, vgpu(c.parameters))}
			if c.network {
				r.BindingConditions = []string{LeaseReady}
			}
		})
		read, err := Read(rc)
		if err != nil {
			t.Fatal(name, err)
		}
		w := read.Wish(&read.Devices()[0], "GPU-1")
		if err := w.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if is := w.Migratable != nil && *w.Migratable; is != c.want || (w.MovesAs != "") != c.want || c.want && w.MovesAs != MovesAs(rc) {
			t.Errorf("%s: %v, %q", name, is, w.MovesAs)
		}
		if is := Migratable(rc, &rc.Status.Allocation.Devices.Results[0]); is != c.want {
			t.Errorf("%s: the webhook sees %v", name, is)
		}
	}
}
