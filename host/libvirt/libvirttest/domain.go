// Package libvirttest is a libvirt with one domain, for tests: what libvirt.Domain promises, on
// descriptions in memory.
//
// A Domain belongs to the goroutine of its test.
package libvirttest

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"causeway/host/libvirt"
)

// Domain is the fake. Its fields are set before use, and looked at afterwards.
type Domain struct {
	Title string
	In    libvirt.Where // where it is
	Shell string        // its description, with %METADATA% and %DEVICES% where those belong
	// Fail makes a call fail: attach, detach, metadata, or one of them with a place, as in
	// "metadata live".
	Fail map[string]error
	// Deaf is a guest that does not let go of devices.
	Deaf bool
	// Calls are those that change something, in order.
	Calls []string

	devices  map[libvirt.Where][]string
	metadata map[libvirt.Where]string
}

var _ libvirt.Domain = (*Domain)(nil)

// Shared is a domain that can have a vGPU.
const Shared = `<domain type='kvm'><name>vm1</name><metadata>%METADATA%</metadata>
<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>
<os><type arch='x86_64' machine='pc-q35-10.0'>hvm</type></os>
<devices><controller type='pci' index='0' model='pcie-root'/>
<controller type='pci' index='1' model='pcie-root-port'><address type='pci' bus='0x00' slot='0x01'/></controller>
<controller type='pci' index='2' model='pcie-root-port'><address type='pci' bus='0x00' slot='0x02'/></controller>
%DEVICES%</devices></domain>`

// New is a domain vm1 that runs and is defined.
func New() *Domain {
	return &Domain{Title: "vm1", In: libvirt.Live | libvirt.Config, Shell: Shared}
}

// Name implements libvirt.Domain.
func (d *Domain) Name() string { return d.Title }

// Places implements libvirt.Domain.
func (d *Domain) Places() (libvirt.Where, error) { return d.In, nil }

// Close implements libvirt.Domain.
func (d *Domain) Close() error { return nil }

// XML implements libvirt.Domain.
func (d *Domain) XML(w libvirt.Where) (string, error) {
	if w&d.In != w || w != libvirt.Live && w != libvirt.Config {
		return "", fmt.Errorf("no description in %d", w)
	}
	var devices strings.Builder
	for i, dev := range d.devices[w] {
		address := fmt.Sprintf("<address type='pci' bus='0x%02x'/></filesystem>", i+1)
		devices.WriteString(strings.Replace(dev, "</filesystem>", address, 1))
	}
	return strings.NewReplacer("%METADATA%", d.metadata[w], "%DEVICES%", devices.String()).Replace(d.Shell), nil
}

// fails says whether a call is to fail in one of the places.
func (d *Domain) fails(call string, w libvirt.Where) error {
	for _, key := range append(names(w), "") {
		if err := d.Fail[strings.TrimSpace(call+" "+key)]; err != nil {
			return err
		}
	}
	return nil
}

func names(w libvirt.Where) (list []string) {
	if w&libvirt.Live != 0 {
		list = append(list, "live")
	}
	if w&libvirt.Config != 0 {
		list = append(list, "config")
	}
	return list
}

func each(w libvirt.Where, fn func(libvirt.Where)) {
	for _, p := range []libvirt.Where{libvirt.Live, libvirt.Config} {
		if w&p != 0 {
			fn(p)
		}
	}
}

// begin notes a call and says whether it fails.
func (d *Domain) begin(call string, w libvirt.Where) error {
	d.Calls = append(d.Calls, call+" "+strings.Join(names(w), "+"))
	if w&d.In != w || w == 0 {
		return fmt.Errorf("the domain is not in %d", w)
	}
	return d.fails(call, w)
}

// Attach implements libvirt.Domain: in all places or none.
func (d *Domain) Attach(device string, w libvirt.Where) error {
	if err := d.begin("attach", w); err != nil {
		return err
	}
	if d.devices == nil {
		d.devices = map[libvirt.Where][]string{}
	}
	each(w, func(p libvirt.Where) { d.devices[p] = append(d.devices[p], device) })
	return nil
}

// identity is by what a device is found again: its socket, or the address of the host's device.
var identity = regexp.MustCompile(`socket=["'][^"']*["']|<address domain=[^>]*>`)

// Detach implements libvirt.Domain.
func (d *Domain) Detach(device string, w libvirt.Where) error {
	if err := d.begin("detach", w); err != nil {
		return err
	}
	id := identity.FindString(device)
	same := func(have string) bool { return strings.Contains(have, id) }
	var err error
	each(w, func(p libvirt.Where) {
		if !slices.ContainsFunc(d.devices[p], same) {
			err = errors.New("no such device")
		}
	})
	if err != nil {
		return err
	}
	each(w, func(p libvirt.Where) {
		if p != libvirt.Live || !d.Deaf {
			d.devices[p] = slices.DeleteFunc(d.devices[p], same)
		}
	})
	return nil
}

var element = regexp.MustCompile(`<(/?)(\w)`)

// SetMetadata implements libvirt.Domain: like libvirt, it adds the prefix to elements that have
// none.
func (d *Domain) SetMetadata(text string, w libvirt.Where) error {
	if err := d.begin("metadata", w); err != nil {
		return err
	}
	if d.metadata == nil {
		d.metadata = map[libvirt.Where]string{}
	}
	text = element.ReplaceAllString(text, "<${1}"+libvirt.Prefix+":${2}")
	text = strings.Replace(text, ":vgpus>", ":vgpus xmlns:"+libvirt.Prefix+"='"+libvirt.Namespace+"'>", 1)
	each(w, func(p libvirt.Where) { d.metadata[p] = text })
	return nil
}

// Restart is the domain ending, and starting again if it is defined.
func (d *Domain) Restart() {
	if d.devices == nil {
		d.devices = map[libvirt.Where][]string{}
	}
	d.devices[libvirt.Live] = slices.Clone(d.devices[libvirt.Config])
	if d.metadata != nil {
		d.metadata[libvirt.Live] = d.metadata[libvirt.Config]
	}
}
