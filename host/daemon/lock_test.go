package daemon

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockIsGivenBack: a run directory has one causewayd, and is free as soon as that has given it
// back, although a process that it is about to start has the descriptor still.
func TestLockIsGivenBack(t *testing.T) {
	run := t.TempDir()
	f, err := lockDir(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(t.Context(), run); !errors.Is(err, ErrRunning) {
		t.Errorf("twice: %v", err)
	}
	inherited, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(inherited)
	if err := unlockDir(f); err != nil {
		t.Error(err)
	}
	if f, err = lockDir(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	if err := unlockDir(f); err != nil {
		t.Error(err)
	}
}

// TestLockOfAKilledOne: what a killed causewayd was about to start may have its lock for a moment.
func TestLockOfAKilledOne(t *testing.T) {
	run := t.TempDir()
	f, err := lockDir(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(run, "causewayd.lock")
	if err := os.WriteFile(name, []byte(strconv.Itoa(gone.Process.Pid)+"\n"), 0); err != nil {
		t.Fatal(err)
	}
	// It is not waited for without an end.
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := lockDir(soon, run); !errors.Is(err, ErrRunning) {
		t.Errorf("it stays: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = f.Close() })
	next, err := lockDir(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the lock names %q: %v", text, err)
	}
	if err := unlockDir(next); err != nil {
		t.Error(err)
	}
}
