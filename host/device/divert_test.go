package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
)

func relayTo(n byte) *link.Relay {
	return &link.Relay{Server: fmt.Sprintf("gpu%d", n), Addresses: []string{"192.0.2.1:7745"}, Lease: remote.LeaseID{n}}
}

func diversionTo(n byte) api.Diversion {
	return api.Diversion{To: api.Upstream{Server: fmt.Sprintf("gpu%d", n), Lease: remote.LeaseID{n}, GPU: "Test GPU", UUID: fmt.Sprintf("GPU-%d", n)}, Addresses: []string{"192.0.2.2:7745"}}
}

// relays is a device with programs on the server gpu1. hook hears of the parts of a move.
func relays(t *testing.T, programs int, hook func(part string), f func(k *kernel, list []*fakeWorker)) {
	t.Helper()
	o := quietDevice(library(t))
	o.Worker.Relay, o.LoanTerm = relayTo(1), time.Hour
	o.Reached = hook
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t, o)
		t.Cleanup(k.halt)
		var list []*fakeWorker
		for range programs {
			k.open()
			k.begin()
			list = append(list, k.worker())
		}
		f(k, list)
	})
}

// at is by which lease the device's programs go, and are on their way.
func at(k *kernel) string {
	st := k.d.Status()
	return fmt.Sprintf("%x %x", st.Lease[0], st.Next[0])
}

func (k *kernel) begins() *fakeWorker {
	k.open()
	k.begin()
	return k.worker()
}

// is fails unless a relay was told so much, and lives or does not.
func is(t *testing.T, w *fakeWorker, told string, ended bool) {
	t.Helper()
	if w.mu.Lock(); w.heard != told || w.ended != ended {
		t.Errorf("told %q, want %q; ended %v, want %v", w.heard, told, w.ended, ended)
	}
	w.mu.Unlock()
}

const (
	toldGoes = "divert 2 settle true "
	toldStay = "divert 2 settle false "
)

// TestDivert: all programs go to another server, and programs that begin begin there.
func TestDivert(t *testing.T) {
	relays(t, 3, nil, func(k *kernel, list []*fakeWorker) {
		did, err := k.d.Divert(context.Background(), diversionTo(2))
		if err != nil || did.Sessions != 3 || did.Lost != 0 || did.UUID != "GPU-2" {
			t.Errorf("%+v, %v", did, err)
		}
		for _, w := range list {
			is(t, w, toldGoes, false)
		}
		if at(k) != "2 0" || k.d.Status().UUID != "GPU-2" {
			t.Error("it is at", at(k))
		}
		if w := k.begins(); w.cfg.Relay.Lease[0] != 2 || w.cfg.Relay.Server != "gpu2" {
			t.Errorf("a new one is at %v", w.cfg.Relay)
		}
		did, err = k.d.Divert(context.Background(), diversionTo(3))
		if err != nil || did.Sessions != 4 || at(k) != "3 0" {
			t.Errorf("on to a third: %+v, %v, %s", did, err, at(k))
		}
	})
}

// TestDivertInVain: whatever one relay says, and when whoever asked goes, all are told to stay, and
// go on where they were; another try is as the first.
func TestDivertInVain(t *testing.T) {
	refused := fmt.Errorf("a stream waits for a function: %w", unix.EOPNOTSUPP)
	for name, c := range map[string]struct {
		divert func(ctx context.Context, w *fakeWorker) error
		ends   string // the part at which whoever asked goes
		want   string
	}{
		"one cannot": {func(context.Context, *fakeWorker) error { return refused }, "", "a stream waits for a function"},
		"one is silent until whoever asked goes": {func(ctx context.Context, _ *fakeWorker) error {
			<-ctx.Done()
			return spawn.ErrSilent
		}, "diverting", "canceled"},
		"whoever asked goes when all are there": {nil, "deciding", "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			cancel := func() {}
			relays(t, 3, func(part string) {
				if part == c.ends {
					cancel()
				}
			}, func(k *kernel, list []*fakeWorker) {
				var ctx context.Context
				ctx, cancel = context.WithCancel(context.Background())
				list[1].relays.divert = c.divert
				if _, err := k.d.Divert(ctx, diversionTo(2)); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				said := 0
				for _, w := range list {
					if w.heard == "settle false " { // which was not asked to stand before
						continue
					}
					is(t, w, toldStay, false)
					said++
				}
				if said == 0 || at(k) != "1 0" {
					t.Errorf("%d were told, and it is at %s", said, at(k))
				}
				list[1].relays.divert = nil
				if did, err := k.d.Divert(context.Background(), diversionTo(2)); err != nil || did.Sessions != 3 || at(k) != "2 0" {
					t.Errorf("again: %+v, %v, %s", did, err, at(k))
				}
			})
		})
	}
}

