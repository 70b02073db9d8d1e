package device

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"causeway/remote"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

// atWork has the worker's GPU not let go, or let go.
func (w *fakeWorker) atWork(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = yes
}

func (w *fakeWorker) lost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// TestLapseOfASilentProgram: a program that is silent while its GPU works has been killed, and
// exits in time.
func TestLapseOfASilentProgram(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.worker().atWork(true)
		c := k.lend(loanAt(0, 0), zero)
		k.sleep(loanTerm + shortestNap)
		k.want("what a killed program lent", c, syscall.EPIPE)
	})
}

// TestLapseOnACrowdedHost: where CPU is short a program that is silent is not dead: it has
// crowdedPatience. If its GPU lets go meanwhile it is parked, and goes on when its loans are back;
// if it renews first it goes on as it was, and the next lapse has all of the time again.
func TestLapseOnACrowdedHost(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		w := k.worker()
		w.atWork(true)
		k.short.Store(true)
		c := k.lend(loanAt(0, 0), zero)
		k.sleep(loanTerm + crowdedPatience - time.Second)
		k.short.Store(false) // what was seen once holds for this lapse
		k.pending("while the program may live", c)
		renewed := k.lend(loanAt(0, 0), zero)
		k.want("what was renewed", c, 0)
		k.sleep(loanTerm - time.Millisecond)
		k.pending("in time again", renewed)

		k.short.Store(true)
		k.sleep(crowdedPatience - time.Second)
		k.pending("in the next lapse", renewed)
		w.atWork(false)
		k.sleep(2 * shortestNap)
		k.want("when the GPU has let go", renewed, 0)
		_, before := w.counts()
		back := k.lend(loanAt(0, 0), zero)
		if _, resumes := w.counts(); resumes != before+1 {
			t.Errorf("resumed %d times, %d before", resumes, before)
		}

		w.atWork(true)
		k.sleep(loanTerm + crowdedPatience + time.Second)
		k.want("of a program that stays silent", back, syscall.EPIPE)
		if !w.lost() {
			t.Error("its worker lives")
		}
	})
}

// TestLapseOnACrowdedHostWhileTheWorkerStarts: so it is where a worker takes long to start, as one
// does there that has a GPU server's handshake to wait for: the program gets no CPU either, and its
// session goes on when it has renewed. One that stays silent is dead.
func TestLapseOnACrowdedHostWhileTheWorkerStarts(t *testing.T) {
	for _, lives := range []bool{true, false} {
		inKernel(t, func(k *kernel) {
			k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
			zero := k.pages(int(remote.Region0Size / pageSize))
			c := k.lend(loanAt(0, 0), zero)
			w := k.worker()
			w.hang(true)
			start := k.control(remote.Hello{Type: remote.MsgStart})
			k.short.Store(true)
			k.sleep(silence + crowdedPatience - time.Second)
			k.pending("while the program may live", c)
			if !lives {
				k.sleep(time.Second + shortestNap)
				k.want("of a program that stays silent", c, syscall.EPIPE)
				k.want("start", start, syscall.EIO)
				return
			}
			renewed := k.lend(loanAt(0, 0), zero)
			k.want("what was renewed", c, 0)
			k.sleep(loanTerm + crowdedPatience - time.Second)
			k.pending("in the next lapse", renewed)
			w.hang(false)
			k.settle()
			k.want("start", start, 0)
			if st := k.session().state; st != running && st != parking && st != parked || w.lost() {
				t.Errorf("the session is %v", st)
			}
		})
	}
}

// TestLapseThatCameTooEarly: a renewal that this process comes to only when it is at the lapse
// already shows that the program lives, GPU at work or not.
func TestLapseThatCameTooEarly(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		w := k.worker()
		for round := range 3 {
			c := k.lend(loanAt(0, 0), zero)
			w.hang(true)
			w.atWork(true)
			k.sleep(loanTerm + shortestNap) // its worker is asked to let go
			late := k.lend(loanAt(0, 0), zero)
			k.want("what is renewed meanwhile", c, 0)
			w.hang(false)
			k.settle()
			if w.lost() {
				t.Fatalf("round %d: a program that lives is lost", round)
			}
			k.sleep(loanTerm - shortestNap)
			k.pending("a term later", late)
		}
		k.sleep(2 * shortestNap)
		if !w.lost() {
			t.Error("silent for another term it lives")
		}
	})
}

// renewing is a program's memory that one request of its own lends in several READs, as its library
// does: it renews what has no more than one request in flight.
type renewing struct {
	k        *kernel
	pages    [][]virtiotest.Buffer // of each READ
	requests [][]*fstest.Call      // in flight, oldest first
}

// flying drops requests that have ended, all of whose READs have, and says how many are left.
func (p *renewing) flying() int {
	p.requests = slices.DeleteFunc(p.requests, func(reads []*fstest.Call) bool {
		return !slices.ContainsFunc(reads, func(c *fstest.Call) bool { return !done(c) })
	})
	return len(p.requests)
}

// renew sends a request. Something may happen before each of its READs.
func (p *renewing) renew(before func(read int)) {
	var reads []*fstest.Call
	for i, pages := range p.pages {
		before(i)
		reads = append(reads, p.k.lend(loanAt(1, uint64(i)*pageSize), pages))
	}
	p.requests = append(p.requests, reads)
}

