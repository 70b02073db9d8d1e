package report

import (
	"encoding/xml"
	"fmt"
	"strings"

	"causeway/host/api"
)

// Attach is how a VM gets a vGPU that exists.
type Attach struct {
	// Environment is all that a program needs of one for programs of the host; there is nothing
	// else then.
	Environment   string `json:"environment,omitempty"`
	MemoryBacking string `json:"memory_backing"` // of the domain
	Filesystem    string `json:"filesystem"`     // device of the domain
	// Of the domain: has the libvirt hook make the vGPU.
	Metadata string `json:"metadata"`
	// Arguments, for QEMU without libvirt: those of this vGPU.
	QEMU []string `json:"qemu"`
	// Arguments, once for a VM: SIZE stands for its memory, as in -m.
	QEMUMemory []string `json:"qemu_memory"`
	Guest      []string `json:"guest"` // commands, once
}

// AttachTo says how a VM gets a vGPU.
func AttachTo(v *api.VGPU) Attach {
	s := &v.Spec
	if s.Programs {
		return Attach{Environment: "CAUSEWAY=unix:" + v.Socket + " LD_LIBRARY_PATH=/usr/lib/causeway"}
	}
	mount := MountPoint(s.Name)
	return Attach{
		MemoryBacking: "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>",
		Filesystem: fmt.Sprintf("<filesystem type='mount'>\n  <driver type='virtiofs' queue='1024'/>\n  <source socket='%s'/>\n  <target dir='%s'/>\n</filesystem>",
			escape(v.Socket), escape(s.Name)),
		Metadata: "<metadata>\n  <causeway:vgpus xmlns:causeway='urn:causeway:vgpu:1'>\n    " + wish(s) + "\n  </causeway:vgpus>\n</metadata>",
		QEMU: []string{
			"-chardev", "socket,id=" + s.Name + ",path=" + strings.ReplaceAll(v.Socket, ",", ",,"),
			"-device", "vhost-user-fs-pci,chardev=" + s.Name + ",tag=" + s.Name + ",queue-size=1024",
		},
		QEMUMemory: []string{"-object", "memory-backend-memfd,id=causeway-ram,size=SIZE,share=on", "-machine", "memory-backend=causeway-ram"},
		Guest:      []string{"mkdir -p " + mount, "mount -t virtiofs " + s.Name + " " + mount, mount + "/bin/setup"},
	}
}

// MountPoint is where a guest mounts a vGPU of that name: a VM's second one, gpu1, beside the first
// (GUEST.md, Several vGPUs).
func MountPoint(name string) string {
	if n, ok := strings.CutPrefix(name, "gpu"); ok && n != "0" && n != "" && strings.Trim(n, "0123456789") == "" {
		return "/run/causeway-" + name
	}
	return "/run/causeway"
}

// wish is the metadata's element for one vGPU.
func wish(s *api.Spec) string {
	var b strings.Builder
	b.WriteString("<causeway:vgpu")
	attr := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, " %s='%s'", name, escape(value))
		}
	}
	attr("name", s.Name)
	attr("gpu", s.GPU)
	attr("mig", s.MIG)
	attr("remote", s.Remote)
	if s.Migratable {
		attr("migratable", "yes")
	}
	c := s.Limits.Change()
	if c.Profile = s.Profile; c.Profile != "" { // which names these
		c.Memory, c.Share, c.Cap = nil, nil, nil
	}
	for _, l := range c.Words() {
		attr(l.Name, l.Text)
	}
	b.WriteString("/>")
	return b.String()
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}
