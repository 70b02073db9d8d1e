package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPolicyTravels(t *testing.T) {
	p := NewPolicy(Strict, true, nil, []string{"LD_LIBRARY_PATH=/usr/lib::/nonexistent:/"})
	if !slices.Equal(p.Read, []string{"/usr/lib"}) {
		t.Errorf("further folders %q", p.Read)
	}
	kv, err := p.encode()
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(kv, "=")
	t.Setenv(Env, text)
	got, err := FromEnv()
	if err != nil || got.Mode != Strict || !got.Real || got.UIDBase != UIDBase {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"mode":"loose"}`, `{}`} {
		t.Setenv(Env, bad)
		if p, err := FromEnv(); err == nil {
			t.Errorf("%q: %+v", bad, p)
		}
	}
	if _, err := ParseMode("yes"); err == nil {
		t.Error("yes is no mode")
	}
}

func TestMapped(t *testing.T) {
	for table, want := range map[string]bool{
		"         0          0 4294967295\n": true, "0 1000 1\n": false, "0 100000 65536\n": false, "": false, "x y z\n": false,
		"0 1000 1\n1862270976 500000 4194304\n": true, "1862270976 500000 4194303\n": false,
	} {
		if got := mapped(table, UIDBase); got != want {
			t.Errorf("%q: %v", table, got)
		}
	}
}

// TestNodes: only what computing takes, of the named GPUs and slices, and all where a name says too
// little.
func TestNodes(t *testing.T) {
	root := t.TempDir()
	put := func(name, text string) {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{
		"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-nvlink", "nvidia-nvswitchctl", "nvidia0", "nvidia1", "kvm",
		"nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2", "nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22", "nvidia-caps-imex-channels/channel0",
	} {
		put("dev/"+n, "")
	}
	put("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-a\nDevice Minor: \t 1\n")
	put("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-b\nDevice Minor: \t 0\n")
	capability := func(name, minor string) {
		put("proc/driver/nvidia/capabilities/"+name, "DeviceFileMinor: "+minor+"\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
	}
	capability("mig/config", "1") // divides GPUs
	capability("mig/monitor", "2")
	capability("gpu1/mig/gi1/access", "21")
	capability("gpu1/mig/gi1/ci0/access", "22")
	capability("gpu1/mig/gi1/ci3/access", "23")
	capability("gpu1/mig/gi2/access", "30")
	capability("gpu1/mig/gi2/ci0/access", "31")
	capability("gpu0/mig/gi1/access", "40")
	capability("gpu0/mig/gi1/ci0/access", "x")
	for _, c := range []struct {
		visible []string
		want    string
	}{
		{[]string{"GPU-a"}, "nvidia-cap21 nvidia-cap22 nvidia-cap23 nvidia-cap30 nvidia-cap31 nvidia1"},
		{[]string{"GPU-b"}, "nvidia-cap40 nvidia0"},
		{[]string{"GPU-a", "GPU-b"}, "nvidia-cap21 nvidia-cap22 nvidia-cap23 nvidia-cap30 nvidia-cap31 nvidia-cap40 nvidia0 nvidia1"},
		{nil, "nvidia-cap21 nvidia-cap22 nvidia-cap23 nvidia-cap30 nvidia-cap31 nvidia-cap40 nvidia0 nvidia1"},
		{[]string{"MIG-c"}, "nvidia-cap21 nvidia-cap22 nvidia-cap23 nvidia-cap30 nvidia-cap31 nvidia-cap40 nvidia0 nvidia1"},
		{[]string{"MIG-GPU-a/1/0"}, "nvidia-cap21 nvidia-cap22 nvidia1"},
		{[]string{"MIG-GPU-a/2/0"}, "nvidia-cap30 nvidia-cap31 nvidia1"},
		{[]string{"MIG-GPU-a/../0"}, "nvidia-cap21 nvidia-cap22 nvidia-cap23 nvidia-cap30 nvidia-cap31 nvidia-cap40 nvidia0 nvidia1"},
	} {
		var got []string
		for _, n := range Nodes(root, c.visible) {
			got = append(got, filepath.Base(n))
		}
		slices.Sort(got)
		if want := strings.Fields(c.want + " nvidiactl nvidia-uvm"); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%q: %q, want %q", c.visible, got, want)
		}
	}
}

func TestRules(t *testing.T) {
	soft, on, strict := NewPolicy(On, false, nil, nil), NewPolicy(On, true, nil, nil), NewPolicy(Strict, true, nil, nil)
	on.Nodes, strict.Nodes = []string{"/dev/null"}, []string{"/dev/null"}
	for _, c := range []struct {
		policy Policy
		path   string
		may    access
		want   bool
	}{
		{soft, "/usr/lib/x.so", read, true},
		{soft, "/usr/lib/x.so", write, false},
		{soft, "/usr/bin/sh", execute, false},
		{soft, "/etc/shadow", read, false},
		{soft, "/etcetera", read, false},
		{soft, "/dev/zero", read | write, true},
		{soft, "/dev/null", ioctl, false},
		{on, "/dev/null", read | write | ioctl, true},
		{on, "/etc/nsswitch.conf", read, true},
		{on, "/dev/shm/x", create, true},
		{strict, "/dev/shm/x", create, false},
		{strict, "/etc/nsswitch.conf", read, false},
		{strict, "/root/.ssh/id", read, false},
	} {
		if got := allows(c.policy.rules("/proc/self"), c.path, c.may); got != c.want {
			t.Errorf("%s, real %v: %s to %b: %v", c.policy.Mode, c.policy.Real, c.path, c.may, got)
		}
	}
}
