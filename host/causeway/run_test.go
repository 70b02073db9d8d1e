package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/workertest"
)

// What this test binary is besides tests: the program itself, and a CUDA process.
const (
	mainEnv  = "CAUSEWAY_TEST_MAIN"
	guestArg = "test-guest-process"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == guestArg:
		if err := guest(); err != nil {
			fmt.Println("guest:", err)
			os.Exit(1)
		}
	case os.Getenv(mainEnv) != "", len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-"):
		// A command: running the tests would start more.
		main()
	default:
		os.Exit(m.Run())
	}
}

// guest makes some calls for each line of stdin.
func guest() error {
	path, ok := strings.CutPrefix(os.Getenv("CAUSEWAY"), "unix:")
	if !ok {
		return fmt.Errorf("CAUSEWAY is %q", os.Getenv("CAUSEWAY"))
	}
	g, err := workertest.Dial(path)
	if err != nil {
		return err
	}
	r, err := g.Init()
	if err != nil {
		return err
	}
	if res, err := g.Call(0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil); err != nil || res != cuda.Success {
		return fmt.Errorf("retain: %v, %w", res, err)
	}
	g.Ctx = 16
	var m wire.MemAllocReply
	if res, err := g.Call(0, &wire.MemAllocArgs{Size: 4096}, &m); err != nil || res != cuda.Success {
		return fmt.Errorf("allocate: %v, %w", res, err)
	}
	if err := g.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: []byte("hello"), Stream: wire.StreamLegacy}); err != nil {
		return err
	}
	fmt.Printf("%d devices\n", r.DeviceCount)
	var line [64]byte
	for {
		n, err := os.Stdin.Read(line[:])
		if n == 0 || err != nil {
			return g.Close()
		}
		var back wire.MemcpyDtoHReply
		res, err := g.Call(0, &wire.MemcpyDtoHArgs{Src: m.Ptr, Size: 5, Stream: wire.StreamLegacy}, &back)
		if err != nil || res != cuda.Success {
			return fmt.Errorf("copy: %v, %w", res, err)
		}
		fmt.Printf("%s\n", back.Dst)
	}
}

// causeway is a command of this program, with a library folder.
func causeway(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+t.TempDir())
	return cmd
}

func libFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte("ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// empty fails if a temporary folder of run is left.
func empty(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	for _, kv := range cmd.Env {
		if dir, ok := strings.CutPrefix(kv, "TMPDIR="); ok && dir != os.Getenv("TMPDIR") {
			if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	}
}

func TestRunStatus(t *testing.T) {
	lib := libFolder(t)
	for script, want := range map[string]syscall.WaitStatus{
		"exit 0":                       0,
		"exit 7":                       7 << 8,
		"kill -KILL $$":                syscall.WaitStatus(syscall.SIGKILL),
		"ulimit -c 0; kill -SEGV $$":   syscall.WaitStatus(syscall.SIGSEGV),
		"ulimit -c 0; kill -ABRT $$":   syscall.WaitStatus(syscall.SIGABRT),
		"kill -INT $$":                 syscall.WaitStatus(syscall.SIGINT),
		"test \"$0\" = sh":             0,
		"exec " + "causeway-no-such-1": 127 << 8,
	} {
		cmd := causeway(t, "run", "--lib", lib, "--", "sh", "-c", script)
		_ = cmd.Run()
		if got := cmd.ProcessState.Sys().(syscall.WaitStatus); got != want {
			t.Errorf("%s: wait status %#x, want %#x", script, int(got), int(want))
		}
		empty(t, cmd)
	}
}

// TestRunPrograms: nvidia-smi of the library's folder is found last.
func TestRunPrograms(t *testing.T) {
	lib, own := libFolder(t), t.TempDir()
	for dir, text := range map[string]string{filepath.Join(lib, "bin"): "causeway's", own: "the machine's"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\necho "+strconv.Quote(text)+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{"/bin": "causeway's\n", own + ":/bin": "the machine's\n"} {
		for _, program := range [][]string{{"nvidia-smi"}, {"/bin/sh", "-c", "nvidia-smi"}} {
			cmd := causeway(t, append([]string{"run", "--gpu", "soft", "--lib", lib, "--"}, program...)...)
			cmd.Env = append(cmd.Env, "PATH="+path)
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
				t.Errorf("PATH=%s, %v: %q, %v; want %q", path, program, out, err, want)
			}
		}
	}
}

func TestRunStdio(t *testing.T) {
	cmd := causeway(t, "run", "--lib", libFolder(t), "--", "sh", "-c", "cat; echo oops >&2; echo \"$LD_LIBRARY_PATH\"")
	cmd.Stdin = strings.NewReader("through\n")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH=/elsewhere")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.HasPrefix(s, "through\n/") || !strings.HasSuffix(s, ":/elsewhere\n") || errs.String() != "oops\n" {
		t.Errorf("stdout %q, stderr %q", s, errs.String())
	}
}

func TestRunSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP} {
		n := strconv.Itoa(int(sig))
		cmd := causeway(t, "run", "--lib", libFolder(t), "--", "sh", "-c", "trap 'exit 9' "+n+"; echo ready; while :; do sleep 0.02; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Read(make([]byte, 6))
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != 9 {
			t.Errorf("%v: status %d, want 9", sig, got)
		}
		empty(t, cmd)
	}
}

// TestRunFailures: statuses of run's own failures, as docker run has them.
func TestRunFailures(t *testing.T) {
	lib := libFolder(t)
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"done":              {[]string{"--lib", lib, "--", "true"}, 0},
		"program's own 125": {[]string{"--lib", lib, "--", "sh", "-c", "exit 125"}, 125},
		"no option":         {[]string{"--no-such-option", "--", "true"}, 125},
		"no program named":  {nil, 125},
		"no GPU":            {[]string{"--gpu", "99", "--lib", lib, "--", "true"}, 125},
		"wrong memory":      {[]string{"--memory", "lots", "--lib", lib, "--", "true"}, 125},
		"no unit":           {[]string{"--memory", "4", "--lib", lib, "--", "true"}, 125},
		"too much memory":   {[]string{"--gpu", "soft", "--memory", "999TiB", "--lib", lib, "--", "true"}, 125},
		"unheld share":      {[]string{"--gpu", "soft", "--share", "50", "--lib", lib, "--", "true"}, 125},
		"no scheduler":      {[]string{"--gpu", "soft", "--cap", "50", "--scheduler", filepath.Join(dir, "none"), "--lib", lib, "--", "true"}, 125},
		"held cap":          {[]string{"--gpu", "soft", "--cap", "50", "--lib", lib, "--", "true"}, 0},
		"no library":        {[]string{"--lib", "/nowhere", "--", "true"}, 125},
		"a folder":          {[]string{"--lib", lib, "--", dir}, 126},
		"not executable":    {[]string{"--lib", lib, "--", file("plain", "#!/bin/sh\n", 0o644)}, 126},
		"no such format":    {[]string{"--lib", lib, "--", file("format", "\x7fnothing", 0o755)}, 126},
		"no interpreter":    {[]string{"--lib", lib, "--", file("script", "#!/nowhere/sh\n", 0o755)}, 126},
		"not in PATH":       {[]string{"--lib", lib, "--", "no-such-program"}, 127},
		"no such file":      {[]string{"--lib", lib, "--", "./no-such-program"}, 127},
	} {
		cmd := causeway(t, append([]string{"run"}, c.args...)...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.want || got >= 125 && name != "program's own 125" && strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: status %d, want %d: %q", name, got, c.want, out)
		}
		empty(t, cmd)
	}
}

