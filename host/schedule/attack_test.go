package schedule

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/host/schedule/policy"
)

// turned is an engine without its thread, of which one virtual GPU has sessions that have the GPU
// by turns, each for a while: never is it without work, and never has more than one session some.
type turned struct {
	engine
	now, next time.Time
	used      time.Duration // by the first share
}

func (e *turned) join(t *testing.T, sessions int, l policy.Limits) *share {
	t.Helper()
	s := &share{Share: e.policy.Join(e.now, l), sessions: map[uint64]*session{}}
	for id := range sessions {
		files, u := described(t)
		x, err := openSession(files)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(x.close)
		u.Active.Store(1)
		s.sessions[uint64(id)] = x
	}
	e.engine.shares = append(e.engine.shares, s)
	return s
}

// run has the first share's sessions take turns, and every other share's first session have the GPU
// when it may.
func (e *turned) run(d, turn time.Duration) {
	const tick = 20 * time.Microsecond
	for end := e.now.Add(d); e.now.Before(end); e.now = e.now.Add(tick) {
		if !e.next.IsZero() && !e.now.Before(e.next) || e.next.IsZero() {
			e.next = e.decideLocked(e.now)
		}
		for i, s := range e.engine.shares {
			for _, x := range s.sessions {
				if w := x.g.Word(); w&page.Open == 0 {
					x.u.Drained.Store(uint32(w))
				}
			}
			if s.Mode == policy.Closed {
				continue
			}
			who := uint64(0)
			if i == 0 {
				who = uint64(e.now.UnixNano()/int64(turn)) % uint64(len(s.sessions))
				e.used += tick
			}
			s.sessions[who].u.Busy.Add(uint64(tick))
		}
	}
}

// TestSessionsByTurns: sessions of one virtual GPU that have work on the GPU one after the other
// use it all the time: its cap holds, and its share is its share.
func TestSessionsByTurns(t *testing.T) {
	for _, turn := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond} {
		for what, limits := range map[string][]policy.Limits{"a cap": {{Weight: 1, Cap: 20}}, "a share": {{Weight: 1}, {Weight: 1}}} {
			e := &turned{now: time.Unix(1_000_000, 0)}
			e.log, e.bells = quietLog, map[int32]*session{}
			for i, l := range limits {
				e.join(t, 1+7*(1-i), l)
			}
			const d = 2 * time.Second
			e.run(d, turn)
			part, want := float64(e.used)/float64(d), float64(limits[0].Cap)/100
			if want == 0 {
				want = 0.5
			}
			if part > want*1.1+0.005 || part < want*0.85 {
				t.Errorf("turns of %v, %s: eight sessions have %.3f of the GPU, not %.2f", turn, what, part, want)
			}
		}
	}
}

// TestWaitedNeverTurns: whatever workers say of how long they waited, the sum goes nowhere but up.
func TestWaitedNeverTurns(t *testing.T) {
	server := &Server{Log: quietLog, engines: map[string]*engine{}}
	c := &client{server: server}
	defer c.leave()
	if err := c.do(request{Op: opJoin, GPU: "g", Key: "k", Weight: 1}, nil, &answer{}); err != nil {
		t.Fatal(err)
	}
	last := time.Duration(0)
	for id := range uint64(40) {
		files, u := described(t)
		u.Waited.Store(1<<64 - 1 - id)
		if err := c.do(request{Op: opAdd, Session: id}, files, &answer{}); err != nil {
			t.Fatal(err)
		}
		if id%2 == 0 {
			if err := c.do(request{Op: opRemove, Session: id}, nil, &answer{}); err != nil {
				t.Fatal(err)
			}
		}
		now := server.Status().GPUs[0].Shares[0].Waited
		if now < last {
			t.Fatalf("after %d sessions it waited %v, and %v before", id+1, now, last)
		}
		last = now
	}
}

// TestManyBells: sessions of which none rings too often are not listened to for a while if together
// they do; others' are, and all are afterwards.
func TestManyBells(t *testing.T) {
	e, err := newEngine("g", false, quietLog)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	loud, calm := e.join("loud", policy.Limits{}), e.join("calm", policy.Limits{})
	defer e.leave(calm)
	defer e.leave(loud)
	muted := func(s *share) (n int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, x := range s.sessions {
			if !x.muted.IsZero() {
				n++
			}
		}
		return n
	}
	const sessions = 16
	for _, s := range []*share{loud, calm} {
		for id := range uint64(sessions) {
			files, _ := described(t)
			x, err := openSession(files)
			if err != nil {
				t.Fatal(err)
			}
			if err := e.add(s, id, x); err != nil {
				t.Fatal(err)
			}
		}
	}
	ring := func(s *share, times int) {
		var events []unix.EpollEvent
		for _, x := range s.sessions {
			events = append(events, unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(x.bell)})
		}
		for range times {
			e.countBells(events)
		}
	}
	for begin := time.Now(); ; begin = time.Now() { // a busy machine takes longer than a window
		ring(loud, ringsAll/sessions+1)
		ring(calm, ringsAll/sessions/2)
		if time.Since(begin) < ringsWindow/2 {
			break
		}
		time.Sleep(2 * ringsWindow)
	}
	e.poke() // its thread has not heard of any
	if n := muted(loud); n != sessions {
		t.Errorf("%d of %d bells that rang too often together are not listened to", n, sessions)
	}
	if n := muted(calm); n != 0 {
		t.Errorf("%d bells are not listened to that rang as often as they may", n)
	}
	for end := time.Now().Add(time.Minute); muted(loud) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bells are never listened to again", muted(loud))
		}
	}
}
