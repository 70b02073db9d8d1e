package daemon_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/host/daemon"
	"causeway/host/daemon/config"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/systemd"
	"causeway/host/sandbox/cgroup"
)

// fakeScopes is a service manager.
type fakeScopes struct {
	err error

	mu    sync.Mutex
	units map[string]string // what /proc/PID/stat said of the process's state
	limit cgroup.Limits
}

func (s *fakeScopes) Place(_ context.Context, unit, _ string, pid int, l cgroup.Limits) error {
	state, err := "", error(nil)
	for begun := time.Now(); !strings.HasPrefix(state, "T") && time.Since(begun) < 5*time.Second; {
		// Signals take a moment.
		var b []byte
		b, err = os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
		_, state, _ = strings.Cut(string(b), ") ")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.units[unit], s.limit = state[:1], l
	return errors.Join(err, s.err)
}

// TestScopes: each process has a unit before it does anything; a service manager that fails is no
// reason not to start it.
func TestScopes(t *testing.T) {
	for _, fails := range []error{nil, errors.New("no bus")} {
		s := &fakeScopes{units: map[string]string{}, err: fails}
		h := newHost(t, daemontest.Soft(1<<30))
		h.cfg.Scheduler.Enabled, h.scopes = true, s
		h.cfg.Isolation.CPU = 150
		h.start()
		v := h.ensure(one)
		if !runs(v.PID) || h.log.has("no unit of its own") != (fails != nil) {
			t.Errorf("with %v: runs %v", fails, runs(v.PID))
		}
		until(t, "both", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.units) == 2 })
		if s.units["causeway-vm1-gpu0.scope"] != "T" || s.units["causeway-scheduler.scope"] != "T" {
			t.Errorf("units %v", s.units)
		}
		h.stop()
		h.start() // what runs is found again, and goes on
		if again := h.ensure(one); again.PID != v.PID {
			t.Error("started anew")
		}
	}
}

// TestJournal: what a device process says goes to the journal, and comes back from there.
func TestJournal(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	said := make(chan string, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		said <- string(b)
	}()
	reader := filepath.Join(dir, "journalctl")
	if err := os.WriteFile(reader, []byte("#!/bin/sh\necho entries of \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.FailEnv, "no driver")
	h.cfg.Devices.Log = config.LogAuto
	h.journal = &systemd.Journal{Socket: ln.Addr().String(), Reader: []string{reader}}
	h.start()
	_, err = h.c.Ensure(t.Context(), one.Wish())
	refused(t, err, 500, "it said: entries of", "--identifier=causeway-vm1/gpu0", "--since=@")
	if got := <-said; got != "causeway-vm1/gpu0\n\n6\n0\n0\n0\n0\ncauseway: no driver\n" {
		t.Errorf("%q", got)
	}
	h.stop()
	delete(h.cfg.Devices.Environment, daemontest.FailEnv)
	h.start()
	go func() { _, _ = ln.Accept() }()
	h.ensure(one)
	body, err := h.c.Log(t.Context(), one.VM, one.Name, 7, false)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if b, err := io.ReadAll(body); err != nil || !strings.Contains(string(b), "--identifier=causeway-vm1/gpu0 --lines=7") {
		t.Errorf("%q, %v", b, err)
	}
	h.stop()
	h.cfg.Devices.Log, h.journal = config.LogJournal, nil
	if _, err := daemon.New(t.Context(), h.options()); !errors.Is(err, config.ErrValue) {
		t.Errorf("the journal on a host without one: %v", err)
	}
}
