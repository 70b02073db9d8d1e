// Package kubevirt gives VMs of KubeVirt vGPUs, with KubeVirt as it is: a virtiofs filesystem of
// its own makes the very device in QEMU that Causeway serves, so all that has to change is who is
// behind the socket. In virt-launcher's pod the container with virtiofsd goes, and the container
// with QEMU gets the claim, which brings the socket of that name. What is a pod of KubeVirt's is
// read from KubeVirt 1.9.0; a pod of another shape is refused by name, never half changed.
//
// It also says which VMs may be migrated: those whose programs would not lose their sessions.
package kubevirt
