package libvirt_test

import (
	"errors"
	"slices"
	"testing"

	"causeway/host/api"
	"causeway/host/libvirt"
	"causeway/host/libvirt/libvirttest"
)

// TestPlug: a vGPU of a claim is plugged in as often as it is asked for, once; the domain's own
// vGPU of the same name is another; unplugging ends neither.
func TestPlug(t *testing.T) {
	dom, d := libvirttest.New(), &daemon{}
	a := attacher(dom, d)
	if _, err := a.Plug(t.Context(), "claim-1", "gpu0", "", 0); err == nil {
		t.Fatal("a vGPU that is not there is plugged in")
	}
	if _, err := a.Attach(t.Context(), api.Wish{GPU: "any"}, 0); err != nil {
		t.Fatal(err)
	}
	d.have["claim-1/gpu0"] = api.Wish{VM: "claim-1", Name: "gpu0"}
	r, err := a.Plug(t.Context(), "claim-1", "gpu0", "", 0)
	if err != nil || r.Name != "gpu1" || r.Socket != "/run/causeway/claim-1/gpu0.sock" {
		t.Fatalf("%+v %v", r, err)
	}
	calls := len(dom.Calls)
	if r, err = a.Plug(t.Context(), "claim-1", "gpu0", "", 0); err != nil || r.Name != "gpu1" || len(dom.Calls) != calls {
		t.Errorf("again: %+v %v %v", r, err, dom.Calls)
	}
	d.have["claim-2/gpu0"] = api.Wish{VM: "claim-2", Name: "gpu0"}
	if _, err := a.Plug(t.Context(), "claim-2", "gpu0", "gpu1", 0); !errors.Is(err, libvirt.ErrExists) {
		t.Errorf("a tag that is taken: %v", err)
	}
	if _, err := a.Plug(t.Context(), "claim-2", "gpu0", "a/b", 0); !errors.Is(err, api.ErrName) {
		t.Errorf("a tag that is none: %v", err)
	}
	if _, err := a.Unplug(t.Context(), "claim-1", "gpu0", 0); err != nil {
		t.Fatal(err)
	}
	for _, w := range []libvirt.Where{libvirt.Live, libvirt.Config} {
		expect(t, dom, w, "gpu0")
	}
	if _, there := d.have["claim-1/gpu0"]; !there || len(d.have) != 3 {
		t.Errorf("causewayd has %v", d.have)
	}
	if _, err := a.Unplug(t.Context(), "claim-1", "gpu0", 0); err != nil {
		t.Errorf("again: %v", err)
	}
}

// TestPlugPlaces: one place that lacks it gets it under the tag of the other; a guest that does not
// let go keeps it, and its definition does not.
func TestPlugPlaces(t *testing.T) {
	dom, d := libvirttest.New(), &daemon{have: map[string]api.Wish{"claim-1/gpu0": {VM: "claim-1", Name: "gpu0"}}}
	a := attacher(dom, d)
	if _, err := a.Plug(t.Context(), "claim-1", "gpu0", "first", libvirt.Live); err != nil {
		t.Fatal(err)
	}
	if r, err := a.Plug(t.Context(), "claim-1", "gpu0", "", 0); err != nil || r.Name != "first" || dom.Calls[len(dom.Calls)-1] != "attach config" {
		t.Errorf("%+v %v %v", r, err, dom.Calls)
	}
	dom.Deaf = true
	if _, err := a.Unplug(t.Context(), "claim-1", "gpu0", 0); !errors.Is(err, libvirt.ErrGuest) {
		t.Errorf("%v", err)
	}
	_, live := state(t, dom, libvirt.Live)
	_, config := state(t, dom, libvirt.Config)
	if !slices.Equal(live, []string{"first"}) || len(config) != 0 {
		t.Errorf("%v %v", live, config)
	}
	programs := true
	d.have["claim-3/gpu0"] = api.Wish{VM: "claim-3", Name: "gpu0", Programs: &programs}
	d.programs = true
	if _, err := a.Plug(t.Context(), "claim-3", "gpu0", "", 0); !errors.Is(err, libvirt.ErrNoVGPU) {
		t.Errorf("one for programs: %v", err)
	}
}
