package device

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

// worker gives the session a worker process: one that is ready, if what the guest says of its
// environment allows it.
func (s *session) worker(h remote.Hello) (workerProcess, error) {
	started, err := s.starting()
	if err != nil {
		return nil, err
	}
	defer started()
	cfg := s.config()
	devices := len(cfg.Devices)
	if cfg.Relay != nil {
		devices = 1 // of a lease
	}
	s.fits = link.Fits(h, devices)
	cfg.Spare = s.fits
	return s.dev.workers.start(s.at, cfg, s.wake)
}

// spawn begins the session, and answers MsgHello. It runs on routine.
func (s *session) spawn(h remote.Hello, w *fs.WriteRequest) {
	if errno, err := s.begin(h); err != nil {
		s.refuse(w, errno, err)
		return
	}
	w.Complete(w.Size, 0)
}

// begin starts the worker process. It runs on routine.
func (s *session) begin(h remote.Hello) (syscall.Errno, error) {
	entered, err := s.entering()
	if err != nil {
		s.fail(nil)
		return syscall.EPIPE, err
	}
	defer entered()
	if err := s.dev.reachable(); err != nil {
		s.dev.refusedOne()
		s.fail(nil)
		return syscall.EHOSTUNREACH, err
	}
	if err := s.admit(); err != nil {
		s.dev.refusedOne()
		s.fail(nil)
		return syscall.EUSERS, err
	}
	if err := s.provide(); err != nil {
		s.leave()
		s.fail(err)
		return syscall.EIO, err
	}
	p, err := s.worker(h)
	if err != nil {
		s.fail(err)
		return syscall.EIO, err
	}
	s.mu.Lock()
	s.proc = p
	gone := s.state >= dead
	s.mu.Unlock()
	if gone { // meanwhile
		p.Kill()
		return syscall.EPIPE, errGone
	}
	if err := s.sendMemory(p); err != nil {
		s.fail(err)
		return syscall.EIO, err
	}
	s.log.Info("worker started", "worker", p.PID(), "uid", s.caller.UID)
	s.follow(p)
	return 0, nil
}

// sendMemory tells the session's worker of the guest's memory. Of what is added at this moment it
// hears twice, which does no harm.
func (s *session) sendMemory(p workerProcess) error {
	mem, files, err := s.dev.backedMemory()
	if err != nil {
		return err
	}
	defer sys.CloseAll(files)
	return p.Send(link.AddMemory{Memory: mem})
}

// follow notices the end of a worker, and what it lacks.
func (s *session) follow(p workerProcess) {
	s.mu.Lock()
	s.here = time.Now()
	s.active = s.here
	s.mu.Unlock()
	go func() {
		for {
			select {
			case m := <-p.Wants():
				s.lacksRoom(p, m)
			case <-p.Done():
				s.workerGone(p)
				return
			}
		}
	}()
}

// start has the worker map region 0 and begin. The WRITE is answered when it runs. It waits for
// loans that are still on their way through another queue.
func (s *session) start(w *fs.WriteRequest) (syscall.Errno, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != opening || s.proc == nil || s.starter != nil {
		return syscall.EINVAL, fmt.Errorf("start: %w", errState)
	}
	s.starter, s.startedAt = w, time.Now()
	s.startIfLentLocked()
	return 0, nil
}

// startIfLentLocked starts the worker once region 0 is lent.
func (s *session) startIfLentLocked() {
	w := s.starter
	if w == nil || s.state != opening || !s.regions[0].complete() {
		return
	}
	s.starter, s.state, s.startedAt = nil, starting, time.Now()
	if !s.do(func() { s.startWorker(w) }) {
		w.Complete(0, syscall.EBUSY)
	}
}

// endStart gives back a start whose loans do not come, for the guest to send it again: they lapse
// where the program did not run for a term, as on a busy machine, and come with its next turn.
func (s *session) endStart(now time.Time) {
	s.mu.Lock()
	w := s.starter
	if w == nil || now.Sub(s.startedAt) < loanWait && s.state == opening {
		s.mu.Unlock()
		return
	}
	s.starter = nil
	errno := syscall.EINVAL
	if s.state == opening {
		errno = syscall.EAGAIN
	}
	s.mu.Unlock()
	s.refuse(w, errno, fmt.Errorf("start before all of region 0 is lent: %w", errState))
}

// loanWait is how long MsgStart waits for loans. Guest kernels hold the control file's lock
// meanwhile.
const loanWait = time.Second

// startLimit bounds what a worker needs to open a GPU.
const startLimit = time.Minute

func (s *session) startWorker(w *fs.WriteRequest) {
	err := func() error {
		started, err := s.starting()
		if err != nil {
			return err
		}
		defer started()
		bell, err := sys.NewBell()
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.bell = bell
		p := s.proc
		ms := s.regions[0].messages()
		s.mu.Unlock()
		if p == nil {
			return spawn.ErrEnded
		}
		for _, m := range append(ms, link.Start{Doorbell: link.FileOf(bell.Hear())}) {
			if err := p.Send(m); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		m, err := spawn.Next[link.Started](ctx, p)
		if err != nil {
			return err
		}
		if m.Errno != 0 {
			return errors.New(m.Text)
		}
		return nil
	}()
	if err != nil {
		s.refuse(w, syscall.EIO, err)
		s.fail(err)
		return
	}
	s.mu.Lock()
	if s.state == starting {
		s.state = running
	}
	s.mu.Unlock()
	w.Complete(w.Size, 0)
	s.sendRegions() // some may have been lent meanwhile
}
