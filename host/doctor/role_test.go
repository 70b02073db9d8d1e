package doctor

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/api/apitest"
)

// bare is what a host without VMs lacks of a good one: libvirt's client is there alone.
var bare = map[string]map[string]string{
	"files": {"usr/sbin/libvirtd": "", hookFile[1:]: "", appArmorRule[1:]: "", "sys/fs/selinux/enforce": "1"},
	"programs": {"qemu-system-x86_64 --version": "", "semodule -l": "base\n",
		"virsh -c qemu:///system version": "FAIL error: failed to connect to the hypervisor\nerror: Failed to connect socket to '/run/s'\n"},
}

// TestServer: a GPU server without VMs needs nothing of theirs. One that has libvirt, or a VM's
// vGPU, is judged as any host; so is what a server needs as well.
func TestServer(t *testing.T) {
	of := []string{"KVM", "QEMU", "libvirt", "libvirt hook", "AppArmor", "SELinux"}
	leased := api.VGPU{Spec: api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta"}, Status: &api.Status{}}
	for name, c := range map[string]struct {
		serves bool
		vgpu   api.VGPU
		files  map[string]string
		state  map[string]State // of what is not OK
	}{
		"a server":          {true, leased, nil, nil},
		"for programs, too": {true, api.VGPU{Spec: api.Spec{VM: "job", Name: "gpu0", Programs: true}, Status: &api.Status{}}, nil, nil},
		"with a VM, started by hand": {true, api.VGPU{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Status: &api.Status{}}, nil,
			map[string]State{"KVM": Failed, "QEMU": Failed, "libvirt": Warning, "AppArmor": Failed, "SELinux": Failed}},
		"with libvirt that is stopped": {true, leased, map[string]string{"usr/sbin/virtqemud": "x"},
			map[string]State{"KVM": Failed, "QEMU": Failed, "libvirt": Failed, "libvirt hook": Warning, "AppArmor": Failed, "SELinux": Failed}},
		"no server": {false, leased, nil,
			map[string]State{"KVM": Failed, "QEMU": Warning, "libvirt": Warning, "AppArmor": Failed, "SELinux": Failed}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			for _, set := range []map[string]string{bare["files"], c.files} {
				for path, text := range set {
					files[path] = text
				}
			}
			m := host(t, files, bare["programs"])
			m.Open = func(string) error { return errors.New("no such device") }
			m.Serves = c.serves
			run := runDir(t)
			f := &apitest.Fake{Version: api.Version{Version: "1.0", PID: 77}, VGPUs: []api.VGPU{c.vgpu}}
			f.Serve(t, run)
			m.Daemon = api.NewClient(api.Socket(run))
			defer m.Daemon.Close()
			for _, r := range Examine(t.Context(), m) {
				if !slices.Contains(of, r.Check) {
					continue
				}
				want, is := c.state[r.Check]
				if !is {
					want = OK
				}
				if r.State != want || (want == OK) != strings.HasPrefix(r.Found, "not needed") || (want == OK) != (r.Do == "") {
					t.Errorf("%+v, want %s", r, want)
				}
			}
			m.Memfd = func() error { return fs.ErrInvalid }
			if r := find(t, Examine(t.Context(), m), "memfd"); r.State != Failed {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestPorts: which are not served, and that others miss more than metrics.
func TestPorts(t *testing.T) {
	remote, metrics := api.Port{Key: "remote.listen", Address: ":7745"}, api.Port{Key: "metrics.listen", Address: ":9435"}
	not := func(p api.Port) api.Port { p.Error = p.Key + ": address already in use: end it"; return p }
	for _, c := range []struct {
		ports []api.Port
		state State
		want  string
	}{
		{nil, OK, "none"},
		{[]api.Port{remote, metrics}, OK, "remote.listen :7745, metrics.listen :9435"},
		{[]api.Port{remote, not(metrics)}, Warning, "metrics.listen: address already in use: end it"},
		{[]api.Port{not(remote), not(metrics)}, Failed, "remote.listen: address already in use: end it; metrics"},
	} {
		m, run := host(t, nil, nil), runDir(t)
		f := &apitest.Fake{Version: api.Version{Version: "1.0", Ports: c.ports}}
		f.Serve(t, run)
		m.Daemon = api.NewClient(api.Socket(run))
		if r := find(t, Examine(t.Context(), m), "ports"); r.State != c.state || !strings.Contains(r.Found, c.want) || (r.Do == "") != (c.state == OK) {
			t.Errorf("%+v, want %s with %q", r, c.state, c.want)
		}
		m.Daemon.Close()
	}
}
