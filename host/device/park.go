package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio/fs"
)

// parkLimit is how long a worker may take to let go of guest memory, or to say that the GPU does
// not.
const parkLimit = 1500 * time.Millisecond

// silence is how long a worker may owe an answer for which only its own guest waits, before it is
// killed, which lets go of guest memory as well. Seconds without CPU on a crowded host are to cost
// no program its session; one that was killed meanwhile exits as much later.
const silence = 10 * time.Second

// lapsePatience is how long the GPU may take to let go of guest memory whose loan has lapsed; a
// session that takes longer ends, unless its program shows that it lives (outlast). A program that
// was killed cannot exit before, and is promised to within 2 s: a loan's term and this.
const lapsePatience = 250 * time.Millisecond

// crowdedPatience is how long that is on a host that is short of CPU, where a program that lives
// may get none for seconds. One that was killed exits as much later there.
const crowdedPatience = 4 * time.Second

// parkMargin is what remains for the answer of a worker, or of the device, to be in time.
const parkMargin = 100 * time.Millisecond

// tick looks for what is overdue.
func (s *session) tick(now time.Time) {
	s.endWaits(now)
	s.endStart(now)
	s.mu.Lock()
	s.lookLocked(now)
	lapsed := false
	for _, r := range s.regions {
		lapsed = lapsed || r.expired(now, s.dev.opts.LoanTerm)
	}
	// Its worker may be about to map the pages: they go back when it runs.
	starts := s.state == starting && now.Sub(s.startedAt) < silence
	act := lapsed && !starts && !s.paused && s.state != parking && s.state < dead
	again := !s.lapsed.IsZero()
	switch {
	case act && !again:
		s.lapsed = now
	case !lapsed:
		s.lapsed, s.crowded = time.Time{}, false
	}
	switch {
	case act && s.state == running:
		s.state, s.lives = parking, false
	case act && s.state == starting:
		s.lives = false
	}
	s.mu.Unlock()
	if act {
		if !again {
			s.log.Info("loan lapsed")
		}
		s.lapse()
	}
}

// due says when tick has something to do next; zero if nothing is pending.
func (s *session) due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first time.Time
	by := func(t time.Time, term time.Duration) {
		if t = t.Add(term); first.IsZero() || t.Before(first) {
			first = t
		}
	}
	if s.starter != nil {
		by(s.startedAt, loanWait)
	}
	for _, list := range s.waits {
		for _, w := range list {
			by(w.since, waitTerm)
		}
	}
	if s.state == parking || s.paused || s.state >= dead {
		return first // its loans are about to end, or stand
	}
	for _, r := range s.regions {
		if t := r.oldest(); !t.IsZero() {
			by(t, s.dev.opts.LoanTerm)
		}
	}
	return first
}

// Reasons of the device's own to end a session.
var (
	errLapsed = errors.New("the guest did not renew its loans while the worker started")
)

// lapse has the worker let go of guest memory, then ends all loans. A worker that still has not
// started is ended, unless the program may live on a host that is short of CPU, which keeps both.
func (s *session) lapse() {
	s.mu.Lock()
	st := s.state
	s.mu.Unlock()
	if st == parking {
		if !s.do(func() {
			if err := s.park(parkLimit, lapsePatience, silence-parkLimit); err != nil && !s.outlast() {
				s.fail(fmt.Errorf("loan lapsed: %w", err))
			}
		}) {
			s.fail(errState) // else nobody would take back what it has lent
		}
		return
	}
	// Nothing has been mapped yet, or is mapped any more.
	if st == starting {
		if s.outlast() {
			return
		}
		s.fail(errLapsed)
	}
	s.endLoans()
}

// outlast reports whether a session goes on whose loans have lapsed and whose GPU does not let go,
// or whose worker has not started for silence and may be about to map the pages. It does if its
// program lives, which is to be seen from a loan that came meanwhile, or the VM stands by now,
// whose programs cannot renew. On a host that is short of CPU neither says anything at once: there
// it is tried again, until one lives or has been silent for crowdedPatience.
func (s *session) outlast() bool {
	crowded := s.dev.crowded()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.crowded = s.crowded || crowded
	switch {
	case s.state >= dead || s.paused:
		return true
	case s.lives:
		for _, r := range s.regions {
			r.renew(now)
		}
		s.lapsed, s.crowded = time.Time{}, false
		return true
	}
	return s.crowded && now.Sub(s.lapsed) < crowdedPatience
}

