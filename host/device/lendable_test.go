package device

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	image "causeway/host/worker/state"
	"causeway/remote"
	"causeway/virtio/fs/fstest"
	"causeway/virtio/virtiotest"
)

const mibPages = 1 << 20 / pageSize

// TestQueueShares: three quarters of a queue are for loans, of which programs that begin have a
// part that no other gets, enough for one of them.
func TestQueueShares(t *testing.T) {
	for what, c := range map[string]struct {
		requests, first int
		want            shares
	}{
		"QEMU's largest":            {1024, 8, shares{8, 768, 96, 256}},
		"QEMU's default":            {128, 17, shares{17, 96, 17, 32}},
		"too small for anything":    {2, 8, shares{8, 2, 1, 0}},
		"without indirect requests": {3, 8, shares{8, 3, 1, 0}},
	} {
		if got := sharesOf(c.requests, c.first); got != c.want {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
}

// another opens a second session, which k's methods mean from then on.
func (k *kernel) another() (*session, *fstest.File) {
	k.t.Helper()
	was, first := k.d.all(), k.file
	k.open()
	for _, s := range k.d.all() {
		if s != was[0] {
			return s, first
		}
	}
	k.t.Fatal("no second session")
	return nil, nil
}

func (k *kernel) taken() int {
	k.d.lendable.mu.Lock()
	defer k.d.lendable.mu.Unlock()
	return k.d.lendable.taken
}

// TestOneProgramHasTheQueue: it may lend as much as the queue holds but for what programs that
// begin get; more is refused by name, and nothing of it is kept. What it gives back it, or another,
// may have again.
func TestOneProgramHasTheQueue(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		s := k.session()
		const alone = 768 - 96
		k.want("all but one", k.declare(1, (alone-2)*mibPages), 0)
		k.want("two more", k.declare(2, 2*mibPages), syscall.ENOBUFS)
		for _, part := range []string{"the GPU may reach no more of this VM's memory", "671 of the 768 requests", "2 are asked for", "1024 KiB"} {
			if !strings.Contains(s.why, part) {
				t.Errorf("%q does not say %q", s.why, part)
			}
		}
		if s.regions[2] != nil || k.taken() != alone-1 || s.promised != alone-1 {
			t.Errorf("%d are taken, %d the session's", k.taken(), s.promised)
		}
		k.want("the last", k.declare(2, 1), 0)
		k.want("not even a page", k.declare(3, 1), syscall.ENOBUFS)
		k.want("the end of the last", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 2}), 0)
		k.want("again", k.declare(3, mibPages), 0)

		// A second one begins beside it, has what it needs for that, and no more.
		second, file := k.another()
		k.begin()
		k.want("staging", k.declare(1, 4*mibPages), 0)
		k.want("pinned", k.declare(2, 3*mibPages), 0)
		k.want("more", k.declare(3, 1), syscall.ENOBUFS)
		if second.promised != 8 || k.taken() != alone+8 {
			t.Errorf("the second has %d, all %d", second.promised, k.taken())
		}
		// The first ends: all of it is the second's.
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		k.settle()
		k.sleep(2 * stopGrace)
		if k.taken() != 8 {
			t.Errorf("%d are taken", k.taken())
		}
		k.want("more, when there is", k.declare(3, (alone-8)*mibPages), 0)
	})
}

// TestProgramsThatBegin: as many begin beside one that has all that it may as there is kept for,
// and who does not hears why.
func TestProgramsThatBegin(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		k.want("all", k.declare(1, 671*mibPages), 0)
		hello := remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}
		for range 96 / 8 {
			k.open()
			k.want("hello", k.control(hello), 0)
			k.want("its first memory", k.declare(1, 7*mibPages), 0)
		}
		k.open()
		k.want("hello of one too many", k.control(hello), syscall.ENOBUFS)
		if k.taken() != 768 {
			t.Errorf("%d are taken", k.taken())
		}
	})
}

