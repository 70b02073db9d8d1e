package device

import (
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio/virtiotest"
)

// TestRenewedIsNotParked: a session whose loans are renewed as guests do runs for ever without a
// pause, and each renewal ends the READ before it, and only that one.
func TestRenewedIsNotParked(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		last := k.lend(loanAt(0, 0), zero)
		k.want("region", k.declare(1, 2), 0)
		half := k.pages(1)
		k.lend(loanAt(1, 0), half)
		k.lend(loanAt(1, 0), half) // a renewal lends no more than there was
		k.lend(loanAt(1, pageSize), k.pages(1))
		if got := k.worker().knows(1, 0); got != extentsOf(half) {
			t.Errorf("the worker knows %s", got)
		}
		k.want("end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 1}), 0)
		for range 20 {
			k.sleep(loanTerm - 10*time.Millisecond)
			k.pending("a loan in its term", last)
			next := k.lend(loanAt(0, 0), zero)
			k.want("the loan that was renewed", last, 0)
			last = next
		}
		if parks, _ := k.worker().counts(); parks != 0 {
			t.Errorf("parked %d times", parks)
		}
	})
}

// TestLapse: a loan ends when its term does, not before, the worker has let go by then, and loans
// that come back resume it once.
func TestLapse(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		if c := k.declare(1, 4); k.answered(c) != 0 {
			t.Fatal("region 1 was refused")
		}
		a, b := k.pages(2), k.pages(2)
		k.lend(loanAt(1, 0), a)
		k.sleep(time.Second)
		k.lend(loanAt(1, 2*pageSize), b)
		first := k.lend(loanAt(0, 0), zero)
		w := k.worker()
		// Region 1's first piece is a millisecond from its end.
		k.sleep(loanTerm - time.Second - time.Millisecond)
		wait, err := k.file.Read(0, waitAt(1), k.pages(1))
		if err != nil {
			t.Fatal(err)
		}
		k.pending("before its end", first)
		k.sleep(time.Millisecond + shortestNap)
		k.want("all loans end with the first", first, 0)
		k.want("and what waits, for a killed process cannot exit before", wait, 0)
		if parks, resumes := w.counts(); parks != 1 || resumes != 0 {
			t.Fatalf("%d parks, %d resumes", parks, resumes)
		}
		k.sleep(10 * loanTerm) // a parked session has nothing that could lapse
		k.lend(loanAt(0, 0), zero)
		k.lend(loanAt(1, 0), a)
		if _, resumes := w.counts(); resumes != 0 {
			t.Fatal("resumed before all pages were back")
		}
		other := k.pages(2) // these have moved
		k.rings()
		k.lend(loanAt(1, 2*pageSize), other)
		if k.rings() == 0 {
			t.Error("the worker, which may have slept through a doorbell while it was parked, was not rung")
		}
		if parks, resumes := w.counts(); parks != 1 || resumes != 1 {
			t.Fatalf("%d parks, %d resumes", parks, resumes)
		}
		if got := w.knows(1, 2*pageSize); got != extentsOf(other) {
			t.Errorf("the worker knows %s, lent is %s", got, extentsOf(other))
		}
	})
}

// TestParkOfAHungWorker: a worker that does not let go is ended in time, and only then do the pages
// go back.
func TestParkOfAHungWorker(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		c := k.lend(loanAt(0, 0), zero)
		w := k.worker()
		w.hang(true)
		k.sleep(loanTerm + shortestNap)
		k.pending("while the worker may touch them", c)
		k.sleep(silence - waitTerm/2) // a wait that comes now is not due by itself
		wait, err := k.file.Read(0, waitAt(1), k.pages(1))
		if err != nil {
			t.Fatal(err)
		}
		k.sleep(waitTerm)
		k.want("after the worker's end", c, syscall.EPIPE)
		k.want("what waits", wait, syscall.EPIPE)
		if !w.ended {
			t.Error("the worker lives")
		}
		if got := zero[0].Bytes[remote.ControlPageWorkerStateOffset]; got != byte(remote.WorkerDead) {
			t.Errorf("the control page says %d", got)
		}
		k.want("another loan", k.lend(loanAt(0, 0), zero), syscall.EPIPE)
	})
}

// TestLateAnswerToAPark: an answer to an earlier park is not one to this.
func TestLateAnswerToAPark(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		w := k.worker()
		w.answer(link.Parked{Number: 77})
		w.hang(true)
		c := k.lend(loanAt(0, 0), zero)
		k.sleep(loanTerm + shortestNap)
		k.pending("with the answer to another park", c)
		w.hang(false)
		k.settle()
		k.want("once it let go", c, 0)
	})
}

