package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote/sys"
)

// adopt has a worker make a session of what another has written.
func (s *session) adopt(from io.Reader) error {
	begin := time.Now()
	s.mu.Lock()
	a := s.arrival
	s.mu.Unlock()
	if a == nil {
		var err error
		if a, err = s.expect(); err != nil {
			return err
		}
	}
	defer a.conn.Close()
	s.dev.opts.Reached("adopting")
	n, err := io.Copy(patient{a.conn}, from)
	_ = a.conn.Close()
	if said := s.adopted(a.proc); said != nil || err != nil {
		return fmt.Errorf("%w: %w", errElsewhere, errors.Join(said, err))
	}
	s.mu.Lock()
	s.arrival = nil
	s.mu.Unlock()
	if err := s.sendMemory(a.proc); err != nil { // there is none yet, but for a VM that goes back to a snapshot
		return err
	}
	s.follow(a.proc)
	s.log.Info("session loaded", "worker", a.proc.PID(), "bytes", n, "bytes_ahead", a.bytes, "took", time.Since(begin).Round(time.Millisecond))
	return nil
}

// expect starts a worker that makes the session of what comes over a stream.
func (s *session) expect() (*arrival, error) {
	if err := s.admitMoved(); err != nil {
		return nil, err
	}
	if err := s.provide(); err != nil {
		s.leave()
		return nil, err
	}
	bell, err := sys.NewEvent()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.bell = bell
	var memory *os.File
	kept := s.stored
	if kept != nil {
		memory = kept.memory
	}
	s.mu.Unlock()
	ours, theirs, err := streamPair()
	if err != nil {
		return nil, err
	}
	cfg := s.config()
	cfg.Brings = kept == nil // it was suspended elsewhere, or not at all
	p, err := s.dev.workers.adopt(s.at, cfg, s.wake, theirs, bell, memory)
	_ = unix.Close(theirs)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
	return &arrival{proc: p, conn: ours}, nil
}

// adopted is what a worker says of the session that it was to make, which is why it did not take all of it.
func (s *session) adopted(p workerProcess) error {
	ctx, cancel := context.WithTimeout(context.Background(), moveLimit)
	defer cancel()
	m, err := spawn.Next[link.Adopted](ctx, p)
	if err == nil {
		err = m.Err()
	}
	return err
}

// admitMoved is admit for a session that runs already: it waits for no turn.
func (s *session) admitMoved() error {
	if err := s.takePlace(); err != nil {
		return err
	}
	s.dev.mu.Lock()
	s.dev.begun++
	s.dev.mu.Unlock()
	return nil
}
