package relay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
)

// forking is a stream that can have branches.
type forking struct {
	*pausing
	forks []frame.Branch
	err   error
	asked []int
}

func (f *forking) Branch(n int) ([]frame.Branch, error) {
	f.asked = append(f.asked, n)
	return f.forks[:min(n, len(f.forks))], f.err
}
func (f *forking) TakeBranches(int, func(int, frame.Branch)) {}
func (f *forking) Branches() []frame.Branch                  { return f.forks }

func newFork() *fakeFork {
	return &fakeFork{pausing: newPausing(), ready: func(context.Context) error { return nil }}
}

// wideSession is one of whose branches nothing runs.
func wideSession(want int, forks ...frame.Branch) (*Session, *forking, *bytes.Buffer) {
	conn, log := &forking{pausing: newPausing(), forks: forks}, &bytes.Buffer{}
	s := newSession(fakeCarrier{g: newGuest()}, conn, "gpu1", slog.New(slog.NewTextHandler(log, nil)))
	s.wide.want = want
	s.regions.sizes[1] = 1 << 20
	return s, conn, log
}

// TestWidens: branches are begun once, as many as there may be; where the stream is held they are
// begun later, and where there are fewer the log says so.
func TestWidens(t *testing.T) {
	two := []frame.Branch{newFork(), newFork()}
	for name, x := range map[string]struct {
		want      int
		forks     []frame.Branch
		err       error
		list      int
		asks, log int // when it is asked three times
	}{
		"both":              {2, two, nil, 2, 1, 0},
		"none are wanted":   {0, two, nil, 0, 0, 0},
		"one is wanted":     {1, two, nil, 1, 1, 0},
		"one of two":        {2, two[:1], errTest, 1, 1, 1},
		"none of two":       {2, nil, errTest, 0, 1, 1},
		"held":              {2, nil, resume.ErrHeld, 0, 3, 0},
		"held behind a one": {2, two[:1], resume.ErrHeld, 1, 1, 1},
	} {
		s, conn, log := wideSession(x.want, x.forks...)
		conn.err = x.err
		started := 0
		s.wide.start = func(b *branch) {
			if started++; b != s.wide.list[len(s.wide.list)-1] {
				t.Errorf("%s: another branch is started", name)
			}
		}
		for range 3 {
			s.widen()
		}
		if len(s.wide.list) != x.list || started != x.list || len(conn.asked) != x.asks || bytes.Count(log.Bytes(), []byte("\n")) != x.log {
			t.Errorf("%s: %d branches, %d started, asked %v, %s", name, len(s.wide.list), started, conn.asked, log)
		}
	}
	// Of a stream that can have none.
	s := newSession(fakeCarrier{g: newGuest()}, newPausing(), "gpu1", quietLog)
	s.wide.want = 2
	s.widen()
	s.wide.start = nil // it stands still
	if s, _, _ = wideSession(1, newFork()); len(s.wide.list) != 0 {
		t.Error("branches begin by themselves")
	}
	if s.widen(); len(s.wide.list) != 1 {
		t.Error("what stands still has no branches")
	}
}

// TestQueues: what is worth a branch waits for any that is connected, all else for the first
// stream.
func TestQueues(t *testing.T) {
	one, two := newFork(), newFork()
	s, conn, _ := wideSession(2, one, two)
	queue := func(size uint64) string {
		return map[chan read]string{s.reads: "first", s.wide.reads: "branches"}[s.queue(frame.Extent{Size: size})]
	}
	if q := queue(frame.Bulk - 1); q != "first" || len(conn.asked) != 0 {
		t.Errorf("%s, asked for %v", q, conn.asked)
	}
	for _, x := range []struct {
		one, two uint64
		want     string
	}{{0, 0, "branches"}, {frame.Away, 5, "branches"}, {5, frame.Away, "branches"}, {frame.Away, frame.Away, "first"}} {
		one.backlog.Store(x.one)
		two.backlog.Store(x.two)
		if queue(frame.Bulk) != x.want {
			t.Errorf("%+v: %s", x, queue(frame.Bulk))
		}
	}
	if q := queue(frame.Bulk - 1); q != "first" || len(conn.asked) != 1 {
		t.Errorf("%s, asked for %v", q, conn.asked)
	}
}

