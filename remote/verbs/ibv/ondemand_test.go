package ibv_test

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
	"causeway/remote/verbs"
)

// locked is set in the environment of a process that is TestOnDemand's.
const locked = "CAUSEWAY_RDMA_LOCKED"

// TestOnDemand: memory that a process may not lock is registered all the same where the adapter looks pages up when it comes to them, and its bytes are right; elsewhere the error says what limit
// is too low. Root may lock what it likes, so it is a process of somebody else's.
func TestOnDemand(t *testing.T) {
	open(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	const nobody = 65534
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestLocked$", "-test.v")
	cmd.Env = append(os.Environ(), locked+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestLocked")) {
		t.Error("the other process: ", err)
	}
}

// TestLocked is that process.
func TestLocked(t *testing.T) {
	if os.Getenv(locked) == "" {
		t.Skip("it is TestOnDemand's other process, and nothing alone")
	}
	near, far := twoEnds(t)
	const size = 8 << 20
	fd, mem, err := sys.NewPage("reached", size, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	t.Cleanup(func() { sys.UnmapPage(mem) })
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}); err != nil { // less than is pinned by now
		t.Fatal(err)
	}
	before := pinned(t)
	g, revoke, err := near.Grant(mem)
	switch {
	case err != nil && !finds(t):
		if !strings.Contains(err.Error(), "the limit of locked memory") {
			t.Error(err)
		}
		t.Log("this kernel's soft RoCE finds no pages on demand: ", err)
		closed(t, near, far)
		return
	case err != nil:
		t.Fatal(err)
	}
	if now := pinned(t); now != before {
		t.Errorf("pinned: %s, before %s", now, before)
	}
	p, got := make([]byte, size-3000), make([]byte, size-3000)
	for i := range p {
		p[i] = byte(i * i >> 9)
	}
	// Of the pages none is there yet.
	if err := errors.Join(far.Store(p, g, 2000), far.Fetch(got, g, 2000)); err != nil || !bytes.Equal(p, got) || !bytes.Equal(mem[2000:][:len(p)], p) {
		t.Errorf("other bytes, or %v", err)
	}
	if mem[1999] != 0 || mem[size-1000] != 0 {
		t.Error("bytes beside were written")
	}
	revoke()
	closed(t, near, far)
}

// twoEnds is both ends of a connection of this process with itself.
func twoEnds(t *testing.T) (near, far *verbs.Conn) {
	t.Helper()
	a := open(t).Adapters()[0]
	nearBase, farBase := pair(t)
	other := make(chan net.Conn, 1)
	go func() { other <- upgraded(t, farBase, a, false) }()
	near = upgraded(t, nearBase, a, true).(*verbs.Conn)
	return near, (<-other).(*verbs.Conn)
}

// pinned is how much memory of this process is.
func pinned(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmPin:"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatal("no VmPin")
	return ""
}

// finds reports whether the kernel's soft RoCE is one that finds pages on demand, as 7.2's does and 6.12's does not (docs/RATIONALE.md).
func finds(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	major, _, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	return major >= "7" || len(major) > 1
}
