package worker_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/drivertest"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote"
	"causeway/remote/remotetest"
)

// warmBackend tells the parent's test by its process's name (/proc/self/comm) whether it got ready.
type warmBackend struct{ drivertest.Backend }

func (*warmBackend) Warm(driver.Options) error {
	return os.WriteFile(fmt.Sprintf("/proc/self/task/%d/comm", os.Getpid()), []byte("warm"), 0)
}

func comm(t *testing.T, pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestWarm gives sessions to workers that wait: to such a one if it fits, else to the same process
// executed anew.
func TestWarm(t *testing.T) {
	for name, c := range map[string]struct {
		env  uint32
		warm bool
	}{
		"plain":         {0, true},
		"own driver":    {remote.EnvOwnDriver, false},
		"device 0 of n": {remote.EnvFirstDevice, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := &spawn.Pool{Spawner: spawner(), Config: unixConfig, Size: 1, Once: true, Log: slog.New(slog.DiscardHandler)}
			defer pool.Close()
			pool.Fill()
			p := pool.Take()
			if p == nil {
				t.Fatal("no worker is ready")
			}
			if pool.Take() != nil {
				t.Fatal("the worker was given twice")
			}
			gc, host, err := remotetest.PairFile()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Configure(unixConfig, nil, int(host.Fd())); err != nil {
				t.Fatal(err)
			}
			_ = host.Close()
			g, err := workertest.ConnectEnv(gc, c.env)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Init(); err != nil {
				t.Fatal(err)
			}
			call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 4096}, nil)
			if got := comm(t, p.PID()) == "warm"; got != c.warm {
				t.Errorf("worker that got ready serves: %v, want %v", got, c.warm)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			awaitEnd(t, p)
		})
	}
}

// TestWarmFar: a worker that waits on a GPU server serves a program of another host, if that
// program's relay says that it may; a program whose environment asks for another start gets it.
func TestWarmFar(t *testing.T) {
	s, cfg := newServer(t)
	for name, c := range map[string]struct {
		env  uint32
		warm bool
	}{
		"plain":                  {0, true},
		"own driver":             {remote.EnvOwnDriver, false},
		"device 0 of the only 1": {remote.EnvFirstDevice, true},
	} {
		t.Run(name, func(t *testing.T) {
			gc, host, err := remotetest.PairFile()
			if err != nil {
				t.Fatal(err)
			}
			p, err := spawner().Start(cfg, nil, int(host.Fd()))
			_ = host.Close()
			if err != nil {
				t.Fatal(err)
			}
			g, err := workertest.ConnectEnv(gc, c.env)
			if err != nil {
				t.Fatal(err)
			}
			w := <-s.workers
			if _, err := g.Init(); err != nil {
				t.Fatal(err)
			}
			call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 4096}, nil)
			if got := comm(t, w.PID()) == "warm"; got != c.warm {
				t.Errorf("worker that got ready serves: %v, want %v", got, c.warm)
			}
			endsWell(t, g, p, w)
		})
	}
}

// TestSparesEnd: workers that nobody needed end with their pool, and one that died is not given
// away.
func TestSparesEnd(t *testing.T) {
	pool := &spawn.Pool{Spawner: spawner(), Config: unixConfig, Size: 2, Log: slog.New(slog.DiscardHandler)}
	pool.Fill()
	p := pool.Take()
	if p == nil {
		t.Fatal("no worker is ready")
	}
	p.Kill()
	pool.Fill()
	pool.Close()
	pool.Fill() // as a timer does that went off at the same time
	if pool.Take() != nil {
		t.Error("a closed pool gives workers")
	}
	cfg := unixConfig
	w, err := spawner().Warm(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.Stop(5 * time.Second)
	if err := w.Err(); err != nil {
		t.Errorf("a spare that was told to quit: %v", err)
	}
}
