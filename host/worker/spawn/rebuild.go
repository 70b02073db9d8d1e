package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// Rebuild moves the session of old to a fresh worker process, which it returns. If it fails, old goes on as if nothing had
// happened, unless the error is ErrEnded. Nothing else may be sent to old meanwhile.
func (s *Spawner) Rebuild(ctx context.Context, old *Process, cfg link.Config) (*Process, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	defer sys.CloseAll(fds[:])
	cfg.Adopt = true
	var wake func(slot uint32)
	if w := old.wake.Load(); w != nil {
		wake = *w
	}
	next, err := s.Start(cfg, wake, fds[0])
	if err != nil {
		return nil, err
	}
	if err := old.Send(link.Message{Type: link.Rebuild, Files: fds[1:2]}); err != nil {
		next.Kill()
		return nil, err
	}
	// Both are waited for: the old one says whether it let go, the new one whether it runs.
	m, err := old.Await(ctx, link.Rebuilt)
	if err == nil {
		err = answer(m)
	}
	if err != nil {
		next.Kill()
		return nil, fmt.Errorf("rebuild: old worker: %w", err)
	}
	if m, err = next.Await(ctx, link.Adopted); err == nil {
		err = answer(m)
	}
	if err != nil {
		next.Kill()
		return nil, fmt.Errorf("rebuild: new worker: %w", errors.Join(err, ErrEnded))
	}
	return next, nil
}

// answer turns the errno and text of an answer into an error.
func answer(m link.Message) error {
	if m.A == 0 {
		return nil
	}
	return fmt.Errorf("%s (%w)", m.Payload, os.NewSyscallError("worker", syscall.Errno(m.A)))
}
