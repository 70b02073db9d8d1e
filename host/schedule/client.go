package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/host/schedule/policy"
	"causeway/remote/sys"
)

// Member is what a virtual GPU tells a scheduler.
type Member struct {
	GPU    string // UUID: all that use this GPU name it the same
	Key    string // who it is: VM/NAME
	Weight uint32
	Cap    uint32 // per cent; 0: none
	Soft   bool   // it is a software GPU
}

// Membership is that of a virtual GPU at a scheduler. Its methods may be called from any goroutine.
type Membership struct {
	log  *slog.Logger
	dial func(ctx context.Context) (*net.UnixConn, error)

	ctx    context.Context // ends with the membership
	cancel context.CancelFunc
	group  sync.WaitGroup
	down   func() // ends a scheduler of its own; nil

	mu       sync.Mutex
	who      Member
	sessions map[uint64]*Session
	next     uint64
	conn     *caller       // nil: there is no scheduler now
	changed  chan struct{} // the first session came
}

// Session is one worker's pages, made by this process and known to the scheduler, if there is one.
type Session struct {
	of           *Membership
	id           uint64
	files        [3]int // grant for the scheduler, usage, bell
	grantRO      int    // grant for the worker, who must not write it
	grant, usage []byte
	waits        uint64 // when the scheduler was last doubted
	g            page.Grant
	u            page.Usage
	once         sync.Once
}

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 2 * time.Second
	callLimit  = 2 * time.Second // for an answer
	// While there are sessions: does one wait for a scheduler that hangs?
	doubtEvery = 3 * time.Second
)

// Join makes a virtual GPU a member at the scheduler of a socket. It does not fail: while there is
// no scheduler, all grants are open, and it is looked for. Connected tells whether there is one.
func Join(socket string, who Member, log *slog.Logger) *Membership {
	s := newMembership(who, log)
	s.dial = func(ctx context.Context) (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unixpacket", socket)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	s.start()
	return s
}

// Alone is membership at a scheduler in this process that knows nobody else: it holds a cap where
// the node has no scheduler.
func Alone(who Member, log *slog.Logger) *Membership {
	s := newMembership(who, log)
	server := &Server{Log: log}
	s.dial = func(context.Context) (*net.UnixConn, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("socketpair: %w", err)
		}
		a, errA := sys.UnixConn(fds[0], "scheduler")
		b, errB := sys.UnixConn(fds[1], "scheduler")
		if errA != nil || errB != nil {
			return nil, errors.Join(errA, errB)
		}
		server.Attach(b)
		return a, nil
	}
	s.down = server.Close
	s.start()
	return s
}

