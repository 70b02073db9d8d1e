package libvirt_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"causeway/host/libvirt"
	"causeway/host/libvirt/libvirttest"
)

var nicFunction = libvirt.PCI{Bus: 0x41, Slot: 0x1f, Function: 7}

func TestHostdevXML(t *testing.T) {
	got, err := libvirt.HostdevXML(nicFunction)
	want := `<hostdev mode='subsystem' type='pci' managed='yes'>
  <source>
    <address domain='0x0000' bus='0x41' slot='0x1f' function='0x7'/>
  </source>
</hostdev>`
	if err != nil || got != want || nicFunction.String() != "0000:41:1f.7" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestPassesThrough(t *testing.T) {
	for text, want := range map[string]bool{
		``: false,
		`<hostdev><source><address domain='0' bus='65' slot='31' function='7'/></source></hostdev>`:               true,
		`<hostdev><source><address bus='0x41' slot='0x1f' function='0x7'/></source></hostdev>`:                    true,
		`<interface type='hostdev'><source><address bus='0x41' slot='0x1f' function='0x7'/></source></interface>`: true,
		`<hostdev><source><address domain='1' bus='0x41' slot='0x1f' function='0x7'/></source></hostdev>`:         false,
		`<hostdev><source><address bus='0x41' slot='x' function='0x7'/></source></hostdev>`:                       false,
		`<hostdev><source/><address bus='0x41' slot='0x1f' function='0x7'/></hostdev>`:                            false,
		`<disk><source><address bus='0x41' slot='0x1f' function='0x7'/></source></disk>`:                          false,
	} {
		d, err := libvirt.Parse([]byte("<domain><devices>" + text + "</devices></domain>"))
		if err != nil || d.PassesThrough(nicFunction) != want {
			t.Errorf("%s: want %t, %v", text, want, err)
		}
	}
}

// TestPasser: a device is given and taken wherever the domain is.
func TestPasser(t *testing.T) {
	d := libvirttest.New()
	p := &libvirt.Passer{Domain: d, Timeout: time.Minute}
	if err := p.Give(nicFunction, 0); err != nil {
		t.Fatal(err)
	}
	for _, w := range []libvirt.Where{libvirt.Live, libvirt.Config} {
		text, err := d.XML(w)
		if err != nil || !strings.Contains(text, "slot='0x1f'") {
			t.Errorf("%d: %s, %v", w, text, err)
		}
	}
	if err := p.Give(nicFunction, libvirt.Config); !errors.Is(err, libvirt.ErrHasDevice) {
		t.Error(err)
	}
	if err := p.Give(libvirt.PCI{Bus: 0x41}, libvirt.Live); err != nil { // another
		t.Error(err)
	}
	if err := p.Take(t.Context(), nicFunction); err != nil {
		t.Fatal(err)
	}
	if err := p.Take(t.Context(), nicFunction); err != nil {
		t.Errorf("what the domain has no more: %v", err)
	}
	if text, err := d.XML(libvirt.Live); err != nil || strings.Contains(text, "slot='0x1f'") || !strings.Contains(text, "bus='0x41'") {
		t.Errorf("%s, %v", text, err)
	}
	d.In = libvirt.Config
	if _, err := p.Where(libvirt.Live); !errors.Is(err, libvirt.ErrNotRunning) {
		t.Error(err)
	}
	if err := p.Give(nicFunction, 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Take(t.Context(), nicFunction); err != nil {
		t.Error(err)
	}
}

// TestPasserFails: libvirt's refusals come through, and a guest that keeps a device is told of.
func TestPasserFails(t *testing.T) {
	d := libvirttest.New()
	p := &libvirt.Passer{Domain: d, Timeout: time.Nanosecond}
	refused := errors.New("no free slot")
	d.Fail = map[string]error{"attach": refused}
	if err := p.Give(nicFunction, 0); !errors.Is(err, refused) {
		t.Error(err)
	}
	d.Fail = nil
	if err := p.Give(nicFunction, libvirt.Live); err != nil {
		t.Fatal(err)
	}
	d.Deaf = true
	if err := p.Take(t.Context(), nicFunction); !errors.Is(err, libvirt.ErrKept) {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.Timeout = time.Hour
	if err := p.Take(ended, nicFunction); !errors.Is(err, libvirt.ErrKept) {
		t.Error(err)
	}
	d.Fail = map[string]error{"detach live": refused}
	if err := p.Take(t.Context(), nicFunction); !errors.Is(err, refused) {
		t.Error(err)
	}
}
