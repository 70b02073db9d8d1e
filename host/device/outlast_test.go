package device

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/sys"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

// TestOutlast: a session goes on whose GPU does not let go if its program has shown that it lives,
// or the VM stands, or for a while where the host is short of CPU, or was meanwhile.
func TestOutlast(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		s := k.session()
		now := time.Now()
		for what, c := range map[string]struct {
			set     func()
			short   bool // of CPU
			on      bool
			renewed bool
			crowded bool // is remembered
		}{
			"silent":                     {func() {}, false, false, false, false},
			"it lives":                   {func() { s.lives = true }, false, true, true, false},
			"it lives, on a crowded one": {func() { s.lives = true }, true, true, true, false},
			"the VM stands":              {func() { s.paused = true }, false, true, false, false},
			"it is dead":                 {func() { s.state = dead }, false, true, false, false},
			"crowded":                    {func() {}, true, true, false, true},
			"crowded before":             {func() { s.crowded = true }, false, true, false, true},
			"crowded, almost for long":   {func() { s.lapsed = now.Add(1 - crowdedPatience) }, true, true, false, true},
			"crowded for too long":       {func() { s.lapsed = now.Add(-crowdedPatience) }, true, false, false, true},
		} {
			lapsed := now.Add(-time.Second)
			s.mu.Lock()
			s.regions[0].renew(lapsed)
			s.state, s.lives, s.paused, s.crowded, s.lapsed = running, false, false, false, lapsed
			c.set()
			s.mu.Unlock()
			k.short.Store(c.short)
			on := s.outlast()
			s.mu.Lock()
			if on != c.on || s.crowded != c.crowded || s.lapsed.IsZero() != c.renewed || s.regions[0].oldest().Equal(now) != c.renewed {
				t.Errorf("%s: goes on %v, crowded %v, lapsed %v, renewed %v", what, on, s.crowded, now.Sub(s.lapsed), now.Sub(s.regions[0].oldest()))
			}
			s.regions[0].renew(now)
			s.state, s.paused, s.lapsed, s.crowded = running, false, time.Time{}, false
			s.mu.Unlock()
			k.short.Store(false)
		}
	})
}

// TestTicks: what a look makes of a session: of one whose loans are in their term nothing; one
// that starts has until it has been silent for too long; one that is looked at while a lapse lasts
// remembers when that began.
func TestTicks(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		s := k.session()
		w := k.worker()
		w.hang(true)
		now := time.Now()
		if s.tick(now.Add(loanTerm - 1)); !s.lapsed.IsZero() || s.state != running {
			t.Errorf("in its term: lapsed %v, %v", s.lapsed, s.state)
		}
		s.mu.Lock()
		s.paused = true
		s.mu.Unlock()
		if s.tick(now.Add(loanTerm)); !s.lapsed.IsZero() || s.state != running {
			t.Errorf("while the VM stands: lapsed %v, %v", s.lapsed, s.state)
		}
		s.mu.Lock()
		s.paused = false
		s.state, s.startedAt = starting, now.Add(loanTerm+1-silence)
		s.mu.Unlock()
		if s.tick(now.Add(loanTerm)); !s.lapsed.IsZero() || s.state != starting {
			t.Errorf("as it starts: lapsed %v, %v", s.lapsed, s.state)
		}
		s.mu.Lock()
		s.state, s.lives = running, true
		s.mu.Unlock()
		at := now.Add(loanTerm)
		if s.tick(at); s.lapsed != at || s.state != parking || s.lives {
			t.Errorf("at its end: lapsed %v, %v, lives %v", s.lapsed.Sub(at), s.state, s.lives)
		}
		if s.tick(at.Add(time.Second)); s.lapsed != at || s.state != parking {
			t.Errorf("as it is parked: lapsed %v, %v", s.lapsed.Sub(at), s.state)
		}
		w.hang(false)
		k.settle()
		if s.tick(at.Add(2 * time.Second)); !s.lapsed.IsZero() || s.state != parked {
			t.Errorf("when nothing is lent: lapsed %v, %v", s.lapsed, s.state)
		}
	})
	inKernel(t, func(k *kernel) { // one that has started for too long
		k.begin()
		s := k.session()
		s.mu.Lock()
		s.state, s.startedAt = starting, time.Now().Add(loanTerm-silence)
		s.mu.Unlock()
		if s.tick(time.Now().Add(loanTerm)); s.state != dead {
			t.Errorf("it is %v", s.state)
		}
		select {
		case <-s.hurry:
		default:
			t.Error("what waits for a turn to start is not told")
		}
		s.fail(errors.New("twice"))
	})
}

