package libvirt

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"libvirt.org/go/libvirtxml"
)

// Errors of a Passer.
var (
	ErrHasDevice = errors.New("the domain has the device already")
	ErrKept      = errors.New("the guest has not let go of the device")
)

// PCI is the address of a host's device.
type PCI struct{ Domain, Bus, Slot, Function uint }

// String writes it as sysfs does.
func (p PCI) String() string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", p.Domain, p.Bus, p.Slot, p.Function)
}

// pciXML is an address in a device's <source>.
type pciXML struct {
	Domain   string `xml:"domain,attr"`
	Bus      string `xml:"bus,attr"`
	Slot     string `xml:"slot,attr"`
	Function string `xml:"function,attr"`
}

// is says whether it is an address; numbers are decimal, or hexadecimal behind 0x.
func (x *pciXML) is(p PCI) bool {
	for _, n := range []struct {
		text string
		want uint
	}{{x.Domain, p.Domain}, {x.Bus, p.Bus}, {x.Slot, p.Slot}, {x.Function, p.Function}} {
		if n.text == "" && n.want == 0 {
			continue
		}
		if v, err := strconv.ParseUint(n.text, 0, 32); err != nil || uint(v) != n.want {
			return false
		}
	}
	return true
}

// PassesThrough says whether a device of the host is passed through to the domain, in whatever
// form.
func (d *DomainXML) PassesThrough(p PCI) bool {
	for i := range d.doc.Devices.All {
		dev := &d.doc.Devices.All[i]
		if a := dev.Source.PCI; a != nil && (dev.XMLName.Local == "hostdev" || dev.XMLName.Local == "interface") && a.is(p) {
			return true
		}
	}
	return false
}

// HostdevXML is a host's PCI device in a domain. managed: libvirt takes it from the host's driver
// and gives it back.
func HostdevXML(p PCI) (string, error) {
	h := libvirtxml.DomainHostdev{
		Managed: "yes",
		SubsysPCI: &libvirtxml.DomainHostdevSubsysPCI{
			Source: &libvirtxml.DomainHostdevSubsysPCISource{
				Address: &libvirtxml.DomainAddressPCI{Domain: &p.Domain, Bus: &p.Bus, Slot: &p.Slot, Function: &p.Function},
			},
		},
	}
	text, err := h.Marshal()
	return asVirsh(text), err
}

// Passer gives devices of the host to one domain.
type Passer struct {
	Domain Domain
	// Timeout bounds how long a guest may take to let go of a device.
	Timeout time.Duration
}

// at finds where the domain is, as far as w says, and reads it.
func (p *Passer) at(w Where) (Where, map[Where]*DomainXML, error) {
	a := Attacher{Domain: p.Domain}
	w, err := a.settle(w)
	if err != nil {
		return 0, nil, err
	}
	found, err := a.each(w)
	return w, found, err
}

// Where says where a device would be given to: 0 is wherever the domain is.
func (p *Passer) Where(w Where) (Where, error) {
	w, _, err := p.at(w)
	return w, err
}

// Give adds a device. An error means that nothing has changed.
func (p *Passer) Give(dev PCI, w Where) error {
	w, found, err := p.at(w)
	if err != nil {
		return err
	}
	for _, d := range found {
		if d.PassesThrough(dev) {
			return fmt.Errorf("%w: %s has %s", ErrHasDevice, p.Domain.Name(), dev)
		}
	}
	text, err := HostdevXML(dev)
	if err != nil {
		return err
	}
	return p.Domain.Attach(text, w)
}

// Take removes a device wherever the domain has it, and waits until the guest has let go.
func (p *Passer) Take(ctx context.Context, dev PCI) error {
	is, found, err := p.at(0)
	if err != nil {
		return err
	}
	text, err := HostdevXML(dev)
	if err != nil {
		return err
	}
	for _, place := range places {
		if is&place == 0 || !found[place].PassesThrough(dev) {
			continue
		}
		if err := p.Domain.Detach(text, place); err != nil {
			return err
		}
		if place == Live {
			if err := p.gone(ctx, dev); err != nil {
				return err
			}
		}
	}
	return nil
}

// gone waits for the guest.
func (p *Passer) gone(ctx context.Context, dev PCI) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	for {
		is, found, err := p.at(0)
		switch {
		case err != nil && !errors.Is(err, ErrNotRunning):
			return fmt.Errorf("wait for the guest: %w", err)
		case is&Live == 0 || !found[Live].PassesThrough(dev):
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w within %v: it keeps %s until it does. Is the guest up, and does its kernel support PCI hot-plug? Try again, or stop the domain", ErrKept, p.Timeout, dev)
		case <-time.After(removalPoll):
		}
	}
}
