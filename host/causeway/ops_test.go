package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"causeway/host/api"
	"causeway/host/api/apitest"
	"causeway/host/report"
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
		{nil, api.Limits{Memory: 4 << 30, Share: 300}},
		{[]string{"--memory", "2GiB"}, api.Limits{Memory: 2 << 30, Share: 300}},
		{[]string{"--cap", "25%", "--share", "50"}, api.Limits{Memory: 2 << 30, Share: 50, Cap: 25}},
		{[]string{"--cap", "none", "--memory", "none", "--sessions", "7"}, api.Limits{Share: 50, Sessions: 7}},
	} {
		out, _, err := command(t, append([]string{"limits", "vm1/gpu0", "--json", "--run-dir", run}, c.args...)...)
		var l api.Limits
		if err != nil || json.Unmarshal([]byte(out), &l) != nil || l != c.want || now() != c.want {
			t.Errorf("%v: %v %s, the daemon has %+v, want %+v", c.args, err, out, now(), c.want)
		}
	}
	for _, bad := range []struct{ flag, value, says string }{
		{"cap", "0", "or none"}, {"cap", "101", "1 to 100"}, {"memory", "lots", "512MiB"}, {"memory", "4", "write 4GiB"}, {"memory", "0", "none"},
		{"share", "-3", "1 to 10000"}, {"share", "0", "1 to 10000"}, {"share", "none", "1 to 10000"}, {"sessions", "1e3", "1 to 1000"}, {"sessions", "0", "1 to 1000"},
	} {
		for _, c := range []string{"limits", "create", "attach"} {
			_, _, err := command(t, c, "vm1", "--run-dir", run, "--"+bad.flag, bad.value)
			if err == nil || !strings.Contains(err.Error(), bad.says) || !strings.Contains(err.Error(), "--"+bad.flag) {
				t.Errorf("%s --%s %s: %v, want %q", c, bad.flag, bad.value, err, bad.says)
			}
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
	apitest.ServeDevice(t, filepath.Join(run, "vm5", "gpu0.ctl"), func() api.Status { return api.Status{Limits: got} }, func(c api.Change) *api.Error {
		if c.Memory != nil {
			return &api.Error{Status: http.StatusConflict, Text: "too little"}
		}
		got = c.On(got)
		return nil
	})
	if _, _, err := command(t, "limits", "vm5", "--cap", "40", "--run-dir", run); err != nil || got.Cap != 40 {
		t.Errorf("%v %+v", err, got)
	}
	if _, _, err := command(t, "limits", "vm5", "--memory", "1MiB", "--run-dir", run); err == nil || exitCode(err) != exitConflict || !strings.Contains(err.Error(), "too little") {
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
	var v report.Inspected
	if err != nil || json.Unmarshal([]byte(out), &v) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := api.Spec{VM: "hand", Name: "gpu0", GPU: "any", Limits: api.Limits{Memory: 1 << 30, Share: 50, Sessions: 64}, Owner: "me"}
	if v.Spec != want || !strings.Contains(strings.Join(v.Attach.QEMU, " "), filepath.Join(run, "hand", "gpu0.sock")) {
		t.Errorf("%+v", v)
	}
	out, _, err = command(t, "create", "hand", "--cap", "25", "--run-dir", run)
	if err != nil || out != "hand/gpu0 was there, and is on GPU 0 H200: 1 GiB of memory, share 50, cap 25%. In the guest: mkdir -p /run/causeway && mount -t virtiofs gpu0 /run/causeway\n" {
		t.Errorf("%v:\n%s", err, out)
	}
	out, warned, err := command(t, "create", "hand/x1", "--run-dir", run)
	if err != nil || !strings.HasPrefix(out, "hand/x1 is ready on GPU 0 H200: the whole memory, share 100, no cap. In the guest:") || !strings.Contains(warned, "no limit of memory") {
		t.Errorf("%v:\n%s%s", err, out, warned)
	}
	for _, bad := range []string{"", "a b", "../x", "a/"} {
		if _, _, err := command(t, "create", bad, "--run-dir", run); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if _, _, err := command(t, "create", "hand/x2", "--profile", "", "--run-dir", run); err == nil || !strings.Contains(err.Error(), "name a profile") {
		t.Errorf("an empty profile: %v", err)
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
		{[]string{"create", "vm9", "--gpu", ""}, "0\tNVIDIA H200"},
		{[]string{"attach", "vm9", "--gpu", ""}, "any"},
		{[]string{"attach", "vm9", "--profile", ""}, "half"},
		{[]string{"create", "vm9", "--remote", ""}, "gpu1\t2 GPUs, 0.34 ms"},
		{[]string{"device", "--gpu", ""}, "soft"},
		{[]string{"run", "--sandbox", ""}, "strict"},
		{[]string{"limits", "vm1", "--cap", ""}, "none"},
		{[]string{"rm", ""}, "vm1/gpu0"},
		{[]string{"detach", ""}, "vm1\n:4"},
		{[]string{"detach", "vm1", ""}, "gpu0\ngpu1\n:4"},
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

// Every command that people see is in a group, has an example or needs none, and says what it does
// in a sentence.
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
