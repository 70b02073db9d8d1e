package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrRunning says that the run directory has a causewayd.
var ErrRunning = errors.New("a causewayd runs already")

// lockDir takes a run directory. The lock ends with the process, however that ends.
func lockDir(run string) (*os.File, error) {
	name := filepath.Join(run, "causewayd.lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the run directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		_ = f.Truncate(0)
		// For people; a full disk is no reason not to run.
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	} else if errors.Is(err, unix.EWOULDBLOCK) {
		who, _ := io.ReadAll(io.LimitReader(f, 32))
		err = fmt.Errorf("%w: process %s has %s: stop it, or use another run_dir", ErrRunning, strings.TrimSpace(string(who)), name)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// unlockDir gives it back at once. To close the file alone is not enough: what is being started has
// the descriptor, too, until it runs another program.
func unlockDir(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}