// TestEndOfARegion: its pages and the answer wait until the worker has let go.
func TestEndOfARegion(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		k.want("region", k.declare(1, 2), 0)
		pages := k.pages(2)
		c := k.lend(loanAt(1, 0), pages)
		w := k.worker()
		w.hang(true)
		end := k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 1})
		k.sleep(silence - time.Millisecond)
		k.pending("end of the region", end)
		k.pending("its loan", c)
		k.want("another end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 1}), syscall.EINVAL)
		k.want("a loan of what ends", k.lend(loanAt(1, 0), pages), 0)
		w.hang(false)
		k.settle()
		k.want("end of the region", end, 0)
		k.want("its loan", c, 0)
		k.want("loan of what has ended", k.lend(loanAt(1, 0), pages), syscall.EINVAL)
		k.want("the number again", k.declare(1, 2), 0)
		k.lend(loanAt(1, 0), pages)
		if got := w.knows(1, 0); got != extentsOf(pages) {
			t.Errorf("the worker knows %s", got)
		}
		w.hang(true)
		end = k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 1})
		k.sleep(silence)
		k.want("end of the region, with a worker that was ended", end, 0)
		if !w.ended {
			t.Error("a worker that does not let go lives")
		}
	})
}

// TestBoundsComeBack: regions and loans that end make room for as many again.
func TestBoundsComeBack(t *testing.T) {
	inKernelWith(t, 32768, func(k *kernel) {
		k.begin()
		const pages = maxDeclared/pageSize/2 + 1 // two do not fit
		small := k.pages(1)
		for i := range 3 {
			k.want("large region", k.declare(1, pages), 0)
			k.session().releaseRegion(k.session().regions[1]) // no queue holds it all
			k.want("another", k.declare(2, pages), syscall.EINVAL)
			k.want("one as large as what is left", k.declare(3, maxDeclared/pageSize-pages-int(remote.Region0Size/pageSize)), 0)
			k.want("and a page", k.declare(4, 1), syscall.EINVAL)
			for j := range 50 {
				k.lend(loanAt(1, uint64(j)*pageSize), small)
			}
			if s := k.session(); s.pieces != 51 {
				t.Errorf("round %d: %d pieces are counted, 51 are", i, s.pieces)
			}
			k.want("end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 1}), 0)
			k.want("end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 3}), 0)
		}
		for i := range maxRegions - 1 {
			k.want("small region", k.declare(uint32(i+1), 1), 0)
		}
		k.want("one region too many", k.declare(maxRegions, 1), syscall.EINVAL)
	})
}

// TestHostileLoans: loans that no kernel would ask for are refused and change nothing.
func TestHostileLoans(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 4), 0)
		four := k.pages(8)[0]
		part := func(off, n uint64) []virtiotest.Buffer {
			return []virtiotest.Buffer{{GPA: four.GPA + off, Bytes: four.Bytes[off : off+n]}}
		}
		lent := k.lend(loanAt(1, pageSize), part(pageSize, 2*pageSize))
		k.pending("a good loan", lent)
		for what, c := range map[string]struct {
			off   uint64
			pages []virtiotest.Buffer
		}{
			"an odd offset":                   {1, part(0, pageSize)},
			"an odd size":                     {0, part(0, 100)},
			"past the end":                    {3 * pageSize, part(0, 2*pageSize)},
			"far past the end":                {1 << 43, part(0, pageSize)},
			"an odd address":                  {0, part(512, pageSize)},
			"two halves of pages":             {0, append(part(0, 2048), part(2*pageSize+2048, 2048)...)},
			"pages and a part":                {0, append(part(3*pageSize, 2048), part(2*pageSize, 2048)...)},
			"over a loan":                     {0, part(0, 2*pageSize)},
			"within a loan":                   {2 * pageSize, part(2*pageSize, pageSize)},
			"over all":                        {0, part(0, 4*pageSize)},
			"more at the same place":          {pageSize, part(pageSize, 3*pageSize)},
			"less at the same place":          {pageSize, part(pageSize, pageSize)},
			"other pages while they are lent": {pageSize, part(5*pageSize, 2*pageSize)},
		} {
			k.want(what, k.lend(loanAt(1, c.off), c.pages), syscall.EINVAL)
		}
		k.want("of no region", k.lend(loanAt(9, 0), part(0, pageSize)), syscall.EINVAL)
		k.pending("the good loan", lent)
		if r := k.session().regions[1]; r.lent != 2*pageSize || len(r.pieces) != 1 {
			t.Errorf("%#x bytes in %d pieces are lent", r.lent, len(r.pieces))
		}
		k.lend(loanAt(1, 0), part(0, pageSize)) // beside it, on both sides
		k.lend(loanAt(1, 3*pageSize), part(3*pageSize, pageSize))
		if got := k.worker().knows(1, 0); got != extentsOf(part(0, pageSize)) {
			t.Errorf("the worker knows %s", got)
		}
		k.lend(loanAt(0, 0), zero)
		if parks, _ := k.worker().counts(); parks != 0 {
			t.Error("refusals parked the worker")
		}
	})
}

