package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIoctlLists: each list that there is can be read and says nothing twice, and never lets pass
// what carries another request.
func TestIoctlLists(t *testing.T) {
	files, err := fs.Glob(ioctlFiles, "ioctls/*.list")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	const carrier = 'F'<<8 | 211 // NV_ESC_IOCTL_XFER_CMD
	for _, file := range files {
		l, err := ioctlsOf(strings.TrimSuffix(filepath.Base(file), ".list"))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[ioctlRequest]bool{}
		for _, r := range l.requests {
			if seen[r] {
				t.Errorf("%s: %s twice", file, r)
			}
			seen[r] = true
		}
		if lets(l.requests, carrier) || lets(l.requests, carrier|16<<16|3<<30) {
			t.Errorf("%s lets requests within requests pass", file)
		}
	}
}

func TestParseIoctls(t *testing.T) {
	l, err := parseIoctls("# comment\nstatus confirmed\n\nF 42 * control\n0 1 12288 x\nT 1 0\n")
	if err != nil || !l.confirmed || fmt.Sprint(l.requests) != "[F 42 * 0 1 12288 T 1 0]" {
		t.Errorf("%+v, %v", l, err)
	}
	for _, bad := range []string{"", "F 42 *\n", "status sure\n", "status confirmed\nF 42\n", "status confirmed\nFF 42 *\n", "status confirmed\nF 256 *\n", "status confirmed\nF 1 16384\n", "status confirmed\nF -1 0\n", "status confirmed\n256 1 0\n"} {
		if l, err := parseIoctls(bad); err == nil {
			t.Errorf("%q: %+v", bad, l)
		}
	}
}

// TestIoctlsHeld: when a list counts, and what is refused without one.
func TestIoctlsHeld(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		held   bool
		err    error
	}{
		{Policy{Mode: On}, true, nil}, // the software GPU: all requests are ours
		{Policy{Mode: On, Real: true, Driver: "580"}, true, nil},
		{Policy{Mode: On, Real: true, Driver: "580", Ioctls: IoctlsEnforce}, true, nil},
		{Policy{Mode: On, Real: true, Driver: "999"}, false, nil},
		{Policy{Mode: On, Real: true, Driver: "999", Ioctls: IoctlsEnforce}, false, ErrNoIoctls},
		{Policy{Mode: Strict, Real: true, Driver: "580"}, true, nil},
		{Policy{Mode: Strict, Real: true, Driver: "580", Ioctls: IoctlsPass}, false, nil},
		{Policy{Mode: Strict, Real: true, Driver: "999", Ioctls: IoctlsAudit}, false, nil},
		{Policy{Mode: Strict, Real: true, Driver: "999"}, false, ErrNoIoctls},
		{Policy{Mode: Strict, Real: true}, false, ErrNoIoctls},
		{Policy{Mode: Strict, Real: true, Driver: "../x"}, false, ErrNoIoctls},
		{Policy{Mode: Strict, Real: true, Driver: "999", Ioctls: IoctlsPass}, false, nil},
		{Policy{Mode: Audit, Real: true, Driver: "999"}, true, nil},
	} {
		held, why, err := c.policy.ioctlsHeld()
		if held != c.held || !errors.Is(err, c.err) || (err == nil && !held) != (why != "") {
			t.Errorf("%+v: %v, %q, %v", c.policy, held, why, err)
		}
		if space, err := New(c.policy, slog.New(slog.DiscardHandler)); errors.Is(err, ErrNoIoctls) != (c.err != nil) {
			t.Errorf("%+v: a space: %v", c.policy, err)
		} else {
			space.Close()
		}
	}
}

