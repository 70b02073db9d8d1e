package device

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
	"time"

	"causeway/host/inventory"
	"causeway/host/schedule/memory"
	"causeway/remote"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

// TestNoPageGoesBackWhileCopied: whatever ends a loan, its READ is completed when no extent is
// copied any more that began before.
func TestNoPageGoesBackWhileCopied(t *testing.T) {
	for what, end := range map[string]func(k *kernel, s *session){
		"it lapses":        func(_ *kernel, s *session) { s.tick(time.Now().Add(loanTerm)) },
		"it is taken back": func(k *kernel, s *session) { s.Revoke(k.t.Context(), nil) },
		"the worker fails": func(_ *kernel, s *session) { s.fail(errors.New("crashed")) },
		"the region ends":  nil, // by a message of the guest's
	} {
		t.Run(what, func(t *testing.T) {
			inKernel(t, func(k *kernel) {
				k.begin()
				k.want("region", k.declare(1, 1), 0)
				c, s := k.lend(loanAt(1, 0), k.pages(1)), k.session()
				copying := func() bool {
					if !s.copying.TryRLock() {
						return false // who ends the loan waits for this one
					}
					s.copying.RUnlock()
					return true
				}
				s.copying.RLock()
				if end == nil {
					b := remote.FormatHello(remote.Hello{Type: remote.MsgRegionEnd, Region: 1}, "")
					if _, err := k.file.Write(0, int64(remote.FileControl), []virtiotest.Buffer{k.put(b)}); err != nil {
						t.Fatal(err)
					}
				} else {
					go end(k, s)
				}
				for ; copying(); runtime.Gosched() {
					if k.g.Reap(); done(c) {
						t.Error("the page went back")
						break
					}
				}
				s.copying.RUnlock()
				k.settle()
				if !done(c) {
					t.Error("the page does not go back")
				}
			})
		})
	}
}

// TestLoansComeBackWhole: what lapsed comes back as the pieces that it was, or not at all.
func TestLoansComeBackWhole(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 4), 0)
		pages := k.pages(4)
		k.lend(loanAt(1, 0), pages)
		k.sleep(loanTerm + shortestNap)
		k.lend(loanAt(0, 0), zero)
		k.want("half of it", k.lend(loanAt(1, 0), k.pages(2)), syscall.EINVAL)
		k.want("and the other", k.lend(loanAt(1, 2*pageSize), k.pages(2)), syscall.EINVAL)
		if _, resumes := k.worker().counts(); resumes != 0 || k.session().regions[1].lent != 0 {
			t.Error("it goes on without its pages")
		}
		k.pending("all of it", k.lend(loanAt(1, 0), pages))
		if _, resumes := k.worker().counts(); resumes != 1 {
			t.Error("it does not go on")
		}
	})
}

// TestOneRevivalAtATime: a suspended session is brought back once, however often its doorbell
// rings.
func TestOneRevivalAtATime(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(d, 1, fs.Caller{})
	s.ring()
	if len(s.jobs) != 0 {
		t.Error("a session that is not suspended is brought back")
	}
	s.state = suspended
	for range 5 {
		s.ring()
	}
	if len(s.jobs) != 1 || !s.rang {
		t.Errorf("it is brought back %d times", len(s.jobs))
	}
}

// TestFloodCostsNoPlace: one that is refused for coming too fast has had nothing, and comes in at
// its pace.
func TestFloodCostsNoPlace(t *testing.T) {
	for _, uid := range []uint32{0, 1000} {
		d, now, in := newDoor(), time.Now(), 0
		rate := openRate
		if uid != 0 {
			rate /= 2
		}
		for range 1000 {
			_, _ = d.enter(uid, now)
		}
		for range 20 * rate {
			now = now.Add(time.Second / time.Duration(rate))
			for range 10 {
				if _, err := d.enter(uid, now); err == nil {
					in++
				}
			}
		}
		if in < 20*rate-1 || in > 20*rate+1 {
			t.Errorf("user %d: %d came in, in the time of %d", uid, in, 20*rate)
		}
	}
}

// TestNoPlaceIsLost: a session that comes from elsewhere and cannot be had leaves its place to
// others, whichever of its resources there are none of.
func TestNoPlaceIsLost(t *testing.T) {
	for what, budget := range map[string]func(d *Device) *memory.Page{
		"memory":      func(d *Device) *memory.Page { return d.budget },
		"host memory": func(d *Device) *memory.Page { return d.host },
	} {
		d, err := New(quietDevice(library(t)))
		if err != nil {
			t.Fatal(err)
		}
		b := budget(d)
		for range memory.Slots {
			if _, err := b.Take(); err != nil {
				t.Fatal(err)
			}
		}
		s := newSession(d, 1, fs.Caller{UID: 5})
		if err := s.expect(false); !errors.Is(err, memory.ErrFull) {
			t.Errorf("%s: %v", what, err)
		}
		if d.admitted != 0 || len(d.users) != 0 || s.counted || s.res != nil {
			t.Errorf("%s: %d are counted, %v", what, d.admitted, d.users)
		}
		other := d.host
		if b == d.host {
			other = d.budget
		}
		for i := range memory.Slots {
			if _, err := other.Take(); err != nil {
				t.Errorf("%s: %d of the other's places are left: %v", what, i, err)
				break
			}
		}
	}
}

// TestDepartedAreAskedOnce: what a worker used until its end is in one account, the next, and in no
// other.
func TestDepartedAreAskedOnce(t *testing.T) {
	o := quietDevice(library(t))
	o.Audit = time.Second
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		d.departedLocked(&fakeWorker{})
		pid := (&fakeWorker{}).PID()
		d.account(&inventory.Reading{Worked: []map[int]time.Duration{{pid: time.Second}}, Sampled: []bool{true}}, time.Second)
		if want := time.Duration(round+1) * time.Second; d.card.total != want || len(d.card.gone) != 0 {
			t.Errorf("round %d: %v in all, not %v; %d are to be asked about", round, d.card.total, want, len(d.card.gone))
		}
		d.account(&inventory.Reading{Worked: []map[int]time.Duration{{pid: 5 * time.Second}}, Sampled: []bool{true}}, time.Second)
	}
}