// TestWaits: a READ for a slot's answer ends with it, once, and after a second without.
func TestWaits(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		w, page := k.worker(), k.pages(1)
		await := func(slot uint32) func() (bool, syscall.Errno) {
			c, err := k.file.Read(0, waitAt(slot), page)
			if err != nil {
				t.Fatal(err)
			}
			k.settle()
			return func() (bool, syscall.Errno) {
				if !done(c) {
					return false, 0
				}
				return true, k.answered(c)
			}
		}
		a, b, other := await(3), await(3), await(4)
		w.wake(3)
		k.settle()
		for _, c := range []func() (bool, syscall.Errno){a, b} {
			if ok, errno := c(); !ok || errno != 0 {
				t.Errorf("answered %v, %v", ok, errno)
			}
		}
		if ok, _ := other(); ok {
			t.Error("another slot's wait ended")
		}
		w.wake(3) // nobody waits: the next finds it, once
		if ok, _ := await(3)(); !ok {
			t.Error("a wake-up that came first was lost")
		}
		again := await(3)
		if ok, _ := again(); ok {
			t.Error("one wake-up served two")
		}
		w.wake(remote.SlotCount + 1)
		if ok, errno := await(remote.SlotCount + 1)(); !ok || errno != syscall.EINVAL {
			t.Errorf("no such slot: %v, %v", ok, errno)
		}
		k.lend(loanAt(0, 0), zero)
		k.sleep(waitTerm - time.Millisecond)
		if ok, _ := again(); ok {
			t.Error("ended before its term")
		}
		k.sleep(2 * time.Millisecond)
		k.sleep(shortestNap)
		if ok, errno := again(); !ok || errno != 0 {
			t.Errorf("after its term: %v, %v", ok, errno)
		}
		if s := k.session(); s.waiting != 0 || len(s.waits) != 0 {
			t.Errorf("%d wait, %d lists", s.waiting, len(s.waits))
		}
		for range maxWaits {
			await(7)
			if k.session().waiting%100 == 0 {
				k.lend(loanAt(0, 0), zero)
			}
		}
		if ok, errno := await(7)(); !ok || errno != syscall.EINVAL {
			t.Errorf("one wait too many: %v, %v", ok, errno)
		}
		w.wake(7)
		k.settle()
		if s := k.session(); s.waiting != 0 {
			t.Errorf("%d wait", s.waiting)
		}
	})
}

// TestStartWaitsForLoans: loans may come behind the start; without them it is given back in time,
// and begins the session when it comes again behind them.
func TestStartWaitsForLoans(t *testing.T) {
	inKernel(t, func(k *kernel) {
		hello := remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}
		k.want("hello", k.control(hello), 0)
		half := int(remote.Region0Size / pageSize / 2)
		k.lend(loanAt(0, 0), k.pages(half))
		start := k.control(remote.Hello{Type: remote.MsgStart})
		k.sleep(loanWait / 2)
		k.pending("start with half of the pages", start)
		k.want("a second start", k.control(remote.Hello{Type: remote.MsgStart}), syscall.EINVAL)
		k.lend(loanAt(0, remote.Region0Size/2), k.pages(half))
		k.want("start with all pages", start, 0)
		if w := k.worker(); w.starts != 1 {
			t.Errorf("started %d times", w.starts)
		}
	})
	inKernel(t, func(k *kernel) {
		k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
		k.sleep(loanWait / 3) // ticks do not fall together with it
		start := k.control(remote.Hello{Type: remote.MsgStart})
		k.sleep(loanWait - time.Millisecond)
		k.pending("start without pages", start)
		k.sleep(time.Millisecond + shortestNap)
		k.want("start without pages", start, syscall.EAGAIN)
		k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
		k.want("start with all pages, again", k.control(remote.Hello{Type: remote.MsgStart}), 0)
	})
	inKernel(t, func(k *kernel) { // a guest that did not run for a term
		k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
		k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
		k.sleep(loanTerm + shortestNap)
		start := k.control(remote.Hello{Type: remote.MsgStart})
		k.sleep(loanWait + shortestNap)
		k.want("start behind loans that have lapsed", start, syscall.EAGAIN)
		k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
		k.want("start with new ones", k.control(remote.Hello{Type: remote.MsgStart}), 0)
	})
}

