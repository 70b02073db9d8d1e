package report

import (
	"bytes"
	"encoding/xml"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
)

var update = flag.Bool("update", false, "write golden files anew")

func TestMain(m *testing.M) {
	time.Local = time.UTC // golden files hold times
	os.Exit(m.Run())
}

// golden compares with testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update writes it anew):\n--- have\n%s\n--- want\n%s", name, got, want)
	}
}

func TestTables(t *testing.T) {
	r := sample()
	plain := *r
	plain.Daemon, plain.Notes = nil, []string{"vm3/gpu0 does not answer: context deadline exceeded"}
	for name, fn := range map[string]func(io.Writer) error{
		"ps.txt":       func(w io.Writer) error { return VGPUs(w, r) },
		"sessions.txt": func(w io.Writer) error { return Sessions(w, r) },
		"gpus.txt":     func(w io.Writer) error { return GPUs(w, r) },
		"notes.txt":    func(w io.Writer) error { Notes(w, &plain); return nil },
		"empty.txt":    func(w io.Writer) error { return VGPUs(w, &Reading{}) },
		"inspect.txt":  func(w io.Writer) error { return Inspect(w, r, &r.Find("vm1/gpu0")[0]) },
		"lost.txt":     func(w io.Writer) error { return Inspect(w, r, &r.Find("vm9")[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := fn(&b); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(b.String(), "\x1b") {
				t.Error("an escape character of a guest came through")
			}
			golden(t, name, b.String())
		})
	}
}

func TestFind(t *testing.T) {
	r := sample()
	for key, want := range map[string]int{"vm1": 1, "vm1/gpu0": 1, "vm1/gpu1": 0, "vm": 0, "": 0, "vm9/": 0} {
		if got := r.Find(key); len(got) != want {
			t.Errorf("Find(%q): %d, want %d", key, len(got), want)
		}
	}
}

// The lines that people paste into a domain must be XML, whatever the names are.
func TestAttachIsXML(t *testing.T) {
	v := api.VGPU{Spec: api.Spec{VM: "a", Name: "g'<&", GPU: "0", Limits: api.Limits{Memory: 3 << 29, Share: 7, Cap: 5, Sessions: 2}}, Socket: "/run/a,b/x.sock"}
	a := AttachTo(&v)
	for _, text := range []string{a.MemoryBacking, a.Filesystem, a.Metadata} {
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, text)
			}
		}
	}
	for _, want := range []string{"memory='1536MiB'", "share='7'", "cap='5'", "sessions='2'", "gpu='0'"} {
		if !strings.Contains(a.Metadata, want) {
			t.Errorf("no %s in %s", want, a.Metadata)
		}
	}
	if !strings.Contains(a.QEMU[1], "path=/run/a,,b/x.sock") {
		t.Errorf("a comma ends QEMU's argument: %s", a.QEMU[1])
	}
}

// TestInspectLease: a vGPU of another host's is not attached to a VM of this one, and nothing says
// how.
func TestInspectLease(t *testing.T) {
	v := api.VGPU{Spec: api.Spec{VM: "hosta", Name: "vm1:gpu0", Lease: "hosta"}, Socket: "/run/causeway/hosta/vm1:gpu0.sock"}
	var b strings.Builder
	if err := Inspect(&b, &Reading{}, &v); err != nil || !strings.Contains(b.String(), "leased by   hosta") {
		t.Errorf("%s, %v", b.String(), err)
	}
	for _, word := range []string{"<filesystem", "QEMU", "mount -t"} {
		if strings.Contains(b.String(), word) {
			t.Errorf("%s in:\n%s", word, b.String())
		}
	}
}

// TestInspectSentences: how a session goes and why it stays are as long as they are, and end
// somewhere.
func TestInspectSentences(t *testing.T) {
	carrier := "RoCE v2 by mlx5_0 port 1, MTU 4096, copies one-sided, 1 queue pair for them: mlx5_0/1; not by mlx5_1/1: the RDMA connection failed: retry exceeded"
	stays := strings.Repeat("why ", 400)
	v := api.VGPU{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, Why: "its device process 27236 is gone: signal 9 (killed) ended it; it had said: no memory\x1b",
		Status: &api.Status{Sessions: []api.Session{{GuestPID: 7, Carrier: carrier, Unmovable: stays}}}}
	var b strings.Builder
	if err := Inspect(&b, &Reading{}, &v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"process 7: " + carrier + "\n", "it had said: no memory?\n", "why why"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), stays[:longestSentence+1]) || !strings.Contains(b.String(), "…\n") {
		t.Error("a sentence has no end")
	}
}

