package device

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"causeway/host/worker/meter"
	"causeway/remote/sys"
	"causeway/virtio/fs"
)

// TestLooksAtLoans: what a look at a session's loans does, by the state that it is in: one that
// has lapsed counts, among however many that have not.
func TestLooksAtLoans(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	before := now.Add(-time.Minute)
	for what, c := range map[string]struct {
		loans  string // f: renewed in time, l: lapsed, n: of nothing that is lent
		set    func(s *session)
		state  state
		lapsed time.Time
	}{
		"nothing is lent":          {"", nil, running, time.Time{}},
		"all are renewed":          {"ff", nil, running, time.Time{}},
		"one has lapsed":           {"l", nil, parking, now},
		"one of many has":          {"ffflfff", nil, parking, now},
		"what is lent no more":     {"nnf", nil, running, time.Time{}},
		"again":                    {"l", func(s *session) { s.lapsed = before }, parking, before},
		"renewed since":            {"f", func(s *session) { s.lapsed, s.crowded = before, true }, running, time.Time{}},
		"of one that parks":        {"l", func(s *session) { s.state = parking }, parking, time.Time{}},
		"of one that parks, again": {"l", func(s *session) { s.state, s.lapsed = parking, before }, parking, before},
		"while the VM stands":      {"l", func(s *session) { s.paused = true }, running, time.Time{}},
		"of one that just starts":  {"l", func(s *session) { s.state, s.startedAt = starting, now.Add(-silence+1) }, starting, time.Time{}},
		"of one that is dead":      {"l", func(s *session) { s.state = dead }, dead, time.Time{}},
		"of one that has ended":    {"l", func(s *session) { s.state = released }, released, time.Time{}},
	} {
		for range 4 { // regions have no order
			s := newSession(d, 1, fs.Caller{})
			s.state, s.lives = running, true
			for i, l := range c.loans {
				p := &piece{renewed: now.Add(-d.opts.LoanTerm + 1)}
				if l != 'f' {
					p.renewed = now.Add(-d.opts.LoanTerm)
				}
				if l != 'n' {
					p.req = &fs.ReadRequest{}
				}
				s.regions[uint32(i)+1] = &region{pieces: map[uint64]*piece{0: p}}
			}
			if c.set != nil {
				c.set(s)
			}
			began := s.state == running && c.state == parking
			s.tick(now)
			jobs := 0
			if began {
				jobs = 1
			}
			if s.state != c.state || !s.lapsed.Equal(c.lapsed) || s.crowded || s.lives == began || len(s.jobs) != jobs {
				t.Errorf("%s: state %v, lapsed %v, %d jobs", what, s.state, s.lapsed, len(s.jobs))
			}
		}
	}
}

// TestSuspendsOne: of two sessions only the one that is named is suspended, and only that comes
// back; a number that is nobody's is an error.
func TestSuspendsOne(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		one := k.session()
		k.open()
		k.begin()
		var two *session
		for _, s := range k.d.all() {
			if s != one {
				two = s
			}
		}
		states := func(what string, a, b state) {
			k.t.Helper()
			if one.state != a || two.state != b {
				k.t.Errorf("%s: %v and %v", what, one.state, two.state)
			}
		}
		if _, err := k.d.Suspend(k.t.Context(), Suspension{Session: one.id + two.id}); !errors.Is(err, ErrNoSession) {
			k.t.Error(err)
		}
		states("of nobody", running, running)
		if did, err := k.d.Suspend(k.t.Context(), Suspension{Session: one.id}); err != nil || did.Sessions != 1 {
			k.t.Error(did, err)
		}
		states("of one", suspended, running)
		if did, err := k.d.Suspend(k.t.Context(), Suspension{Session: two.id}); err != nil || did.Sessions != 1 {
			k.t.Error(did, err)
		}
		states("of the other", suspended, suspended)
		if did, err := k.d.Resume(k.t.Context(), Suspension{Session: two.id}); err != nil || did.Sessions != 1 {
			k.t.Error(did, err)
		}
		if one.state != suspended || two.state == suspended {
			k.t.Errorf("one is to come back: %v and %v", one.state, two.state)
		}
	})
}

