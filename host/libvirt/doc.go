// Package libvirt attaches vGPUs to libvirt domains: it reads what a domain's XML wishes, says what
// the domain lacks, and changes domains through libvirt, cold and hot.
//
// A vGPU is two things in a domain's XML: an element in <metadata>, in the namespace
// urn:causeway:vgpu:1, that says what the vGPU is to be, and a plain <filesystem> of type virtiofs
// whose socket causewayd serves. Parse is the one decoder of both, for XML from libvirt and from
// people. Hook is what libvirt runs around a domain's start and end; it never calls libvirt, which
// waits for it.
//
// The connection to libvirt is behind the interface Domain; libvirttest has a fake. Open makes a
// real one in builds with the tag libvirt_dlopen, which load libvirt.so.0 when the program starts,
// or libvirt, which link it; so only causeway-libvirt, which attach and detach become, is built
// with it. No goroutine is started here.
package libvirt
