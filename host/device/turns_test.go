package device

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"causeway/host/inventory"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio/fs"
	"causeway/virtio/virtiotest"
)

// TestNoPageGoesBackWhileCopied: whatever ends a lease, its READ is completed when no extent is copied any more that began before.
func TestNoPageGoesBackWhileCopied(t *testing.T) {
	for what, end := range map[string]func(k *kernel, s *session){
		"it lapses":        func(_ *kernel, s *session) { s.tick(time.Now().Add(leaseTerm)) },
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
						return false // who ends the lease waits for this one
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

// TestLeasesComeBackWhole: what lapsed comes back as the pieces that it was, or not at all.
func TestLeasesComeBackWhole(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		k.want("region", k.declare(1, 4), 0)
		pages := k.pages(4)
		k.lend(loanAt(1, 0), pages)
		k.sleep(leaseTerm + shortestNap)
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

// TestOneRevivalAtATime: a suspended session is brought back once, however often its doorbell rings.
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

// TestFloodCostsNoTurn: one that is refused for coming too fast has had nothing, and comes in at its pace.
func TestFloodCostsNoTurn(t *testing.T) {
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

// TestNoPlaceIsLost: a session that comes from elsewhere and cannot be had leaves its place to others, whichever of its resources there are none of.
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

// asker is a worker that asks for room.
type asker struct {
	workerProcess
	told []link.Room
}

func (a *asker) Send(m link.ToWorker) error {
	a.told = append(a.told, m.(link.Room))
	return nil
}

// TestNeedsByChance: whoever needs room gets it in the order in which they came, as far as it goes; one that asks again keeps its turn, and one that is denied, or gone,
// makes way.
func TestNeedsByChance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		o := quietDevice(library(t))
		o.Swap = true
		d, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		type waiter struct {
			s     *session
			a     *asker
			bytes uint64
			asked uint64 // question
			turn  int    // 0: it waits for nothing
		}
		var all []*waiter
		for i := range 6 {
			all = append(all, &waiter{s: newSession(d, uint64(i), fs.Caller{}), a: &asker{}})
		}
		room, turns := uint64(noRoom), 0
		queue := func() []*waiter {
			list := slices.DeleteFunc(slices.Clone(all), func(w *waiter) bool { return w.turn == 0 })
			slices.SortFunc(list, func(a, b *waiter) int { return cmp.Compare(a.turn, b.turn) })
			return list
		}
		// met is what should be told, by the model.
		met := func() (want []string) {
			left := room
			for _, w := range queue() {
				if w.bytes > left {
					break
				}
				left -= w.bytes
				want = append(want, fmt.Sprint(w.s.id, " ", w.asked, " true"))
				w.turn = 0
			}
			return want
		}
		for range 3000 {
			time.Sleep(time.Millisecond)
			w := all[rng.IntN(len(all))]
			var want []string
			switch rng.IntN(6) {
			case 0, 1, 2:
				w.asked, w.bytes = w.asked+1, 1+rng.Uint64N(20)
				if w.turn == 0 {
					turns++
					w.turn = turns
				}
				want = met()
				w.s.lacksRoom(w.a, link.Want{Number: w.asked, Bytes: w.bytes})
			case 3:
				w.turn = 0
				d.dropNeed(w.s)
			case 4:
				if w.turn != 0 {
					want = append(want, fmt.Sprint(w.s.id, " ", w.asked, " false"))
				}
				w.turn = 0
				d.deny(w.s.id, "")
			default:
				room = 1 + rng.Uint64N(40)
				want = met()
				d.budget.SetRoom(room)
				d.meetNeeds()
			}
			var told []string
			for _, w := range all {
				for _, m := range w.a.told {
					told = append(told, fmt.Sprint(w.s.id, " ", m.Number, " ", m.Granted))
				}
				w.a.told = nil
			}
			slices.Sort(want)
			if slices.Sort(told); !slices.Equal(told, want) {
				t.Fatalf("told %q, to be told %q", told, want)
			}
			var order []uint64
			for _, n := range d.rooms.needs {
				order = append(order, n.s.id)
			}
			var due []uint64
			for _, w := range queue() {
				due = append(due, w.s.id)
			}
			if !slices.Equal(order, due) {
				t.Fatalf("they wait as %v, not %v", order, due)
			}
		}
	})
}

// TestDepartedAreAskedOnce: what a worker used until its end is in one account, the next, and in no other.
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
