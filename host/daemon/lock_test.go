package daemon

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockIsGivenBack: a run directory has one causewayd, and is free as soon as that has given it
// back, although a process that it is about to start has the descriptor still.
func TestLockIsGivenBack(t *testing.T) {
	run := t.TempDir()
	f, err := lockDir(run)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(run); !errors.Is(err, ErrRunning) {
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
	if f, err = lockDir(run); err != nil {
		t.Fatal(err)
	}
	if err := unlockDir(f); err != nil {
		t.Error(err)
	}
}
