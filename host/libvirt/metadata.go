package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"causeway/host/daemon/api"
)

// Namespace of the metadata, and the prefix under which it is written.
const (
	Namespace = "urn:causeway:vgpu:1"
	Prefix    = "causeway"
)

// maxVGPUs of one domain.
const maxVGPUs = 64

var errMetadata = errors.New("metadata of Causeway")

// vgpusXML is the element below <metadata>. Everything that is not known in it is an error: a misspelt limit would be no limit.
type vgpusXML struct {
	Attrs []xml.Attr `xml:",any,attr"`
	VGPUs []vgpuXML  `xml:"urn:causeway:vgpu:1 vgpu"`
	Any   []vgpuXML  `xml:",any"`
}

type vgpuXML struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Any     []struct {
		XMLName xml.Name
	} `xml:",any"`
}

// specs are the wishes of one domain, checked.
func (e *vgpusXML) specs(domain string) ([]api.Spec, error) {
	for _, a := range e.Attrs {
		if !declares(a) {
			return nil, fmt.Errorf("%w: <vgpus> takes no attribute %s", errMetadata, a.Name.Local)
		}
	}
	if len(e.Any) > 0 {
		return nil, fmt.Errorf("%w: unknown element <%s> in <vgpus>", errMetadata, e.Any[0].XMLName.Local)
	}
	if len(e.VGPUs) > maxVGPUs {
		return nil, fmt.Errorf("%w: %d vGPUs, more than %d", errMetadata, len(e.VGPUs), maxVGPUs)
	}
	var list []api.Spec
	names := map[string]bool{}
	for _, v := range e.VGPUs {
		s, err := v.spec(domain)
		if err != nil {
			return nil, err
		}
		if names[s.Name] {
			return nil, fmt.Errorf("%w: two vGPUs are named %s", errMetadata, s.Name)
		}
		names[s.Name] = true
		list = append(list, s)
	}
	return list, nil
}

// declares says whether an attribute declares a namespace.
func declares(a xml.Attr) bool {
	return a.Name.Space == "xmlns" || a.Name.Space == "" && a.Name.Local == "xmlns"
}

func (v *vgpuXML) spec(domain string) (api.Spec, error) {
	s := api.Spec{VM: domain, Name: "gpu0", GPU: "any"}
	if len(v.Any) > 0 {
		return s, fmt.Errorf("%w: unknown element <%s> in <vgpu>", errMetadata, v.Any[0].XMLName.Local)
	}
	for _, a := range v.Attrs {
		if declares(a) {
			continue
		}
		set, ok := attributes[a.Name.Local]
		if !ok || a.Name.Space != "" {
			return s, fmt.Errorf("%w: a vGPU has no attribute %s: use name, gpu, memory, share, cap, mig, remote, sessions", errMetadata, a.Name.Local)
		}
		if value := strings.TrimSpace(a.Value); value != "" {
			if err := set(&s, value); err != nil {
				return s, fmt.Errorf("%w: %s of a vGPU: %w", errMetadata, a.Name.Local, err)
			}
		}
	}
	if err := s.Check(); err != nil {
		return s, fmt.Errorf("%w: vGPU %s: %w", errMetadata, s.Name, err)
	}
	return s, nil
}

// attributes of <vgpu>. Empty ones mean the default.
var attributes = map[string]func(*api.Spec, string) error{
	"name":   func(s *api.Spec, v string) error { s.Name = v; return nil },
	"gpu":    func(s *api.Spec, v string) error { s.GPU = v; return nil },
	"mig":    func(s *api.Spec, v string) error { s.MIG = v; return nil },
	"remote": func(s *api.Spec, v string) error { s.Remote = v; return nil },
	"memory": func(s *api.Spec, v string) (err error) {
		s.Memory, err = api.ParseSize(v)
		return err
	},
	"share":    func(s *api.Spec, v string) error { return number(&s.Weight, v) },
	"cap":      func(s *api.Spec, v string) error { return number(&s.Cap, strings.TrimSuffix(v, "%")) },
	"sessions": func(s *api.Spec, v string) error { return number(&s.Sessions, v) },
}

// number reads a positive one: 0 would silently mean the default.
func number(to *uint32, text string) error {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is no positive number", text)
	}
	*to = uint32(n)
	return nil
}

// MetadataXML writes what Parse reads, as it stands in a domain's XML.
func MetadataXML(list []api.Spec) string {
	return metadata(list, Prefix+":", fmt.Sprintf(" xmlns:%s='%s'", Prefix, Namespace), "\n")
}

// bareMetadata is the same for libvirt's call that sets metadata, which adds prefix and namespace itself. Empty: no vGPU.
func bareMetadata(list []api.Spec) string {
	if len(list) == 0 {
		return ""
	}
	return metadata(list, "", "", "") // without spaces, so that libvirt indents it
}

func metadata(list []api.Spec, prefix, declaration, newline string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "<%svgpus%s>%s", prefix, declaration, newline)
	for _, s := range list {
		if newline != "" {
			b.WriteString("  ")
		}
		fmt.Fprintf(&b, "<%svgpu", prefix)
		attr := func(name, value string) {
			if value != "" {
				fmt.Fprintf(&b, " %s='", name)
				_ = xml.EscapeText(&b, []byte(value)) // a Builder does not fail
				b.WriteByte('\'')
			}
		}
		count := func(name string, n uint32) {
			if n != 0 {
				attr(name, strconv.FormatUint(uint64(n), 10))
			}
		}
		attr("name", s.Name)
		attr("gpu", s.GPU)
		if s.Memory != 0 {
			attr("memory", api.FormatSize(s.Memory))
		}
		count("share", s.Weight)
		count("cap", s.Cap)
		attr("mig", s.MIG)
		attr("remote", s.Remote)
		count("sessions", s.Sessions)
		b.WriteString("/>" + newline)
	}
	fmt.Fprintf(&b, "</%svgpus>", prefix)
	return b.String()
}
