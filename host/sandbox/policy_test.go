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

// TestNodes: only the named GPUs' nodes, and all where a name says too little.
func TestNodes(t *testing.T) {
	root := t.TempDir()
	put := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "nvidia-caps/nvidia-cap1", "kvm"} {
		put("dev/"+n, "")
	}
	put("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-a\nDevice Minor: \t 1\n")
	put("proc/driver/nvidia/gpus/0000:02:00.0/information", "Model: \t\t NVIDIA X\nGPU UUID: \t GPU-b\nDevice Minor: \t 0\n")
	for _, c := range []struct {
		visible []string
		want    string
	}{
		{[]string{"GPU-a"}, "nvidia1"},
		{[]string{"GPU-b"}, "nvidia0"},
		{[]string{"GPU-a", "GPU-b"}, "nvidia0 nvidia1"},
		{nil, "nvidia0 nvidia1"},
		{[]string{"MIG-c"}, "nvidia0 nvidia1"},
	} {
		var got []string
		for _, n := range Nodes(root, c.visible) {
			if base := filepath.Base(n); strings.Trim(base, "0123456789") == "nvidia" {
				got = append(got, base)
			} else if base == "kvm" {
				t.Error("kvm is no GPU")
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %q, want %s", c.visible, got, c.want)
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