// TestServesBranch: a branch answers READs while it is connected; one that it took and has not
// begun goes to another, and it answers again once it is ready.
func TestServesBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newFork()
		s, _, log := wideSession(1, up)
		s.widen()
		b := s.wide.list[0]
		ready := make(chan error)
		up.ready = func(ctx context.Context) error {
			select {
			case err := <-ready:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.serveBranch(ctx, b) }()
		s.wide.reads <- read{7, frame.Extent{Region: 1, Size: frame.Bulk}}
		if synctest.Wait(); len(up.out) != 0 {
			t.Error("it answers before it has a connection")
		}
		ready <- nil
		if synctest.Wait(); len(up.out) != frame.HeaderSize+frame.Bulk || b.answering != nil {
			t.Errorf("%d bytes of an answer", len(up.out))
		}
		up.backlog.Store(frame.Away)
		s.wide.reads <- read{8, frame.Extent{Region: 1, Size: frame.Bulk}}
		if synctest.Wait(); len(up.out) != frame.HeaderSize+frame.Bulk || len(s.reads) != 1 || (<-s.reads).id != 8 || b.answering != nil {
			t.Errorf("without a connection %d bytes are sent, %d READs wait for others", len(up.out), len(s.reads))
		}
		up.backlog.Store(0)
		ready <- nil
		s.wide.reads <- read{9, frame.Extent{Region: 1, Size: frame.Bulk}}
		if synctest.Wait(); len(up.out) != 2*(frame.HeaderSize+frame.Bulk) {
			t.Errorf("%d bytes of answers", len(up.out))
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || log.Len() != 0 {
			t.Errorf("%v, %s", err, log)
		}
	})
	for name, x := range map[string]struct {
		again, cancels bool
		logs           int
	}{"never made": {false, false, 1}, "made once": {true, false, 0}, "the session ends": {false, true, 0}} {
		synctest.Test(t, func(t *testing.T) {
			up := newFork()
			s, _, log := wideSession(1, up)
			s.widen()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			up.ready = func(context.Context) error {
				if n++; x.again && n == 1 {
					return nil
				}
				if x.cancels {
					cancel()
				}
				return errTest
			}
			if x.again {
				up.backlog.Store(frame.Away)
				s.wide.reads <- read{1, frame.Extent{Region: 1, Size: frame.Bulk}}
			}
			if err := s.serveBranch(ctx, s.wide.list[0]); !errors.Is(err, errTest) || bytes.Count(log.Bytes(), []byte("\n")) != x.logs {
				t.Errorf("%s: %v, %s", name, err, log)
			}
		})
	}
}

// TestReceivesBranch: each WRITE of a branch is counted once it is done, of which who waits hears;
// what broke a rule ends the session, and what only ended does not.
func TestReceivesBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := newFork()
		s, _, _ := wideSession(1, up)
		s.widen()
		b := s.wide.list[0]
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		up.ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		s.passWide(ctx, &wg, cancel)
		write := frame.Header{Kind: frame.Write, Len: frame.ExtentSize + 4}.Append(nil)
		write = append(frame.Extent{Region: 1, Offset: 3, Size: 4}.Append(write), "here"...)
		for n := range uint32(3) {
			up.say(write[:20])
			synctest.Wait()
			if b.wrote.Load() != n || len(b.moved) != 0 {
				t.Errorf("%d are counted before the next is done", b.wrote.Load())
			}
			up.say(write[20:])
			synctest.Wait()
			if b.wrote.Load() != n+1 || len(b.moved) != 1 || len(b.undone) != 0 {
				t.Errorf("%d are counted, %d are told", b.wrote.Load(), len(b.moved))
			}
			<-b.moved
		}
		if s.wide.pause(); s.wide.start != nil {
			t.Error("branches start")
		}
		_ = up.Close()
		if synctest.Wait(); ctx.Err() != nil {
			t.Errorf("the session ends with a branch: %v", context.Cause(ctx))
		}
		cancel(nil)
		wg.Wait()

		for _, how := range []string{"says", "is asked"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			up := newFork()
			s, _, _ := wideSession(1, up)
			s.widen()
			var wg sync.WaitGroup
			if how == "says" {
				up.ready = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				up.say(frame.Header{Kind: frame.Word}.Append(nil))
			} else {
				up.ready = func(context.Context) error { return remote.Violation("x") }
			}
			s.passWide(ctx, &wg, cancel)
			synctest.Wait()
			if err := context.Cause(ctx); !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("%s: %v", how, err)
			}
			_ = up.Close()
			cancel(nil)
			wg.Wait()
		}
	})
}

