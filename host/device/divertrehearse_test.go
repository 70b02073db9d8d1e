package device

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// tries has a relay's session be rehearsed so.
func tries(w *fakeWorker, f func(ctx context.Context, w *fakeWorker) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relays.rehearse = f
}

// TestDivertRehearse: all programs are rehearsed, which is said, before any of their memory goes
// ahead; where it is not known whether they can be there they go all the same.
func TestDivertRehearse(t *testing.T) {
	relays(t, 3, nil, func(k *kernel, list []*fakeWorker) {
		for n, w := range list {
			sends(w, 1<<20)
			tries(w, func(context.Context, *fakeWorker) error {
				time.Sleep(time.Duration(n) * time.Second)
				synctest.Wait()
				if p := k.d.Status().Relocation; p == nil || !p.Rehearsing || p.Of != 3 || p.Done != n || p.Rounds != 0 {
					t.Errorf("when %d have been rehearsed: %+v", n, p)
				}
				if n == 1 {
					return fmt.Errorf("it has no room: %w", unix.EIO)
				}
				return nil
			})
			w.relays.round = func(ctx context.Context, w *fakeWorker) (link.Copied, error) {
				if p := k.d.Status().Relocation; p != nil && p.Rehearsing {
					t.Errorf("memory goes ahead while programs are rehearsed: %+v", p)
				}
				return link.Copied{Looked: 1 << 20}, nil
			}
		}
		if did, err := k.d.Divert(context.Background(), diversionTo(2)); err != nil || did.Sessions != 3 || at(k) != "2 0" {
			t.Errorf("%+v, %v, %s", did, err, at(k))
		}
		for _, w := range list {
			is(t, w, "rehearse 2 ahead 2 round "+toldGoes, false)
		}
	})
}

// TestDivertRehearseInVain: what one program cannot be there keeps all of them where they are, and
// so does who asks and goes, before any of their memory goes anywhere; all relays are told.
func TestDivertRehearseInVain(t *testing.T) {
	for name, c := range map[string]struct {
		rehearse func(ctx context.Context, gives func()) error
		want     string
	}{
		"one cannot": {func(context.Context, func()) error { return &spawn.Cannot{Why: "a variable comes out beside"} }, "a variable comes out beside"},
		"whoever asked goes": {func(ctx context.Context, gives func()) error {
			gives()
			<-ctx.Done()
			return spawn.ErrSilent
		}, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			relays(t, 3, nil, func(k *kernel, list []*fakeWorker) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				for _, w := range list {
					sends(w, 1<<20)
					tries(w, func(ctx context.Context, _ *fakeWorker) error {
						select {
						case <-ctx.Done(): // the others do not wait for it
							return spawn.ErrSilent
						case <-time.After(time.Hour):
							return nil
						}
					})
				}
				tries(list[1], func(ctx context.Context, _ *fakeWorker) error { return c.rehearse(ctx, cancel) })
				began := time.Now()
				_, err := k.d.Divert(ctx, diversionTo(2))
				if err == nil || !strings.Contains(err.Error(), c.want) || time.Since(began) > time.Minute {
					t.Errorf("%v, want %q", err, c.want)
				}
				if c.want != "canceled" && (!errors.Is(err, ErrElsewhere) || !strings.Contains(err.Error(), "session 2, ")) {
					t.Errorf("it does not say whose: %v", err)
				}
				for _, w := range list {
					if w.heard != "" { // by whom it ended may be asked before another is
						is(t, w, "rehearse 2 settle false ", false)
					}
				}
				if at(k) != "1 0" || k.d.Status().Relocation != nil {
					t.Error("it is at", at(k))
				}
				for _, w := range list {
					tries(w, func(context.Context, *fakeWorker) error { return nil })
				}
				if did, err := k.d.Divert(context.Background(), diversionTo(2)); err != nil || did.Sessions != 3 || at(k) != "2 0" {
					t.Errorf("again: %+v, %v, %s", did, err, at(k))
				}
			})
		})
	}
}

// TestDivertRehearseAndOthers: a program that ends while it is rehearsed, or is killed, costs
// nobody anything; one that begins meanwhile, or has not begun at its server, is rehearsed before
// its own memory goes ahead.
func TestDivertRehearseAndOthers(t *testing.T) {
	for name, cause := range map[string]error{"ends": nil, "is killed": errors.New("killed")} {
		t.Run(name, func(t *testing.T) {
			var begun *fakeWorker
			relays(t, 3, nil, func(k *kernel, list []*fakeWorker) {
				well := func(context.Context, *fakeWorker) error { return nil }
				for _, w := range list {
					sends(w, 1<<30, 1<<28)
					tries(w, well)
				}
				tries(list[0], func(_ context.Context, w *fakeWorker) error {
					begun = k.begins()
					sends(begun, 1<<20)
					tries(begun, well)
					w.exit(cause)
					return spawn.ErrEnded
				})
				n := 0
				tries(list[2], func(context.Context, *fakeWorker) error {
					if n++; n == 1 {
						return fmt.Errorf("not yet: %w", unix.EBUSY)
					}
					return nil
				})
				lost := 0
				if cause != nil {
					lost = 1
				}
				did, err := k.d.Divert(context.Background(), diversionTo(2))
				if err != nil || did.Sessions != 3 || did.Lost != lost || at(k) != "2 0" {
					t.Errorf("%+v, %v, %s", did, err, at(k))
				}
				is(t, list[0], "rehearse 2 ", true)
				if !strings.HasPrefix(list[1].heard, "rehearse 2 ahead 2 round ") || !strings.HasSuffix(list[1].heard, toldGoes) {
					t.Errorf("told %q", list[1].heard)
				}
				if !strings.HasPrefix(list[2].heard, "rehearse 2 rehearse 2 ahead 2 round ") {
					t.Errorf("one that was not ready was told %q", list[2].heard)
				}
				if !strings.HasPrefix(begun.heard, "rehearse 2 ahead 2 round ") || !strings.HasSuffix(begun.heard, toldGoes) {
					t.Errorf("one that began was told %q", begun.heard)
				}
			})
		})
	}
}

// TestRehearsedHere: a session of another server's that is only tried here is said to be, and who
// comes when there are as many as may be waits for its end, as for one that is about to end.
func TestRehearsedHere(t *testing.T) {
	x := newLeased(t, api.Limits{Sessions: 1})
	_ = x.program()
	x.until("a session", func() bool { return x.running() == 1 })
	s := x.d.all()[0]
	if s.ending() {
		t.Error("it is about to end")
	}
	w := x.workers.last()
	w.mu.Lock()
	w.relays.tried = true
	w.mu.Unlock()
	if st := x.d.Status().Sessions[0].State; st != "rehearsing" || !s.ending() {
		t.Errorf("a rehearsal is %s, and waited for: %v", st, s.ending())
	}
	w.exit(nil)
	x.until("it is gone", func() bool { return len(x.d.all()) == 0 })
	x.end()
}