// TestRingsForNews: a worker is rung for pages that are new, and when it goes on; not for renewals,
// nor for a part of a region.
func TestRingsForNews(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 2), 0)
		k.rings()
		k.lend(loanAt(0, 0), zero)
		if n := k.rings(); n != 0 {
			t.Errorf("a renewal rings %d times", n)
		}
		one := k.pages(1)
		k.lend(loanAt(1, 0), one)
		if n := k.rings(); n != 0 {
			t.Errorf("half of a region rings %d times", n)
		}
		k.lend(loanAt(1, pageSize), k.pages(1))
		if k.rings() == 0 {
			t.Error("a whole region does not ring")
		}
		k.lend(loanAt(1, 0), one)
		if n := k.rings(); n != 0 {
			t.Errorf("a renewal of its piece rings %d times", n)
		}
	})
}

// TestParkedWithoutWhatEnds: a parked session goes on when all its regions are lent again, but
// those that the worker does not know, or that end.
func TestParkedWithoutWhatEnds(t *testing.T) {
	for what, c := range map[string]struct {
		sent, ending, on bool
	}{"known": {true, false, false}, "known, and it ends": {true, true, true}, "not known": {false, false, true}} {
		inKernel(t, func(k *kernel) {
			zero := k.begin()
			s := k.session()
			k.want("region", k.declare(1, 1), 0)
			k.lend(loanAt(1, 0), k.pages(1))
			k.sleep(loanTerm + shortestNap)
			if s.state != parked {
				t.Fatal(s.state)
			}
			s.mu.Lock()
			s.regions[1].sent, s.regions[1].ending = c.sent, c.ending
			s.mu.Unlock()
			delete(k.worker().regions, 1)
			k.lend(loanAt(0, 0), zero)
			if on := s.state == running; on != c.on {
				t.Errorf("%s: it is %v", what, s.state)
			}
		})
	}
}

// TestStandsAndGoesOn: a VM that stands for a session that lets go has its pages, and the session
// is none that keeps any; what waits in one that keeps them has its whole term again afterwards.
func TestStandsAndGoesOn(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.lend(loanAt(0, 0), zero)
		s, w := k.session(), k.worker()
		if kept := k.d.fs.Pause(1); kept || s.paused {
			t.Errorf("kept %v, standing %v", kept, s.paused)
		}
		k.d.fs.Resume(1, false)
		k.lend(loanAt(0, 0), zero)
		wait, err := k.file.Read(0, waitAt(3), k.pages(1))
		if err != nil {
			t.Fatal(err)
		}
		k.sleep(waitTerm - time.Millisecond)
		w.busy = true
		if kept := k.d.fs.Pause(1); !kept || !s.paused {
			t.Errorf("kept %v, standing %v", kept, s.paused)
		}
		if done(wait) {
			t.Fatal("a wait was ended early")
		}
		k.d.fs.Resume(1, true)
		if s.paused {
			t.Error("it stands as the VM goes on")
		}
		k.sleep(waitTerm - time.Millisecond)
		k.pending("a wait in its term", wait)
		k.sleep(2*time.Millisecond + shortestNap)
		k.want("a wait after its term", wait, 0)
	})
}

