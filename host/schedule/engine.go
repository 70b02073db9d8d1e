package schedule

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/host/schedule/policy"
	"causeway/remote/sys"
)

// engine shares one GPU.
type engine struct {
	gpu  string
	log  *slog.Logger
	poll int // epoll: bells and self
	self int // eventfd: something changed here

	mu     sync.Mutex
	policy policy.GPU
	shares []*share
	bells  map[int32]*session
	ended  bool
	done   chan struct{}
}

// share is a virtual GPU.
type share struct {
	*policy.Share
	key      string
	sessions map[uint64]*session
	past     time.Duration // waited, of sessions that are gone
	second   [2]sample
	rings
}

// rings are those of bells since a moment.
type rings struct {
	n    int
	calm time.Time
}

// ring counts one, and reports whether there were more than most in ringsWindow.
func (r *rings) ring(now time.Time, most int) bool {
	if now.Sub(r.calm) > ringsWindow {
		r.calm, r.n = now, 0
	}
	r.n++
	return r.n > most
}

// sample is what a share had held at a time.
type sample struct {
	at   time.Time
	held time.Duration
}

// session is one worker's pages. It owns its files and mappings.
type session struct {
	grant, usage []byte // mapped
	bell         int
	g            page.Grant
	u            page.Usage
	busy         uint64 // of u.Busy, accounted for
	of           *share
	rings
	muted time.Time // since when its bell is not listened to; zero: it is
}

// Bounds on bells that are rung for nothing: one that rings beyond ringsMost in ringsWindow is not
// listened to for as long, nor is one of a virtual GPU whose bells ring more than ringsAll
// together.
const (
	ringsWindow = 100 * time.Millisecond
	ringsMost   = 4000
	ringsAll    = 3 * ringsMost
)

func newEngine(gpu string, soft bool, log *slog.Logger) (*engine, error) {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	self, err := sys.NewEvent()
	if err != nil {
		_ = unix.Close(poll)
		return nil, err
	}
	e := &engine{gpu: gpu, log: log.With("gpu", gpu), poll: poll, self: self, bells: map[int32]*session{}, done: make(chan struct{})}
	if soft {
		e.policy.Quantum = policy.SoftQuantum
	}
	if err := e.listen(self); err != nil {
		return nil, errors.Join(err, unix.Close(self), unix.Close(poll))
	}
	go e.routine()
	return e, nil
}

// listen hears each write to fd once. Nobody reads it: a worker could have made that block.
func (e *engine) listen(fd int) error {
	if err := unix.EpollCtl(e.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("listen to a bell: %w", err)
	}
	return nil
}

// close ends the engine, which has no shares left. The caller does not use it again.
func (e *engine) close() {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.poke()
	<-e.done
	_ = unix.Close(e.self)
	_ = unix.Close(e.poll)
}

// poke has the engine decide anew.
func (e *engine) poke() { sys.Signal(e.self) }

