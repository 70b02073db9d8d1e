package spawn

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// Rebuild moves the session of old to a fresh worker process, which it returns. If it fails, old
// goes on as if nothing had happened, unless the error is ErrEnded. Nothing else may be sent to old
// meanwhile.
func (s *Spawner) Rebuild(ctx context.Context, old *Process, cfg link.Config) (*Process, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	closeAll := sync.OnceFunc(func() { sys.CloseAll(fds[:]) })
	defer closeAll()
	cfg.Adopt = true
	var wake func(slot uint32)
	if w := old.wake.Load(); w != nil {
		wake = *w
	}
	next, err := s.Start(cfg, wake, fds[0])
	if err != nil {
		return nil, err
	}
	if err := old.Send(link.Rebuild{Elsewhere: cfg.Elsewhere, Successor: link.FileOf(fds[1])}); err != nil {
		next.Kill()
		return nil, err
	}
	closeAll() // they have theirs: when one goes the other sees it
	// Both are waited for: the old one says whether it let go, the new one whether it runs.
	gone, err := Next[link.Rebuilt](ctx, old)
	if err == nil {
		err = gone.Err()
	}
	if err != nil {
		next.Kill()
		return nil, fmt.Errorf("rebuild: old worker: %w", errors.Join(err, next.ownEnd(ctx)))
	}
	come, err := Next[link.Adopted](ctx, next)
	if err == nil {
		err = come.Err()
	}
	if err != nil {
		next.Kill()
		return nil, fmt.Errorf("rebuild: new worker: %w", errors.Join(err, ErrEnded))
	}
	return next, nil
}

// ownEnd is why a successor that was killed had come to nothing before; nil: nothing is known of
// that. The other end of its stream sees only that it is gone.
func (p *Process) ownEnd(ctx context.Context) error {
	said, err := Next[link.Adopted](ctx, p)
	if err == nil {
		err = said.Err()
	}
	var exit *exec.ExitError
	killed := errors.As(p.Err(), &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL
	switch {
	case err != nil && !errors.Is(err, ErrEnded) && !errors.Is(err, ErrSilent):
		return fmt.Errorf("new worker: %w", err)
	case p.Err() != nil && !killed:
		return fmt.Errorf("new worker ended: %w", p.Err())
	}
	return nil
}
