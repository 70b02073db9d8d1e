package kubevirt

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Label is what a VM's template has when it wants vGPUs: the name of the claim in its
// resourceClaims that they are of. KubeVirt copies it to the pod, so the webhook's selector leaves
// all other VMs alone.
const Label = "causeway.dev/vgpu"

// What KubeVirt calls things.
const (
	launcherLabel    = "kubevirt.io" // the value is launcher
	launcher         = "virt-launcher"
	domainAnnotation = "kubevirt.io/domain" // the VMI's name
	compute          = "compute"            // the container with QEMU
	// And the filesystem's name: its virtiofsd's container.
	virtiofsPrefix = "virtiofs-"
	// Where both have the sockets.
	SocketFolder   = "/var/run/kubevirt/virtiofs-containers"
	socketArgument = "--socket-path=" + SocketFolder + "/" // of virtiofsd
	// Whom KubeVirt runs QEMU as.
	User = 107
	// Where its pods have another shape.
	perhapsNewer = "is KubeVirt newer than docs/KUBERNETES.md says?"
)

// ErrVM says that a VM is not written as one with vGPUs has to be.
var ErrVM = errors.New("a VM with vGPUs")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrVM, fmt.Errorf(format, args...))
}

// Selector is of labels, for pods of VMs.
const Selector = launcherLabel + "=" + launcher

// IsLauncher: the pod is a VM's of KubeVirt's that wants vGPUs.
func IsLauncher(pod *corev1.Pod) bool {
	_, wants := pod.Labels[Label]
	return wants && pod.Labels[launcherLabel] == launcher
}

// Swap is what has to change in a pod.
type Swap struct {
	Claim corev1.PodResourceClaim // whose vGPUs they are
	VGPUs int                     // gpu0 and on: filesystems of the VM
	// Of the pod's containers: QEMU's, and those that go.
	compute int
	remove  []int
	held    bool // compute has the claim
}

// Done: there is nothing to change.
func (s *Swap) Done() bool { return s.held && len(s.remove) == 0 }

// ReadPod checks a pod of KubeVirt's and says what has to change in it.
func ReadPod(pod *corev1.Pod) (*Swap, error) {
	s := &Swap{compute: slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == compute })}
	if s.compute < 0 {
		return nil, wrong("the pod has no container %s: %s", compute, perhapsNewer)
	}
	if err := s.findClaim(pod); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		name, ok := strings.CutPrefix(c.Name, virtiofsPrefix)
		if !ok || !isVGPU(name) {
			continue
		}
		if !isVirtiofsd(c, name) {
			return nil, wrong("the container %s is not a virtiofsd as KubeVirt starts it, with %s%s.sock: %s", c.Name, socketArgument, name, perhapsNewer)
		}
		names[name] = true
		s.remove = append(s.remove, i)
	}
	s.VGPUs = len(names)
	if s.held && s.VGPUs == 0 { // asked again, after another webhook changed the pod
		return s, nil
	}
	for i := range max(1, s.VGPUs) {
		if name := "gpu" + strconv.Itoa(i); !names[name] {
			return nil, wrong("it has no filesystem %s: a VM has `filesystems: [{name: gpu0, virtiofs: {}}]` and a volume gpu0 for its first vGPU, gpu1 for the next", name)
		}
	}
	if !mounts(&pod.Spec.Containers[s.compute], SocketFolder) {
		return nil, wrong("the container %s does not mount %s: %s", compute, SocketFolder, perhapsNewer)
	}
	return s, nil
}

// findClaim finds the claim that the label names.
func (s *Swap) findClaim(pod *corev1.Pod) error {
	name := pod.Labels[Label]
	var others []string
	for _, c := range pod.Spec.ResourceClaims {
		if c.Name == name {
			s.Claim = c
		}
		others = append(others, c.Name)
	}
	switch {
	case s.Claim.Name != "":
	case len(others) == 0:
		return wrong("its label %s names the claim %q, and its resourceClaims are empty", Label, name)
	default:
		return wrong("its label %s names the claim %q, and its resourceClaims are %s", Label, name, strings.Join(others, ", "))
	}
	s.held = slices.ContainsFunc(pod.Spec.Containers[s.compute].Resources.Claims, func(c corev1.ResourceClaim) bool { return c.Name == name })
	return nil
}

// isVGPU: filesystems so called are vGPUs; others of the VM stay what they are.
func isVGPU(name string) bool {
	n, ok := strings.CutPrefix(name, "gpu")
	i, err := strconv.Atoi(n)
	return ok && err == nil && i >= 0 && strconv.Itoa(i) == n
}

func isVirtiofsd(c *corev1.Container, name string) bool {
	return len(c.Command) == 1 && path.Base(c.Command[0]) == "virtiofsd" && slices.Contains(c.Args, socketArgument+name+".sock") && mounts(c, SocketFolder)
}

func mounts(c *corev1.Container, folder string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == folder })
}
