package device

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

// TestDue: when a session is to be looked at next: at the end of what came first, of loans only
// where those may lapse.
func TestDue(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	term := d.opts.LoanTerm
	lent := &fs.ReadRequest{}
	region := func(renewed time.Time, req *fs.ReadRequest) *region {
		return &region{pieces: map[uint64]*piece{0: {req: req, renewed: renewed}}}
	}
	for what, c := range map[string]struct {
		set func(s *session)
		due time.Duration // from now; 0: nothing is
	}{
		"nothing is lent":             {func(*session) {}, 0},
		"all has lapsed":              {func(s *session) { s.regions[0] = region(now, nil) }, 0},
		"a loan":                      {func(s *session) { s.regions[0] = region(now, lent) }, term},
		"the older of two":            {func(s *session) { s.regions[0], s.regions[1] = region(now, lent), region(now.Add(-time.Second), lent) }, term - time.Second},
		"one beside one that is over": {func(s *session) { s.regions[0], s.regions[1] = region(now, lent), region(now.Add(-time.Second), nil) }, term},
		"of one that is parking":      {func(s *session) { s.state, s.regions[0] = parking, region(now, lent) }, 0},
		"of one that is parked":       {func(s *session) { s.state, s.regions[0] = parked, region(now, lent) }, term},
		"of one that is suspended":    {func(s *session) { s.state, s.regions[0] = suspended, region(now, lent) }, term},
		"while the VM stands":         {func(s *session) { s.paused, s.regions[0] = true, region(now, lent) }, 0},
		"of one that is dead":         {func(s *session) { s.state, s.regions[0] = dead, region(now, lent) }, 0},
		"of one that has ended":       {func(s *session) { s.state, s.regions[0] = released, region(now, lent) }, 0},
		"a start":                     {func(s *session) { s.state, s.starter, s.startedAt = opening, &fs.WriteRequest{}, now }, loanWait},
		"that was answered":           {func(s *session) { s.startedAt = now }, 0},
		"a start before a loan": {func(s *session) {
			s.state, s.starter, s.startedAt, s.regions[0] = opening, &fs.WriteRequest{}, now.Add(-10*time.Second), region(now, lent)
		}, loanWait - 10*time.Second},
		"a loan before a start": {func(s *session) {
			s.state, s.starter, s.startedAt, s.regions[0] = opening, &fs.WriteRequest{}, now, region(now.Add(-10*time.Second), lent)
		}, term - 10*time.Second},
		"waits": {func(s *session) {
			s.waits[3] = []wait{{since: now}, {since: now.Add(-time.Millisecond)}}
			s.waits[4] = []wait{{since: now}}
		}, waitTerm - time.Millisecond},
		"a wait while the VM stands": {func(s *session) { s.paused, s.waits[3] = true, []wait{{since: now}} }, waitTerm},
		"a wait of one that is parking": {func(s *session) {
			s.state, s.waits[3], s.regions[0] = parking, []wait{{since: now}}, region(now.Add(-time.Hour), lent)
		}, waitTerm},
		"a loan before a wait": {func(s *session) { s.waits[3], s.regions[0] = []wait{{since: now}}, region(now.Add(-time.Hour), lent) }, term - time.Hour},
	} {
		s := newSession(d, 1, fs.Caller{})
		s.state = running
		c.set(s)
		due := s.due()
		if due.IsZero() != (c.due == 0) || c.due != 0 && due.Sub(now) != c.due {
			t.Errorf("%s: in %v, not %v", what, due.Sub(now), c.due)
		}
	}
}

// TestHeldOfBoth: what a session held of the GPU's memory and the host's is what it takes to store;
// of one that has nothing it is nothing.
func TestHeldOfBoth(t *testing.T) {
	inKernel(t, func(k *kernel) {
		s := k.session()
		if n := s.heldLocked(); n != 0 {
			t.Errorf("before it has a worker: %d", n)
		}
		k.begin()
		k.d.budget.SetBeside(s.res.slot, 1<<20)
		k.d.host.SetBeside(s.res.host, 1<<10)
		if n := s.heldLocked(); n != 1<<20+1<<10 {
			t.Errorf("%d", n)
		}
	})
}