// park has a session in parking let go within limit, of which the GPU may take patience. It runs on
// routine. Afterwards no page is in use, or, with an error, the session runs as before: the GPU did
// not let go. A worker whose answer is late by more than that is ended.
func (s *session) park(limit, patience, late time.Duration) error {
	s.mu.Lock()
	p := s.proc
	st := s.state
	s.parks++
	n, standing := s.parks, s.paused
	s.mu.Unlock()
	if st != parking || p == nil {
		return nil
	}
	err := p.Send(link.Park{Number: n, Limit: limit, Patience: patience, Standing: standing})
	var m link.ToParent
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), limit+late)
		m, err = p.Await(ctx, func(m link.ToParent) bool {
			parked, ok := m.(link.Parked)
			return ok && parked.Number == n
		})
		cancel()
	}
	if err != nil {
		s.fail(err)
		return nil
	}
	busy := m.(link.Parked).Err()
	s.mu.Lock()
	if s.state == parking {
		s.state = parked
		if busy != nil {
			s.state = running
		}
	}
	s.mu.Unlock()
	if busy == nil {
		s.endLoans()
	}
	return busy
}

// endLoans completes the READs of all loans and waits. Nobody touches the pages.
func (s *session) endLoans() {
	s.mu.Lock()
	var reqs []*fs.ReadRequest
	for _, r := range s.regions {
		reqs = append(reqs, r.takeBack()...)
	}
	reqs = append(reqs, s.takeWaitsLocked()...)
	s.mu.Unlock()
	s.settle()
	completeAll(reqs, 0)
}

// lend takes a READ at FileLoan.
func (s *session) lend(req *fs.ReadRequest) {
	id, off := loanOf(uint64(req.Offset))
	s.mu.Lock()
	r := s.regions[id]
	errno := unix.Errno(0)
	switch {
	case s.state >= dead:
		errno = unix.EPIPE
	case r == nil || s.pieces >= maxPieces && r.pieces[off] == nil:
		errno = unix.EINVAL
	case r.ending || s.state == parking:
		s.lives = true
		if r.ending || !r.isLent(off) {
			s.mu.Unlock()
			req.Complete(0, 0) // ended, or: again, in a moment
			return
		}
		// A renewal takes the place of the loan also now, and goes back with the others if the
		// worker lets go. It is one READ of a request of several, whose others may come before or
		// behind this time: were they renewed and this one not, neither request would end, and the
		// program renews what has one request in flight.
	}
	if errno != 0 {
		s.mu.Unlock()
		req.Complete(0, errno)
		return
	}
	old, err := s.takeLocked(r, off, req)
	if err != nil {
		s.why = err.Error()
		s.mu.Unlock()
		s.log.Warn("loan refused", "error", err)
		req.Complete(0, regionErrno(err))
		return
	}
	s.startIfLentLocked()
	ready := r.complete() && (r.changed || s.state == parked)
	s.telling = s.telling || ready && s.do(s.sendRegions)
	if old != nil {
		old.Complete(0, 0)
	}
	s.mu.Unlock()
}

// sendRegions tells the worker of regions that became complete, and ends a park when all are. It
// runs on routine.
func (s *session) sendRegions() {
	s.mu.Lock()
	s.telling = false
	p := s.proc
	if p == nil || s.state != running && s.state != parked {
		s.mu.Unlock()
		return
	}
	all := true
	var ms []link.ToWorker
	for _, r := range s.regions {
		switch {
		case !r.complete():
			all = all && (!r.sent || r.ending)
		case r.changed:
			ms = append(ms, r.messages()...)
		}
	}
	if s.state == parked && all {
		s.state = running
		ms = append(ms, link.Resume{})
		s.log.Info("loans are back")
	}
	s.mu.Unlock()
	for _, m := range ms {
		if err := p.Send(m); err != nil {
			s.fail(err)
			return
		}
	}
	// The worker may have slept through a doorbell that rang while it was parked.
	s.ring()
}

// Revoke implements fs.ControlHandle: who does not let go is ended.
func (s *session) Revoke(ctx context.Context, _ []fs.Request) {
	if err := s.letGo(ctx, parkLimit, parkMargin); err != nil {
		s.fail(err)
	}
}