// TestLoansCountAsTheyCome: READs of another size than was thought count as what they are: a
// region's when it is lent, later ones' by the largest that came.
func TestLoansCountAsTheyCome(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		zero := k.begin()
		s := k.session()
		k.want("region", k.declare(1, 1020), 0)
		if s.regions[1].promised != 4 {
			t.Errorf("4080 KiB are %d READs", s.regions[1].promised)
		}
		k.pending("all of it in one READ", k.lend(loanAt(1, 0), k.pages(1020)))
		if first := k.d.shares().first; first != 8 {
			t.Errorf("who begins has %d", first)
		}
		if s.regions[1].promised != 1 || k.taken() != 2 || k.d.fs.LargestRead() != 1020*pageSize {
			t.Errorf("it has %d, all %d, and READs %d bytes", s.regions[1].promised, k.taken(), k.d.fs.LargestRead())
		}
		k.want("2 GiB", k.declare(2, 2048*mibPages), 0)
		if got := s.regions[2].promised; got != 515 {
			t.Errorf("2 GiB are %d READs", got)
		}
		k.want("their end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 2}), 0)
		k.want("a region by pages", k.declare(3, 10), 0)
		list := k.pages(10)
		for i := range 10 {
			one := []virtiotest.Buffer{{GPA: list[0].GPA + uint64(i)*pageSize, Bytes: list[0].Bytes[i*pageSize:][:pageSize]}}
			k.pending("a page", k.lend(loanAt(3, uint64(i)*pageSize), one))
			k.pending("again", k.lend(loanAt(3, uint64(i)*pageSize), one))
			if s.regions[3].promised != i+1 || k.taken() != 2+i+1 {
				t.Fatalf("%d READs: it has %d, all %d", i+1, s.regions[3].promised, k.taken())
			}
		}
		// Renewed when all has lapsed, nothing is counted twice.
		k.sleep(loanTerm + 100*time.Millisecond)
		k.lend(loanAt(0, 0), zero)
		if k.taken() != 12 {
			t.Errorf("%d are taken", k.taken())
		}
		// One whose READs are smaller than it may have is refused those that are too many.
		k.want("all that is left", k.declare(4, 660*1020), 0)
		small := k.pages(1)
		k.want("another region", k.declare(5, 1), syscall.ENOBUFS)
		s.mu.Lock()
		s.regions[4].promised = 0
		s.mu.Unlock()
		k.want("a READ beyond", k.lend(loanAt(4, 0), small), syscall.ENOBUFS)
		s.mu.Lock()
		s.regions[4].promised = 660
		s.mu.Unlock()
	})
}

// TestMovedLoans: what a VM has as it comes from another host is not refused, and counts; READs
// beyond that are promised as any, so that no program has more of the queue for having moved.
func TestMovedLoans(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		s := k.session()
		s.mu.Lock()
		r, err := s.newRegionLocked(remote.Hello{Region: 1, Va: 1 << 40, Size: 670 << 20})
		if err != nil {
			t.Fatal(err)
		}
		s.bringLocked(r, 3)
		s.noteLocked(r)
		s.mu.Unlock()
		if k.taken() != 4 {
			t.Fatalf("%d are taken", k.taken())
		}
		for i := range 3 + 5 {
			k.pending("a READ", k.lend(loanAt(1, uint64(i)*pageSize), k.pages(1)))
			if want := 1 + max(3, i+1); k.taken() != want {
				t.Errorf("%d READs: %d are taken, not %d", i+1, k.taken(), want)
			}
		}
		k.want("all that is left", k.declare(2, (672-9)*mibPages), 0)
		k.want("a READ beyond that", k.lend(loanAt(1, 8*pageSize), k.pages(1)), syscall.ENOBUFS)
		k.want("another region", k.declare(3, 1), syscall.ENOBUFS)

		s.mu.Lock() // one that came can be more than there is
		if r, err = s.newRegionLocked(remote.Hello{Region: 4, Va: 1 << 41, Size: 1000 << 20}); err != nil {
			t.Fatal(err)
		}
		s.bringLocked(r, 1000)
		s.noteLocked(r)
		s.mu.Unlock()
		k.pending("of which it may have all", k.lend(loanAt(4, 0), k.pages(1)))
		k.want("its end", k.control(remote.Hello{Type: remote.MsgRegionEnd, Region: 4}), 0)
		if k.taken() != 672 {
			t.Errorf("%d are taken", k.taken())
		}
	})
}

// TestWaitsLeaveRoom: with a queue full of loans no more waits are held than leave half of the
// rest to what comes and goes: who waits beyond them looks again.
func TestWaitsLeaveRoom(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		k.want("loans", k.declare(1, 671*mibPages), 0)
		var calls []*fstest.Call
		wait := func() *fstest.Call {
			c, err := k.file.Read(0, waitAt(7), k.pages(1))
			if err != nil {
				t.Fatal(err)
			}
			k.settle()
			return c
		}
		for range 1024 - 672 - 128 {
			calls = append(calls, wait())
			k.pending("a wait", calls[len(calls)-1])
		}
		k.want("one too many", wait(), 0)
		k.worker().wake(7)
		k.settle()
		for _, c := range calls {
			k.want("a wait that is over", c, 0)
		}
		k.pending("again", wait())
		k.worker().wake(7)
	})
}

// countsPromises says what is wrong with what a session, which is alone, has of the queue: each
// region has an entry for each READ, and no more once all have come; one that is over has none.
func (s *session) countsPromises() error {
	sum := 0
	for id, r := range s.regions {
		sum += r.promised
		if s.state < dead && (r.promised < len(r.pieces) || r.complete() && r.promised != len(r.pieces) || r.promised < 1) {
			return fmt.Errorf("region %d has %d entries for %d READs", id, r.promised, len(r.pieces))
		}
	}
	s.dev.lendable.mu.Lock()
	defer s.dev.lendable.mu.Unlock()
	if s.state >= dead && sum != 0 || s.promised != sum || s.dev.lendable.taken != sum {
		return fmt.Errorf("%d entries are counted as the session's and %d as taken, its regions have %d", s.promised, s.dev.lendable.taken, sum)
	}
	return nil
}

