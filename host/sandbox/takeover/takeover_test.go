package takeover_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/host/sandbox"
	"causeway/host/sandbox/takeover"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote/remotetest"
)

var config = link.Config{GPU: "soft", Carrier: link.CarrierUnix, LogLevel: "warn"}

// build makes the program whose workers an attacker owns.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "bin", "causeway")
	cmd := exec.Command("go", "build", "-tags", "takeover", "-o", program, "causeway/host/causeway")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		// Paths must not be what stops the attacker.
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return program
}

// output collects what workers write.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// session starts a worker and its guest.
func session(t *testing.T, program string, policy sandbox.Policy, env ...string) (*spawn.Process, *workertest.Guest, *output) {
	t.Helper()
	space, err := sandbox.New(policy, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(space.Close)
	return sessionIn(t, space, []string{program, "worker"}, env...)
}

func sessionIn(t *testing.T, space *sandbox.Space, command []string, env ...string) (*spawn.Process, *workertest.Guest, *output) {
	t.Helper()
	out := new(output)
	s := &spawn.Spawner{Command: command, Env: append(spawn.HostEnv(), env...), Stderr: out, Sandbox: space}
	guest, host, err := remotetest.PairFile()
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Start(config, nil, int(host.Fd()))
	_ = host.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	g, err := workertest.Connect(guest)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.text())
	}
	t.Cleanup(func() { _ = g.Close() })
	if _, err := g.Init(); err != nil { // the session works after all that
		t.Fatalf("%v\n%s", err, out.text())
	}
	return p, g, out
}

// victims are another VM's device and worker, the daemons' sockets, files and servers.
func victims(t *testing.T, program string) *takeover.Target {
	t.Helper()
	dir, err := os.MkdirTemp("", "v")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	target := &takeover.Target{
		VHost: at("gpu0.sock"), Control: at("gpu0.ctl"), Daemon: at("causewayd.sock"), Scheduler: at("scheduler.sock"),
		Abstract: fmt.Sprintf("causeway-takeover-%d", os.Getpid()), Parent: os.Getpid(), Memory: os.Getpid(),
		Namespace: fmt.Sprintf("/proc/%d/ns/uts", os.Getpid()),
	}
	device(t, program, dir, target)
	for path, mode := range map[string]os.FileMode{target.Daemon: 0o666, target.Scheduler: 0o600} {
		listen(t, "unix", path)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	listen(t, "unix", "@"+target.Abstract)
	target.TCP = listen(t, "tcp", "127.0.0.1:0")
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = udp.Close() })
	target.UDP = udp.LocalAddr().String()

	for name, mode := range map[string]os.FileMode{"disk.qcow2": 0o644, "vm1-gpu0.log": 0o666} {
		// Careless modes.
		if err := os.WriteFile(at(name), []byte("secret"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), mode); err != nil {
			t.Fatal(err)
		}
		target.Files = append(target.Files, at(name))
	}
	if err := os.Mkdir(at("anybody"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("anybody"), 0o777); err != nil {
		t.Fatal(err)
	}
	target.Folders = []string{at("anybody")}
	if err := unix.Mknod(at("nvidia9"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		// /dev/null in disguise.
		t.Fatal(err)
	}
	_ = os.Chmod(at("nvidia9"), 0o666)
	target.Nodes = []string{at("nvidia9")}
	memory := []byte("memories")
	target.Address = uintptr(unsafe.Pointer(&memory[0]))
	t.Cleanup(func() { _ = memory[0] })
	return target
}

// device starts another VM's.
func device(t *testing.T, program, dir string, target *takeover.Target) {
	t.Helper()
	lib := filepath.Join(dir, "lib")
	if err := os.Mkdir(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if err := os.WriteFile(filepath.Join(lib, f), []byte("library"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "device", "--gpu", "soft", "--socket", target.VHost, "--control", target.Control, "--lib", lib)
	out := new(output)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("unix", target.Control); err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no device:\n%s", out.text())
		}
	}
}

func listen(t *testing.T, network, addr string) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// attack runs the attempts in a worker.
func attack(t *testing.T, program string, policy sandbox.Policy, target *takeover.Target) map[string]takeover.Result {
	t.Helper()
	results, _ := attackAndLog(t, program, policy, target)
	return results
}

func attackAndLog(t *testing.T, program string, policy sandbox.Policy, target *takeover.Target) (map[string]takeover.Result, string) {
	t.Helper()
	b, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	p, g, out := session(t, program, policy, takeover.Env+"="+string(b))
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Done(): // and what it wrote is here
	case <-time.After(time.Minute):
		t.Fatal("worker does not end with its guest")
	}
	results, rest := map[string]takeover.Result{}, []string{}
	for sc := bufio.NewScanner(strings.NewReader(out.text())); sc.Scan(); {
		line, ok := strings.CutPrefix(sc.Text(), takeover.Prefix)
		if !ok {
			rest = append(rest, sc.Text())
			continue
		}
		var r takeover.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		results[r.Name] = r
	}
	return results, strings.Join(rest, "\n")
}

