package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/remote/frame"
)

// A worker that got ready before its guest was known has a driver that was started with the
// environment of this process. The few guests whose environment asks for another start get it from
// the same process, which executes itself anew.

// gpu is the backend, opened ahead or now.
func (s *starter) gpu() (driver.Backend, error) {
	if s.ready == nil {
		b, err := s.backend(s.cfg.GPU)
		if err != nil {
			return nil, err
		}
		s.ready = b
	}
	return s.ready, nil
}

// warmUp opens the backend and has it get ready. What fails now fails again, and is reported, when
// a session opens.
func (s *starter) warmUp() {
	begin := time.Now()
	b, err := s.gpu()
	if err != nil {
		s.log.Debug("worker did not get ready", "error", err)
		return
	}
	w, ok := b.(driver.Warmer)
	if !ok {
		return
	}
	s.warm = true
	if err := w.Warm(s.options()); err != nil {
		s.log.Info("worker did not get ready", "error", err)
		return
	}
	s.log.Info("worker is ready", "took", time.Since(begin).Round(time.Millisecond))
}

// helloPatience is how long a connected guest may take to say hello before its worker stops looking
// ahead.
const helloPatience = 2 * time.Second

// fits reports whether the guest that said, or is about to say, hello on its connection can do with
// a driver that has started. Who started the worker has judged sessions over lent memory, and
// those over TLS, whose connection no other process could go on with once it has begun.
func (s *starter) fits(conn int) bool {
	if s.cfg.Carrier == link.CarrierVirtiofs {
		return true
	}
	if s.cfg.TLS != nil {
		return s.cfg.Spare
	}
	off := 0
	if s.cfg.Carrier == link.CarrierTCP {
		off = frame.HeaderSize
	}
	b, err := peek(conn, off+remote.HelloSize, helloPatience)
	if err != nil {
		return true // the handshake says what is wrong
	}
	h, _, err := remote.ParseHello(b[off:])
	return err != nil || link.Fits(h, len(s.cfg.Devices))
}

// peek returns the first n bytes that wait in a socket, without taking them or the descriptors
// beside them.
func peek(fd, n int, patience time.Duration) ([]byte, error) {
	b := make([]byte, n)
	for end := time.Now().Add(patience); ; {
		got, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case got == n:
			return b, nil
		case err == nil && got == 0:
			return nil, io.EOF
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, err
		}
		left := time.Until(end)
		if left <= 0 {
			return nil, os.ErrDeadlineExceeded
		}
		if err == nil { // a part of it: poll would return at once
			time.Sleep(time.Millisecond)
			continue
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, err
		}
	}
}

// ResumeEnv names the variable by which a worker process tells itself, across its own execution,
// where link, guest's connection and configuration are: three descriptors.
const ResumeEnv = "CAUSEWAY_WORKER_RESUME"

// startCold executes this program anew, with nothing but the link, the guest's connection and the
// configuration. The driver's state goes with the old image; the process, which the parent watches,
// stays.
func (s *starter) startCold(conn int) error {
	payload, err := s.cfg.Encode()
	if err != nil {
		return err
	}
	cfg, err := unix.MemfdCreate("causeway-config", 0)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if _, err := unix.Pwrite(cfg, payload, 0); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	l, err := s.link.File()
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	fds := [3]int{-1, -1, cfg}
	for i, fd := range []int{int(l.Fd()), conn} {
		if fds[i], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 3); err != nil {
			// Without close-on-exec.
			return fmt.Errorf("descriptors for a cold start: %w", err)
		}
	}
	s.log.Info("guest's environment asks for a driver of its own: starting anew")
	env := append(os.Environ(), fmt.Sprintf("%s=%d:%d:%d", ResumeEnv, fds[0], fds[1], fds[2]))
	return fmt.Errorf("start anew: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}

// resume is the other half of startCold.
func (p *Process) resume(ctx context.Context) error {
	var fds [3]int
	if _, err := fmt.Fscanf(strings.NewReader(p.Resume), "%d:%d:%d", &fds[0], &fds[1], &fds[2]); err != nil {
		return fmt.Errorf("%s=%q: %w", ResumeEnv, p.Resume, err)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	payload := make([]byte, link.MaxConfig)
	n, err := unix.Pread(fds[2], payload, 0)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	_ = unix.Close(fds[2])
	l, err := link.NewWorkerEnd(fds[0])
	if err != nil {
		return err
	}
	defer l.Close()
	s := &starter{link: l, backend: p.Backend, seal: p.Seal, confined: p.Confined}
	cfg, err := link.DecodeConfig(payload[:n])
	if err != nil {
		return err
	}
	s.configure(p, cfg)
	return s.start(ctx, fds[1])
}