// TestBehindCounts: a BEHIND waits for as many WRITEs as it counts, modulo 2^32, and not for more
// than can be on their way; a branch that is silent for as long as it may be, while it and the
// guest's memory are within reach, has broken a rule.
func TestBehindCounts(t *testing.T) {
	const patience = 10 * time.Second
	for name, x := range map[string]struct {
		wrote, count uint32
		each         func(s *Session, b *branch, up *fakeFork, look int) // after each look's time
		// Until it is over; -1: at once.
		took time.Duration
		rule bool
	}{
		"all are there":     {5, 5, nil, -1, false},
		"more are there":    {5, 3, nil, -1, false},
		"around":            {1, ^uint32(0), nil, -1, false},
		"as many as can be": {^uint32(0), uint32(mostBehind) - 1, nil, patience, true},
		"one more":          {^uint32(0), uint32(mostBehind), nil, -1, true},
		"silent":            {0, 1, nil, patience, true},
		"come":              {0, 2, func(_ *Session, b *branch, _ *fakeFork, look int) { b.write(look == 3 || look == 7) }, 7*patience/behindLooks + 1, false},
		"brings bytes": {0, 1, func(_ *Session, b *branch, _ *fakeFork, look int) {
			b.input.came.Add(1)
			b.write(look == 25)
		}, 25*patience/behindLooks + 1, false},
		"brought some": {0, 1, func(_ *Session, b *branch, _ *fakeFork, look int) {
			if look == 5 {
				b.input.came.Add(1)
			}
		}, 16 * patience / behindLooks, true},
		"away": {0, 1, func(_ *Session, b *branch, up *fakeFork, look int) {
			up.backlog.Store(map[bool]uint64{true: frame.Away}[look < 20])
		}, 30 * patience / behindLooks, true},
		"out of reach": {0, 1, func(s *Session, b *branch, _ *fakeFork, look int) {
			switch look {
			case 1:
				s.away.Lock()
			case 20:
				s.away.Unlock()
			}
		}, 30 * patience / behindLooks, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				up := newFork()
				s, _, _ := wideSession(1, up)
				s.widen()
				s.wide.patience = patience
				b := s.wide.list[0]
				b.wrote.Store(x.wrote)
				ended, begin := make(chan error, 1), time.Now()
				go func() {
					err := s.behindFrame(t.Context(), uint64(x.count)<<32)
					if took := time.Since(begin); took != max(x.took, 0) {
						t.Errorf("after %v", took)
					}
					ended <- err
				}()
				for look := 1; ; look++ {
					synctest.Wait()
					if len(ended) > 0 {
						break
					}
					if look == 1 {
						time.Sleep(time.Nanosecond)
					}
					if x.each != nil {
						x.each(s, b, up, look-1)
					}
					time.Sleep(patience / behindLooks)
				}
				if err := <-ended; errors.Is(err, remote.ErrProtocol) != x.rule || !x.rule && err != nil {
					t.Error(err)
				}
			})
		})
	}
	s, _, _ := wideSession(1, newFork())
	s.widen()
	if err := s.behindFrame(t.Context(), 1); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("of a branch that is not: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.behindFrame(ctx, 1<<32); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// write notes a WRITE that is done.
func (b *branch) write(does bool) {
	if does {
		b.wrote.Add(1)
		b.moved <- struct{}{}
	}
}

// TestDescribesBranches: branches that are made of what others were described as are described as
// the same; a state whose branches its stream has not is none.
func TestDescribesBranches(t *testing.T) {
	st := State{Sent: 5, Regions: []Change{{Size: remote.Region0Size}}, Wanted: 4, Branches: []Branch{
		{Unread: []byte("unread"), Wrote: 7, Answering: []Asked{{9, frame.Extent{Region: 1, Size: 5}}}}, {Wrote: 8},
	}}
	s, conn, _ := wideSession(0, newFork(), newFork())
	two, err := Adopt(fakeCarrier{g: newGuest()}, conn, st, "gpu1", quietLog)
	if err != nil {
		t.Fatal(err)
	}
	if !two.wide.asked || two.wide.list[0].up != conn.forks[0] || two.wide.list[1].up != conn.forks[1] {
		t.Error("its branches are others")
	}
	again, err := two.StandStill()
	again.Branches[1].Unread = nil
	again.Unread = nil
	if err != nil || !reflect.DeepEqual(again, st) {
		t.Errorf("%+v is described as %+v, %v", st, again, err)
	}
	if b, err := io.ReadAll(io.LimitReader(bufio.NewReader(&two.wide.list[0].input), 6)); err != nil || string(b) != "unread" {
		t.Errorf("%q, %v", b, err)
	}
	conn.forks = conn.forks[:1]
	if _, err := Adopt(fakeCarrier{g: newGuest()}, conn, st, "gpu1", quietLog); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if _, err := Adopt(fakeCarrier{g: newGuest()}, newPausing(), st, "gpu1", quietLog); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	st.Branches = nil
	if two, err = Adopt(fakeCarrier{g: newGuest()}, newPausing(), st, "gpu1", quietLog); err != nil || two.wide.asked || two.wide.want != 4 {
		t.Errorf("without branches: %v", err)
	}
	st.Sent = remote.RingSize + 1
	if _, err := Adopt(fakeCarrier{g: newGuest()}, newPausing(), st, "gpu1", quietLog); !errors.Is(err, ErrState) {
		t.Error(err)
	}
	if _, err := Adopt(unwatched{}, newPausing(), State{}, "gpu1", quietLog); !errors.Is(err, errUnwatched) {
		t.Error(err)
	}
	if _, err := Open(t.Context(), unwatched{}, s.out.conn, remote.Hello{}, 0, "gpu1", quietLog); !errors.Is(err, errUnwatched) {
		t.Error(err)
	}
}

// TestRewindsBranches: a session that goes on behind a standstill that was none follows each branch
// from the frame on in whose middle it was.
func TestRewindsBranches(t *testing.T) {
	whole := append(frame.Extent{Region: 1, Offset: 16, Size: 8}.Append(frame.Header{Kind: frame.Write, Len: frame.ExtentSize + 8}.Append(nil)), "fourmore"...)
	s, _, _ := wideSession(0)
	up := newFork()
	s.wide.list = []*branch{newBranch(up)}
	b := s.wide.list[0]
	up.say(whole[:len(whole)-4])
	s.still = true
	if err := s.receiveBranch(b); !errors.Is(err, errStill) || b.wrote.Load() != 0 {
		t.Fatalf("%v, %d WRITEs", err, b.wrote.Load())
	}
	s.rewind()
	s.still = false
	up.say(whole[len(whole)-4:])
	go func() {
		up.await(func() bool { return len(up.in) == 0 })
		up.do('c')
	}()
	if err := s.receiveBranch(b); !errors.Is(err, io.EOF) || b.wrote.Load() != 1 {
		t.Errorf("%v, %d WRITEs", err, b.wrote.Load())
	}
}

// unwatched is a carrier whose regions nobody hears of.
type unwatched struct{ remote.Carrier }

func (unwatched) Memory() remote.GuestMemory { return struct{ remote.GuestMemory }{} }