// TestSuspendsWhoWorks: a session whose program has submitted more stays, and is not asked again
// for a while, unless it is to leave for others' sake: then it goes, and comes back by itself.
func TestSuspendsWhoWorks(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.lend(loanAt(0, 0), zero)
		s, w := k.session(), k.worker()
		k.d.budget.SetBeside(s.res.slot, 1<<20)
		stays := func() bool {
			list := k.d.RoomStatus().Sessions
			return len(list) == 1 && list[0].Stays
		}
		w.mu.Lock()
		w.waiting = true
		w.mu.Unlock()
		if stays() {
			k.t.Error("it stays before anybody has asked")
		}
		if did, err := k.d.Suspend(k.t.Context(), Suspension{}); !errors.Is(err, errWork) || did.Sessions != 0 {
			k.t.Errorf("%+v, %v", did, err)
		}
		k.lend(loanAt(0, 0), zero)
		if s.state != running || w.ended || !stays() {
			k.t.Errorf("%v, the worker has ended: %v, stays %v", s.state, w.ended, stays())
		}
		k.sleep(staysFor - time.Millisecond)
		if k.lend(loanAt(0, 0), zero); !stays() {
			k.t.Error("it is asked again too early")
		}
		k.sleep(time.Millisecond)
		if stays() {
			k.t.Error("it is never asked again")
		}
		if did, err := k.d.Suspend(k.t.Context(), Suspension{Away: true}); err != nil || did.Sessions != 1 || !w.ended {
			k.t.Errorf("%+v, %v", did, err)
		}
		synctest.Wait()
		if k.lend(loanAt(0, 0), zero); s.state != running || k.worker() == w {
			k.t.Errorf("it has not come back: %v", s.state)
		}
	})
}

// TestEndsAsItGoesAway: a session that ends while it is put away, or comes back, stays ended, and
// nothing of it is left.
func TestEndsAsItGoesAway(t *testing.T) {
	ends := func(s *session) func() {
		return func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.state = dead
		}
	}
	inKernel(t, func(k *kernel) {
		k.d.opts.Swap = true
		k.begin()
		s, w := k.session(), k.worker()
		w.mu.Lock()
		w.exports = ends(s)
		w.mu.Unlock()
		if did, err := k.d.Suspend(k.t.Context(), Suspension{Away: true}); err == nil && did.Sessions != 0 || s.state != dead || s.stored != nil || k.d.RoomStatus().Away != 0 || k.d.rooms.counts.Out != 0 {
			t.Errorf("%+v, %v; %v", did, err, s.state)
		}
	})
	inKernel(t, func(k *kernel) {
		k.d.opts.Swap = true
		k.begin()
		s := k.session()
		k.d.budget.SetBeside(s.res.slot, 4096)
		if did, err := k.d.Suspend(k.t.Context(), Suspension{Away: true}); err != nil || did.Sessions != 1 || k.d.RoomStatus().Away != 4096 {
			t.Fatalf("%+v, %v, %d away", did, err, k.d.RoomStatus().Away)
		}
		k.workers.mu.Lock()
		k.workers.adopts = ends(s)
		k.workers.mu.Unlock()
		if did, err := k.d.Resume(k.t.Context(), Suspension{}); did.Sessions != 0 || s.state != dead || s.proc != nil || s.stored == nil || k.d.rooms.counts.In != 0 {
			t.Errorf("%+v, %v; %v", did, err, s.state)
		}
		if w := k.worker(); !w.ended {
			t.Error("its next worker lives")
		}
	})
}

// TestWhoIsIdle: a session in room is told of by what it holds, since when it is here and since
// when its program has done nothing, which one call ends; one that holds nothing, or does not run,
// is not.
func TestWhoIsIdle(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		s := k.session()
		mem, err := sys.MapPage(s.res.meter.File(), true)
		if err != nil {
			t.Fatal(err)
		}
		defer sys.UnmapPage(mem)
		w := meter.Open(mem)
		began := time.Now()
		is := func(what string, bytes uint64, idle time.Duration) {
			t.Helper()
			list := k.d.RoomStatus().Sessions
			if bytes == 0 {
				if len(list) != 0 {
					t.Errorf("%s: %+v", what, list)
				}
				return
			}
			if len(list) != 1 || list[0].ID != s.id || list[0].Bytes != bytes || list[0].Idle != idle || list[0].Here != time.Since(began) || list[0].Stays {
				t.Errorf("%s: %+v, here for %v", what, list, time.Since(began))
			}
		}
		is("it holds nothing", 0, 0)
		k.d.budget.SetBeside(s.res.slot, 4096)
		is("it has begun", 4096, 0)
		time.Sleep(loanTerm / 8)
		is("it has done nothing", 4096, loanTerm/8)
		w.Call()
		is("it has called", 4096, 0)
		time.Sleep(loanTerm / 4)
		is("once", 4096, loanTerm/4)
		is("once, as before", 4096, loanTerm/4)
		k.d.opts.Swap = true
		k.d.budget.SetRoom(4096)
		for _, waits := range []bool{false, true} {
			if waits {
				k.d.addNeed(&need{s: s, bytes: 1, p: k.worker()})
			}
			if st := k.d.RoomStatus(); len(st.Sessions) != 1 || st.Sessions[0].Waits != waits || len(st.Needs) == 0 == waits {
				t.Errorf("it waits %v: %+v", waits, st)
			}
		}
		k.d.dropNeed(s)
		for _, st := range []state{starting, parking, parked, dead} {
			s.mu.Lock()
			s.state = st
			s.mu.Unlock()
			is("it does not run", 0, 0)
			s.mu.Lock()
			s.state = running
			s.mu.Unlock()
		}
	})
}