// TestDivertAndAnEnd: a relay that is killed in any part costs its own program alone, and the
// others go on together.
func TestDivertAndAnEnd(t *testing.T) {
	for _, c := range []struct {
		part  string
		went  int
		cause error
		lost  int
	}{
		{"diverting", 2, errors.New("killed"), 1}, {"deciding", 2, errors.New("killed"), 1}, {"settling", 2, errors.New("killed"), 1},
		{"diverting", 2, nil, 0}, {"deciding", 2, nil, 0}, // its program ends as programs do
	} {
		t.Run(fmt.Sprint(c.part, c.cause), func(t *testing.T) {
			var one *fakeWorker
			relays(t, 3, func(part string) {
				if part == c.part && part != "diverting" {
					// Which another one may come to before this one was asked.
					one.exit(c.cause)
				}
			}, func(k *kernel, list []*fakeWorker) {
				one = list[0]
				if c.part == "diverting" {
					one.relays.divert = func(_ context.Context, w *fakeWorker) error {
						w.exit(c.cause)
						return spawn.ErrEnded
					}
				}
				did, err := k.d.Divert(context.Background(), diversionTo(2))
				if err != nil || did.Sessions != c.went || did.Lost != c.lost || at(k) != "2 0" {
					t.Errorf("%+v, %v, %s", did, err, at(k))
				}
				is(t, list[1], toldGoes, false)
				is(t, list[2], toldGoes, false)
			})
		})
	}
}

// TestDivertNotFollowed: a relay that does not do what is decided for all ends; what another says
// of itself meanwhile changes nothing.
func TestDivertNotFollowed(t *testing.T) {
	for name, err := range map[string]error{"it cannot": unix.EIO, "it does not answer": spawn.ErrSilent} {
		t.Run(name, func(t *testing.T) {
			relays(t, 2, nil, func(k *kernel, list []*fakeWorker) {
				list[0].relays.settle = func(*fakeWorker, bool) error { return err }
				did, err := k.d.Divert(context.Background(), diversionTo(2))
				if err != nil || did.Sessions != 1 || did.Lost != 1 || at(k) != "2 0" {
					t.Errorf("%+v, %v, %s", did, err, at(k))
				}
				is(t, list[0], toldGoes, true)
				is(t, list[1], toldGoes, false)
			})
		})
	}
	relays(t, 2, nil, func(k *kernel, list []*fakeWorker) {
		list[0].relays.settle = func(*fakeWorker, bool) error { return spawn.ErrSilent }
		asked := make(chan struct{})
		list[0].relays.divert = func(context.Context, *fakeWorker) error {
			close(asked)
			return nil
		}
		list[1].relays.divert = func(context.Context, *fakeWorker) error {
			<-asked
			return unix.EOPNOTSUPP
		}
		_, err := k.d.Divert(context.Background(), diversionTo(2))
		if err == nil || !strings.Contains(err.Error(), "whether it goes on where it was is not known") {
			t.Errorf("one of which nothing is known is not named: %v", err)
		}
		if at(k) != "1 0" {
			t.Error("it is at", at(k))
		}
	})
}