// TestPutAwayElsewhere: a session that is suspended for others, and is then put into a folder, and
// another, is theirs as before, is kept once, and comes back as it left.
func TestPutAwayElsewhere(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	inKernel(t, func(k *kernel) {
		k.d.opts.Swap = true
		k.d.budget.SetRoom(1 << 30)
		zero := k.begin()
		s := k.session()
		const held = 12345
		k.d.budget.SetBeside(s.res.slot, held)
		if did, err := k.d.Suspend(k.t.Context(), Suspension{Away: true}); err != nil || did.Sessions != 1 {
			t.Fatal(did, err)
		}
		was := s.stored
		for i, dir := range []string{first, second} {
			if did, err := k.d.Suspend(k.t.Context(), Suspension{To: dir}); err != nil || did.Sessions != 1 || did.Folder != dir {
				t.Fatal(did, err)
			}
			if kept := s.stored; kept == was || kept.folder != dir || kept.gpu != held || !kept.away || inFolder(t, dir) != 1 {
				t.Errorf("in folder %d: %+v", i, kept)
			}
			if _, err := was.f.Stat(); err == nil {
				t.Errorf("what held it before folder %d stays open", i)
			}
			was = s.stored
			if did, err := k.d.Suspend(k.t.Context(), Suspension{To: dir}); err != nil || did.Sessions != 0 || s.stored != was {
				t.Errorf("it lies in folder %d, and is put there again: %+v, %v", i, did, err)
			}
		}
		if n := inFolder(t, first); n != 0 {
			t.Errorf("%d files stay where it lay", n)
		}
		if st := k.d.RoomStatus(); st.Away != held {
			t.Errorf("%d are away", st.Away)
		}
		if did, err := k.d.Resume(k.t.Context(), Suspension{}); err != nil || did.Sessions != 1 {
			t.Fatal(did, err)
		}
		k.lend(loanAt(0, 0), zero)
		if c := k.d.rooms.counts; k.d.RoomStatus().Away != 0 || c.In != 1 || c.InBytes != held || s.state != running || inFolder(t, second) != 0 {
			t.Errorf("%+v, %v", c, s.state)
		}
	})
}

// TestRevokedTooLate: who wants pages back sooner than a worker could answer has the worker ended,
// which is not asked first; a moment more is the worker's.
func TestRevokedTooLate(t *testing.T) {
	for _, c := range []struct{ within, limit time.Duration }{
		{parkMargin, 0}, {2 * parkMargin, 0}, {2*parkMargin + time.Millisecond, time.Millisecond}, {time.Second, time.Second - 2*parkMargin}, {time.Hour, parkLimit - parkMargin},
	} {
		inKernel(t, func(k *kernel) {
			k.begin()
			w := k.worker()
			w.hang(true)
			ctx, cancel := context.WithTimeout(k.t.Context(), c.within)
			defer cancel()
			began := time.Now()
			go k.session().Revoke(ctx, nil)
			synctest.Wait()
			if c.limit == 0 {
				if !w.ended || len(w.backlog) != 0 || time.Since(began) != 0 {
					t.Errorf("within %v: ended %v, told %v", c.within, w.ended, w.backlog)
				}
				return
			}
			if len(w.backlog) != 1 || w.backlog[0] != (link.Park{Number: 1, Limit: c.limit, Patience: c.limit}) {
				t.Errorf("within %v it is told %+v", c.within, w.backlog)
			}
			k.sleep(c.limit + parkMargin)
			if !w.ended {
				t.Errorf("within %v: it lives", c.within)
			}
		})
	}
}

// TestWhatParksAreFor: what a worker is told of the time that it has, and the GPU, by what it is
// parked for.
func TestWhatParksAreFor(t *testing.T) {
	for what, c := range map[string]struct {
		park func(k *kernel)
		told link.Park
	}{
		"a loan that has lapsed": {func(k *kernel) { k.sleep(loanTerm + shortestNap) }, link.Park{Number: 1, Limit: parkLimit, Patience: lapsePatience}},
		"a VM that is to stand": {func(k *kernel) {
			go k.d.fs.Pause(1)
			synctest.Wait()
		}, link.Park{Number: 1, Limit: 5*time.Second - 2*parkMargin, Patience: 5*time.Second - 2*parkMargin, Standing: true}},
		"to be suspended": {func(k *kernel) {
			go func() { _, _ = k.d.Suspend(context.Background(), Suspension{}) }()
			synctest.Wait()
		}, link.Park{Number: 1, Limit: parkLimit, Patience: parkLimit}},
	} {
		inKernel(t, func(k *kernel) {
			zero := k.begin()
			k.lend(loanAt(0, 0), zero)
			w := k.worker()
			w.hang(true)
			c.park(k)
			told := w.backlog
			if len(told) == 0 || told[0] != c.told {
				t.Errorf("%s: told %+v, not %+v", what, told, c.told)
			}
			w.hang(false)
			k.sleep(time.Second)
			k.d.fs.Resume(1, true)
		})
	}
}

