package libvirt_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/libvirt"
	"causeway/host/libvirt/libvirttest"
	"causeway/host/limit"
)

// daemon is a causewayd that notes what it is asked.
type daemon struct {
	have     map[string]api.Wish
	fail     error
	programs bool // of which what it has is for
	busy     int  // how often Release is refused because a VM still uses the vGPU
	calls    []string
}

func (d *daemon) Ensure(_ context.Context, s api.Wish) (api.VGPU, error) {
	d.calls = append(d.calls, "ensure "+s.Key())
	if d.fail != nil {
		return api.VGPU{}, d.fail
	}
	if d.have == nil {
		d.have = map[string]api.Wish{}
	}
	d.have[s.Key()] = s
	return d.VGPU(context.Background(), s.VM, s.Name)
}

func (d *daemon) VGPU(_ context.Context, vm, name string) (api.VGPU, error) {
	w, ok := d.have[vm+"/"+name]
	if !ok {
		return api.VGPU{}, &api.Error{Status: 404, Text: "no vGPU " + vm + "/" + name}
	}
	return api.VGPU{Spec: api.Spec{VM: vm, Name: name, GPU: w.GPU, Programs: d.programs, Limits: w.On(api.Limits{})}, GPU: "GPU-1", Socket: w.SocketPath(api.RunDir)}, nil
}

func (d *daemon) Release(_ context.Context, vm, name string, unused bool) error {
	key := vm + "/" + name
	d.calls = append(d.calls, "release "+key)
	if errors.Is(d.fail, api.ErrNotRunning) {
		return d.fail
	}
	if _, ok := d.have[key]; !ok {
		return &api.Error{Status: 404, Text: "no vGPU " + key}
	}
	if d.busy > 0 && unused {
		d.busy--
		return &api.Error{Status: 409, Text: "a VM uses " + key}
	}
	delete(d.have, key)
	return nil
}

func attacher(dom *libvirttest.Domain, d *daemon) *libvirt.Attacher {
	return &libvirt.Attacher{Domain: dom, Daemon: d, Run: api.RunDir, Hook: true, Timeout: 250 * time.Millisecond}
}

// state is what a domain has in one place.
func state(t *testing.T, dom *libvirttest.Domain, w libvirt.Where) (vgpus, tags []string) {
	t.Helper()
	text, err := dom.XML(w)
	if err != nil {
		t.Fatal(err)
	}
	x, err := libvirt.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range x.VGPUs {
		vgpus = append(vgpus, s.Name)
	}
	for _, f := range x.Filesystems {
		tags = append(tags, f.Target)
	}
	return vgpus, tags
}

func expect(t *testing.T, dom *libvirttest.Domain, w libvirt.Where, want ...string) {
	t.Helper()
	vgpus, tags := state(t, dom, w)
	if !slices.Equal(vgpus, want) || !slices.Equal(tags, want) {
		t.Errorf("in %d: metadata %v, devices %v, want %v", w, vgpus, tags, want)
	}
}

const both = libvirt.Live | libvirt.Config

