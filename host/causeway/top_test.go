package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api/apitest"
	"causeway/host/report"
)

func TestTopBatch(t *testing.T) {
	run, f := fakeNode(t)
	f.Change(func(f *apitest.Fake) { f.VGPUs[0].Status.Started = time.Now().Add(-time.Hour) })
	for name, c := range map[string]struct {
		args     []string
		pictures int
	}{
		"no terminal": {nil, 1},
		"once":        {[]string{"--once"}, 1},
		"two":         {[]string{"--batch", "-n", "2"}, 2},
	} {
		out, _, err := command(t, append([]string{"top", "--interval", "200ms", "--run-dir", run}, c.args...)...)
		if err != nil || strings.Count(out, "causeway top") != c.pictures || strings.Contains(out, "\x1b") || !strings.Contains(out, "77 train") {
			t.Errorf("%s: %v:\n%s", name, err, out)
		}
	}
	out, _, err := command(t, "top", "vm1/gpu0", "--json", "-n", "2", "-i", "200ms", "--run-dir", run)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var r report.Record
	if err != nil || len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &r) != nil || len(r.VGPUs) != 1 || r.VGPUs[0].Rates == nil || r.GPUs[0].ID != "GPU-a" {
		t.Errorf("%v: %s", err, out)
	}
	for _, bad := range [][]string{{"--sort", "size"}, {"-i", "1ms"}, {"-n", "-1"}} {
		if _, _, err := command(t, append([]string{"top", "--run-dir", run}, bad...)...); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

// topChild has the test program be `causeway top` on a terminal.
const topChild = "CAUSEWAY_TEST_TOP"

func TestTopChild(t *testing.T) {
	run := os.Getenv(topChild)
	if run == "" {
		t.Skip("run by TestTopTerminal")
	}
	c := root()
	c.SetArgs([]string{"top", "--run-dir", run, "--interval", "200ms"})
	if err := c.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(7)
	}
	os.Exit(0)
}

// The terminal is as before however top ends.
func TestTopTerminal(t *testing.T) {
	run, _ := fakeNode(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]func(*os.Process, *os.File) error{
		"q":         func(_ *os.Process, m *os.File) error { _, err := m.WriteString("q"); return err },
		"Control-C": func(_ *os.Process, m *os.File) error { _, err := m.WriteString("\x03"); return err },
		"SIGTERM":   func(p *os.Process, _ *os.File) error { return p.Signal(unix.SIGTERM) },
		"SIGHUP":    func(p *os.Process, _ *os.File) error { return p.Signal(unix.SIGHUP) },
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := openPTY(t)
			before, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "-test.run", "^TestTopChild$")
			cmd.Env = append(os.Environ(), topChild+"="+run)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			screen := newScreen(master)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			screen.wait(t, "77 train")
			if raw, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil || raw.Lflag&unix.ICANON != 0 {
				t.Errorf("the terminal is not raw while top runs (%v)", err)
			}
			// A smaller window has everything drawn anew.
			if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 30}); err != nil {
				t.Fatal(err)
			}
			// The terminal tells its foreground group; the child is none here.
			_ = cmd.Process.Signal(unix.SIGWINCH)
			screen.wait(t, "every…") // the title, cut
			if err := end(cmd.Process, master); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("end: %v", err)
			}
			after, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
			if err != nil || *after != *before {
				t.Errorf("the terminal's settings changed (%v): %+v, were %+v", err, after, before)
			}
			screen.wait(t, report.Leave)
			if text := screen.text(); !strings.HasSuffix(strings.TrimSpace(text), strings.TrimSpace(report.Leave)) {
				t.Errorf("something was drawn after the end: %q", text[strings.LastIndex(text, report.Leave):])
			}
		})
	}
}

// openPTY returns both ends of a pseudo terminal.
func openPTY(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// screen gathers what a program writes to a terminal.
type screen struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func newScreen(r io.Reader) *screen {
	s := &screen{}
	go func() {
		p := make([]byte, 4096)
		for {
			n, err := r.Read(p)
			s.mu.Lock()
			s.b.Write(p[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *screen) wait(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(s.text(), want) {
			return
		}
	}
	t.Fatalf("no %q in %q", want, s.text())
}
