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

	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

// sends has a relay's rounds send so much each, a gibibyte in a second; behind the last they send
// nothing.
func sends(w *fakeWorker, bytes ...uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relays.ahead = func(context.Context, *fakeWorker) error { return nil }
	w.relays.round = func(context.Context, *fakeWorker) (link.Copied, error) {
		did := link.Copied{Looked: 1 << 30}
		if len(bytes) > 0 {
			did.Sent, bytes = bytes[0], bytes[1:]
		}
		time.Sleep(time.Duration(did.Sent))
		return did, nil
	}
}

// TestDivertAhead: memory of all programs goes ahead in rounds, until little is left of all; then
// they stand together. What came of it is said, and on the way how far it is.
func TestDivertAhead(t *testing.T) {
	relays(t, 2, nil, func(k *kernel, list []*fakeWorker) {
		const second = 1 << 30
		sends(list[0], second, second/4, second/64)
		sends(list[1])
		list[1].relays.divert = func(context.Context, *fakeWorker) error {
			if p := k.d.Status().Relocation; p == nil || p.Of != 2 || p.Rounds != 3 || p.Last.Sent != second/64 || p.Last.Looked != 2<<30 {
				t.Errorf("when they stand: %+v", p)
			}
			time.Sleep(time.Second)
			return nil
		}
		did, err := k.d.Divert(context.Background(), diversionTo(2))
		if err != nil || did.Sessions != 2 || did.Rounds != 3 || did.Ahead != second+second/4+second/64 || did.Stood != uint64(time.Second) || did.Nanos <= did.Stood {
			t.Errorf("%+v, %v", did, err)
		}
		for _, w := range list {
			is(t, w, "ahead 2 round round round "+toldGoes, false)
		}
		sends(list[0], 1<<30, 1<<30, 1<<30, 1<<30, 1<<30, 1<<30) // as fast as it is sent
		// And one whose memory goes when it stands.
		list[1].relays = relaying{}
		began := time.Now()
		did, err = k.d.Divert(context.Background(), diversionTo(3))
		if err != nil || did.Sessions != 2 || did.Rounds != 4 || at(k) != "3 0" || time.Since(began) > 10*time.Second {
			t.Errorf("%+v, %v, %s", did, err, at(k))
		}
		is(t, list[1], "ahead 2 round round round "+toldGoes+"divert 3 settle true ", false)
	})
}

// TestDivertAheadInVain: whatever is in the way while memory goes ahead, nobody has stood then, and
// all are told.
func TestDivertAheadInVain(t *testing.T) {
	lost := fmt.Errorf("gpu server gpu2: lost: %w", unix.EOPNOTSUPP)
	for name, c := range map[string]struct {
		set  func(w *fakeWorker, gives func())
		want string
	}{
		"the other server does not await it": {func(w *fakeWorker, _ func()) {
			w.relays.ahead = func(context.Context, *fakeWorker) error { return lost }
		}, "gpu2: lost"},
		"a round fails": {func(w *fakeWorker, _ func()) {
			w.relays.round = func(context.Context, *fakeWorker) (link.Copied, error) { return link.Copied{}, lost }
		}, "gpu2: lost"},
		"whoever asked goes": {func(w *fakeWorker, gives func()) {
			w.relays.round = func(ctx context.Context, _ *fakeWorker) (link.Copied, error) {
				gives()
				<-ctx.Done()
				return link.Copied{}, spawn.ErrSilent
			}
		}, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			relays(t, 2, nil, func(k *kernel, list []*fakeWorker) {
				sends(list[0], 1<<30, 1<<20)
				sends(list[1], 1<<30, 1<<20)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c.set(list[1], cancel)
				if _, err := k.d.Divert(ctx, diversionTo(2)); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				for _, w := range list {
					if w.mu.Lock(); strings.Contains(w.heard, "divert") || w.heard != "" && !strings.HasSuffix(w.heard, "settle false ") {
						t.Errorf("told %q", w.heard)
					}
					w.mu.Unlock()
				}
				sends(list[1])
				if did, err := k.d.Divert(context.Background(), diversionTo(2)); err != nil || did.Sessions != 2 || at(k) != "2 0" {
					t.Errorf("again: %+v, %v, %s", did, err, at(k))
				}
			})
		})
	}
}

