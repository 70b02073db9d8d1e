package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/api/apitest"
	"causeway/host/limit"
	"causeway/host/report"
)

// shortDir is a folder whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// command runs one of this program's commands within this process.
func command(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	c := root()
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetArgs(args)
	err = c.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// fakeNode serves a causewayd with one GPU and two vGPUs.
func fakeNode(t *testing.T) (run string, f *apitest.Fake) {
	t.Helper()
	run = shortDir(t)
	status := &api.Status{Version: "1", Connected: true, Memory: 1 << 30, Limits: api.Limits{Memory: 4 << 30, Share: 300}, Sessions: []api.Session{
		{ID: 1, GuestPID: 77, Program: "train", Started: time.Now()}}}
	f = &apitest.Fake{
		Version: api.Version{Version: "1", PID: 1},
		GPUs:    []api.GPU{{ID: "GPU-a", Backend: "cuda", Name: "NVIDIA H200", Memory: 8 << 30, Used: 1 << 30, Promised: 4 << 30, VGPUs: []string{"vm1/gpu0"}}},
		VGPUs: []api.VGPU{
			{Spec: api.Spec{VM: "vm1", Name: "gpu0", GPU: "any", Limits: status.Limits}, State: api.Connected, GPU: "GPU-a", Socket: "/s", Status: status},
			{Spec: api.Spec{VM: "vm1", Name: "gpu1", GPU: "any"}, State: api.Waiting, GPU: "GPU-a"},
		},
		Profiles: []api.Profile{{Name: "half", Profile: limit.Profiles()["half"], On: []api.ProfileOn{{GPU: "GPU-a", Memory: 3 << 30, Room: 1}}}},
		Servers:  []api.Server{{Name: "gpu1", RoundTrip: 340 * time.Microsecond, Offer: api.Offer{GPUs: make([]api.GPU, 2)}}},
		Logs:     map[string]string{"vm1/gpu0": "one\ntwo\nthree\x1b[2J\n"},
	}
	f.Serve(t, run)
	return run, f
}

func TestNodeCommands(t *testing.T) {
	run, _ := fakeNode(t)
	for name, c := range map[string]struct {
		args []string
		want []string // in the output
		not  string
		exit int
	}{
		"ps":              {[]string{"ps"}, []string{"vm1  gpu0  0 H200  connected  1/4 GiB", "gpu1", "300"}, "train", 0},
		"ps of one":       {[]string{"ps", "vm1/gpu1"}, []string{"gpu1"}, "gpu0", 0},
		"ps of none":      {[]string{"ls", "vm7"}, nil, "", exitUnknown},
		"ps -q":           {[]string{"status", "-q"}, []string{"vm1/gpu0\nvm1/gpu1\n"}, "GPU", 0},
		"ps --format":     {[]string{"ps", "--format", "table {{.Key}}\\t{{.Used}} of {{.Memory}}"}, []string{"KEY       USED of MEMORY\n", "vm1/gpu0  1 GiB of 4 GiB\n", "vm1/gpu1  - of none\n"}, "", 0},
		"ps --format bad": {[]string{"ps", "--format", "{{.Colour}}"}, nil, "", 1},
		"profiles":        {[]string{"profiles"}, []string{"half     1/2   50     -    0 H200  3 GiB   1"}, "", 0},
		"ps -a":           {[]string{"ps", "-a"}, []string{"train", "77"}, "", 0},
		"inspect":         {[]string{"inspect", "vm1/gpu0"}, []string{"vm1/gpu0: connected", "<source socket='/s'/>"}, "vm1/gpu1", 0},
		"inspect both":    {[]string{"inspect", "vm1"}, []string{"vm1/gpu0: connected", "vm1/gpu1: waiting"}, "", 0},
		"inspect nothing": {[]string{"inspect", "vm2"}, nil, "", exitUnknown},
		"on no server":    {[]string{"create", "vm9", "--remote", ""}, nil, "", exitFailed},
		"logs":            {[]string{"logs", "vm1/gpu0"}, []string{"one\ntwo\nthree?[2J\n"}, "\x1b", 0},
		"logs -n":         {[]string{"logs", "vm1/gpu0", "-n", "2"}, []string{"two\nthree"}, "one", 0},
		"logs of which":   {[]string{"logs", "vm1"}, nil, "", exitFailed},
		"logs of nothing": {[]string{"logs", "vm2"}, nil, "", exitUnknown},
		"logs of dots":    {[]string{"logs", "../x/y"}, nil, "", exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, err := command(t, append(c.args, "--run-dir", run)...)
			exit := 0
			if err != nil {
				exit = exitCode(err)
			}
			if exit != c.exit {
				t.Fatalf("exit status %d (%v), want %d", exit, err, c.exit)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in:\n%s%s", want, out, errs)
				}
			}
			if c.not != "" && strings.Contains(out, c.not) {
				t.Errorf("%q in:\n%s", c.not, out)
			}
		})
	}
}

