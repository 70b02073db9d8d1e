package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
)

// What a causewayd that is to be killed is told: the step at which, its folder, and the file for
// which device processes wait.
const (
	killedAt    = "CAUSEWAYD_KILLED_AT"
	killedBelow = "CAUSEWAYD_KILLED_BELOW"
	killedWait  = "CAUSEWAYD_KILLED_WAIT"
	// killedServes has it serve, as a serving in JSON says, in place of making a vGPU; then the
	// step may be none.
	killedServes = "CAUSEWAYD_KILLED_SERVES"
)

// killedMain is causewayd until it is killed, if this process was started for that: it makes a vGPU
// and deletes it, or serves.
func killedMain() {
	at, serves := os.Getenv(killedAt), os.Getenv(killedServes)
	if at == "" && serves == "" {
		return
	}
	cfg := settings(os.Getenv(killedBelow))
	cfg.Devices.Environment[daemontest.WaitEnv] = os.Getenv(killedWait)
	program, err := os.Executable()
	if err == nil {
		o := daemon.Options{
			Config: cfg, Program: program, Version: "test", Machine: daemontest.Soft(1 << 30), Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		}.Stepped(func(name string) {
			if name == at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		})
		if serves != "" {
			err = serveUntilKilled(o, serves)
		} else {
			err = createAndDelete(o)
		}
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(1)
}

func createAndDelete(o daemon.Options) error {
	d, err := daemon.New(context.Background(), o)
	if err != nil {
		return err
	}
	_, err = d.Ensure(context.Background(), one.Wish())
	if err == nil {
		err = d.Release(context.Background(), one.Key(), false)
	}
	return errors.Join(err, d.Close())
}

// devices are the device processes of a host, zombies aside.
func (h *host) devices() (list []string) {
	h.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(b, []byte("\x00device\x00")) && bytes.Contains(b, []byte("\x00"+h.cfg.RunDir+"/")) {
			list = append(list, filepath.Base(filepath.Dir(f)))
		}
	}
	return list
}

// TestKilled: causewayd is killed behind each step of a vGPU's start and end. The next one knows
// all that runs, and what nobody was told of has ended; the vGPU can be made, and when it is
// deleted nothing is left.
func TestKilled(t *testing.T) {
	for _, c := range []struct {
		at   string
		wait bool      // the device process answers no one until the next causewayd has looked
		want api.State // what that says of the vGPU; "": there is none
	}{
		{"the intent is written", true, ""},
		{"the process is started", true, ""},
		{"the record names the process", true, ""},
		{"the process may begin", true, ""},
		{"the process has answered", false, api.Waiting},
		{"the record says that it is ready", false, api.Waiting},
		{"it is to end", false, api.Waiting},
		{"the process has ended", false, api.Lost},
		{"its files are removed", false, api.Lost},
		{"its record is removed", false, ""},
	} {
		t.Run(c.at, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, daemontest.Soft(1<<30))
			t.Cleanup(func() {
				for _, pid := range h.devices() { // none, if all is well
					n, _ := strconv.Atoi(pid)
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			})
			file := filepath.Join(t.TempDir(), "go on")
			answer := func() {
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if !c.wait {
				answer()
			}
			killed := exec.Command(os.Args[0])
			killed.Env = append(os.Environ(), killedAt+"="+c.at, killedBelow+"="+h.cfg.RunDir, killedWait+"="+file)
			killed.Stderr = io.MultiWriter(h.log, testWriter{t})
			err := killed.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%v, want it killed", err)
			}
			h.start()
			answer()
			list, err := h.c.VGPUs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var state api.State
			if len(list) == 1 {
				state = list[0].State
			}
			if state != c.want {
				t.Errorf("the next causewayd says %q, want %q: %+v", state, c.want, list)
			}
			known := 0
			if c.want == api.Waiting {
				known = 1
			}
			until(t, "all that runs is known", func() bool { return len(h.devices()) == known })
			v := h.ensure(one)
			if all := h.devices(); len(all) != 1 || all[0] != itoa(v.PID) {
				t.Errorf("processes %v, want that of the vGPU, %d", all, v.PID)
			}
			if err := h.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
				t.Error(err)
			}
			until(t, "nothing runs", func() bool { return len(h.devices()) == 0 })
			left, err := filepath.Glob(filepath.Join(h.cfg.RunDir, one.VM, "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left: %s, %v", strings.Join(left, " "), err)
			}
		})
	}
}

// settings are what causewayd under test starts with, below a folder.
func settings(below string) config.Config {
	cfg := config.Default()
	cfg.Below(below)
	cfg.Devices.Log = config.LogFile
	cfg.Devices.SocketOwner = "0"
	cfg.Scheduler.Enabled = false
	cfg.Health.Interval = 100e6
	return cfg
}
