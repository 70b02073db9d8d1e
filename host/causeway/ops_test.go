package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"causeway/host/daemon/api"
	"causeway/host/daemon/apitest"
	"causeway/host/view"
)

func TestLimits(t *testing.T) {
	run, f := fakeNode(t)
	now := func() (l api.Limits) {
		f.Change(func(f *apitest.Fake) {
			l = f.VGPUs[0].Spec.Limits
			f.VGPUs[0].Status.Limits = l // as a device process does
		})
		return l
	}
	for _, c := range []struct {
		args []string
		want api.Limits
	}{
		{nil, api.Limits{Memory: 4 << 30, Weight: 300}},
		{[]string{"--memory", "2GiB"}, api.Limits{Memory: 2 << 30, Weight: 300}},
		{[]string{"--cap", "25%", "--share", "50"}, api.Limits{Memory: 2 << 30, Weight: 50, Cap: 25}},
		{[]string{"--cap", "none", "--memory", "none", "--sessions", "7"}, api.Limits{Weight: 50, Sessions: 7}},
	} {
		out, _, err := command(t, append([]string{"limits", "vm1/gpu0", "--json", "--run-dir", run}, c.args...)...)
		var l api.Limits
		if err != nil || json.Unmarshal([]byte(out), &l) != nil || l != c.want || now() != c.want {
			t.Errorf("%v: %v %s, the daemon has %+v, want %+v", c.args, err, out, now(), c.want)
		}
	}
	for _, bad := range [][]string{{"--cap", "0"}, {"--cap", "101"}, {"--memory", "lots"}, {"--share", "-3"}, {"--sessions", "1e3"}} {
		if _, _, err := command(t, append([]string{"limits", "vm1/gpu0", "--run-dir", run}, bad...)...); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
	if out, _, err := command(t, "limits", "vm1/gpu0", "--run-dir", run); err != nil || !strings.Contains(out, "share       50") {
		t.Errorf("%v: %s", err, out)
	}
}

// Without causewayd the device process takes them.
func TestLimitsOfDevice(t *testing.T) {
	run := shortDir(t)
	var got api.Limits
	apitest.ServeDevice(t, filepath.Join(run, "vm5", "gpu0.ctl"), func() api.Status { return api.Status{Limits: got} }, func(l api.Limits) *api.Error {
		if l.Memory == 1 {
			return &api.Error{Status: http.StatusConflict, Text: "too little"}
		}
		got = l
		return nil
	})
	if _, _, err := command(t, "limits", "vm5", "--cap", "40", "--run-dir", run); err != nil || got.Cap != 40 {
		t.Errorf("%v %+v", err, got)
	}
	if _, _, err := command(t, "limits", "vm5", "--memory", "1", "--run-dir", run); err == nil || exitCode(err) != exitConflict || !strings.Contains(err.Error(), "too little") {
		t.Errorf("%v", err)
	}
}

func TestGPUs(t *testing.T) {
	run, f := fakeNode(t)
	out, _, err := command(t, "gpus", "--run-dir", run)
	if err != nil || !strings.Contains(out, "NVIDIA H200  1/8 GiB  4 GiB     1") {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, name := range []string{"0", "gpu-a"} {
		if _, _, err := command(t, "gpus", "drain", name, "--run-dir", run); err != nil {
			t.Fatal(err)
		}
		if out, _, err = command(t, "gpus", "--run-dir", run); err != nil || !strings.Contains(out, "drained") {
			t.Errorf("%v:\n%s", err, out)
		}
		if _, _, err := command(t, "gpus", "resume", name, "--run-dir", run); err != nil {
			t.Fatal(err)
		}
		out, _, err = command(t, "gpus", "--json", "--run-dir", run)
		var list []api.GPU
		if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) != 1 || list[0].Drained {
			t.Errorf("%v:\n%s", err, out)
		}
	}
	if _, _, err := command(t, "gpus", "drain", "7", "--run-dir", run); err == nil || exitCode(err) != exitUnknown {
		t.Errorf("a GPU that is not there: %v", err)
	}
	f.Change(func(f *apitest.Fake) {
		if !slices.Contains(f.Requests, "POST /v1/gpus/GPU-a/drain") {
			t.Error(f.Requests)
		}
	})
	empty := shortDir(t)
	if _, _, err := command(t, "gpus", "drain", "0", "--run-dir", empty); err == nil || exitCode(err) != exitNoDaemon {
		t.Errorf("without causewayd: %v", err)
	}
	out, _, err = command(t, "gpus", "--json", "--run-dir", empty)
	var list []api.GPU
	if err != nil || json.Unmarshal([]byte(out), &list) != nil || len(list) == 0 || list[len(list)-1].Backend != "soft" || list[len(list)-1].ID == "" {
		t.Errorf("without causewayd: %v:\n%s", err, out)
	}
}

func TestCreateDelete(t *testing.T) {
	run, f := fakeNode(t)
	out, _, err := command(t, "create", "hand", "--gpu", "any", "--memory", "1GiB", "--share", "50", "--owner", "me", "--json", "--run-dir", run)
	var v view.Inspected
	if err != nil || json.Unmarshal([]byte(out), &v) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := api.Spec{VM: "hand", Name: "gpu0", GPU: "any", Limits: api.Limits{Memory: 1 << 30, Weight: 50}, Owner: "me"}
	if v.Spec != want || !strings.Contains(strings.Join(v.Attach.QEMU, " "), filepath.Join(run, "hand", "gpu0.sock")) {
		t.Errorf("%+v", v)
	}
	if out, _, err := command(t, "create", "hand/x1", "--run-dir", run); err != nil || !strings.Contains(out, "hand/x1: waiting") {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, bad := range []string{"", "a b", "../x", "a/"} {
		if _, _, err := command(t, "create", bad, "--run-dir", run); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, c := range []struct {
		args []string
		exit int
	}{
		{[]string{"hand/x1"}, 0}, {[]string{"hand/x1"}, exitUnknown}, {[]string{"vm1/gpu0"}, exitConflict}, {[]string{"vm1/gpu0", "--force"}, 0},
	} {
		exit := 0
		if _, _, err := command(t, append([]string{"delete", "--run-dir", run}, c.args...)...); err != nil {
			exit = exitCode(err)
		}
		if exit != c.exit {
			t.Errorf("delete %v: exit status %d, want %d", c.args, exit, c.exit)
		}
	}
	f.Change(func(f *apitest.Fake) {
		if len(f.VGPUs) != 2 {
			t.Errorf("%d vGPUs are left", len(f.VGPUs))
		}
	})
}

func TestCompletion(t *testing.T) {
	run, _ := fakeNode(t)
	t.Setenv(runDirVar, run)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"inspect", ""}, "vm1/gpu1\twaiting"},
		{[]string{"logs", "vm"}, "vm1/gpu0\tconnected"},
		{[]string{"gpus", "drain", ""}, "0\tNVIDIA H200"},
		{[]string{"top", "--sort", ""}, "launches"},
	} {
		if out, _, err := command(t, append([]string{"__complete"}, c.args...)...); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%v: %v: %s", c.args, err, out)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out, _, err := command(t, "completion", shell); err != nil || len(out) < 1000 {
			t.Errorf("%s: %v, %d bytes", shell, err, len(out))
		}
	}
}

// Every command that people see is in a group, has an example or needs none, and says what it does in a sentence.
func TestHelp(t *testing.T) {
	c := root()
	c.InitDefaultHelpCmd()
	for _, sub := range c.Commands() {
		if !sub.Runnable() || sub.Hidden || sub.Name() == "help" || sub.Name() == "version" || sub.Name() == "completion" {
			continue
		}
		if sub.GroupID == "" {
			t.Errorf("%s is in no group: add it to groupOf", sub.Name())
		}
		if sub.Example == "" || sub.Long == "" || strings.HasSuffix(sub.Short, ".") {
			t.Errorf("%s: help without example or explanation, or a Short that ends with a full stop", sub.Name())
		}
	}
}
