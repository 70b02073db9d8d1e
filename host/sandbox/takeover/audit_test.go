package takeover_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/host/sandbox"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
)

// holdEnv names two files: a worker of this test opens the first many times before its session, and
// the second if it executed itself anew.
const holdEnv = "CAUSEWAY_TEST_HOLD"

// childEnv has a worker of this test start a program that outlives it, and everything that waits
// here.
const childEnv = "CAUSEWAY_TEST_CHILD"

// hold opens as a driver's loader does that holds what Go needs to run anything else: in a call
// that the scheduler knows nothing of, on the only processor that it has.
func hold(anew bool) error {
	files := filepath.SplitList(os.Getenv(holdEnv))
	if len(files) != 2 {
		return nil
	}
	name := files[0]
	if anew {
		name = files[1]
	}
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	if os.Getenv(childEnv) != "" {
		if err := exec.Command("sleep", "8").Start(); err != nil {
			return err
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	at := unix.AT_FDCWD
	for range 100 {
		fd, _, errno := unix.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(path)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
		if errno != 0 {
			return fmt.Errorf("%s: %w", name, errno)
		}
		unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	return nil
}

// auditorOf is the process that audits a worker.
func auditorOf(t *testing.T, worker int) int {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range list {
		env, err := os.ReadFile(dir + "/environ")
		if err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool {
			return string(kv) == fmt.Sprintf("CAUSEWAY_SANDBOX_AUDITOR=%d", worker)
		}) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	t.Fatalf("worker %d has no auditor", worker)
	return 0
}

// gone waits for the end of a process that nobody here reaps.
func gone(t *testing.T, what string, pid int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	t.Errorf("%s stays", what)
}

func ended(t *testing.T, p *spawn.Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Error("worker does not end")
		p.Kill()
	}
}

// held is a spawner of audited workers that hold, and the two files.
func held(t *testing.T, out *output) (s *spawn.Spawner, files [2]string) {
	t.Helper()
	space, err := sandbox.New(soft(sandbox.Audit), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(space.Close)
	dir := t.TempDir()
	for i := range files {
		files[i] = filepath.Join(dir, fmt.Sprintf("secret%d", i))
		if err := os.WriteFile(files[i], nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := append(spawn.HostEnv(), workerEnv+"=1", holdEnv+"="+files[0]+":"+files[1])
	return &spawn.Spawner{Env: env, Command: []string{"/proc/self/exe"}, Stderr: out, Sandbox: space}, files
}

// ready starts a worker that got ready and has no session.
func ready(t *testing.T, s *spawn.Spawner, out *output) *spawn.Process {
	t.Helper()
	p, err := s.Warm(config)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(out.text(), "worker is ready"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.Kill()
			t.Fatalf("worker does not get ready: %s", out.text())
		}
	}
	return p
}

// serve gives a worker a guest that says env of its environment.
func serve(t *testing.T, p *spawn.Process, env uint32, out *output) *workertest.Guest {
	t.Helper()
	guest, host, err := remotetest.PairFile()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := p.Configure(config, nil, int(host.Fd())); err != nil {
		t.Fatal(err)
	}
	g, err := workertest.ConnectEnv(guest, env)
	if err != nil {
		p.Kill()
		t.Fatalf("%v\n%s", err, out.text())
	}
	if _, err := g.Init(); err != nil {
		p.Kill()
		t.Fatalf("%v\n%s", err, out.text())
	}
	return g
}

// TestAudit: a worker whose threads ask while it can run nothing else gets on, also when it
// executes itself anew; what they asked is written down by the time it has ended, and its auditor
// ends with it.
func TestAudit(t *testing.T) {
	for name, env := range map[string]uint32{"ready": 0, "anew": remote.EnvOwnDriver} {
		t.Run(name, func(t *testing.T) {
			out := new(output)
			s, files := held(t, out)
			p := ready(t, s, out)
			auditor := auditorOf(t, p.PID())
			g := serve(t, p, env, out)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			ended(t, p)
			_ = p.Close()
			gone(t, "auditor", auditor)
			anew := name == "anew"
			if strings.Contains(out.text(), "starting anew") != anew {
				t.Errorf("the worker executed itself anew: %v", !anew)
			}
			for i, file := range files {
				if want := i == 0 || anew; strings.Contains(out.text(), "open "+file+" to read") != want {
					t.Errorf("%s is written down: %v", file, !want)
				}
			}
			if t.Failed() {
				t.Log(out.text())
			}
		})
	}
}

// TestAuditEnds: whatever ends first, nothing stays.
func TestAuditEnds(t *testing.T) {
	for name, end := range map[string]func(p *spawn.Process, auditor int) error{
		"parent": func(p *spawn.Process, _ int) error { return p.Close() },
		"worker": func(p *spawn.Process, _ int) error { return unix.Kill(p.PID(), unix.SIGKILL) },
		"auditor": func(p *spawn.Process, auditor int) error {
			// What asks now fails: the worker is heard again.
			return errors.Join(unix.Kill(auditor, unix.SIGKILL), p.Send(link.Quit{}))
		},
		"worker, with a child": func(p *spawn.Process, _ int) error { return unix.Kill(p.PID(), unix.SIGKILL) },
		"by its group":         func(p *spawn.Process, _ int) error { return unix.Kill(-p.PID(), unix.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			out := new(output)
			s, _ := held(t, out)
			if strings.Contains(name, "child") {
				s.Env = append(s.Env, childEnv+"=1")
			}
			p := ready(t, s, out)
			auditor := auditorOf(t, p.PID())
			if err := end(p, auditor); err != nil {
				t.Error(err)
			}
			ended(t, p)
			gone(t, "auditor", auditor)
			_ = p.Close()
		})
	}
}