// TestRebuiltSession: a session that moved is parked and woken at its new worker, and the old one's
// end is no loss.
func TestRebuiltSession(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		old := k.worker()
		if n, err := k.d.Rebuild(k.t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		k.settle()
		now := k.worker()
		if now == old || !old.ended || now.ended {
			t.Fatal("the session did not move")
		}
		c := k.lend(loanAt(0, 0), zero)
		k.pending("after the move", c)
		k.sleep(loanTerm + shortestNap)
		k.want("lapsed", c, 0)
		k.lend(loanAt(0, 0), zero)
		if parks, resumes := now.counts(); parks != 1 || resumes != 1 {
			t.Errorf("%d parks, %d resumes", parks, resumes)
		}
		now.hang(true)
		if n, err := k.d.Rebuild(k.t.Context()); n != 0 || err == nil {
			t.Error("a worker that hangs moved", n, err)
		}
		now.hang(false)
		k.pending("after a move that failed", k.lend(loanAt(0, 0), zero))
		now.exit(nil)
		k.settle()
		if s := k.session(); s.state != dead {
			t.Errorf("without its worker the session is %v", s.state)
		}
	})
}

// TestRevoke: taking the pages back waits for the worker; waits and extents end with it.
func TestRevoke(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		c := k.lend(loanAt(0, 0), zero)
		wait, err := k.file.Read(0, waitAt(1), k.pages(1))
		if err != nil {
			t.Fatal(err)
		}
		w := k.worker()
		begin := time.Now()
		k.d.fs.CancelPending()
		k.settle()
		k.want("loan", c, 0)
		k.want("wait", wait, 0)
		if parks, _ := w.counts(); parks != 1 || time.Since(begin) != 0 {
			t.Errorf("%d parks, after %v", parks, time.Since(begin))
		}
		k.pending("given again", k.lend(loanAt(0, 0), zero))
		if _, resumes := w.counts(); resumes != 1 {
			t.Errorf("%d resumes", resumes)
		}
		w.hang(true)
		k.d.fs.CancelPending()
		k.settle()
		if !w.ended || time.Since(begin) > parkLimit {
			t.Errorf("a worker that hangs: ended %v, after %v", w.ended, time.Since(begin))
		}
	})
}

// TestPagesOf: the list that workers get names the pages of a READ, in order.
func TestPagesOf(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		k.want("region", k.declare(2, 6), 0)
		a, b, c := k.pages(2), k.pages(4), k.pages(1)
		list := slices.Concat(c, []virtiotest.Buffer{{GPA: b[0].GPA + pageSize, Bytes: b[0].Bytes[pageSize:]}}, a)
		k.lend(loanAt(2, 0), list)
		if got := k.worker().knows(2, 0); got != extentsOf(list) {
			t.Errorf("the worker knows %s, lent is %s", got, extentsOf(list))
		}
	})
}

// TestIdleIsTold: it is heard once that the last session has gone, within a second of that, however
// many there were in that second.
func TestIdleIsTold(t *testing.T) {
	o := quietDevice(library(t))
	idle := 0
	o.Idle = func() { idle++ }
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t, o)
		t.Cleanup(k.halt)
		k.sleep(time.Minute)
		for round := 1; round <= 2; round++ {
			k.open()
			first := k.file
			k.sleep(10 * time.Second)
			if idle != round-1 {
				t.Fatalf("told %d times with a session there", idle)
			}
			for range 50 {
				k.open()
				if err := k.file.Close(); err != nil {
					t.Fatal(err)
				}
				k.settle()
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			k.sleep(stopGrace + longestNap)
			if idle != round {
				t.Errorf("told %d times that the last has gone, of %d", idle, round)
			}
			k.sleep(time.Minute)
			if idle != round {
				t.Errorf("told %d times after a minute, of %d", idle, round)
			}
		}
	})
}
