package cdi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

// TestFiles: a claim's file is replaced as a whole, says whose it is, is removed once and again,
// and others' files are left alone.
func TestFiles(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "cdi"))
	a, b := Claim{"team", "gpu", "1-a", "5-a,5-b"}, Claim{"team", "other", "1-b", ""}
	for range 2 {
		for _, c := range []Claim{a, b} {
			if err := d.Write(c, map[string]specs.ContainerEdits{"gpu0": VM("/run/s", "/run/vm", "gpu0")}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(string(d), "nvidia.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := d.Claims(); err != nil || len(list) != 2 || list[0] != a || list[1] != b {
		t.Errorf("%+v %v", list, err)
	}
	text, err := os.ReadFile(d.path(a.UID))
	if err != nil {
		t.Fatal(err)
	}
	var s specs.Spec
	if err := json.Unmarshal(text, &s); err != nil || Kind+"="+s.Devices[0].Name != DeviceID(a.UID, "gpu0") {
		t.Errorf("%s: %v", text, err)
	}
	if m := s.Devices[0].ContainerEdits.Mounts; len(m) != 1 || m[0].ContainerPath != "/run/vm/gpu0.sock" || m[0].HostPath != "/run/s" {
		t.Errorf("%s", text)
	}
	for range 2 {
		if err := d.Remove(a.UID); err != nil {
			t.Error(err)
		}
	}
	broken := filepath.Join(string(d), filePrefix+"1-c"+fileSuffix)
	for _, text := range []string{"{", `{"kind":"causeway.dev/vgpu"}`, `{"kind":"x/y","annotations":{"causeway.dev/claim-name":"a","causeway.dev/claim-namespace":"b"}}`} {
		if err := os.WriteFile(broken, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := d.Claims(); err == nil || !strings.Contains(err.Error(), broken) || len(list) != 1 || list[0] != b {
			t.Errorf("%s: %+v %v", text, list, err)
		}
	}
	left, _ := filepath.Glob(filepath.Join(string(d), ".*"))
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestContainer: a container gets what there is, by the paths where loaders look.
func TestContainer(t *testing.T) {
	l := Libraries{t.TempDir()}
	if l.Check() == nil {
		t.Error("no library, and it will do")
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1", "bin/nvidia-smi", "bin/cdi-hook"} {
		path := filepath.Join(l.Folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := l.Container("/run/causeway/claim-1/gpu0.d/programs")
	to := map[string]string{}
	for _, m := range e.Mounts {
		to[m.ContainerPath] = m.HostPath
		if m.Options[1] != "ro" {
			t.Errorf("%+v can be written", m)
		}
	}
	if len(to) != 6 || to["/run/causeway"] != "/run/causeway/claim-1/gpu0.d/programs" || to["/usr/lib64/libcuda.so.1"] != filepath.Join(l.Folder, "libcuda.so.1") ||
		to["/usr/bin/nvidia-smi"] == "" || e.Env[0] != "CAUSEWAY=unix:/run/causeway/session" || len(e.Hooks) != 1 || l.Check() != nil {
		t.Errorf("%+v", e)
	}
}