// TestDivertAheadAndOthers: a program that ends while memory goes ahead costs nobody anything; one
// that begins then, or is about to, goes along.
func TestDivertAheadAndOthers(t *testing.T) {
	for name, cause := range map[string]error{"ends": nil, "is killed": errors.New("killed")} {
		t.Run(name, func(t *testing.T) {
			relays(t, 3, nil, func(k *kernel, list []*fakeWorker) {
				for _, w := range list {
					sends(w, 1<<30, 1<<28)
				}
				list[0].relays.round = func(_ context.Context, w *fakeWorker) (link.Copied, error) {
					w.exit(cause)
					return link.Copied{}, spawn.ErrEnded
				}
				n := 0
				list[2].relays.ahead = func(context.Context, *fakeWorker) error {
					if n++; n == 1 {
						return fmt.Errorf("not yet: %w", unix.EBUSY)
					}
					return nil
				}
				lost := 0
				if cause != nil {
					lost = 1
				}
				did, err := k.d.Divert(context.Background(), diversionTo(2))
				if err != nil || did.Sessions != 2 || did.Lost != lost || at(k) != "2 0" {
					t.Errorf("%+v, %v, %s", did, err, at(k))
				}
				is(t, list[0], "ahead 2 round ", true)
				if !strings.HasPrefix(list[2].heard, "ahead 2 ahead 2 round ") || !strings.HasSuffix(list[2].heard, toldGoes) {
					t.Errorf("told %q", list[2].heard)
				}
			})
		})
	}
	relays(t, 1, nil, func(k *kernel, list []*fakeWorker) {
		sends(list[0], 1<<30, 1<<28)
		var begun *fakeWorker
		first := list[0].relays.round
		list[0].relays.round = func(ctx context.Context, w *fakeWorker) (link.Copied, error) {
			if begun == nil {
				begun = k.begins()
				sends(begun)
			}
			return first(ctx, w)
		}
		did, err := k.d.Divert(context.Background(), diversionTo(2))
		if err != nil || did.Sessions != 2 {
			t.Errorf("%+v, %v", did, err)
		}
		is(t, begun, "ahead 2 round round "+toldGoes, false)
	})
}

// TestDivertAheadWithoutInVain: a relay whose memory does not go ahead keeps that it was asked, and
// is told too when the move comes to nothing before all stand: its VM could go nowhere else.
func TestDivertAheadWithoutInVain(t *testing.T) {
	relays(t, 2, nil, func(k *kernel, list []*fakeWorker) {
		sends(list[1])
		without := make(chan struct{})
		list[0].relays.ahead = func(context.Context, *fakeWorker) error {
			close(without)
			return spawn.ErrNoRounds
		}
		list[1].relays.round = func(context.Context, *fakeWorker) (link.Copied, error) {
			<-without
			synctest.Wait() // until that is known
			return link.Copied{}, fmt.Errorf("gpu server gpu2: lost: %w", unix.EOPNOTSUPP)
		}
		if _, err := k.d.Divert(context.Background(), diversionTo(2)); err == nil || !strings.Contains(err.Error(), "lost") {
			t.Error(err)
		}
		is(t, list[0], "ahead 2 settle false ", false)
		is(t, list[1], "ahead 2 round settle false ", false)
	})
}

// TestDivertThrottled: programs that change memory as fast as it goes to the other server are held
// back if that is wanted, more and more, and those alone whose memory goes ahead; in the end they
// stand all the same.
func TestDivertThrottled(t *testing.T) {
	for _, asked := range []bool{false, true} {
		relays(t, 2, nil, func(k *kernel, list []*fakeWorker) {
			list[0].relays.ahead = func(context.Context, *fakeWorker) error { return nil }
			list[0].relays.round = func(_ context.Context, w *fakeWorker) (link.Copied, error) {
				w.mu.Lock()
				held := 0
				if at := strings.LastIndex(w.heard, "throttle "); at >= 0 {
					_, _ = fmt.Sscanf(w.heard[at:], "throttle %d ", &held)
				}
				w.mu.Unlock()
				if p := k.d.Status().Relocation; held > 0 && (p == nil || p.Throttled != held) {
					t.Errorf("held back for %d %%, and on the way: %+v", held, p)
				}
				time.Sleep(time.Second)
				return link.Copied{Looked: 1 << 30, Sent: 1 << 30}, nil
			}
			d := diversionTo(2)
			d.Throttle = asked
			did, err := k.d.Divert(context.Background(), d)
			want, held, rounds := strings.Repeat("round ", 4), 0, 4
			if asked {
				held, rounds = link.MostThrottle, 22
				for _, share := range []int{20, 30, 40, 50, 60, 70, 80, 90, link.MostThrottle} {
					said := fmt.Sprintf("throttle %d round ", share)
					want += said + said
				}
			}
			if err != nil || did.Sessions != 2 || did.Rounds != rounds || did.Held != held {
				t.Errorf("asked for %v: %+v, %v", asked, did, err)
			}
			is(t, list[0], "ahead 2 "+want+toldGoes, false)
			is(t, list[1], toldGoes, false) // whose memory does not go ahead
			if p := k.d.Status().Relocation; p != nil {
				t.Errorf("afterwards: %+v", p)
			}
		})
	}
}

// TestDivertThrottleHelps: programs are held back no more than it takes.
func TestDivertThrottleHelps(t *testing.T) {
	relays(t, 1, nil, func(k *kernel, list []*fakeWorker) {
		sends(list[0], 1<<30, 1<<30, 1<<30, 1<<30, 1<<30, 1<<28, 1<<24)
		d := diversionTo(2)
		d.Throttle = true
		did, err := k.d.Divert(context.Background(), d)
		if err != nil || did.Rounds != 7 || did.Held != 20 {
			t.Errorf("%+v, %v", did, err)
		}
		is(t, list[0], "ahead 2 round round round round throttle 20 round throttle 20 round throttle 20 round "+toldGoes, false)
	})
}