// routine is the engine's thread.
func (e *engine) routine() {
	defer close(e.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.Sharpen()
	var events [64]unix.EpollEvent
	for {
		e.mu.Lock()
		if e.ended {
			e.mu.Unlock()
			return
		}
		now := time.Now()
		next := e.decideLocked(now)
		e.mu.Unlock()
		if err := e.wait(now, next); err != nil {
			e.log.Error("wait for bells", "error", err)
			time.Sleep(10 * time.Millisecond)
		}
		n, err := unix.EpollWait(e.poll, events[:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			e.log.Error("bells", "error", err)
		}
		if n > 0 {
			e.countBells(events[:n])
		}
	}
}

// wait blocks the thread until a bell rings or next; the zero time: for ever.
func (e *engine) wait(now, next time.Time) error {
	var limit *unix.Timespec
	if !next.IsZero() {
		t := unix.NsecToTimespec(int64(max(next.Sub(now), 0)))
		limit = &t
	}
	_, err := unix.Ppoll([]unix.PollFd{{Fd: int32(e.poll), Events: unix.POLLIN}}, limit, nil)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// countBells counts the bells that rang.
func (e *engine) countBells(events []unix.EpollEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, ev := range events {
		s := e.bells[ev.Fd] // nil: our own, or of a session that has just ended
		if s == nil {
			continue
		}
		own, all := s.ring(now, ringsMost), s.of.ring(now, ringsAll)
		if own || all || ev.Events&^unix.EPOLLIN != 0 {
			e.muteLocked(s, now)
		}
	}
}

func (e *engine) muteLocked(s *session, now time.Time) {
	if s.muted.IsZero() {
		s.muted = now
		_ = unix.EpollCtl(e.poll, unix.EPOLL_CTL_DEL, s.bell, nil)
	}
}

// decideLocked reads what the sessions say, decides, and grants.
func (e *engine) decideLocked(now time.Time) (next time.Time) {
	var unmute time.Time
	for _, s := range e.shares {
		e.policy.Report(s.Share, now, s.report())
		for _, x := range s.sessions {
			if x.muted.IsZero() {
				continue
			}
			if end := x.muted.Add(ringsWindow); now.Before(end) {
				if unmute.IsZero() || end.Before(unmute) {
					unmute = end
				}
			} else if e.listen(x.bell) == nil {
				x.muted = time.Time{} // its next ring begins a window
			}
		}
	}
	next = e.policy.Decide(now)
	for _, s := range e.shares {
		w, budget := word(s.Mode), s.Budget/time.Duration(max(s.working(), 1))
		for _, x := range s.sessions {
			x.g.Set(w, budget)
		}
		if s.Mode == policy.Metered && s.working() > 1 {
			if at := now.Add(e.policy.Turn()); next.IsZero() || at.Before(next) {
				next = at
			}
		}
		if now.Sub(s.second[1].at) >= time.Second {
			s.second[0], s.second[1] = s.second[1], sample{now, s.Held}
		}
	}
	if !unmute.IsZero() && (next.IsZero() || unmute.Before(next)) {
		next = unmute
	}
	return next
}

func word(m policy.Mode) page.Word {
	switch m {
	case policy.Free:
		return page.Open
	case policy.Metered:
		return page.Open | page.Metered
	}
	return page.Metered
}

// report sums up a share's sessions. Each word of a page is read once; what it says of time, policy
// cuts to what the clock allows. Of sessions that were busy since the last report nobody knows
// whether at the same time: then the longest counts, and there is a report each policy.Turn.
func (s *share) report() policy.Report {
	r := policy.Report{Drained: true}
	for _, x := range s.sessions {
		busy := x.u.Busy.Load()
		// What runs backwards is a lot, for its own share.
		r.Busy = max(r.Busy, time.Duration(min(busy-x.busy, uint64(time.Hour))))
		x.busy = busy
		if x.u.Active.Load() == 0 {
			continue
		}
		r.Active = true
		if page.Word(x.u.Drained.Load()) != x.g.Word() {
			r.Drained = false
		}
	}
	return r
}

// working counts the sessions that share the budget.
func (s *share) working() int {
	n := 0
	for _, x := range s.sessions {
		if x.u.Active.Load() != 0 {
			n++
		}
	}
	return n
}

func (s *share) waited() time.Duration {
	sum := s.past
	for _, x := range s.sessions {
		sum = x.andWaited(sum)
	}
	return sum
}

// andWaited adds how long a session has waited, as its worker says, to a sum that never wraps.
func (x *session) andWaited(sum time.Duration) time.Duration {
	const most = 1 << 61
	return min(sum+time.Duration(min(x.u.Waited.Load(), most)), most)
}

// join adds a virtual GPU.
func (e *engine) join(key string, l policy.Limits) *share {
	e.mu.Lock()
	now := time.Now()
	s := &share{Share: e.policy.Join(now, l), key: key, sessions: map[uint64]*session{}}
	s.second = [2]sample{{at: now}, {at: now}}
	e.shares = append(e.shares, s)
	e.mu.Unlock()
	e.poke()
	return s
}

// account compares what was counted of a virtual GPU with its driver's account.
func (e *engine) account(s *share, card, period time.Duration) time.Duration {
	e.mu.Lock()
	now := time.Now()
	e.decideLocked(now) // what was counted until now
	charged := e.policy.Account(s.Share, now, card, period)
	e.mu.Unlock()
	if charged > 0 {
		e.log.Warn("charged by the driver's account: far less was counted", "key", s.key, "card", card, "period", period, "charged", charged)
		e.poke()
	}
	return charged
}

func (e *engine) setLimits(s *share, l policy.Limits) {
	e.mu.Lock()
	e.policy.Limit(s.Share, time.Now(), l)
	e.mu.Unlock()
	e.poke()
}

// add takes over a session's pages and bell.
func (e *engine) add(s *share, id uint64, x *session) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(s.sessions) >= MaxSessions {
		return fmt.Errorf("%w: more than %d sessions", ErrRequest, MaxSessions)
	}
	if s.sessions[id] != nil {
		return fmt.Errorf("%w: session %d is there already", ErrRequest, id)
	}
	if err := e.listen(x.bell); err != nil {
		return err
	}
	s.sessions[id], x.of = x, s
	e.bells[int32(x.bell)] = x
	x.busy = x.u.Busy.Load()
	x.g.Set(word(s.Mode), s.Budget) // at once: until now somebody else may have granted it anything
	e.poke()
	return nil
}

// remove ends a session. Whoever still maps its grant finds it open.
func (e *engine) remove(s *share, id uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := s.sessions[id]
	if x == nil {
		return fmt.Errorf("%w: no session %d", ErrRequest, id)
	}
	e.dropLocked(s, id, x)
	e.poke()
	return nil
}

func (e *engine) dropLocked(s *share, id uint64, x *session) {
	delete(s.sessions, id)
	delete(e.bells, int32(x.bell))
	s.past = x.andWaited(s.past)
	if x.muted.IsZero() {
		_ = unix.EpollCtl(e.poll, unix.EPOLL_CTL_DEL, x.bell, nil)
	}
	// Who made the pages opens the grant when the connection ends, and may have done so just before
	// this engine decided for the last time.
	x.g.Set(page.Open, 0)
	x.close()
}

// leave removes a virtual GPU and all of its sessions. It reports whether the engine has none left.
func (e *engine) leave(s *share) (empty bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, x := range s.sessions {
		e.dropLocked(s, id, x)
	}
	e.policy.Leave(s.Share)
	for i, o := range e.shares {
		if o == s {
			e.shares = append(e.shares[:i], e.shares[i+1:]...)
			break
		}
	}
	e.poke()
	return len(e.shares) == 0
}

// status describes the GPU.
func (e *engine) status() GPUStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	e.decideLocked(now) // brings the accounts up to now; what it wants next it will be asked again
	e.poke()
	st := GPUStatus{GPU: e.gpu}
	for _, s := range e.shares {
		recent := 0.0
		if d := now.Sub(s.second[0].at); d > 0 {
			recent = float64(s.Held-s.second[0].held) / float64(d)
		}
		st.Shares = append(st.Shares, ShareStatus{
			Key: s.key, Share: s.Weight, Cap: s.Cap, Sessions: len(s.sessions), Mode: s.Mode.String(), Active: s.Active(),
			Throttled: s.Throttled(), Held: s.Held, Busy: s.BusyTotal, Card: s.Card, Charged: s.Charged, Waited: s.waited(), Recent: recent,
		})
	}
	return st
}