func TestRunErrors(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no lib":     {[]string{"run", "--lib", "/nowhere", "--", "true"}, "make build"},
		"no program": {[]string{"run", "--lib", "LIB", "--", "no-such-program"}, "./no-such-program"},
		"bad gpu":    {[]string{"run", "--gpu", "fast", "--lib", "LIB", "--", "true"}, "causeway gpus"},
		"bad memory": {[]string{"run", "--memory", "lots", "--lib", "LIB", "--", "true"}, "4GiB"},
		"public":     {[]string{"serve-plain", "--listen", "0.0.0.0:0"}, "no transport security"},
		"no address": {[]string{"serve-plain", "--listen", "here"}, "127.0.0.1:7070"},
		"no network": {[]string{"serve-plain", "--listen", "127.0.0.1:0", "--trusted-network", "ours"}, "192.0.2.0/24"},
		"elsewhere":  {[]string{"serve-plain", "--listen", "127.0.0.1:0", "--trusted-network", "192.0.2.0/24"}, "an address of a --trusted-network"},
		"not ours":   {[]string{"serve-plain", "--listen", "192.0.2.1:0", "--trusted-network", "192.0.2.0/24"}, "ip address"},
		"no lease":   {[]string{"run", "--remote", "vm9", "--lib", "LIB", "--", "true"}, "create vm9 --remote SERVER"},
		"far memory": {[]string{"run", "--remote", "vm9", "--memory", "1GiB", "--lib", "LIB", "--", "true"}, "limits VM --memory"},
		"far cap":    {[]string{"run", "--remote", "vm9", "--cap", "50", "--lib", "LIB", "--", "true"}, "limits VM --cap"},
		"far GPU":    {[]string{"run", "--remote", "vm9", "--gpu", "0", "--lib", "LIB", "--", "true"}, "that the vGPU lies on"},
		"no run":     {[]string{"rebuild", "--pid", "1"}, "causeway run"},
		"worker":     {[]string{"worker"}, "not by users"},
	} {
		for i, a := range c.args {
			if a == "LIB" {
				c.args[i] = libFolder(t)
			}
		}
		out, err := causeway(t, c.args...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
}

// TestRunSession: two CUDA processes under one run, moved to fresh workers while they work.
func TestRunSession(t *testing.T) {
	cmd := causeway(t, "run", "--gpu", "soft", "--lib", libFolder(t), "--", "/proc/self/exe", guestArg)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		b := make([]byte, 64)
		if n, _ := out.Read(b); string(b[:n]) != want {
			t.Errorf("program says %q, want %q", b[:n], want)
		}
	}
	expect("1 devices\n")
	for range 3 {
		fmt.Fprintln(in, "go on")
		expect("hello\n")
		again := causeway(t, "rebuild", "--pid", strconv.Itoa(cmd.Process.Pid))
		again.Env = cmd.Env // the same folder for temporary files
		if b, err := again.CombinedOutput(); err != nil || string(b) != "1 sessions moved to fresh workers\n" {
			t.Errorf("rebuild: %v, %s", err, b)
		}
	}
	fmt.Fprintln(in, "go on")
	expect("hello\n")
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	empty(t, cmd)
}

// ready starts a device process and returns what it says until it serves.
func ready(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	for n := 0; !bytes.Contains(b[:n], []byte("bin/setup")); {
		k, err := out.Read(b[n:])
		if err != nil {
			t.Fatalf("device says %q, then %v", b[:n], err)
		}
		n += k
	}
	return b
}

// TestDeviceSocket: a stale socket is replaced, a live one is not.
func TestDeviceSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vm.sock")
	device := func() *exec.Cmd {
		return causeway(t, "device", "--socket", path, "--gpu", "soft", "--lib", libFolder(t), "--memory", "1GiB")
	}
	first := device()
	b := ready(t, first)
	if !bytes.Contains(b, []byte("path="+path)) {
		t.Errorf("device says %q", b)
	}
	if out, err := device().CombinedOutput(); err == nil || !strings.Contains(string(out), "another process") {
		t.Errorf("second device on a live socket: %v, %s", err, out)
	}
	_ = first.Process.Kill() // leaves the socket behind
	_ = first.Wait()
	third := device()
	ready(t, third)
	_ = third.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- third.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("device after a stale socket: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("device does not end")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("socket is left behind")
	}
}
