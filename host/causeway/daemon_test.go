package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
)

// installed is this program in a folder of its own, with a lib beside it.
func installed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "bin", "causeway")
	for _, d := range []string{"bin", "lib"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if os.Link(self, program) != nil { // another file system
		b, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(program, b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "lib", "libcuda.so.1"), []byte("no library\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return program
}

// startDaemon starts causewayd and waits until it answers.
func startDaemon(t *testing.T, program, run string) (*exec.Cmd, *api.Client) {
	t.Helper()
	c := exec.Command(program, "daemon", "--run-dir", run, "--config", filepath.Join(filepath.Dir(run), "causewayd.toml"))
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	client := api.NewClient(api.Socket(run))
	t.Cleanup(client.Close)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		v, err := client.Version(t.Context())
		if err == nil && v.PID == c.Process.Pid {
			return c, client
		}
		if time.Now().After(deadline) {
			t.Fatalf("causewayd does not answer: %v", err)
		}
	}
}

// TestDaemon: causewayd with real device processes and the real scheduler, killed and started
// again.
func TestDaemon(t *testing.T) {
	program := installed(t)
	dir := t.TempDir()
	run := filepath.Join(dir, "r")
	config := "[devices]\nsocket_owner = '0'\nlog = 'file'\n[placement]\nsoftware_gpu = 'named'\n[isolation]\nsandbox = 'off'\nmemory = '1GiB'\n"
	if err := os.WriteFile(filepath.Join(dir, "causewayd.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	first, client := startDaemon(t, program, run)
	spec := api.Spec{VM: "vm1", Name: "gpu0", GPU: "soft", Limits: api.Limits{Memory: 64 << 20}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	v, err := client.Ensure(ctx, spec.Wish())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(v.PID, syscall.SIGKILL) })
	if v.State != api.Waiting || v.Status == nil || v.Status.Limits.Memory != 64<<20 || v.Status.UUID != v.GPU {
		t.Errorf("%+v", v)
	}
	if n, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(v.PID), "fd", "0")); err != nil || n != os.DevNull {
		t.Errorf("its stdin is %s, %v", n, err)
	}
	if owns(t, v.PID, filepath.Join(run, "causewayd.lock")) {
		t.Error("the device process has causewayd's lock open")
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	second, client := startDaemon(t, program, run)
	if again, err := client.Ensure(ctx, spec.Wish()); err != nil || again.PID != v.PID {
		t.Errorf("after causewayd was killed: %+v, %v", again, err)
	}
	if l, err := client.SetLimits(ctx, "vm1", "gpu0", api.Limits{Memory: 32 << 20, Share: 300}.Change()); err != nil || l.Share != 300 {
		t.Error(l, err)
	}
	if now, err := client.VGPU(ctx, "vm1", "gpu0"); err != nil || now.Status == nil || now.Status.Limits.Memory != 32<<20 || now.Status.Limits.Share != 300 {
		t.Errorf("%+v, %v", now, err)
	}
	third := exec.Command(program, "daemon", "--run-dir", run, "--config", filepath.Join(dir, "causewayd.toml"))
	if out, err := third.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("process "+strconv.Itoa(second.Process.Pid))) {
		t.Errorf("a second causewayd: %v, %s", err, out)
	}
	if err := client.Release(ctx, "vm1", "gpu0", true); err != nil {
		t.Error(err)
	}
	endScheduler(t, run)
	_ = second.Process.Signal(syscall.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Errorf("causewayd ends with %v", err)
	}
	if files, _ := filepath.Glob(filepath.Join(run, "vm1")); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
}

// endScheduler ends the scheduler that causewayd started. Its socket is there by now.
func endScheduler(t *testing.T, run string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(run, "scheduler.json"))
		_, pid, ok := strings.Cut(string(b), `"pid": `)
		pid, _, _ = strings.Cut(pid, ",")
		if n, _ := strconv.Atoi(pid); err == nil && ok && n > 1 {
			t.Cleanup(func() { _ = syscall.Kill(n, syscall.SIGKILL) })
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("no scheduler: %v, %s", err, b)
			return
		}
	}
}

// owns reports whether a process has a file open.
func owns(t *testing.T, pid int, name string) bool {
	t.Helper()
	fds, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "fd", "*"))
	if err != nil || len(fds) == 0 {
		t.Errorf("descriptors of process %d: %v", pid, err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == name {
			return true
		}
	}
	return false
}

// TestDaemonConfig: what the flags print and refuse.
func TestDaemonConfig(t *testing.T) {
	run := func(args ...string) (string, error) {
		c := root()
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(io.Discard)
		c.SetArgs(append([]string{"daemon"}, args...))
		err := c.Execute()
		return out.String(), err
	}
	file := filepath.Join(t.TempDir(), "c.toml")
	example, err := run("--example")
	if err == nil {
		err = os.WriteFile(file, []byte(example), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if text, err := run("--check", "--config", file); err != nil || !strings.Contains(text, "overcommit = 1.0") {
		t.Errorf("%s, %v", text, err)
	}
	if text, err := run("--check", "--config", file, "--run-dir", "/x"); err != nil || !strings.Contains(text, "'/x/log'") {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := run("--check", "--config", file, "--run-dir", "x"); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Error(err)
	}
	if _, err := run("--check", "--config", file+".none"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("[devices]\nshrae = 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run("--check", "--config", file); err == nil || !strings.Contains(err.Error(), "did you mean devices.share?") {
		t.Error(err)
	}
}
