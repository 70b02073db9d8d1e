package device_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// system makes a folder that looks like a Linux system to bin/setup: files are made empty, what
// ends in / is a folder, and PATH=TEXT has text.
func system(t *testing.T, files ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("setup runs as root")
	}
	root := t.TempDir()
	for _, f := range append([]string{"etc/"}, files...) {
		name, text, _ := strings.Cut(f, "=")
		path := filepath.Join(root, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, []byte(text), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Systems that setup meets.
var (
	debian = []string{"lib64/ld-linux-x86-64.so.2", "lib/systemd/systemd", "sbin/ldconfig", "etc/ld.so.conf=include /etc/ld.so.conf.d/*.conf\n", "etc/fstab=/dev/vda1 / ext4 rw 0 1\n"}
	fedora = []string{"lib64/ld-linux-x86-64.so.2", "usr/lib/systemd/systemd", "usr/sbin/ldconfig", "usr/bin/podman", "etc/ld.so.conf=include ld.so.conf.d/*.conf\n"}
	sysv   = []string{"lib64/ld-linux-x86-64.so.2", "sbin/ldconfig", "etc/ld.so.conf=/usr/local/lib\n", "etc/fstab=/dev/vda1 / ext4 rw 0 1"}
	alpine = []string{"lib/ld-musl-x86_64.so.1", "usr/bin/docker"}
)

func setup(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command("sh", append([]string{"setup.sh", "--root", root}, args...)...).CombinedOutput()
	return string(out), err
}

// contents are the files below a folder, and their texts or targets.
func contents(t *testing.T, root string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if e.Type()&os.ModeSymlink != 0 {
			var target string
			target, err = os.Readlink(path)
			b = []byte("-> " + target)
		}
		m[strings.TrimPrefix(path, root)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSetup: what is written on each kind of system, that a second run writes nothing, and that
// --remove leaves what was there.
func TestSetup(t *testing.T) {
	for name, c := range map[string]struct {
		system []string
		args   []string
		want   []string // files, or FILE=a part of it
		never  []string
	}{
		"Debian": {debian, nil, []string{
			"/etc/systemd/system/run-causeway.mount=What=gpu0\n",
			"/etc/systemd/system/basic.target.wants/run-causeway.mount=-> ../run-causeway.mount",
			"/etc/udev/rules.d/70-causeway.rules=ENV{TAG}==\"gpu0\"",
			"/etc/ld.so.conf.d/00-causeway.conf=/run/causeway/lib\n",
			"/usr/local/bin/nvidia-smi=-> /run/causeway/bin/nvidia-smi",
		}, []string{"/etc/cdi/causeway.yaml"}},
		"Debian with NVIDIA's nvidia-smi": {append([]string{"usr/bin/nvidia-smi"}, debian...), nil, []string{"/etc/ld.so.conf.d/00-causeway.conf"}, []string{"/usr/local/bin/nvidia-smi"}},
		"an nvidia-smi of the owner's":    {append([]string{"usr/local/bin/nvidia-smi=#!"}, debian...), nil, []string{"/usr/local/bin/nvidia-smi=#!"}, nil},
		"Debian with CDI":                 {debian, []string{"--cdi"}, []string{"/etc/cdi/causeway.yaml=kind: nvidia.com/gpu\n"}, nil},
		"Fedora":                          {fedora, nil, []string{"/etc/systemd/system/run-causeway.mount", "/etc/cdi/causeway.yaml", "/etc/ld.so.conf.d/00-causeway.conf"}, nil},
		"Fedora, no CDI":                  {fedora, []string{"--no-cdi"}, nil, []string{"/etc/cdi/causeway.yaml"}},
		"no systemd": {sysv, nil, []string{
			"/etc/fstab=gpu0 /run/causeway virtiofs nosuid,nodev,nofail,x-mount.mkdir 0 0 # causeway\n",
			"/etc/ld.so.conf=/run/causeway/lib # causeway\n",
		}, []string{"/etc/ld.so.conf.d/00-causeway.conf", "/etc/systemd/system/run-causeway.mount"}},
		"musl with CDI": {alpine, []string{"--cdi"}, []string{"/etc/fstab=gpu0 /run/causeway", "/etc/cdi/causeway.yaml"}, []string{"/etc/ld.so.conf.d/00-causeway.conf", "/usr/local/bin/nvidia-smi"}},
		"another mount": {append([]string{"etc/ld.so.conf.d/00-causeway.conf=/run/causeway/lib\n"}, fedora...), []string{"--at", "/run/causeway-gpu1", "--tag", "gpu1"}, []string{
			`/etc/systemd/system/run-causeway\x2dgpu1.mount=Where=/run/causeway-gpu1`,
			"/etc/cdi/causeway-gpu1.yaml=hostPath: /run/causeway-gpu1, containerPath: /run/causeway,",
			"/etc/ld.so.conf.d/00-causeway.conf=/run/causeway/lib\n",
		}, []string{"/usr/local/bin/nvidia-smi"}},
		"NVIDIA's own CDI": {append([]string{"etc/cdi/nvidia.yaml=cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"}, fedora...), nil, []string{"/etc/cdi/causeway.yaml=kind: causeway.dev/gpu\n"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := system(t, c.system...)
			before := contents(t, root)
			args := append([]string{"--tag", "gpu0"}, c.args...)
			if out, err := setup(t, root, args...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			after := contents(t, root)
			for _, w := range c.want {
				file, text, _ := strings.Cut(w, "=")
				if got, ok := after[file]; !ok || !strings.Contains(got, text) {
					t.Errorf("%s: %q, there: %v", w, got, ok)
				}
			}
			for _, n := range c.never {
				if _, ok := after[n]; ok {
					t.Errorf("%s was written", n)
				}
			}
			if out, err := setup(t, root, args...); err != nil || strings.Contains(out, "wrote") || strings.Contains(out, "removed") || strings.Contains(out, "linked") {
				t.Errorf("again: %v: %s", err, out)
			}
			remove := []string{"--remove"}
			if i := slices.Index(args, "--at"); i >= 0 {
				remove = append(remove, args[i:i+2]...)
			}
			if out, err := setup(t, root, remove...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			// A line that lacked its end has it now, and a system without these files may keep
			// empty ones.
			for file, text := range contents(t, root) {
				if strings.TrimSpace(text) != strings.TrimSpace(before[file]) {
					t.Errorf("after --remove: %s: %q was %q", file, text, before[file])
				}
			}
		})
	}
}

// TestSetupNvidiaSMI: the link gives way to NVIDIA's program when that is installed later.
func TestSetupNvidiaSMI(t *testing.T) {
	root := system(t, debian...)
	const link = "/usr/local/bin/nvidia-smi"
	for _, there := range []bool{true, false, true} {
		if err := os.RemoveAll(filepath.Join(root, "usr/bin")); err != nil {
			t.Fatal(err)
		}
		if !there {
			if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "usr/bin/nvidia-smi"), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := setup(t, root, "--tag", "gpu0"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, ok := contents(t, root)[link]; ok != there {
			t.Errorf("%s is there: %v, want %v", link, ok, there)
		}
	}
}

func TestSetupRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		system, args []string
		want         string
	}{
		"musl":          {alpine, []string{"--tag", "gpu0"}, "glibc 2.17"},
		"no tag":        {debian, nil, "--root wants --tag"},
		"odd tag":       {debian, []string{"--tag", "gpu0;reboot"}, "letters, digits"},
		"odd place":     {debian, []string{"--tag", "gpu0", "--at", "run"}, "not absolute"},
		"odd argument":  {debian, []string{"--tag", "gpu0", "--frob"}, "unknown argument --frob"},
		"missing value": {debian, []string{"--tag"}, "--tag wants a value"},
	} {
		t.Run(name, func(t *testing.T) {
			root := system(t, c.system...)
			before := contents(t, root)
			out, err := setup(t, root, c.args...)
			if err == nil || !strings.Contains(out, c.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("%v: %s", err, out)
			}
			if after := contents(t, root); len(after) != len(before) {
				t.Errorf("left %v", after)
			}
		})
	}
}

// TestCDI has the reference implementation, which podman, docker and containerd contain, judge and
// apply the specification.
func TestCDI(t *testing.T) {
	root := system(t, fedora...)
	for _, args := range [][]string{{"--tag", "gpu0"}, {"--tag", "gpu1", "--at", "/run/causeway-gpu1"}} {
		if out, err := setup(t, root, args...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(filepath.Join(root, "etc/cdi")), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	if err := cache.Refresh(); err != nil {
		t.Fatal(err)
	}
	for file, errs := range cache.GetErrors() {
		t.Errorf("%s: %v", file, errs)
	}
	if got, want := cache.ListDevices(), []string{"nvidia.com/gpu=0", "nvidia.com/gpu=all", "nvidia.com/gpu=gpu0", "nvidia.com/gpu=gpu1"}; !slices.Equal(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	for device, from := range map[string]string{"nvidia.com/gpu=all": "/run/causeway", "nvidia.com/gpu=0": "/run/causeway", "nvidia.com/gpu=gpu1": "/run/causeway-gpu1"} {
		var spec oci.Spec
		if _, err := cache.InjectDevices(&spec, device); err != nil {
			t.Fatal(err)
		}
		places := map[string]string{}
		for _, m := range spec.Mounts {
			places[m.Destination] = m.Source
		}
		if places["/run/causeway"] != from || places["/usr/lib64/libcuda.so.1"] != from+"/lib/libcuda.so.1" || places["/usr/bin/nvidia-smi"] != from+"/bin/nvidia-smi" || len(places) != 6 {
			t.Errorf("%s: mounts %v", device, places)
		}
		if spec.Hooks == nil || len(spec.Hooks.CreateContainer) != 1 || spec.Hooks.CreateContainer[0].Path != from+"/bin/cdi-hook" {
			t.Errorf("%s: hooks %+v", device, spec.Hooks)
		}
		if !slices.Contains(spec.Process.Env, "NVIDIA_VISIBLE_DEVICES=void") {
			t.Errorf("%s: environment %v", device, spec.Process.Env)
		}
	}
}

// TestCDIHook finds a container's root in what runtimes write, and in nothing that an image can
// write.
func TestCDIHook(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		want   string // below the bundle; empty: nothing is done
	}{
		"runc":      {`{"ociVersion":"1.2","process":{"args":["sh"]},"root":{"path":"rootfs","readonly":true},"hostname":"a"}`, "rootfs"},
		"spaced":    {"{\n \"process\": {},\n \"root\": {\n  \"readonly\": false,\n  \"path\": \"rootfs\"\n },\n \"mounts\": []}", "rootfs"},
		"injected":  {`{"annotations":{"a":"\",\"root\":{\"path\":\"other\"}"},"x":{},"root":{"path":"rootfs"}}`, "rootfs"},
		"no cache":  {`{"x":1,"root":{"path":"musl"}}`, ""},
		"host root": {`{"x":1,"root":{"path":"/"}}`, ""},
		"nothing":   {`{}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bundle := t.TempDir()
			bin := filepath.Join(bundle, "bin")
			for _, dir := range []string{bin, filepath.Join(bundle, "rootfs/etc"), filepath.Join(bundle, "other/etc"), filepath.Join(bundle, "musl/etc")} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for f, text := range map[string]string{
				"config.json": c.config, "rootfs/etc/ld.so.cache": "", "other/etc/ld.so.cache": "",
				"bin/ldconfig": "#!/bin/sh\necho \"$@\" >>" + bundle + "/ran\n",
			} {
				if err := os.WriteFile(filepath.Join(bundle, f), []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			hook, err := os.ReadFile("cdihook.sh")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-c", string(bytes.Replace(hook, []byte("PATH="), []byte("PATH="+bin+":"), 1)))
			cmd.Stdin = strings.NewReader(`{"ociVersion":"1.0","id":"x","status":"creating","pid":7,"bundle":"` + bundle + `"}`)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			ran, _ := os.ReadFile(filepath.Join(bundle, "ran"))
			want := ""
			if c.want != "" {
				want = "-X -r " + filepath.Join(bundle, c.want) + "\n"
			}
			if string(ran) != want {
				t.Errorf("ldconfig %q, want %q", ran, want)
			}
		})
	}
}