func newMembership(who Member, log *slog.Logger) *Membership {
	s := &Membership{log: log, who: who, sessions: map[uint64]*Session{}, changed: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// start tries once before it returns: who is there already is joined from the first session on.
func (s *Membership) start() {
	s.connect()
	s.group.Go(s.routine)
}

// routine keeps the membership up.
func (s *Membership) routine() {
	wait := retryFirst
	for s.ctx.Err() == nil {
		s.mu.Lock()
		conn, sessions := s.conn, len(s.sessions)
		s.mu.Unlock()
		if conn != nil {
			wait = retryFirst
			s.attend(conn, sessions > 0)
			continue
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMost)
		s.connect()
	}
}

// attend waits until something may be wrong with the scheduler, or sessions come. Without sessions
// it is not doubted.
func (s *Membership) attend(conn *caller, doubt bool) {
	var tick <-chan time.Time
	if doubt {
		t := time.NewTimer(doubtEvery)
		defer t.Stop()
		tick = t.C
	}
	select {
	case <-conn.done:
		s.mu.Lock()
		s.dropLocked(errors.New("its connection ended"))
		s.mu.Unlock()
	case <-tick:
		s.doubt()
	case <-s.changed:
	case <-s.ctx.Done():
	}
}

// doubt asks the scheduler something if a session has stood at its gate since the last time. One
// that hangs is given up, like one that has ended.
func (s *Membership) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	stuck := false
	for _, x := range s.sessions {
		n := x.u.Waits.Load()
		stuck = stuck || x.u.Waiting.Load() != 0 && x.waits == n
		x.waits = n
	}
	if stuck {
		s.sendLocked(&request{Op: opLimits, Weight: s.who.Weight, Cap: s.who.Cap}, nil)
	}
}

// connect joins, and tells of the sessions that there are. If that fails, the membership stays
// without a scheduler.
func (s *Membership) connect() {
	ctx, cancel := context.WithTimeout(s.ctx, callLimit)
	defer cancel()
	uc, err := s.dial(ctx)
	if err != nil {
		s.log.Debug("no scheduler", "error", err)
		return
	}
	conn := newCaller(uc)
	s.mu.Lock()
	who := s.who
	s.mu.Unlock()
	err = conn.call(&request{Op: opJoin, GPU: who.GPU, Key: who.Key, Weight: who.Weight, Cap: who.Cap, Soft: who.Soft}, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = conn
	if err == nil && who != s.who { // meanwhile
		err = conn.call(&request{Op: opLimits, Weight: s.who.Weight, Cap: s.who.Cap}, nil)
	}
	for _, x := range s.sessions {
		if err == nil {
			err = s.conn.call(&request{Op: opAdd, Session: x.id}, x.files[:])
		}
	}
	if err != nil {
		s.dropLocked(err)
		return
	}
	s.log.Info("joined the scheduler", "gpu", s.who.GPU, "sessions", len(s.sessions))
}

// dropLocked gives up the scheduler, and opens all grants.
func (s *Membership) dropLocked(why error) {
	if s.conn == nil {
		return
	}
	if s.ctx.Err() == nil {
		s.log.Error("no scheduler: share and cap do not hold until one is back", "share", s.who.Weight, "cap", s.who.Cap, "why", why)
	}
	s.conn.close()
	s.conn = nil
	for _, x := range s.sessions {
		x.g.Set(page.Open, 0)
	}
}

// SetLimits changes what the virtual GPU may use, at once. Connected tells afterwards whether a
// scheduler took it: where none did, the limits are those with which the next one is joined.
func (s *Membership) SetLimits(l policy.Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.who.Weight, s.who.Cap = l.Weight, l.Cap
	s.sendLocked(&request{Op: opLimits, Weight: l.Weight, Cap: l.Cap}, nil)
}

// Account tells what the GPU's driver says that it worked for the virtual GPU in the last period,
// and returns what that was charged for beyond what had been counted. Nothing is charged while
// there is no scheduler, or for so long as its answer takes.
func (s *Membership) Account(card, period time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || period <= 0 {
		return 0
	}
	a, err := s.conn.ask(&request{Op: opAccount, Card: max(card, 0), Period: min(period, maxPeriod)}, nil)
	if err != nil {
		s.dropLocked(err)
	}
	return a.Charged
}

// sendLocked makes a call. One that fails costs the connection: it is then made anew, with
// everything.
func (s *Membership) sendLocked(r *request, files []int) {
	if s.conn == nil {
		return
	}
	if err := s.conn.call(r, files); err != nil {
		s.dropLocked(err)
	}
}

// Connected reports whether a scheduler serves the member.
func (s *Membership) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// Await waits until a scheduler serves the member, or ctx ends, and reports which.
func (s *Membership) Await(ctx context.Context) bool {
	for !s.Connected() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(retryFirst / 4):
		}
	}
	return true
}

// Add makes the pages of a new session.
func (s *Membership) Add() (*Session, error) {
	x := &Session{of: s, files: [3]int{-1, -1, -1}, grantRO: -1}
	if err := x.create(); err != nil {
		x.release()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		x.release()
		return nil, errors.New("the virtual GPU's membership at the scheduler has ended")
	}
	s.next++
	x.id = s.next
	s.sessions[x.id] = x
	if len(s.sessions) == 1 {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	s.sendLocked(&request{Op: opAdd, Session: x.id}, x.files[:])
	return x, nil
}

// Close leaves. Sessions that are left can no longer be held back by anybody. A nil membership is
// none.
func (s *Membership) Close() {
	if s == nil {
		return
	}
	s.cancel()
	s.group.Wait()
	s.mu.Lock()
	s.dropLocked(nil)
	left := make([]*Session, 0, len(s.sessions))
	for _, x := range s.sessions {
		left = append(left, x)
	}
	s.mu.Unlock()
	for _, x := range left {
		x.Close()
	}
	if s.down != nil {
		s.down()
	}
}

// ReadStatus asks the scheduler of a socket who has what.
func ReadStatus(ctx context.Context, socket string) (*Status, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", socket)
	if errors.Is(err, unix.EAGAIN) { // too many wait for it
		err = errors.Join(ErrSilent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	conn := newCaller(c.(*net.UnixConn))
	defer conn.close()
	a, err := conn.ask(&request{Op: opStatus}, nil)
	if err != nil {
		return nil, err
	}
	if a.Status == nil {
		return nil, errors.New("scheduler: no status")
	}
	return a.Status, nil
}
