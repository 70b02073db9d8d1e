package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRunning says that the run directory has a causewayd.
var ErrRunning = errors.New("a causewayd runs already")

// leftover is how long a process that a killed causewayd was about to start is waited for.
const leftover = 10 * time.Second

// lockDir takes a run directory. The lock ends with the process, however that ends, and with those
// that it was about to start: one of them may have the descriptor for a moment longer, on a crowded
// host for longer than the next causewayd takes to get here.
func lockDir(ctx context.Context, run string) (*os.File, error) {
	name := filepath.Join(run, "causewayd.lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the run directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, leftover)
	defer cancel()
	lock := func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	for err = lock(); errors.Is(err, unix.EWOULDBLOCK) && hasEnded(holder(f)) && ctx.Err() == nil; err = lock() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w: process %s has %s: stop it, or use another run_dir", ErrRunning, holder(f), name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	_ = f.Truncate(0)
	// For people, and for the next one; a full disk is no reason not to run.
	_, _ = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return f, nil
}

// holder is the process that says to have the lock, if any.
func holder(f *os.File) string {
	text := make([]byte, 32)
	n, _ := f.ReadAt(text, 0)
	return strings.TrimSpace(string(text[:n]))
}

// hasEnded reports whether text is the id of a process that is not there.
func hasEnded(text string) bool {
	pid, err := strconv.Atoi(text)
	return err == nil && pid > 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// unlockDir gives it back at once. To close the file alone is not enough: what is being started has
// the descriptor, too, until it runs another program.
func unlockDir(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}
