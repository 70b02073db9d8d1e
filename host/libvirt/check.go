package libvirt

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// Lack is one thing for which a domain cannot have a vGPU.
type Lack struct {
	What string // a sentence without its end
	// Where and XML say what to write instead; XML is empty if nothing that could be written would
	// help.
	Where, XML string
}

// NotReadyError says what a domain lacks.
type NotReadyError struct {
	Domain string
	Lacks  []Lack
}

func (e *NotReadyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain %s cannot have a vGPU", e.Domain)
	for _, l := range e.Lacks {
		fmt.Fprintf(&b, ": %s", l.What)
		if l.XML != "" {
			fmt.Fprintf(&b, ". With `virsh edit %s`, %s:\n%s\n", e.Domain, l.Where, indent(l.XML))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func indent(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }

// Check says what a domain lacks. live: the vGPU is to be plugged into the running domain, which
// needs a free place.
func (d *DomainXML) Check(live bool) error {
	var lacks []Lack
	add := func(l *Lack) {
		if l != nil {
			lacks = append(lacks, *l)
		}
	}
	if t := d.doc.Type; t != "kvm" && t != "qemu" {
		add(&Lack{What: fmt.Sprintf("it is of type %q, and vGPUs need QEMU", t)})
	}
	if d.doc.Launch != nil {
		add(&Lack{What: fmt.Sprintf("its memory is encrypted (launchSecurity type %q), so no process of the host can share it", d.doc.Launch.Type)})
	}
	add(d.checkMemory())
	add(d.checkCells())
	add(d.checkModules())
	if live && len(lacks) == 0 {
		add(d.checkPorts())
	}
	if lacks == nil {
		return nil
	}
	return &NotReadyError{Domain: d.Name, Lacks: lacks}
}

// checkMemory: QEMU must map guest memory from a file that it can pass on.
func (d *DomainXML) checkMemory() *Lack {
	m := d.doc.Memory
	shared := m != nil && m.MemoryAccess != nil && m.MemoryAccess.Mode == "shared"
	if len(d.doc.Cells) > 0 && m != nil {
		all := !slices.ContainsFunc(d.doc.Cells, func(c libvirtxml.DomainCell) bool { return c.MemAccess != "shared" })
		shared = shared || all
	}
	backed := m != nil && (m.MemoryHugePages != nil || m.MemorySource != nil && m.MemorySource.Type != "anonymous")
	if shared && backed {
		return nil
	}
	want := libvirtxml.DomainMemoryBacking{}
	where := "below <domain>, add"
	if m != nil {
		want, where = *m, "replace <memoryBacking> by"
	}
	if !backed {
		want.MemorySource = &libvirtxml.DomainMemorySource{Type: "memfd"}
	}
	want.MemoryAccess = &libvirtxml.DomainMemoryAccess{Mode: "shared"}
	what := "its memory is not shared with processes of the host"
	if shared {
		what = "its memory would be shared through a file on disk"
	}
	return &Lack{What: what, Where: where + " (the domain must then be stopped and started)", XML: element("memoryBacking", want)}
}

// checkCells: a NUMA cell may say otherwise than the domain.
func (d *DomainXML) checkCells() *Lack {
	cells := slices.Clone(d.doc.Cells)
	private := false
	for i := range cells {
		if cells[i].MemAccess == "private" {
			cells[i].MemAccess, private = "shared", true
		}
	}
	if !private {
		return nil
	}
	return &Lack{What: "memory of a NUMA cell is private", Where: "in <cpu>, replace <numa> by (the domain must then be stopped and started)",
		XML: element("numa", libvirtxml.DomainNuma{Cell: cells})}
}

// checkModules: so may memory that is plugged in.
func (d *DomainXML) checkModules() *Lack {
	for i := range d.doc.Devices.All {
		dev := &d.doc.Devices.All[i]
		if dev.XMLName.Local == "memory" && dev.Access == "private" {
			return &Lack{What: fmt.Sprintf("a memory module (%s) is private", dev.Model), Where: "write its first line as (the domain must then be stopped and started)",
				XML: fmt.Sprintf("<memory model='%s' access='shared'>", dev.Model)}
		}
	}
	return nil
}

// checkPorts: a PCI Express machine takes hot-plugged devices in empty root ports only, which have
// to be there from the start.
func (d *DomainXML) checkPorts() *Lack {
	machine := d.doc.OS.Type.Machine
	if !strings.Contains(machine, "q35") && !strings.HasPrefix(machine, "virt") {
		return nil // a PCI bus with slots
	}
	used := map[uint64]bool{}
	for i := range d.doc.Devices.All {
		for _, a := range d.doc.Devices.All[i].Address {
			if n, err := strconv.ParseUint(a.Bus, 0, 16); err == nil && a.Type == "pci" {
				used[n] = true
			}
		}
	}
	for i := range d.doc.Devices.All {
		dev := &d.doc.Devices.All[i]
		port := dev.XMLName.Local == "controller" && dev.Type == "pci" && (dev.Model == "pcie-root-port" || dev.Model == "pcie-switch-downstream-port")
		if n, err := strconv.ParseUint(dev.Index, 10, 16); err == nil && port && dev.Target.HotPlug != "off" && !used[n] {
			return nil
		}
	}
	return &Lack{What: "no PCI root port is free for a device that is plugged in while it runs", Where: "in <devices>, add (the domain must then be stopped and started; or attach with --config for its next start)",
		XML: "<controller type='pci' model='pcie-root-port'/>"}
}

// silentBalloon says what a memory balloon that is there could do for managed memory, or nothing.
func (d *DomainXML) silentBalloon() string {
	for i := range d.doc.Devices.All {
		dev := &d.doc.Devices.All[i]
		if dev.XMLName.Local == "memballoon" && strings.HasPrefix(dev.Model, "virtio") && dev.Reports != "on" {
			return fmt.Sprintf("the domain's memory balloon does not report free pages, so what lay in managed memory that is at the GPU may go along twice when the VM migrates; "+
				"with `virsh edit %s`, freePageReporting='on' within <memballoon model='%s'> spares that from its next start on", d.Name, dev.Model)
		}
	}
	return ""
}

// element writes one that is known by its Go type.
func element(name string, v any) string {
	var b strings.Builder
	e := xml.NewEncoder(&b)
	e.Indent("", "  ")
	if err := e.EncodeElement(v, xml.StartElement{Name: xml.Name{Local: name}}); err != nil {
		return ""
	}
	return strings.ReplaceAll(b.String(), `"`, "'")
}