// Pause implements fs.Pauser: a GPU that is at a kernel may go on with it, and with the pages,
// while the VM stands.
func (s *session) Pause(ctx context.Context, _ []fs.Request) (keep bool) {
	s.mu.Lock()
	s.paused = true
	s.mu.Unlock()
	// Nothing waits for a worker whose answer is late: a host where it gets no CPU costs nobody a
	// program.
	err := s.letGo(ctx, longestPause, parkLimit)
	if err == nil {
		s.mu.Lock()
		s.paused = false
		s.mu.Unlock()
		return false
	}
	s.log.Warn("the VM stands while the session keeps its memory; it cannot be saved or moved now", "error", err)
	return true
}

// Resume implements fs.Pauser. Nothing was renewed meanwhile.
func (s *session) Resume() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = false
	for _, r := range s.regions {
		r.renew(now)
	}
	for _, list := range s.waits {
		for i := range list {
			list[i].since = now
		}
	}
}

// longestPause is more than any VM stands still for a session.
const longestPause = time.Minute

// letGo gives the pages of all requests back before ctx ends, for which the worker may take most,
// and be late with its answer. With an error the session has them, and is as it was.
func (s *session) letGo(ctx context.Context, most, late time.Duration) error {
	s.dropExtents()
	defer s.settle()
	s.mu.Lock()
	waits, starter := s.state == opening, s.starter
	s.starter = nil // its pages are among those that go back: the guest starts again
	s.mu.Unlock()
	if waits {
		s.hurryUp()
	}
	if starter != nil {
		starter.Complete(0, unix.EAGAIN)
	}
	done := make(chan error, 1)
	queued := s.do(func() {
		limit := most - parkMargin
		if d, ok := ctx.Deadline(); ok {
			limit = min(limit, time.Until(d)-2*parkMargin)
		}
		if limit <= 0 {
			done <- context.DeadlineExceeded
			return
		}
		s.mu.Lock()
		if s.state == running && s.direct == nil { // which has lent nothing
			s.state = parking
		}
		st := s.state
		s.mu.Unlock()
		if st == parking {
			done <- s.park(limit, limit, late)
			return
		}
		s.endLoans()
		done <- nil
	})
	if !queued {
		return errState
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		// A job before this one waits for a worker that may be about to map the pages.
		return ctx.Err()
	case <-s.over:
		return nil
	}
}

// fail ends the worker, which lets go of everything, and every READ. The file stays open; all that
// follows is refused. err nil: the guest asked for it.
func (s *session) fail(err error) {
	s.mu.Lock()
	if s.state >= dead {
		s.mu.Unlock()
		return
	}
	s.state = dead
	p, relays := s.proc, s.at != nil && s.at.Worker.Relay != nil
	s.mu.Unlock()
	if err != nil {
		s.log.Error("session lost; its program sees CUDA_ERROR_LAUNCH_FAILED", "error", err)
	}
	switch {
	case p == nil:
	case relays && err == nil:
		// A relay tells its server, which would wait for another connection, with all that the
		// program had.
		p.Stop(stopGrace)
	default:
		p.Kill()
	}
	s.hearDirect(p)
	s.hurryUp()
	s.markDead()
	s.do(func() { s.yield(p) }) // or finish does
	s.mu.Lock()
	s.cutLocked()
	var reqs []*fs.ReadRequest
	for _, r := range s.regions {
		reqs = append(reqs, r.takeBack()...)
	}
	reqs = append(reqs, s.takeWaitsLocked()...)
	s.mu.Unlock()
	s.settle()
	completeAll(reqs, unix.EPIPE)
	s.releaseRegions()
}

// hurryUp ends waits for a turn to start.
func (s *session) hurryUp() { s.rush.Do(func() { close(s.hurry) }) }

// workerGone follows the end of a worker process.
func (s *session) workerGone(p workerProcess) {
	s.mu.Lock()
	expected := s.proc != p || s.moving == p || s.state >= dead
	s.mu.Unlock()
	if !expected {
		switch {
		case p.Err() != nil:
		case s.connected != "" || s.direct != nil: // its program has ended
			s.log.Info("session ended")
		default: // the worker says why
			s.log.Warn("worker has ended the session")
		}
		s.fail(p.Err())
	}
}

// markDead writes WorkerDead to the control page, so that threads that poll notice. The page is
// lent until the READ that lends it is completed.
func (s *session) markDead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.regions[0]
	if r == nil {
		return
	}
	if p := r.pieces[0]; p != nil && p.req != nil {
		p.req.CopyIn([]byte{byte(remote.WorkerDead), 0, 0, 0}, remote.ControlPageWorkerStateOffset)
	}
}