// goesTo has the VM's state go to another kernel's device.
func (k *kernel) goesTo(to *kernel) {
	k.t.Helper()
	if kept := k.d.fs.Pause(1); kept {
		k.t.Fatal("something is kept of a GPU that is idle")
	}
	k.settle()
	var b bytes.Buffer
	if err := k.d.fs.Save(&b); err != nil {
		k.t.Fatal(err)
	}
	if err := to.d.fs.Load(&b); err != nil {
		k.t.Fatal(err)
	}
	to.settle()
}

// beside boots another host's device, for k's VM to move to.
func (k *kernel) beside(queue int) *kernel {
	k.t.Helper()
	to := newKernelWith(k.t, queue, quietDevice(k.d.opts.Tree.Lib))
	k.t.Cleanup(to.halt) // within the bubble
	return to
}

// TestLostSessionsMove: a session whose worker is gone has nothing of the queue, and no more where
// its VM goes, however long its program keeps the file.
func TestLostSessionsMove(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		k.want("memory", k.declare(1, 600*mibPages), 0)
		k.worker().exit(nil)
		k.settle()
		if k.taken() != 0 {
			t.Fatalf("%d are taken of a session that is lost", k.taken())
		}
		to := k.beside(1024)
		k.goesTo(to)
		if s := to.session(); s == nil || s.state != dead || s.promised != 0 || to.taken() != 0 {
			t.Errorf("%+v, %d are taken", s, to.taken())
		} else if err := s.countsPromises(); err != nil {
			t.Error(err)
		}
	})
}

// TestLargeReadsMove: what a VM has of its queue counts where it goes as it did here, also where
// its kernel has more pages in a READ than was seen there yet: others find as much left.
func TestLargeReadsMove(t *testing.T) {
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		k.want("region", k.declare(1, 1020), 0)
		k.pending("a large READ", k.lend(loanAt(1, 0), k.pages(1020)))
		k.want("memory", k.declare(2, 600*1020), 0)
		to := k.beside(1024)
		k.goesTo(to)
		s := to.session()
		if k.taken() != 602 || to.taken() != 602 || s.promised != 602 || s.regions[1].promised != 1 || s.regions[2].promised != 600 {
			t.Errorf("%d are taken, %d where it was", to.taken(), k.taken())
		}
		to.open()
		to.want("hello of another", to.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
		to.want("its memory", to.declare(1, 60*mibPages), 0)
	})
}

// TestHostileCounts: a region comes with as many entries as it may have pages, one at least, and
// none if its session is lost.
func TestHostileCounts(t *testing.T) {
	for _, c := range []struct {
		stage state
		size  uint64
		reads uint32
		ok    bool
	}{
		{parked, 4 * pageSize, 1, true}, {parked, 4 * pageSize, 4, true}, {parked, 4 * pageSize, 5, false}, {parked, 4 * pageSize, 0, false}, {opening, 4 * pageSize, 0, false},
		{parked, maxDeclared, maxPieces + 1, true}, {parked, maxDeclared, maxPieces + 2, false}, {parked, maxDeclared, 1<<32 - 1, false},
		{dead, 4 * pageSize, 0, true}, {dead, 4 * pageSize, 1, false},
	} {
		b := headBytes(t, &sessionHead{stage: c.stage, regions: []regionHead{{va: 1 << 40, size: c.size, reads: c.reads}}})
		if _, err := readHead(image.NewReader(bytes.NewReader(b), headMost)); (err == nil) != c.ok || err != nil && !errors.Is(err, image.ErrState) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestRefusedHelloIsNone: a session that is refused as it begins, since the queue has no room for
// its ring or the ring lies nowhere, is idle as before: it moves with its VM, and begins when there
// is room.
func TestRefusedHelloIsNone(t *testing.T) {
	hello := remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}
	inKernelWith(t, 1024, func(k *kernel) {
		k.begin()
		first := k.file
		k.want("all", k.declare(1, 671*mibPages), 0)
		for range 96 / 8 {
			k.open()
			k.want("hello", k.control(hello), 0)
			k.want("its first memory", k.declare(1, 7*mibPages), 0)
		}
		k.open()
		k.want("hello of one too many", k.control(hello), syscall.ENOBUFS)
		odd := hello
		odd.Va++
		k.want("hello of a ring at no page", k.control(odd), syscall.EINVAL)
		k.want("what only begun sessions do", k.declare(1, 1), syscall.EINVAL)
		k.goesTo(k.beside(1024))
		k.d.fs.Resume(1, false)
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		k.sleep(2 * stopGrace)
		k.want("hello, when there is room", k.control(hello), 0)
		k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
		k.want("start", k.control(remote.Hello{Type: remote.MsgStart}), 0)
	})
}