// TestInspectStays: a VM is spoken of where the vGPU is a VM's of this host.
func TestInspectStays(t *testing.T) {
	for stays, spec := range map[string]api.Spec{
		"process 7 keeps this VM from being saved or migrated: why": {},
		"process 7 cannot be saved or moved: why":                   {Lease: "hosta"},
		"process 7 cannot be saved or moved: because":               {Programs: true},
	} {
		_, why, _ := strings.Cut(stays, ": ")
		v := api.VGPU{Spec: spec, Status: &api.Status{Sessions: []api.Session{{GuestPID: 7, Unmovable: why}}}}
		var b strings.Builder
		if err := Inspect(&b, &Reading{}, &v); err != nil || !strings.Contains(b.String(), stays) {
			t.Errorf("no %q in:\n%s", stays, b.String())
		}
	}
	v := api.VGPU{Upstream: &api.Upstream{State: &api.LeaseState{Sessions: 1}}}
	var b strings.Builder
	if err := Inspect(&b, &Reading{}, &v); err != nil || !strings.Contains(b.String(), "in 1 session\n") {
		t.Errorf("%s, %v", b.String(), err)
	}
}

func TestText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 5: "5 B", 1023: "1023 B", 1 << 10: "1 KiB", 3 << 29: "1.5 GiB", 150 << 30: "150 GiB", 1<<40 + 1<<39: "1.5 TiB", 1<<64 - 1: "16777216 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-5: "0s", 59 * time.Second: "59s", time.Hour: "1h00m", 25 * time.Hour: "1d", 119 * time.Minute: "1h59m"} {
		if got := Age(d); got != want {
			t.Errorf("Age(%v) = %q, want %q", d, got, want)
		}
	}
	for f, want := range map[float64]string{0: "0", 9999: "9999", 12345: "12.3k", 1.25e6: "1.2M", 2e9: "2.0G"} {
		if got := count(f); got != want {
			t.Errorf("count(%v) = %q, want %q", f, got, want)
		}
	}
	if got := clean("a\x1b[31m\u202eb\xff"); got != "a?[31m?b?" {
		t.Errorf("clean: %q", got)
	}
	if got := clean(strings.Repeat("x", 5000)); len(got) > longest+3 {
		t.Errorf("clean leaves %d bytes", len(got))
	}
}

func TestSafe(t *testing.T) {
	in := "line\n\ttab \x1b[2J \xc2\x9b31m é \xc2\xa0 \r\x7f"
	for size := 1; size < 5; size++ { // whatever the pieces
		var b bytes.Buffer
		w := Safe(&b)
		for i := 0; i < len(in); i += size {
			if _, err := w.Write([]byte(in[i:min(len(in), i+size)])); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := b.String(), "line\n\ttab ?[2J ?31m é \u00a0 ??"; got != want {
			t.Errorf("in pieces of %d: %q, want %q", size, got, want)
		}
	}
}

// TestCopyText: how far a pre-copy is, in words.
func TestCopyText(t *testing.T) {
	for want, c := range map[string]api.Copy{
		"GPU memory goes ahead of the VM: 2 GiB sent, 3 rounds, the last 1 MiB in 0.25 s; ready for the VM to stop": {
			Way: api.CopyOut, Total: 2 << 30, Rounds: 3, Sent: 1 << 20, Took: 250 * time.Millisecond, Ready: true},
		"GPU memory goes ahead of the VM: 0 B sent, 1 rounds, the last 0 B in 0.00 s; it changes as fast as it is sent; not of all programs: no?memory": {
			Way: api.CopyOut, Rounds: 1, Ready: true, Stuck: true, Why: "no\x1bmemory"},
		"GPU memory goes ahead of the VM: 1 GiB sent and 512 MiB saved by compression, 1 rounds, the last 0 B in 0.00 s": {
			Way: api.CopyOut, Total: 1 << 30, Saved: 512 << 20, Rounds: 1},
		"GPU memory goes ahead of the VM: 1 GiB sent, 1 rounds, the last 0 B in 0.00 s; programs are held back for 30 % of the time": {
			Way: api.CopyOut, Total: 1 << 30, Throttled: 30, Rounds: 1},
		"memory of 2 programs has come ahead of a VM: 1 GiB": {Way: api.CopyIn, Sessions: 2, Total: 1 << 30},
	} {
		if got := copyText(&c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNotesOfPorts: one that is not served is told, on one line without control characters, and one
// that is, is not.
func TestNotesOfPorts(t *testing.T) {
	var b bytes.Buffer
	Notes(&b, &Reading{Daemon: &api.Version{Ports: []api.Port{{Key: "metrics.listen"}, {Key: "remote.listen", Error: "remote.listen: in\x1b use\nnow"}}}})
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "note: a port is not served, and tried again: remote.listen: in") || strings.Contains(got, "\x1b") {
		t.Errorf("%q", got)
	}
}