func TestAttachDetach(t *testing.T) {
	dom, d := libvirttest.New(), &daemon{}
	a := attacher(dom, d)
	r, err := a.Attach(t.Context(), api.Wish{GPU: "any", Change: api.Limits{Memory: 1 << 30}.Change()}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r.Name != "gpu0" || !r.Live || !r.Config || r.GPU != "GPU-1" || !strings.Contains(r.Metadata, "memory='1GiB'") {
		t.Errorf("%+v", r)
	}
	if r, err = a.Attach(t.Context(), api.Wish{GPU: "any"}, 0); err != nil || r.Name != "gpu1" {
		t.Fatalf("%+v %v", r, err)
	}
	expect(t, dom, libvirt.Live, "gpu0", "gpu1")
	expect(t, dom, libvirt.Config, "gpu0", "gpu1")
	if _, err := a.Detach(t.Context(), "", 0); !errors.Is(err, libvirt.ErrNoVGPU) || !strings.Contains(err.Error(), "[gpu0 gpu1]") {
		t.Errorf("detach without a name: %v", err)
	}
	if _, err := a.Detach(t.Context(), "gpu7", 0); !errors.Is(err, libvirt.ErrNoVGPU) {
		t.Errorf("detach of another: %v", err)
	}
	d.busy = 2 // QEMU closes the socket a little later
	if _, err := a.Detach(t.Context(), "gpu0", 0); err != nil {
		t.Fatal(err)
	}
	expect(t, dom, libvirt.Live, "gpu1")
	expect(t, dom, libvirt.Config, "gpu1")
	if len(d.have) != 1 {
		t.Errorf("causewayd has %v", d.have)
	}
}

// TestAttachKeeps: what causewayd has for the domain already keeps its limits, and the next start
// knows them.
func TestAttachKeeps(t *testing.T) {
	dom, d := libvirttest.New(), &daemon{}
	if _, err := d.Ensure(t.Context(), api.Wish{VM: "vm1", Name: "gpu0", GPU: "H200", Change: api.Limits{Memory: 4 << 30, Share: 300}.Change()}); err != nil {
		t.Fatal(err)
	}
	share := limit.Share(50)
	r, err := attacher(dom, d).Attach(t.Context(), api.Wish{Change: api.Change{Share: &share}}, 0)
	if err != nil || !strings.Contains(r.Metadata, "name='gpu0' gpu='H200' memory='4GiB' share='50'/>") || r.Limits.Memory != 4<<30 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Whatever fails, nothing is left behind.
func TestAttachUndone(t *testing.T) {
	broken := errors.New("broken")
	for _, call := range []string{"metadata live", "metadata config", "attach", "ensure"} {
		t.Run(call, func(t *testing.T) {
			dom, d := libvirttest.New(), &daemon{}
			if call == "ensure" {
				d.fail = broken
			} else {
				dom.Fail = map[string]error{call: broken}
			}
			_, err := attacher(dom, d).Attach(t.Context(), api.Wish{GPU: "any"}, 0)
			if !errors.Is(err, broken) || (call != "ensure") != strings.Contains(err.Error(), "taken back") {
				t.Errorf("%v", err)
			}
			expect(t, dom, libvirt.Live)
			expect(t, dom, libvirt.Config)
			if len(d.have) != 0 {
				t.Errorf("causewayd has %v", d.have)
			}
		})
	}
}

func TestAttachRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*libvirttest.Domain)
		spec   api.Wish
		where  libvirt.Where
		err    error
		text   string
	}{
		"does not run":    {func(d *libvirttest.Domain) { d.In = libvirt.Config }, api.Wish{}, libvirt.Live, libvirt.ErrNotRunning, "--config"},
		"has no config":   {func(d *libvirttest.Domain) { d.In = libvirt.Live }, api.Wish{}, libvirt.Config, libvirt.ErrTransient, "--live"},
		"name of a path":  {func(*libvirttest.Domain) {}, api.Wish{Name: "../a"}, 0, api.ErrName, "use up to 63"},
		"domain's name":   {func(d *libvirttest.Domain) { d.Title = "two words" }, api.Wish{}, 0, api.ErrName, "two words"},
		"cap":             {func(*libvirttest.Domain) {}, api.Wish{Change: api.Limits{Cap: 200}.Change()}, 0, api.ErrLimit, "a cap of 200"},
		"private memory":  {func(d *libvirttest.Domain) { d.Shell = strings.Replace(d.Shell, "shared", "private", 1) }, api.Wish{}, 0, nil, "<access mode='shared'>"},
		"mount tag taken": {func(d *libvirttest.Domain) { take(d) }, api.Wish{Name: "tools"}, 0, libvirt.ErrExists, "mount tag tools is taken"},
	} {
		t.Run(name, func(t *testing.T) {
			dom, d := libvirttest.New(), &daemon{}
			c.change(dom)
			_, err := attacher(dom, d).Attach(t.Context(), c.spec, c.where)
			if err == nil || c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %v with %q", err, c.err, c.text)
			}
			if len(dom.Calls) != 0 || len(d.calls) != 0 {
				t.Errorf("it did %v %v", dom.Calls, d.calls)
			}
		})
	}
}

func take(d *libvirttest.Domain) {
	d.Shell = strings.Replace(d.Shell, "%DEVICES%", "<filesystem type='mount'><source dir='/t'/><target dir='tools'/></filesystem>%DEVICES%", 1)
}