// TestLoanMeanwhile: a loan that comes while its pages are about to go back says that the program
// lives; it is given back at once if its region ends or nothing was lent there, and else renews
// what was; one that comes to a session that is over, or to no region, is refused, and one too many
// for the session, too.
func TestLoanMeanwhile(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 2), 0)
		pages := k.pages(1)
		s := k.session()
		k.lend(loanAt(1, 0), pages)
		const pends = unix.Errno(1 << 20)
		for what, c := range map[string]struct {
			set  func() (undo func())
			want unix.Errno
			live bool
		}{
			"parking, and lent before": {func() func() { s.state = parking; return func() { s.state = running } }, pends, true},
			"parking, and lapsed before": {func() func() {
				p := s.regions[1].pieces[0]
				req := p.req
				s.state, p.req = parking, nil
				return func() { s.state, p.req = running, req }
			}, 0, true},
			"parking, and never lent": {func() func() {
				s.state, s.regions[1].pieces[pageSize] = parking, s.regions[1].pieces[0]
				delete(s.regions[1].pieces, 0)
				return func() {
					s.state, s.regions[1].pieces[0] = running, s.regions[1].pieces[pageSize]
					delete(s.regions[1].pieces, pageSize)
				}
			}, 0, true},
			"a region that ends": {func() func() {
				s.regions[1].ending = true
				return func() { s.regions[1].ending = false }
			}, 0, true},
			"dead":     {func() func() { s.state = dead; return func() { s.state = running } }, unix.EPIPE, false},
			"released": {func() func() { s.state = released; return func() { s.state = running } }, unix.EPIPE, false},
		} {
			s.mu.Lock()
			s.lives = false
			undo := c.set()
			s.mu.Unlock()
			if loan := k.lend(loanAt(1, 0), pages); c.want == pends {
				k.pending(what, loan)
			} else {
				k.want(what, loan, c.want)
			}
			s.mu.Lock()
			if undo(); s.lives != c.live {
				t.Errorf("%s: it lives: %v", what, s.lives)
			}
			s.mu.Unlock()
		}
		s.mu.Lock()
		was := s.pieces
		s.pieces = maxPieces
		s.mu.Unlock()
		k.want("one piece too many", k.lend(loanAt(1, pageSize), k.pages(1)), unix.EINVAL)
		k.pending("a piece again", k.lend(loanAt(0, 0), zero))
		s.mu.Lock()
		s.pieces = maxPieces - 1
		s.mu.Unlock()
		k.want("region", k.declare(2, 1), 0)
		k.pending("the last piece that there may be", k.lend(loanAt(2, 0), k.pages(1)))
		if s.pieces != maxPieces {
			t.Errorf("%d pieces", s.pieces)
		}
		s.mu.Lock()
		s.pieces = was + 1
		s.mu.Unlock()
	})
}

