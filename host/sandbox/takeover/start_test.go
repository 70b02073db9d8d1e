package takeover_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/host/sandbox"
	"causeway/host/worker"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
)

// workerEnv has this test binary be a worker whose driver can start ahead, as a real GPU's.
const workerEnv = "CAUSEWAY_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) == "" {
		os.Exit(m.Run())
	}
	if err := confined(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// confined is what `causeway worker` does.
func confined() error {
	resume := os.Getenv(worker.ResumeEnv)
	_ = os.Unsetenv(worker.ResumeEnv)
	policy, err := sandbox.FromEnv()
	if err != nil {
		return err
	}
	if resume == "" { // else it has been
		if _, err := sandbox.Enter(policy, slog.Default()); err != nil {
			return err
		}
	}
	if err := hold(resume != ""); err != nil {
		return err
	}
	p := worker.Process{
		Backend: func(string) (driver.Backend, error) { return &warmBackend{}, nil },
		Logger:  func(slog.Level) *slog.Logger { return slog.Default() },
		Seal:    func() error { return sandbox.Seal(policy) },
		Resume:  resume,
	}
	return p.Main(context.Background(), spawn.LinkFD)
}

// warmBackend is one that gets ready.
type warmBackend struct{ drivertest.Backend }

func (*warmBackend) Warm(driver.Options) error { return nil }

// TestColdStart: a confined worker that got ready for another guest executes itself anew, and is as
// confined afterwards.
func TestColdStart(t *testing.T) {
	for _, mode := range []sandbox.Mode{sandbox.On, sandbox.Strict} {
		space, err := sandbox.New(soft(mode), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Skip(err)
		}
		defer space.Close()
		for name, env := range map[string]uint32{"ready": 0, "anew": remote.EnvOwnDriver} {
			out := new(output)
			s := &spawn.Spawner{Env: append(spawn.HostEnv(), workerEnv+"=1"), Command: []string{"/proc/self/exe"}, Stderr: out, Sandbox: space}
			pool := &spawn.Pool{Spawner: s, Config: config, Size: 1, Once: true, Log: slog.Default()}
			pool.Fill()
			p := pool.Take()
			if p == nil {
				t.Fatalf("no worker is ready: %s", out.text())
			}
			g := serve(t, p, env, out)
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
				if !strings.Contains(string(status), want) {
					t.Errorf("%s %s: no %q in\n%s", mode, name, want, status)
				}
			}
			if os.Getuid() == 0 && !strings.Contains(string(status), fmt.Sprintf("Uid:\t%d\t", sandbox.UIDBase+p.PID())) {
				t.Errorf("%s %s: not its own user:\n%s", mode, name, status)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-p.Done():
			case <-time.After(time.Minute):
				t.Fatal("worker does not end with its guest")
			}
			_ = p.Close()
			pool.Close()
			if anew := strings.Contains(out.text(), "starting anew"); anew != (name == "anew") || !strings.Contains(out.text(), "worker is ready") {
				t.Errorf("%s %s: the worker executed itself anew: %v\n%s", mode, name, anew, out.text())
			}
		}
	}
}

// TestNothingLeft: spaces and their workers leave no descriptors and no namespaces behind.
func TestNothingLeft(t *testing.T) {
	count := func() (n int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := count()
	for range 20 {
		space, err := sandbox.New(soft(sandbox.On), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		space.Close()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors became %d", before, after)
	}
	var st unix.Statfs_t
	if err := unix.Statfs("/tmp", &st); err != nil || st.Blocks < 100 {
		t.Errorf("the parent's own /tmp is hidden: %+v, %v", st, err)
	}
}

// BenchmarkSession is the start of a worker process up to its answer to Hello, and its end.
func BenchmarkSession(b *testing.B) {
	program := os.Getenv("CAUSEWAY")
	if program == "" {
		b.Skip("CAUSEWAY names no program")
	}
	for _, mode := range []sandbox.Mode{sandbox.Off, sandbox.On, sandbox.Strict} {
		b.Run(string(mode), func(b *testing.B) {
			space, err := sandbox.New(soft(mode), slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			defer space.Close()
			s := &spawn.Spawner{Command: []string{program, "worker"}, Sandbox: space}
			for b.Loop() {
				gc, host, err := remotetest.PairFile()
				if err != nil {
					b.Fatal(err)
				}
				p, err := s.Start(config, nil, int(host.Fd()))
				_ = host.Close()
				if err != nil {
					b.Fatal(err)
				}
				g, err := workertest.Connect(gc)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_ = g.Close()
				<-p.Done()
				_ = p.Close()
				b.StartTimer()
			}
		})
	}
}