// TestDivertAndBeginnings: programs that begin while others are on their way follow them; when it
// is about to be decided they wait, and begin where the others are.
func TestDivertAndBeginnings(t *testing.T) {
	var k *kernel
	var begun *fakeWorker
	relays(t, 1, nil, func(made *kernel, list []*fakeWorker) {
		k = made
		list[0].relays.divert = func(context.Context, *fakeWorker) error {
			begun = k.begins()
			if begun.cfg.Relay.Lease[0] != 1 || at(k) != "1 2" {
				t.Errorf("one that begins meanwhile is at %v, the others at %s", begun.cfg.Relay, at(k))
			}
			return nil
		}
		did, err := k.d.Divert(context.Background(), diversionTo(2))
		if err != nil || did.Sessions != 2 {
			t.Errorf("%+v, %v", did, err)
		}
		is(t, begun, toldGoes, false)

		go func() { // it can be as slow as it likes
			list[0].relays.divert = nil
			list[0].relays.settle = func(*fakeWorker, bool) error {
				time.Sleep(time.Second)
				return nil
			}
			if _, err := k.d.Divert(context.Background(), diversionTo(3)); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		n := len(k.workers.started)
		k.open()
		hello := k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size})
		k.pending("a program that begins when it is decided", hello)
		if _, err := k.d.Divert(context.Background(), diversionTo(4)); !errors.Is(err, ErrRelocating) {
			t.Error("two at once:", err)
		}
		k.sleep(2 * time.Second)
		k.want("after it", hello, 0)
		if last := k.worker(); len(k.workers.started) != n+1 || last.cfg.Relay.Lease[0] != 3 {
			t.Errorf("it begins at %v", last.cfg.Relay)
		}
	})
}

// TestDivertOpening: a program that has a relay, and has not begun at the server, begins where the
// others are, whether it starts meanwhile or later.
func TestDivertOpening(t *testing.T) {
	for name, goes := range map[string]bool{"go": true, "stay": false} {
		t.Run(name, func(t *testing.T) {
			cancel := func() {}
			relays(t, 1, func(part string) {
				if part == "deciding" && !goes {
					cancel()
				}
			}, func(k *kernel, _ []*fakeWorker) {
				var ctx context.Context
				ctx, cancel = context.WithCancel(context.Background())
				k.open()
				k.want("hello", k.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}), 0)
				first := k.worker()
				if _, err := k.d.Divert(ctx, diversionTo(2)); (err == nil) != goes {
					t.Error(err)
				}
				k.settle()
				is(t, first, "", goes)
				k.lend(loanAt(0, 0), k.pages(int(remote.Region0Size/pageSize)))
				k.want("start", k.control(remote.Hello{Type: remote.MsgStart}), 0)
				want := byte(1)
				if goes {
					want = 2
				}
				if w := k.worker(); w.cfg.Relay.Lease[0] != want || w.starts != 1 {
					t.Errorf("it begins at %v, started %d times", w.cfg.Relay, w.starts)
				}
			})
		})
	}
}