// soft and real are policies of workers of the software GPU, and of a real one's, whose driver gets
// more room.
func soft(mode sandbox.Mode) sandbox.Policy { return sandbox.NewPolicy(mode, false, nil, nil) }
func real(mode sandbox.Mode) sandbox.Policy {
	p := sandbox.NewPolicy(mode, true, nil, nil)
	p.Driver = "580"
	return p
}

// room is what a real GPU's driver may do in mode on: none of it is another VM's.
var room = []string{"list: /etc", "create: in /dev/shm", "ioctl: a request within a request", "ioctl: another process's memory, by the GPU's tools"}

// TestTakeover: what a worker that runs an attacker's code tries fails in each mode that enforces,
// and gets through in off.
func TestTakeover(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root starts workers as other users")
	}
	program := build(t)
	target := victims(t, program)
	victim, _, _ := session(t, program, soft(sandbox.On))
	target.Worker = victim.PID()
	free := attack(t, program, soft(sandbox.Off), target)
	audited, log := attackAndLog(t, program, real(sandbox.Audit), target)
	for _, want := range []string{"open /etc/shadow to read", "open " + target.Files[0] + " to write", "/.causeway-takeover-", "system call 101(", "system call 59("} {
		if !strings.Contains(log, want) {
			t.Errorf("audit did not say %q:\n%s", want, log)
		}
	}
	watched := real(sandbox.On)
	watched.Ioctls = sandbox.IoctlsAudit
	watching, log := attackAndLog(t, program, watched, target)
	for _, want := range []string{"ioctl 0 62 0 (0x3e)", "ioctl F 211 16 (0xc01046d3)", `met="0 62 0 1, F 211 16 1"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit of requests did not say %q:\n%s", want, log)
		}
	}
	confined := map[string]map[string]takeover.Result{
		"real, on, requests are written down": watching,
		"on":                                  attack(t, program, soft(sandbox.On), target),
		"strict":                              attack(t, program, soft(sandbox.Strict), target),
		"real, on":                            attack(t, program, real(sandbox.On), target),
		"real, strict":                        attack(t, program, real(sandbox.Strict), target),
	}
	var table strings.Builder
	for _, a := range target.Attempts() {
		f := free[a.Name]
		fmt.Fprintf(&table, "%-58s off: %-58s on: %s\n", a.Name, verdict(f), verdict(confined["on"][a.Name]))
		for name, results := range confined {
			r, ok := results[a.Name]
			if !ok {
				t.Errorf("%s: %s was not tried", name, a.Name)
			}
			if r.Needed && !r.Through {
				t.Errorf("%s: %s, which drivers need, fails: %s", name, a.Name, r.Error)
			}
			if r.Through && !r.Needed && !(strings.HasPrefix(name, "real, on") && slices.Contains(room, a.Name)) {
				t.Errorf("%s: %s gets through", name, a.Name)
			}
		}
		if audited[a.Name].Through != f.Through {
			t.Errorf("audit: %s: %s, without it: %s", a.Name, verdict(audited[a.Name]), verdict(f))
		}
		if !f.Through && !a.Always && !absent(f) {
			t.Errorf("%s: fails without a sandbox too (%s): this attempt proves nothing", a.Name, f.Error)
		}
	}
	t.Logf("\n%s", table.String())
	asUser(t, program, target)
}

func verdict(r takeover.Result) string {
	switch {
	case r.Through && r.Error == "":
		return "through"
	case r.Through:
		return "through (" + r.Error + ")"
	}
	return r.Error
}

// absent: machines without such a thing cannot show that it would get through.
func absent(r takeover.Result) bool {
	for _, what := range []string{"no such", "not implemented", "not supported"} {
		if strings.Contains(r.Error, what) {
			return true
		}
	}
	return false
}
