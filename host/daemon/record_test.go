package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"causeway/host/api"
)

// FuzzRecord: whatever a record says, it is about the vGPU of its place, and leads nowhere else.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"format":1,"spec":{"vm":"vm1","name":"gpu0"},"pid":5,"start":7}`))
	f.Add([]byte(`{"format":1,"spec":{"vm":"../..","name":"gpu0"}}`))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"spec":{"vm":"vm1","name":"gpu0","cap":1000},"pid":-1}`))
	run := f.TempDir()
	if err := os.Mkdir(filepath.Join(run, "vm1"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(filepath.Join(run, "vm1", "gpu0.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := readRecord(run, "vm1", "gpu0")
		if err == nil && (r.Spec.Key() != "vm1/gpu0" || r.PID < 0 || r.Spec.Check() != nil) {
			t.Errorf("%+v", r)
		}
	})
}

// FuzzSpec: a Spec that is right has its files in its VM's folder of the run directory.
func FuzzSpec(f *testing.F) {
	for _, s := range []string{"vm1", "..", "a/b", ".x", "-x", "a b", "a\x00", strings.Repeat("x", 64), "ä", "a:b@c+d"} {
		f.Add(s, "gpu0")
		f.Add("vm1", s)
	}
	f.Fuzz(func(t *testing.T, vm, name string) {
		s := api.Spec{VM: vm, Name: name}
		if s.Check() != nil {
			return
		}
		for _, p := range []string{s.SocketPath("/run/causeway"), s.ControlPath("/run/causeway"), recordPath("/run/causeway", &s)} {
			if filepath.Clean(p) != p || filepath.Dir(p) != "/run/causeway/"+vm || strings.ContainsAny(p, "\x00\n ") || strings.HasPrefix(filepath.Base(p), ".") {
				t.Errorf("%q", p)
			}
		}
	})
}
