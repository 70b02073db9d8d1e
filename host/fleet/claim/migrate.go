package claim

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods of KubeVirt's VMs are called virt-launcher-NAME-SUFFIX, of five characters that the API
// server makes up, ahead of which it cuts off what is more than a pod's name may have when it is
// made up.
const (
	launcherPrefix = "virt-launcher-"
	suffixLength   = len("-x7k2p")
	longestMade    = 63
)

// MovesAs is what a VM of KubeVirt is called whose claim that is, whichever of its pods has it:
// each has a claim of its own, of the one template. It is said by who made the claim for the pod,
// or who may make claims in the namespace, and so pods. "": none.
func MovesAs(c *resourceapi.ResourceClaim) string {
	owner := metav1.GetControllerOf(c)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return ""
	}
	end := len(owner.Name) - suffixLength
	if len(owner.Name) == longestMade && owner.Name[end] != '-' {
		// It was cut off, and the dash with it.
		end++
	} else if end <= len(launcherPrefix) || owner.Name[end] != '-' {
		return ""
	}
	if !strings.HasPrefix(owner.Name, launcherPrefix) {
		return ""
	}
	return c.Namespace + "/" + owner.Name[:end]
}

// Migratable reports whether the programs of a VM move with it, with what they have of a GPU of its
// node, by the parameters of the device.
func Migratable(c *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) bool {
	p, err := parametersFor(r.Request, c.Status.Allocation.Devices.Config)
	return err == nil && p.Migratable && !OnNetwork(r)
}
