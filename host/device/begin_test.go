package device

import (
	"runtime"
	"syscall"
	"testing"

	"causeway/remote"
	"causeway/virtio/fs/fstest"
)

// TestExtentsThatWereTakenBack: a copy that was not begun when its pages went back is never made.
func TestExtentsThatWereTakenBack(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 1), 0)
		region := k.pages(1)
		k.lend(loanAt(1, 0), region)
		for range cap(k.d.hands) {
			k.d.hands <- struct{}{} // all hands are busy
		}
		buffer := k.pages(1)
		buffer[0].Bytes[0] = 'x'
		c, err := k.file.Write(0, int64(remote.FileExtent|1<<44), buffer)
		if err != nil {
			t.Fatal(err)
		}
		k.settle()
		k.pending("while no hand is free", c)
		k.d.fs.CancelPending()
		k.settle()
		k.want("taken back", c, syscall.EAGAIN)
		k.lend(loanAt(1, 0), region)
		k.lend(loanAt(0, 0), zero) // it runs again
		for range cap(k.d.hands) {
			<-k.d.hands
		}
		k.settle()
		if region[0].Bytes[0] != 0 {
			t.Error("bytes were copied from pages that the guest had back")
		}
	})
}

// TestExtentsOfWhatIsNotLent: nothing is copied to or from a region while the session is parked, or
// whose own pages have gone back.
func TestExtentsOfWhatIsNotLent(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region 1", k.declare(1, 1), 0)
		k.want("region 2", k.declare(2, 2), 0)
		one, half := k.pages(1), k.pages(1)
		k.lend(loanAt(1, 0), one)
		k.lend(loanAt(2, 0), half) // the worker does not know this region: half of it is missing
		copyTo := func(id uint64) *fstest.Call {
			t.Helper()
			c, err := k.file.Write(0, int64(remote.FileExtent|id<<44), k.pages(1))
			if err != nil {
				t.Fatal(err)
			}
			k.settle()
			return c
		}
		k.want("of a region that is lent", copyTo(1), 0)
		k.want("of the half that is lent", copyTo(2), 0)
		k.sleep(loanTerm + shortestNap)
		k.lend(loanAt(1, 0), one)
		k.want("of a parked session", copyTo(1), syscall.EAGAIN)
		k.lend(loanAt(0, 0), zero)
		k.want("of a region that is lent again", copyTo(1), 0)
		k.want("of the half that is not", copyTo(2), syscall.EAGAIN)
	})
}

// TestPagesBeforeTheStart: a region that was lent before the session runs is the worker's once it
// does.
func TestPagesBeforeTheStart(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
		k.want("region", k.declare(1, 2), 0)
		pages := k.pages(2)
		k.lend(loanAt(1, 0), pages)
		k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
		if got := k.worker().knows(1, 0); got != "nothing" {
			t.Errorf("before the start the worker knows %s", got)
		}
		k.want("start", k.control(remote.Hello{Type: remote.MsgStart}), 0)
		if got := k.worker().knows(1, 0); got != extentsOf(pages) {
			t.Errorf("the worker knows %s", got)
		}
	})
}

// TestTheLastMissingRegionEnds: a parked session goes on at once when all that is left of it is
// lent.
func TestTheLastMissingRegionEnds(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 1), 0)
		k.lend(loanAt(1, 0), k.pages(1))
		k.sleep(loanTerm + shortestNap)
		k.lend(loanAt(0, 0), zero)
		if parks, resumes := k.worker().counts(); parks != 1 || resumes != 0 {
			t.Fatalf("%d parks, %d resumes", parks, resumes)
		}
		k.want("end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 1}), 0)
		if _, resumes := k.worker().counts(); resumes != 1 {
			t.Errorf("%d resumes", resumes)
		}
	})
}

// TestRevokedBeforeTheStart: a session whose pages were taken back before it ran starts when they
// are there again, every time.
func TestRevokedBeforeTheStart(t *testing.T) {
	for range 12 {
		inKernel(t, func(k *kernel) {
			k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
			start := k.control(remote.Hello{Type: remote.MsgStart})
			k.pending("start without pages", start)
			k.d.fs.CancelPending()
			k.settle()
			k.want("start whose pages were taken back", start, syscall.EAGAIN)
			k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
			if w := k.worker(); w.starts != 0 {
				t.Error("a start that was answered came all the same")
			}
			k.want("start again", k.control(remote.Hello{Type: remote.MsgStart}), 0)
		})
	}
}

// TestLapseWhileTheWorkerStarts: what lapses meanwhile goes back when the worker runs, which is
// parked then and goes on; one that takes for ever is ended.
func TestLapseWhileTheWorkerStarts(t *testing.T) {
	for _, comes := range []bool{true, false} {
		inKernel(t, func(k *kernel) {
			k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
			zero := k.pages(int(remote.Region0Size / pageSize))
			c := k.lend(loanAt(0, 0), zero)
			w := k.worker()
			w.hang(true)
			start := k.control(remote.Hello{Type: remote.MsgStart})
			k.sleep(loanTerm + shortestNap)
			k.pending("while the worker may map them", c)
			if !comes {
				k.sleep(silence)
				k.want("after the worker's end", c, syscall.EPIPE)
				k.want("start", start, syscall.EIO)
				if !w.ended {
					t.Error("the worker lives")
				}
				return
			}
			w.hang(false)
			k.settle()
			k.want("start", start, 0)
			k.sleep(2 * shortestNap)
			k.want("once the worker runs", c, 0)
			k.pending("lent again", k.lend(loanAt(0, 0), zero))
			if st := k.session().state; st != running || w.ended {
				t.Errorf("the session is %v", st)
			}
		})
	}
}

// TestExtentsEndBehindCopies: what takes extents back waits for those that are being copied at the
// moment: their pages are the guest's again when it returns.
func TestExtentsEndBehindCopies(t *testing.T) {
	s := &session{extents: map[*extent]struct{}{}}
	s.copying.RLock() // as a copy does
	gone := make(chan struct{})
	go func() {
		s.dropExtents()
		close(gone)
	}()
	for s.copying.TryRLock() { // until it waits
		s.copying.RUnlock()
		select {
		case <-gone:
			t.Fatal("extents are taken back from under a copy")
		default:
			runtime.Gosched()
		}
	}
	s.copying.RUnlock()
	<-gone
}
