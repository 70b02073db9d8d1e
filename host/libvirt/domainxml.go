package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"causeway/host/api"
)

// MaxXML is the largest domain XML that is read, in bytes.
const MaxXML = 8 << 20

// ErrXML wraps everything that is wrong with the form of a domain's XML.
var ErrXML = errors.New("domain XML")

// DomainXML is what matters here of a domain's XML.
type DomainXML struct {
	Name        string
	VGPUs       []api.Wish // of its metadata
	Filesystems []Filesystem

	doc domainXML
}

// Filesystem is one that an external virtiofs daemon serves.
type Filesystem struct {
	Socket string
	Target string // mount tag
	Alias  string // libvirt's name of the device; empty in a domain that does not run
	IOMMU  bool
}

// domainXML keeps numbers as text: what is not looked at cannot be wrong.
type domainXML struct {
	XMLName  xml.Name `xml:"domain"`
	Type     string   `xml:"type,attr"`
	Name     string   `xml:"name"`
	Metadata struct {
		VGPUs []vgpusXML `xml:"urn:causeway:vgpu:1 vgpus"`
		Any   []struct {
			XMLName xml.Name
		} `xml:",any"`
	} `xml:"metadata"`
	OS struct {
		Type struct {
			Arch    string `xml:"arch,attr"`
			Machine string `xml:"machine,attr"`
		} `xml:"type"`
	} `xml:"os"`
	Memory *libvirtxml.DomainMemoryBacking `xml:"memoryBacking"`
	Cells  []libvirtxml.DomainCell         `xml:"cpu>numa>cell"`
	Tune   struct {
		Memory []nodesXML `xml:"memory"`
		Nodes  []nodesXML `xml:"memnode"`
	} `xml:"numatune"`
	VCPU struct {
		Count string `xml:",chardata"`
		CPUs  string `xml:"cpuset,attr"`
	} `xml:"vcpu"`
	Pins []struct {
		CPUs string `xml:"cpuset,attr"`
	} `xml:"cputune>vcpupin"`
	Launch *struct {
		Type string `xml:"type,attr"`
	} `xml:"launchSecurity"`
	Devices struct {
		All []deviceXML `xml:",any"`
	} `xml:"devices"`
}

type nodesXML struct {
	Nodes string `xml:"nodeset,attr"`
}

// deviceXML is any device.
type deviceXML struct {
	XMLName xml.Name
	Type    string `xml:"type,attr"`
	Index   string `xml:"index,attr"`
	Model   string `xml:"model,attr"`
	Access  string `xml:"access,attr"`
	Reports string `xml:"freePageReporting,attr"` // a memory balloon's
	Driver  struct {
		Type  string `xml:"type,attr"`
		IOMMU string `xml:"iommu,attr"`
	} `xml:"driver"`
	Source struct {
		Socket string  `xml:"socket,attr"`
		PCI    *pciXML `xml:"address"`
	} `xml:"source"`
	Target struct {
		Dir     string `xml:"dir,attr"`
		HotPlug string `xml:"hotplug,attr"`
	} `xml:"target"`
	Alias struct {
		Name string `xml:"name,attr"`
	} `xml:"alias"`
	Address []struct {
		Type string `xml:"type,attr"`
		Bus  string `xml:"bus,attr"`
	} `xml:"address"`
}

// Parse reads a domain's XML. What it returns has been checked: names and limits are in range, no
// name occurs twice.
func Parse(doc []byte) (*DomainXML, error) {
	if len(doc) > MaxXML {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrXML, len(doc), MaxXML)
	}
	d := &DomainXML{}
	if err := xml.Unmarshal(doc, &d.doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrXML, err)
	}
	d.Name = strings.TrimSpace(d.doc.Name)
	for _, e := range d.doc.Metadata.Any {
		if e.XMLName.Space == Namespace {
			return nil, fmt.Errorf("%w: metadata has an element <%s> of %s: only <vgpus> is known", ErrXML, e.XMLName.Local, Namespace)
		}
	}
	if len(d.doc.Metadata.VGPUs) > 1 {
		return nil, fmt.Errorf("%w: metadata has %d elements <vgpus>: write one, with a <vgpu> for each vGPU", ErrXML, len(d.doc.Metadata.VGPUs))
	}
	var err error
	for _, e := range d.doc.Metadata.VGPUs {
		if d.VGPUs, err = e.specs(d.Name); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrXML, err)
		}
	}
	for i := range d.doc.Devices.All {
		if dev := &d.doc.Devices.All[i]; dev.XMLName.Local == "filesystem" && dev.Source.Socket != "" {
			d.Filesystems = append(d.Filesystems, Filesystem{
				Socket: dev.Source.Socket, Target: dev.Target.Dir, Alias: dev.Alias.Name, IOMMU: dev.Driver.IOMMU == "on",
			})
		}
	}
	return d, nil
}

// VGPU finds one of the metadata by its name.
func (d *DomainXML) VGPU(name string) (api.Wish, bool) {
	for _, s := range d.VGPUs {
		if s.Name == name {
			return s, true
		}
	}
	return api.Wish{}, false
}

// Filesystem finds one by its socket.
func (d *DomainXML) Filesystem(socket string) (Filesystem, bool) {
	for _, f := range d.Filesystems {
		if f.Socket == socket {
			return f, true
		}
	}
	return Filesystem{}, false
}

// uses says whether a vGPU or a mount tag has a name.
func (d *DomainXML) uses(name string) bool {
	if _, ok := d.VGPU(name); ok {
		return true
	}
	return slices.ContainsFunc(d.doc.Devices.All, func(dev deviceXML) bool { return dev.XMLName.Local == "filesystem" && dev.Target.Dir == name })
}

// FilesystemXML is the device that carries a vGPU. The queue is as long as READs of 1 MiB need.
func FilesystemXML(socket, tag string) (string, error) {
	f := libvirtxml.DomainFilesystem{
		Driver: &libvirtxml.DomainFilesystemDriver{Type: "virtiofs", Queue: 1024},
		Source: &libvirtxml.DomainFilesystemSource{Mount: &libvirtxml.DomainFilesystemSourceMount{Socket: socket}},
		Target: &libvirtxml.DomainFilesystemTarget{Dir: tag},
	}
	text, err := f.Marshal()
	return asVirsh(text), err
}

// empty is an element without content, as encoding/xml writes it.
var empty = regexp.MustCompile(`></\w+>`)

// asVirsh writes XML as libvirt itself does, so that it looks like what stands around it in an
// editor. Quotes within values are escaped.
func asVirsh(text string) string {
	return empty.ReplaceAllString(strings.ReplaceAll(text, `"`, "'"), "/>")
}