func TestDriverBranch(t *testing.T) {
	root := t.TempDir()
	if got := driverBranch(root); got != "" {
		t.Errorf("no driver: %q", got)
	}
	if err := os.MkdirAll(filepath.Join(root, "sys/module/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"580.159.04\n": "580", "580": "", "../580.1": "", "": ""} {
		if err := os.WriteFile(filepath.Join(root, "sys/module/nvidia/version"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := driverBranch(root); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// ioctlEnv has TestIoctlsInChild be a process that holds itself to the list of a driver, "" for the
// software GPU's.
const ioctlEnv = "CAUSEWAY_TEST_IOCTLS"

// tried are requests to an event counter, which knows none of the driver's: ENOTTY is the kernel's
// own answer, EPERM the filter's.
var tried = []struct {
	name       string
	request    uint32
	real, soft bool // let through
}{
	{"TCGETS", unix.TCGETS, true, true},
	{"FIONREAD", unix.TIOCINQ, true, true},
	{"type into the terminal", unix.TIOCSTI, false, false},
	{"control", 3<<30 | 32<<16 | 'F'<<8 | 42, true, false},
	{"control of another size", 2<<30 | 48<<16 | 'F'<<8 | 42, true, false},
	{"control by another type", 3<<30 | 32<<16 | 'G'<<8 | 42, false, false},
	{"a request within a request", 3<<30 | 16<<16 | 'F'<<8 | 211, false, false},
	{"the registry", 3<<30 | 24<<16 | 'F'<<8 | 0x4d, false, false},
	{"display", 3<<30 | 16<<16 | 'm'<<8, false, false},
	{"UVM_INITIALIZE", 0x30000001, true, false},
	{"UVM_REGISTER_GPU", 37, true, false},
	{"UVM_REGISTER_GPU with a size", 37 | 8<<16, false, false},
	{"UVM_TOOLS_READ_PROCESS_MEMORY", 62, false, false},
	{"UVM_IS_8_SUPPORTED", 2047, false, false},
	{"TUNSETIFF", 0x400454ca, false, false},
	{"nothing", 0, false, false},
}

// TestIoctlFilter runs the filter in the kernel, in a child that tries requests on a descriptor
// that can do no harm.
func TestIoctlFilter(t *testing.T) {
	for _, driver := range []string{"580", ""} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestIoctlsInChild$", "-test.v")
		cmd.Env = append(os.Environ(), ioctlEnv+"="+driver)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, c := range tried {
			want := unix.EPERM
			if driver != "" && c.real || driver == "" && c.soft {
				want = unix.ENOTTY
			}
			if line := fmt.Sprintf("ioctl %s: %d\n", c.name, want); !bytes.Contains(out, []byte(line)) {
				t.Errorf("driver %q: want %q in\n%s", driver, line, out)
			}
		}
	}
}

func TestIoctlsInChild(t *testing.T) {
	driver, ok := os.LookupEnv(ioctlEnv)
	if !ok {
		t.Skip("run by TestIoctlFilter")
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := filterCalls(base(&Policy{Mode: Strict, Real: driver != "", Driver: driver})); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, c := range tried {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(c.request), 0)
		fmt.Fprintf(&out, "ioctl %s: %d\n", c.name, int(errno))
	}
	_, _ = os.Stdout.Write(out.Bytes())
}

// TestCountIoctls: audit counts every request, says what strict would deny, and sums up.
func TestCountIoctls(t *testing.T) {
	var out bytes.Buffer
	p := Policy{Mode: Audit, Real: true, Driver: "580"}
	may, err := p.mayAsk()
	if err != nil {
		t.Fatal(err)
	}
	j := assessor{said: map[string]bool{}, mayAsk: may, met: map[ioctlRequest]uint64{}, worker: 7, log: slog.New(slog.NewTextHandler(&out, nil))}
	for _, request := range []uint64{3<<30 | 32<<16 | 'F'<<8 | 42, 3<<30 | 32<<16 | 'F'<<8 | 42, 25, 62, uint64(unix.TIOCSTI)} {
		j.take(&asked{question: question{Number: unix.SYS_IOCTL, Args: [6]uint64{1: request}}})
	}
	j.sum()
	for _, want := range []string{`"ioctl 0 62 0 (0x3e)"`, `"ioctl T 18 0 (0x5412)"`, `met="0 25 0 1, 0 62 0 1, F 42 32 2, T 18 0 1"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "strict would deny"); n != 2 {
		t.Errorf("%d denials:\n%s", n, out.String())
	}
}