// TestNothingToLetGoOf: an RDMA end that has lent nothing is not parked; a session with too much to
// do says so at once.
func TestNothingToLetGoOf(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		s, w := k.session(), k.worker()
		s.mu.Lock()
		s.direct = &direct{}
		s.mu.Unlock()
		known := w.regions
		w.regions = nil
		if err := s.letGo(k.t.Context(), parkLimit, parkMargin); err != nil || w.parks != 0 || s.state != running {
			t.Errorf("%v, %d parks, it is %v", err, w.parks, s.state)
		}
		s.mu.Lock()
		s.direct = nil
		s.mu.Unlock()
		w.regions = known
		k.lend(loanAt(0, 0), zero)
		if err := s.letGo(k.t.Context(), parkLimit, parkMargin); err != nil || w.parks != 1 || s.state != parked {
			t.Errorf("%v, %d parks, it is %v", err, w.parks, s.state)
		}
	})
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(d, 1, fs.Caller{}) // of which nothing is done
	for s.do(func() {}) {
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.letGo(ctx, parkLimit, parkMargin); !errors.Is(err, errState) {
		t.Errorf("with too much to do: %v", err)
	}
	s.Release()
}

// TestStartGoesBack: a start that waits for loans is given back with its pages, for the guest to
// make again.
func TestStartGoesBack(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
		start := k.control(remote.Hello{Type: remote.MsgStart})
		k.pending("start without pages", start)
		s := k.session()
		if err := s.letGo(k.t.Context(), parkLimit, parkMargin); err != nil {
			t.Error(err)
		}
		k.settle()
		if s.starter != nil {
			t.Error("it waits on")
		}
		if !done(start) {
			t.Error("the start is not given back")
		}
	})
}

// TestLastWordsOfAWorker: what the worker of an RDMA end said before it ended is there to be read,
// why it refuses, say, however late that is taken from its channel; then that it is gone. Nothing
// is waited for where somebody else holds its end.
func TestLastWordsOfAWorker(t *testing.T) {
	for what, c := range map[string]struct {
		held bool
		want string
	}{"said": {want: "no room"}, "said, and held by another": {true, ""}} {
		inKernel(t, func(k *kernel) {
			k.begin()
			s, w := k.session(), k.worker()
			near, far, err := sys.PacketPair("a test's channel out of band")
			if err != nil {
				t.Fatal(err)
			}
			defer near.Close()
			d := &direct{conn: near, read: make(chan struct{})}
			s.mu.Lock()
			s.direct = d
			s.mu.Unlock()
			if _, err := far.WriteString("no room"); err != nil {
				t.Fatal(err)
			}
			go s.workerGone(w)
			k.settle()
			pages := k.pages(1)
			first := k.lend(int64(remote.FileDirect), pages)
			k.pending(what+", not heard yet", first)
			if c.held {
				k.sleep(hearLimit + shortestNap)
				k.want(what+", to look again", first, 0)
				_ = far.Close()
			} else {
				_ = far.Close()
				go s.routineDirect()
				<-d.read
				k.settle()
				k.want(what, first, 0)
			}
			if got := string(bytes.TrimRight(pages[0].Bytes, "\x00")); got != c.want {
				t.Errorf("%s: %q is read, want %q", what, got, c.want)
			}
			k.want(what+", and then", k.lend(int64(remote.FileDirect), k.pages(1)), unix.EPIPE)
		})
	}
}

// TestWordsThatWait: what a program says to a worker that does not hear takes a few entries of the
// queue at most: more is refused, until some of it is heard.
func TestWordsThatWait(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		s := k.session()
		near, far, err := sys.PacketPair("a test's channel out of band")
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		defer far.Close()
		say := func() *fstest.Call {
			c, err := k.file.Write(0, int64(remote.FileDirect), []virtiotest.Buffer{k.put([]byte("a word"))})
			if err != nil {
				t.Fatal(err)
			}
			k.settle()
			return c
		}
		s.mu.Lock()
		s.direct = &direct{conn: near, read: make(chan struct{}), out: mostWriting - 1}
		s.mu.Unlock()
		k.want("the last", say(), 0)
		s.mu.Lock()
		s.direct.out++ // which has not been heard
		s.mu.Unlock()
		k.want("one too many", say(), unix.EBUSY)
		s.mu.Lock()
		s.direct.out--
		s.mu.Unlock()
		k.want("when one was heard", say(), 0)
		s.mu.Lock()
		if s.direct.out != mostWriting-1 {
			t.Errorf("%d wait", s.direct.out)
		}
		s.direct = nil
		s.mu.Unlock()
	})
}
