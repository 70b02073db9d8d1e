package libvirt

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"

	"causeway/host/api"
	"causeway/host/limit"
)

// Namespace of the metadata, and the prefix under which it is written.
const (
	Namespace = "urn:causeway:vgpu:1"
	Prefix    = "causeway"
)

// maxVGPUs of one domain.
const maxVGPUs = 64

var errMetadata = errors.New("metadata of Causeway")

// vgpusXML is the element below <metadata>. Everything that is not known in it is an error: a
// misspelt limit would be no limit.
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
func (e *vgpusXML) specs(domain string) ([]api.Wish, error) {
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
	var list []api.Wish
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

func (v *vgpuXML) spec(domain string) (api.Wish, error) {
	s := api.Wish{VM: domain, Name: "gpu0"}
	if len(v.Any) > 0 {
		return s, fmt.Errorf("%w: unknown element <%s> in <vgpu>", errMetadata, v.Any[0].XMLName.Local)
	}
	for _, a := range v.Attrs {
		if declares(a) {
			continue
		}
		set, ok := attributes[a.Name.Local]
		if !ok || a.Name.Space != "" {
			return s, fmt.Errorf("%w: a vGPU has no attribute %s: use name, gpu, profile, memory, share, cap, mig, remote, sessions, host-memory, user-sessions, migratable", errMetadata, a.Name.Local)
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
var attributes = map[string]func(*api.Wish, string) error{
	"name":    func(s *api.Wish, v string) error { s.Name = v; return nil },
	"gpu":     func(s *api.Wish, v string) error { s.GPU = v; return nil },
	"mig":     func(s *api.Wish, v string) error { s.MIG = v; return nil },
	"remote":  func(s *api.Wish, v string) error { s.Remote = v; return nil },
	"profile": func(s *api.Wish, v string) error { s.Profile = v; return nil },
	"migratable": func(s *api.Wish, v string) error {
		if v != "yes" && v != "no" {
			return fmt.Errorf("%q: use yes or no", v)
		}
		yes := v == "yes"
		s.Migratable = &yes
		return nil
	},
	"memory": func(s *api.Wish, v string) error {
		s.Memory = new(limit.Memory)
		return s.Memory.UnmarshalText([]byte(v))
	},
	"share": func(s *api.Wish, v string) error { s.Share = new(limit.Share); return s.Share.UnmarshalText([]byte(v)) },
	"cap":   func(s *api.Wish, v string) error { s.Cap = new(limit.Cap); return s.Cap.UnmarshalText([]byte(v)) },
	"sessions": func(s *api.Wish, v string) error {
		s.Sessions = new(limit.Sessions)
		return s.Sessions.UnmarshalText([]byte(v))
	},
	"host-memory": func(s *api.Wish, v string) error {
		s.HostMemory = new(limit.HostMemory)
		return s.HostMemory.UnmarshalText([]byte(v))
	},
	"user-sessions": func(s *api.Wish, v string) error {
		s.UserSessions = new(limit.UserSessions)
		return s.UserSessions.UnmarshalText([]byte(v))
	},
}

// MetadataXML writes what Parse reads, as it stands in a domain's XML.
func MetadataXML(list []api.Wish) string {
	return metadata(list, Prefix+":", fmt.Sprintf(" xmlns:%s='%s'", Prefix, Namespace), "\n")
}

// bareMetadata is the same for libvirt's call that sets metadata, which adds prefix and namespace
// itself. Empty: no vGPU.
func bareMetadata(list []api.Wish) string {
	if len(list) == 0 {
		return ""
	}
	return metadata(list, "", "", "") // without spaces, so that libvirt indents it
}

func metadata(list []api.Wish, prefix, declaration, newline string) string {
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
		attr("name", s.Name)
		attr("gpu", s.GPU)
		for _, l := range s.Words() {
			attr(l.Name, l.Text)
		}
		attr("mig", s.MIG)
		attr("remote", s.Remote)
		if s.Migratable != nil {
			attr("migratable", map[bool]string{true: "yes", false: "no"}[*s.Migratable])
		}
		b.WriteString("/>" + newline)
	}
	fmt.Fprintf(&b, "</%svgpus>", prefix)
	return b.String()
}