// A guest that does not let go keeps the vGPU, and the message says so.
func TestDetachDeafGuest(t *testing.T) {
	dom, d := libvirttest.New(), &daemon{}
	a := attacher(dom, d)
	if _, err := a.Attach(t.Context(), api.Wish{}, 0); err != nil {
		t.Fatal(err)
	}
	dom.Deaf = true
	if _, err := a.Detach(t.Context(), "", 0); !errors.Is(err, libvirt.ErrGuest) {
		t.Fatalf("%v", err)
	}
	expect(t, dom, libvirt.Live, "gpu0")
	expect(t, dom, libvirt.Config, "gpu0")
	if len(d.have) != 1 {
		t.Errorf("causewayd has %v", d.have)
	}
	r, err := a.Detach(t.Context(), "", libvirt.Config)
	if err != nil || len(r.Notes) != 1 || len(d.have) != 1 {
		t.Errorf("with --config: %+v %v, causewayd has %v", r, err, d.have)
	}
	expect(t, dom, libvirt.Config)
}

// A memory balloon that could spare a migration something is named once, and nothing is refused.
func TestAttachBesideABalloon(t *testing.T) {
	for xml, want := range map[string]int{
		"<memballoon model='virtio'/>":                                  1,
		"<memballoon model='virtio' freePageReporting='off'/>":          1,
		"<memballoon model='virtio-transitional'><stats/></memballoon>": 1,
		"<memballoon model='virtio' freePageReporting='on'/>":           0,
		"<memballoon model='none'/>":                                    0,
		"":                                                              0,
	} {
		dom := libvirttest.New()
		dom.Shell = strings.Replace(dom.Shell, "%DEVICES%", xml+"%DEVICES%", 1)
		a := attacher(dom, &daemon{})
		planned, err := a.Plan(api.Wish{}, 0)
		if err != nil || len(planned.Notes) != want {
			t.Errorf("%s: %+v %v", xml, planned, err)
		}
		done, err := a.Attach(t.Context(), api.Wish{}, 0)
		if err != nil || len(done.Notes) != want {
			t.Errorf("%s: %+v %v", xml, done, err)
		}
		// What is to be written is no element without an end, which would not be XML.
		if want > 0 && !strings.Contains(planned.Notes[0], "freePageReporting='on' within <memballoon model='virtio") {
			t.Errorf("%s: %s", xml, planned.Notes[0])
		}
	}
}

// The vGPU of a domain that does not run is the hook's to ready.
func TestAttachStopped(t *testing.T) {
	for _, hook := range []bool{true, false} {
		dom, d := libvirttest.New(), &daemon{}
		dom.In = libvirt.Config
		a := attacher(dom, d)
		a.Hook = hook
		r, err := a.Attach(t.Context(), api.Wish{}, 0)
		if err != nil || r.Live || !r.Config || len(r.Notes) != 1 || (len(d.have) == 0) != hook {
			t.Errorf("hook %v: %+v %v, causewayd has %v", hook, r, err, d.have)
		}
		if _, err := a.Detach(t.Context(), "", both); !errors.Is(err, libvirt.ErrNotRunning) {
			t.Errorf("detach --live --config: %v", err)
		}
		if _, err := a.Detach(t.Context(), "", 0); err != nil || len(d.have) != 0 {
			t.Errorf("%v, causewayd has %v", err, d.have)
		}
	}
}

func TestPlanChangesNothing(t *testing.T) {
	dom, d := libvirttest.New(), &daemon{}
	r, err := attacher(dom, d).Plan(api.Wish{Change: api.Limits{Share: 7}.Change()}, 0)
	if err != nil || !strings.Contains(r.Metadata, "share='7'") || !strings.Contains(r.Filesystem, "/run/causeway/vm1/gpu0.sock") {
		t.Errorf("%+v %v", r, err)
	}
	if len(dom.Calls) != 0 || len(d.calls) != 0 {
		t.Errorf("it did %v %v", dom.Calls, d.calls)
	}
}

const device = "<filesystem type='mount'><driver type='virtiofs'/><source socket='%'/><target dir='gpu0'/></filesystem>"

func hookXML(metadata, socket string) string {
	dev := ""
	if socket != "" {
		dev = strings.Replace(device, "%", socket, 1)
	}
	return "<domain type='kvm'><name>vm1</name><metadata>" + metadata + "</metadata><devices>" + dev + "</devices></domain>"
}