// TestLapseAmidARenewal: a park that begins, or ends without that the GPU has let go, amid the
// READs of one renewal leaves none of its loans with an older request: both ends of the program's
// requests would wait for each other, and it would be lost at a later lapse, having renewed all
// that it may.
func TestLapseAmidARenewal(t *testing.T) {
	const reads = 4
	for what, c := range map[string]struct{ begins, ends int }{
		"it begins there": {2, reads}, "it ends there": {0, 2}, "both": {1, 3}, "all in between": {0, reads}, "at its last": {reads - 1, reads}, "behind its first": {0, 1},
	} {
		for _, busy := range []bool{true, false} {
			inKernel(t, func(k *kernel) {
				zero := k.begin()
				w := k.worker()
				k.want("region", k.declare(1, reads), 0)
				p := &renewing{k: k}
				for range reads {
					p.pages = append(p.pages, k.pages(1))
				}
				p.renew(func(int) {})
				w.atWork(busy)
				k.sleep(loanTerm - time.Millisecond)
				k.lend(loanAt(0, 0), zero) // its other memory is in time
				p.renew(func(read int) {
					if read == c.begins {
						w.hang(true)
						k.sleep(time.Millisecond + shortestNap)
						if s := k.session(); s.state != parking {
							t.Fatalf("%s: it is %v", what, s.state)
						}
					}
					if read == c.ends {
						w.hang(false)
						k.settle()
					}
				})
				w.hang(false)
				k.settle()
				for round := range 20 {
					if n := p.flying(); n > 1 {
						t.Fatalf("%s, GPU at work %v, round %d: %d requests are in flight, and none ends", what, busy, round, n)
					}
					p.renew(func(int) {})
					k.lend(loanAt(0, 0), zero)
					k.sleep(time.Second)
				}
				if s := k.session(); w.lost() || s.state != running {
					t.Errorf("%s, GPU at work %v: the program is lost, %v", what, busy, s.state)
				}
			})
		}
	}
}

// TestLapseBeforeAStop: a VM that stops while a lapse is under way has programs that cannot renew:
// the GPU may go on, as if it had stopped before, and terms begin anew when the VM goes on.
func TestLapseBeforeAStop(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		w := k.worker()
		c := k.lend(loanAt(0, 0), zero)
		w.hang(true)
		w.atWork(true)
		k.sleep(loanTerm + shortestNap)
		paused := make(chan bool)
		go func() { paused <- k.d.fs.Pause(1) }()
		k.settle()
		w.hang(false)
		if kept := <-paused; !kept {
			t.Error("a GPU that works has let go")
		}
		k.sleep(10 * loanTerm)
		if w.lost() {
			t.Fatal("a program is lost while its VM stands")
		}
		k.pending("while the VM stands", c)
		k.d.fs.Resume(1, true)
		k.sleep(loanTerm - shortestNap)
		k.pending("within a term", c)
		w.atWork(false)
		k.sleep(2 * shortestNap)
		k.want("then", c, 0)
		if w.lost() {
			t.Error("it is lost")
		}
	})
}

// TestRenewalsAreNoJobs: what a program renews while its session waits for its worker makes no more
// to do for it, however often it comes: the session has room for what else there is, so its loans
// end when they have lapsed.
func TestRenewalsAreNoJobs(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		s := k.session()
		goes := make(chan struct{})
		s.do(func() { <-goes })
		k.want("region", k.declare(1, 1), 0)
		pages := k.pages(1)
		var c *fstest.Call
		for range 2 * cap(s.jobs) {
			c = k.lend(loanAt(1, 0), pages)
		}
		if n := len(s.jobs); n > 2 {
			t.Errorf("%d jobs of one region", n)
		}
		ring := k.lend(loanAt(0, 0), zero)
		k.sleep(loanTerm + shortestNap)
		close(goes)
		k.settle()
		k.want("its memory", c, 0)
		k.want("its ring", ring, 0)
		if s.state != parked {
			t.Errorf("it is %v", s.state)
		}
		k.lend(loanAt(1, 0), pages)
		k.lend(loanAt(0, 0), zero)
		if got := k.worker().knows(1, 0); s.state != running || got != extentsOf(pages) {
			t.Errorf("it is %v, and the worker knows %s", s.state, got)
		}
	})
}

// TestLapseOfABrokenSession: a session with more to do than it may have ends when a loan lapses:
// what it has lent does not stay with it.
func TestLapseOfABrokenSession(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		s := k.session()
		c := k.lend(loanAt(0, 0), zero)
		goes := make(chan struct{})
		s.do(func() { <-goes })
		k.settle()
		for s.do(func() {}) {
		}
		k.sleep(loanTerm + shortestNap)
		k.want("what it lent", c, syscall.EPIPE)
		close(goes)
		k.settle()
		if !k.worker().ended {
			t.Error("its worker lives")
		}
	})
}

// TestRunnable: what /proc/loadavg says of threads that want to run.
func TestRunnable(t *testing.T) {
	for said, want := range map[string]int{"0.20 0.18 0.12 1/80 11206\n": 0, "40.01 20.5 9.9 37/612 9\n": 36, "0.1 0.1 0.1 0/612 9": 0, "": 0, "1 2 3": 0, "1 2 3 x/y 5": 0} {
		if got := runnable([]byte(said)); got != want {
			t.Errorf("%q: %d", said, got)
		}
	}
}
