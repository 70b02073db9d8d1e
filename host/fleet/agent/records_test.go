package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRecords: what was written is read; a file that somebody else wrote is an error beside the
// others, and no name of a file or argument of a program comes of it.
func TestRecords(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "agent"))
	if list, err := d.All(); len(list) != 0 || err != nil {
		t.Fatalf("%v %v", list, err)
	}
	good := Record{Namespace: "team", Claim: "c", UID: "0a-1", Pod: "p", PodUID: "2", Domain: "web server", VGPUs: []string{"gpu0"}}
	if err := d.Put(&good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []func(r *Record){
		func(r *Record) { r.UID = "../../etc/x" }, func(r *Record) { r.UID = "" }, func(r *Record) { r.Domain = "--all" }, func(r *Record) { r.Domain = "a/b" },
		func(r *Record) { r.Domain = "a\nb" }, func(r *Record) { r.VGPUs = []string{"../x"} }, func(r *Record) { r.PodUID = "" },
	} {
		r := good
		bad(&r)
		if err := d.Put(&r); err == nil {
			t.Errorf("%+v is written", r)
		}
	}
	for name, text := range map[string]string{"claim-0b.json": "{", "claim-0c.json": `{"namespace":"team","claim":"c","uid":"0d","pod":"p","pod_uid":"2","domain":"vm1"}`, "claim-0e.json": strings.Repeat(" ", mostRecord+1)} {
		if err := os.WriteFile(filepath.Join(string(d), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := d.All()
	if len(list) != 1 || list[0].Domain != "web server" || !errors.Is(err, ErrRecord) || strings.Count(err.Error(), ErrRecord.Error()) != 3 {
		t.Errorf("%+v %v", list, err)
	}
	for range 2 {
		if err := d.Remove(good.UID); err != nil {
			t.Error(err)
		}
	}
}

// TestCommand: what is asked of causeway, and what its statuses and words become.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	program, args := filepath.Join(dir, "causeway"), filepath.Join(dir, "args")
	write := func(script string) {
		if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$*\" >>"+args+"\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := &Command{Program: program, Connect: "qemu:///system", RunDir: "/run/x", Timeout: time.Second}
	write("exit 0")
	if err := errors.Join(c.Plug(t.Context(), "vm1", "claim-1/gpu0"), c.Unplug(t.Context(), "vm1", "claim-1/gpu0")); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(args)
	if want := "attach --run-dir /run/x --timeout 1s --served claim-1/gpu0 --connect qemu:///system -- vm1\ndetach --run-dir /run/x --timeout 1s --served claim-1/gpu0 --connect qemu:///system -- vm1\n"; string(b) != want {
		t.Errorf("%s", b)
	}
	write("echo causeway: no such domain: vm1 >&2; exit 4")
	if err := c.Plug(t.Context(), "vm1", "claim-1/gpu0"); !errors.Is(err, ErrNoDomain) || err.Error() != "no such domain: vm1" {
		t.Errorf("%v", err)
	}
	write("echo causeway: vGPU claim-1/gpu0: no such vGPU >&2; exit 4")
	if err := c.Plug(t.Context(), "vm1", "claim-1/gpu0"); err == nil || errors.Is(err, ErrNoDomain) {
		t.Errorf("%v", err)
	}
	write("echo causeway: domain vm1 cannot have a vGPU >&2; exit 1")
	if err := c.Plug(t.Context(), "vm1", "claim-1/gpu0"); err == nil || err.Error() != "domain vm1 cannot have a vGPU" {
		t.Errorf("%v", err)
	}
	write("exit 1")
	if err := c.Unplug(t.Context(), "vm1", "claim-1/gpu0"); err == nil || !strings.Contains(err.Error(), "detach: exit status 1") {
		t.Errorf("%v", err)
	}
}
