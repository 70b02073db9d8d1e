package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/bulk"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote/sys"
)

// arrival is a session that is not here yet, but for its worker.
type arrival struct {
	s    *session
	proc workerProcess
	conn *net.UnixConn // to the worker

	ready chan struct{} // closed when the worker has started its driver, or will not
	began time.Time
	took  time.Duration // until then; valid after ready, as err
	err   error         // why it is not ready

	// Of one whose memory comes ahead of it.
	token [tokenSize]byte
	sum   uint32
	bytes uint64
	whole bool // it was sealed; copyIn.mu is held
}

// adopt has a worker make a session of what another has written. It runs on routine.
func (s *session) adopt(from io.Reader) error {
	begin := time.Now()
	if s.arrival == nil {
		err := s.unexpected
		if err == nil {
			err = s.expect(false)
		}
		if err != nil {
			return err
		}
	}
	a := s.arrival
	defer func() {
		_ = a.conn.Close()
		s.mu.Lock()
		s.arrival = nil
		s.mu.Unlock()
	}()
	s.dev.opts.Reached("adopting")
	n, err := io.Copy(patient{a.conn}, from)
	_ = a.conn.Close()
	came := time.Since(begin)
	if said := a.adopted(); said != nil || err != nil {
		return fmt.Errorf("%w: %w", errElsewhere, errors.Join(said, err))
	}
	if err := s.sendMemory(a.proc); err != nil {
		// There is none yet, but for a VM that goes back to a snapshot.
		return err
	}
	s.follow(a.proc)
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	s.log.Info("session loaded", "worker", a.proc.PID(), "bytes", n, "bytes_ahead", a.bytes, "started_in", ms(a.took), "came_in", ms(came), "took", ms(time.Since(begin)))
	return nil
}

// expect starts a worker that makes the session of what comes over a stream, and is its arrival: it
// starts its driver at once. queued: with others, of which a few start at a time. It runs on
// routine.
func (s *session) expect(queued bool) error {
	began := time.Now()
	started := func() {}
	if queued {
		var err error
		if started, err = s.acquire(s.dev.comes); err != nil {
			return err
		}
	}
	a, err := s.expected()
	if err != nil {
		started()
		return err
	}
	a.began, a.ready = began, make(chan struct{})
	s.mu.Lock()
	s.proc, s.arrival = a.proc, a
	gone := s.state >= dead
	s.mu.Unlock()
	if gone { // meanwhile
		a.proc.Kill()
	}
	go func() {
		a.awaitReady()
		started()
		close(a.ready)
	}()
	return nil
}

// expected makes an arrival.
func (s *session) expected() (*arrival, error) {
	entered, err := s.entering()
	if err != nil {
		return nil, err
	}
	defer entered()
	if err := s.admitMoved(); err != nil {
		return nil, err
	}
	if err := s.provide(); err != nil {
		s.leave()
		return nil, err
	}
	bell, err := sys.NewBell()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.bell = bell
	var memory bulk.Files
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
	if s.rehearses {
		if err := s.setApart(&cfg); err != nil {
			return nil, errors.Join(err, unix.Close(theirs), ours.Close())
		}
	}
	p, err := s.dev.workers.adopt(s.at, cfg, s.wake, theirs, bell.Hear(), memory)
	_ = unix.Close(theirs)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return &arrival{s: s, proc: p, conn: ours}, nil
}

// awaitReady waits until the worker can take what comes, or says why it cannot.
func (a *arrival) awaitReady() {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	m, err := a.proc.Await(ctx, func(m link.ToParent) bool {
		switch m.(type) {
		case link.Started, link.Adopted:
			return true
		}
		return false
	})
	switch m := m.(type) {
	case link.Started:
		err = m.Err()
	case link.Adopted:
		if err = m.Err(); err == nil {
			err = errState
		}
	}
	a.took, a.err = time.Since(a.began), err
}

// adopted is what the worker says of the session that it was to make, which is why it did not take
// all of it.
func (a *arrival) adopted() error {
	<-a.ready
	if a.err != nil {
		return a.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), moveLimit)
	defer cancel()
	m, err := spawn.Next[link.Adopted](ctx, a.proc)
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