// TestEndsAreLogged: the end of a worker that its guest did not ask for is one's loss, with its
// cause; a program of a connection ends like that in order.
func TestEndsAreLogged(t *testing.T) {
	for what, c := range map[string]struct {
		set  func(k *kernel, s *session)
		err  error
		want string // of the log; none: nothing is said
	}{
		"in order":          {func(*kernel, *session) {}, nil, "worker has ended the session"},
		"by a fault":        {func(*kernel, *session) {}, errHangs, "session lost"},
		"of a connection":   {func(_ *kernel, s *session) { s.connected = "hostb" }, nil, "session ended"},
		"of an RDMA end":    {func(_ *kernel, s *session) { s.direct = &direct{} }, nil, "session ended"},
		"that it has left":  {func(k *kernel, s *session) { s.moving = k.worker() }, nil, ""},
		"that is known":     {func(_ *kernel, s *session) { s.state = dead }, nil, ""},
		"another's than it": {func(_ *kernel, s *session) { s.proc = &fakeWorker{} }, nil, ""},
	} {
		said := &virtiotest.Log{}
		o := quietDevice(library(t))
		o.Log = slog.New(slog.NewTextHandler(said, nil))
		synctest.Test(t, func(t *testing.T) {
			k := newKernel(t, o)
			t.Cleanup(k.halt)
			k.open()
			k.begin()
			s, w := k.session(), k.worker()
			s.mu.Lock()
			state, proc := s.state, s.proc
			c.set(k, s)
			s.mu.Unlock()
			before := len(said.String())
			w.err = c.err
			s.workerGone(w)
			got := said.String()[before:]
			if c.want == "" && got != "" || !strings.Contains(got, c.want) || strings.Count(got, "\n") > 1 {
				t.Errorf("%s: %q", what, got)
			}
			s.mu.Lock()
			if c.want == "" {
				s.state, s.proc = state, proc
			} else if s.state != dead {
				t.Errorf("%s: it is %v", what, s.state)
			}
			s.moving, s.direct, s.connected = nil, nil, ""
			s.mu.Unlock()
			w.err = nil
		})
	}
}

// TestDeathIsSeen: a program that polls finds its worker's end on the page that it has lent, and
// where that page is not lent nothing is touched.
func TestDeathIsSeen(t *testing.T) {
	for what, c := range map[string]struct {
		set func(s *session)
		is  byte
	}{
		"lent":       {func(*session) {}, byte(remote.WorkerDead)},
		"not lent":   {func(s *session) { s.regions[0].takeBack() }, 0},
		"no piece":   {func(s *session) { delete(s.regions[0].pieces, 0) }, 0},
		"no region":  {func(s *session) { delete(s.regions, 0) }, 0},
		"of another": {func(s *session) { s.regions[1] = s.regions[0]; delete(s.regions, 0) }, 0},
	} {
		inKernel(t, func(k *kernel) {
			zero := k.begin()
			s := k.session()
			s.mu.Lock()
			r := s.regions[0]
			pieces := map[uint64]piece{}
			for off, p := range r.pieces {
				pieces[off] = *p
			}
			c.set(s)
			s.mu.Unlock()
			s.markDead()
			if got := zero[0].Bytes[remote.ControlPageWorkerStateOffset]; got != c.is {
				t.Errorf("%s: the control page says %d", what, got)
			}
			s.mu.Lock()
			delete(s.regions, 1)
			s.regions[0] = r
			for off, p := range pieces {
				r.pieces[off] = &p
			}
			r.lent = r.size
			s.mu.Unlock()
		})
	}
}

// TestStoredBySize: what is told of a session that was put away, and brought back, is what holds
// it; for somebody who is gone nothing is done.
func TestStoredBySize(t *testing.T) {
	dir := t.TempDir()
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		s := k.session()
		did, err := k.d.Suspend(k.t.Context(), Suspension{To: dir, Session: s.id})
		if err != nil || did.Sessions != 1 || did.Bytes != s.stored.size || did.Bytes == 0 || did.Folder != dir {
			t.Errorf("%+v of %d, %v", did, s.stored.size, err)
		}
		if did, err := k.d.Resume(k.t.Context(), Suspension{Session: s.id + 1}); !errors.Is(err, ErrNoSession) || did.Sessions != 0 {
			t.Errorf("of another number: %+v, %v", did, err)
		}
		if list, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
		did, err = k.d.Resume(k.t.Context(), Suspension{Session: s.id})
		if err != nil || did.Sessions != 1 || did.Bytes == 0 || did.Folder != "" {
			t.Errorf("%+v, %v", did, err)
		}
		k.lend(loanAt(0, 0), zero)
		ctx, cancel := context.WithCancel(k.t.Context())
		cancel()
		if did, err := k.d.Suspend(ctx, Suspension{}); err == nil || did.Sessions != 0 || s.state != running {
			t.Errorf("for somebody who is gone: %+v, %v", did, err)
		}
	})
}
