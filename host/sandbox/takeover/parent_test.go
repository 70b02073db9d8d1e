package takeover_test

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/sandbox"
)

const parentEnv = "CAUSEWAY_TEST_PARENT"

// TestParent: a parent that gave up what it does not need still starts confined workers, as root
// and as a user.
func TestParent(t *testing.T) {
	if kind := os.Getenv(parentEnv); kind != "" {
		parent(t, kind == "network")
		return
	}
	for _, uid := range []int{0, nobody} {
		if os.Getuid() != 0 && uid != os.Getuid() {
			continue
		}
		kind := "alone"
		if uid != os.Getuid() {
			kind = "network" // one of a GPU server's users: the other half of the two cases
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestParent$", "-test.v")
		cmd.Env = append(os.Environ(), parentEnv+"="+kind)
		cmd.Dir = "/"
		if uid != os.Getuid() {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestParent") {
			t.Errorf("user %d: %v\n%s", uid, err, out)
		}
	}
}

func parent(t *testing.T, network bool) {
	policy := soft(sandbox.Strict)
	space, err := sandbox.New(policy, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip(err)
	}
	defer space.Close()
	if err := sandbox.Confine(sandbox.Strict, network, slog.Default()); err != nil {
		t.Fatal(err)
	}
	t.Setenv(workerEnv, "1")
	for range 3 {
		_, g, out := sessionIn(t, space, []string{"/proc/self/exe"})
		if err := g.Close(); err != nil {
			t.Errorf("%v: %s", err, out.text())
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if network && err != nil || !network && !errors.Is(err, unix.EPERM) {
		t.Errorf("socket %d, %v", fd, err)
	}
	if fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("netlink socket %d, %v", fd, err)
	}
	if err := unix.Mount("none", "/mnt", "tmpfs", 0, ""); !errors.Is(err, unix.EPERM) {
		t.Errorf("mount: %v", err)
	}
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if v, ok := strings.CutPrefix(line, "CapEff:\t"); ok && strings.Count(v, "f") > 2 {
			t.Errorf("keeps many capabilities: %s", v)
		}
	}
}