// TestDivertStanding: a program that stands, as one that was stopped does, is waited for, not for
// ever, and named.
func TestDivertStanding(t *testing.T) {
	relays(t, 1, nil, func(k *kernel, list []*fakeWorker) {
		s := k.session()
		s.mu.Lock()
		s.state = parked
		s.mu.Unlock()
		began := time.Now()
		if _, err := k.d.Divert(context.Background(), diversionTo(2)); !errors.Is(err, errStands) || time.Since(began) > 2*standsLimit {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		is(t, list[0], "", false)
		s.mu.Lock()
		s.state = running
		s.mu.Unlock()
		list[0].relays.divert = func(ctx context.Context, _ *fakeWorker) error {
			// It stands when it was asked.
			s.mu.Lock()
			s.state = parked
			s.mu.Unlock()
			<-ctx.Done()
			return spawn.ErrSilent
		}
		if _, err := k.d.Divert(context.Background(), diversionTo(2)); !errors.Is(err, errStands) {
			t.Error(err)
		}
		is(t, list[0], toldStay, false)
		s.mu.Lock()
		s.state = running
		s.mu.Unlock()
		n := 0
		list[0].relays.divert = func(context.Context, *fakeWorker) error {
			// It is about to begin at its server.
			if n++; n < 3 {
				return fmt.Errorf("not yet: %w", unix.EBUSY)
			}
			return nil
		}
		if did, err := k.d.Divert(context.Background(), diversionTo(2)); err != nil || did.Sessions != 1 {
			t.Error(did, err)
		}
	})
}

// TestDivertRefused: what is known to be no move, or goes with another, is refused by name, and
// changes nothing. While programs are on their way their VM gives nothing out.
func TestDivertRefused(t *testing.T) {
	relays(t, 1, nil, func(k *kernel, list []*fakeWorker) {
		here := diversionTo(1)
		model := diversionTo(2)
		model.To.GPU = "Other GPU"
		for want, c := range map[string]api.Diversion{"no lease": {}, "it has that lease": here, "is a Other GPU": model} {
			if _, err := k.d.Divert(context.Background(), c); !errors.Is(err, ErrElsewhere) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		k.d.SetHandover(api.Handover{Host: "hostb"})
		if _, err := k.d.Divert(context.Background(), diversionTo(2)); !errors.Is(err, ErrElsewhere) || !strings.Contains(err.Error(), "hostb") {
			t.Error(err)
		}
		k.d.SetHandover(api.Handover{})
		is(t, list[0], "", false)
		list[0].relays.divert = func(context.Context, *fakeWorker) error {
			k.d.SetHandover(api.Handover{Host: "hostb"})
			if err := k.d.handed(); !errors.Is(err, ErrDiverting) {
				t.Error("given out meanwhile:", err)
			}
			if err := k.d.SetRelay(*relayTo(9)); !errors.Is(err, ErrDiverting) {
				t.Error("another lease meanwhile:", err)
			}
			return nil
		}
		if _, err := k.d.Divert(context.Background(), diversionTo(2)); err != nil {
			t.Error(err)
		}
	})
	inKernel(t, func(k *kernel) {
		if _, err := k.d.Divert(context.Background(), diversionTo(2)); !errors.Is(err, ErrElsewhere) {
			t.Error("of a GPU of this host:", err)
		}
	})
}

// TestRelayEnds: a program that says that it ends has its relay end in order, which tells the
// server, and waits so long for one that hangs.
func TestRelayEnds(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		relays(t, 1, nil, func(k *kernel, list []*fakeWorker) {
			list[0].hang(hangs)
			end := k.control(remote.Hello{Type: remote.MsgRegionEnd})
			if hangs {
				k.sleep(stopGrace)
			}
			k.want("end", end, 0)
			if list[0].Err() != nil {
				t.Errorf("hangs %v: %v", hangs, list[0].Err())
			}
		})
	}
}

// TestDivertFromRevoked: that the server which programs leave is not trusted any more is said of
// its lease, and neither ends those that are at another by then nor keeps others from beginning
// there, whether or not causewayd has heard of the decision. Those that are still there end.
func TestDivertFromRevoked(t *testing.T) {
	revoked := api.UpstreamState{Lease: remote.LeaseID{1}, Why: "the GPU server gpu1 is lost: its certificate is revoked", Ends: true}
	for part, ends := range map[string]bool{"diverting": true, "settling": false, "": false} {
		t.Run(part, func(t *testing.T) {
			var k *kernel
			var once sync.Once
			relays(t, 2, func(now string) {
				if now == part {
					once.Do(func() { k.d.SetUpstream(revoked) })
				}
			}, func(its *kernel, list []*fakeWorker) {
				k = its
				did, err := k.d.Divert(context.Background(), diversionTo(2))
				if ends {
					for _, w := range list {
						w.mu.Lock()
						if !w.ended {
							t.Error("a program goes on at a server that is revoked")
						}
						w.mu.Unlock()
					}
					return
				}
				if part == "" {
					k.d.SetUpstream(revoked)
				}
				if err != nil || did.Sessions != 2 || did.Lost != 0 || at(k) != "2 0" {
					t.Errorf("%+v, %v, %s", did, err, at(k))
				}
				synctest.Wait()
				for _, w := range list {
					is(t, w, toldGoes, false)
				}
				if w := k.begins(); w.cfg.Relay.Lease[0] != 2 {
					t.Errorf("a new one is at %v", w.cfg.Relay)
				}
				revoked := revoked
				revoked.Lease = remote.LeaseID{2}
				k.d.SetUpstream(revoked)
				synctest.Wait()
				if err := k.d.reachable(); err == nil {
					t.Error("programs begin at a server that is revoked")
				}
				for _, w := range list {
					is(t, w, toldGoes, true)
				}
			})
		})
	}
}