// TestHookLeavesWord: a domain that ends while no causewayd runs leaves word for the next one,
// where there is something to end.
func TestHookLeavesWord(t *testing.T) {
	run := t.TempDir()
	s := api.Spec{VM: "vm1", Name: "gpu0"}
	end := func() error {
		call := libvirt.HookCall{Domain: "vm1", Op: "release", SubOp: "end", XML: strings.NewReader(hookXML("", s.SocketPath(run)))}
		return libvirt.Hook(t.Context(), call, run, &daemon{fail: api.ErrNotRunning}, &bytes.Buffer{})
	}
	for _, there := range []bool{false, true} {
		if there {
			if err := os.Mkdir(filepath.Dir(s.ReleasedPath(run)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(); !errors.Is(err, api.ErrNotRunning) {
			t.Error(err)
		}
		if _, err := os.Stat(s.ReleasedPath(run)); (err == nil) != there {
			t.Errorf("folder %v: %v", there, err)
		}
	}
}

func TestHook(t *testing.T) {
	wish := libvirt.MetadataXML([]api.Wish{{Name: "gpu0", GPU: "H200", Change: api.Limits{Memory: 1 << 30, Cap: 5}.Change()}})
	free := libvirt.MetadataXML([]api.Wish{{Name: "gpu0"}})
	own := "/run/causeway/vm1/gpu0.sock"
	down := api.ErrNotRunning
	for name, c := range map[string]struct {
		op, xml string
		fail    error
		calls   []string
		err     string
		said    string
	}{
		"no vGPU, causewayd down":       {"prepare begin", hookXML("", ""), down, nil, "", ""},
		"no vGPU, XML that is none":     {"prepare begin", "<<<", down, nil, "", ""},
		"other operation":               {"start begin", hookXML(wish, own), down, nil, "", ""},
		"wishes and device":             {"prepare begin", hookXML(wish, own), nil, []string{"ensure vm1/gpu0"}, "", ""},
		"no limit of memory":            {"prepare begin", hookXML(free, own), nil, []string{"ensure vm1/gpu0"}, "", "memory='...' or profile='...'"},
		"causewayd down":                {"prepare begin", hookXML(wish, own), down, []string{"ensure vm1/gpu0"}, "vGPU gpu0 of domain vm1: causewayd does not run", ""},
		"wishes without a device":       {"prepare begin", hookXML(wish, ""), nil, nil, "add to its <devices>", ""},
		"device without wishes":         {"prepare begin", hookXML("", own), nil, []string{"ensure vm1/gpu0"}, "", "no wishes"},
		"device of another VM":          {"prepare begin", hookXML("", "/run/causeway/vm2/gpu0.sock"), down, nil, "", ""},
		"device that is served by hand": {"prepare begin", hookXML("", "/run/causeway/x.sock"), down, nil, "", ""},
		"wrong metadata":                {"prepare begin", hookXML(strings.Replace(wish, "cap", "cop", 1), own), nil, nil, "no attribute cop", ""},
		"end":                           {"release end", hookXML(wish, own), nil, []string{"release vm1/gpu0"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{fail: c.fail}
			op, sub, _ := strings.Cut(c.op, " ")
			var said bytes.Buffer
			err := libvirt.Hook(t.Context(), libvirt.HookCall{Domain: "vm1", Op: op, SubOp: sub, XML: strings.NewReader(c.xml)}, api.RunDir, d, &said)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
			if !slices.Equal(d.calls, c.calls) {
				t.Errorf("it asked for %v, want %v", d.calls, c.calls)
			}
			if !strings.Contains(said.String(), c.said) || c.said == "" && said.Len() > 0 {
				t.Errorf("it said %q, want %q", said.String(), c.said)
			}
		})
	}
}

// If one vGPU cannot be had, those before it are given back.
func TestHookAllOrNone(t *testing.T) {
	d := &daemon{}
	limited := &second{daemon: d}
	list := []api.Wish{{Name: "gpu0"}, {Name: "gpu1"}}
	xml := strings.Replace(hookXML(libvirt.MetadataXML(list), "/run/causeway/vm1/gpu0.sock"), "</devices>",
		strings.Replace(device, "%", "/run/causeway/vm1/gpu1.sock", 1)+"</devices>", 1)
	err := libvirt.Hook(t.Context(), libvirt.HookCall{Domain: "vm1", Op: "prepare", SubOp: "begin", XML: strings.NewReader(xml)}, api.RunDir, limited, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "no room") || len(d.have) != 0 {
		t.Errorf("%v, causewayd has %v", err, d.have)
	}
}

// second fails from the second Ensure on.
type second struct {
	*daemon
	n int
}

func (d *second) Ensure(ctx context.Context, s api.Wish) (api.VGPU, error) {
	if d.n++; d.n > 1 {
		return api.VGPU{}, &api.Error{Status: 507, Text: "no room"}
	}
	return d.daemon.Ensure(ctx, s)
}