func TestNodeJSON(t *testing.T) {
	run, f := fakeNode(t)
	out, _, err := command(t, "ps", "--json", "--run-dir", run)
	if err != nil {
		t.Fatal(err)
	}
	var list []api.VGPU
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 || list[0].Status.Sessions[0].Program != "train" {
		t.Fatalf("%v: %s", err, out)
	}
	out, _, err = command(t, "inspect", "vm1", "--json", "--run-dir", run)
	if err != nil {
		t.Fatal(err)
	}
	var told []report.Inspected
	if err := json.Unmarshal([]byte(out), &told); err != nil || len(told) != 2 || !strings.Contains(told[0].Attach.Filesystem, "/s") || told[1].Spec.Name != "gpu1" {
		t.Fatalf("%v: %s", err, out)
	}
	f.Change(func(f *apitest.Fake) { f.VGPUs = nil })
	if out, _, err = command(t, "ps", "--json", "--run-dir", run); err != nil || strings.TrimSpace(out) != "[]" {
		t.Fatalf("%v: %q, want an empty list", err, out)
	}
}

// Devices that were started by hand are found by their sockets.
func TestWithoutDaemon(t *testing.T) {
	run := shortDir(t)
	apitest.ServeStatus(t, filepath.Join(run, "vm5", "gpu0.ctl"), func() api.Status {
		return api.Status{Version: "1", PID: 9, Connected: true, GPU: "NVIDIA H200", UUID: "GPU-x", Memory: 1 << 20, Limits: api.Limits{Memory: 1 << 30, Cap: 25}}
	})
	if err := os.MkdirAll(filepath.Join(run, "vm6"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, "vm6", "gpu0.ctl"), nil, 0o600); err != nil {
		// As good as a socket that nobody serves.
		t.Fatal(err)
	}
	out, errs, err := command(t, "ps", "--run-dir", run)
	if err != nil || !strings.Contains(out, "vm5  gpu0  H200  connected  1 MiB/1 GiB  100    25%") || !strings.Contains(out, "lost") ||
		!strings.Contains(errs, "causewayd does not run") {
		t.Fatalf("%v:\n%s%s", err, out, errs)
	}
	if _, _, err = command(t, "logs", "vm5", "--run-dir", run, "--log-dir", run); err == nil || !strings.Contains(err.Error(), "vm5/gpu0.log") {
		t.Errorf("logs without a file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(run, "vm5", "gpu0.log"), []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _, err = command(t, "logs", "vm5", "-n", "1", "--run-dir", run, "--log-dir", run); err != nil || out != "b\n" {
		t.Errorf("logs from the file: %v %q", err, out)
	}
}

// A daemon that is there and does not answer is no reason to guess.
func TestDaemonFails(t *testing.T) {
	run := shortDir(t)
	// Knows none of causewayd's paths.
	apitest.ServeStatus(t, api.Socket(run), func() api.Status { return api.Status{} })
	_, _, err := command(t, "ps", "--run-dir", run)
	var e *api.Error
	if !errors.As(err, &e) || exitCode(err) != exitUnknown {
		t.Fatalf("%v", err)
	}
}

func TestSeekLines(t *testing.T) {
	long := strings.Repeat("0123456789abcdef\n", 20000)
	for name, c := range map[string]struct {
		text string
		n    int
		want string
	}{
		"all":      {"a\nb\n", -1, "a\nb\n"},
		"none":     {"a\nb\n", 0, ""},
		"one":      {"a\nb\n", 1, "b\n"},
		"two":      {"a\nb\n", 2, "a\nb\n"},
		"more":     {"a\nb\n", 9, "a\nb\n"},
		"no end":   {"a\nb", 1, "b"},
		"no end 2": {"a\nb\nc", 2, "b\nc"},
		"empty":    {"", 3, ""},
		"long":     {long, 10000, long[len(long)/2:]},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := seekLines(f, c.n); err != nil {
			t.Fatal(err)
		}
		if err := follow(t.Context(), &b, f, false); err != nil || b.String() != c.want {
			t.Errorf("%s: %d bytes, want %d: %v", name, b.Len(), len(c.want), err)
		}
		_ = f.Close()
	}
}

// A log that is followed shows what comes later, and begins anew after it was emptied.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan string, 16)
	ended := make(chan error)
	go func() {
		ended <- follow(ctx, writerFunc(func(p []byte) (int, error) { got <- string(p); return len(p), nil }), r, true)
	}()
	for _, step := range []string{"first line that is long\n", "short\n"} {
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(step); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-got:
			if s != step {
				t.Errorf("%q, want %q", s, step)
			}
		case <-time.After(time.Minute):
			t.Fatal("nothing came")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
