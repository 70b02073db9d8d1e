package spawn

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
	"causeway/remote"
)

// server is a lease of a GPU server where nobody listens.
func server(n byte) link.Relay {
	return link.Relay{Addresses: []string{"127.0.0.1:1"}, Lease: remote.LeaseID{n}}
}

// told is what a relay was told.
func told[M link.ToWorker](t *testing.T, w *link.WorkerEnd) M {
	t.Helper()
	r, err := w.Receive()
	if err != nil {
		t.Fatal(err)
	}
	m, ok := r.Message().(M)
	if !ok {
		t.Fatalf("told %+v", r.Message())
	}
	return m
}

func answered(t *testing.T, w *link.WorkerEnd, number uint64, err error) {
	t.Helper()
	if err := w.Send(link.Diverted{Number: number, Status: link.StatusOf(unix.EOPNOTSUPP, err)}); err != nil {
		t.Fatal(err)
	}
}

// aside has p do something that waits for a relay.
func aside(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// TestDivertsOfASlowRelay: answers that come too late count no more once they have come, however
// many there are; while too many are owed nothing more is sent.
func TestDivertsOfASlowRelay(t *testing.T) {
	var shared offer.Broker
	w, p, killed := end(t, &shared)
	first := server(1)
	p.relay.Store(&first)
	for range 3 {
		var late []uint64
		for range mostOwed {
			ctx, giveUp := context.WithCancel(context.Background())
			done := aside(func() error { return p.Settle(ctx, remote.LeaseID{2}, false) })
			late = append(late, told[link.Settle](t, w).Number)
			giveUp()
			if err := <-done; !errors.Is(err, ErrSilent) {
				t.Fatalf("given up: %v", err)
			}
		}
		if err := p.Settle(context.Background(), remote.LeaseID{2}, false); !errors.Is(err, ErrSilent) {
			t.Fatalf("a relay that owes %d answers: %v", mostOwed, err)
		}
		for _, n := range late {
			answered(t, w, n, nil)
		}
		asked := aside(func() error {
			_, err := p.Measure(context.Background())
			return err
		})
		told[link.Measure](t, w)
		if err := w.Send(link.Measured{}); err != nil { // behind those answers
			t.Fatal(err)
		}
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
		done := aside(func() error { return p.Settle(context.Background(), remote.LeaseID{2}, false) })
		answered(t, w, told[link.Settle](t, w).Number, nil)
		if err := <-done; err != nil {
			t.Fatalf("after all have come: %v", err)
		}
	}
	select {
	case <-killed:
		t.Error("the relay was ended for its answers")
	default:
	}
	answered(t, w, 999, nil) // nobody asked
	awaitKill(t, killed)
}

// TestDivertsOutOfOrder: what is said of one is no answer to another, whichever comes first: a
// relay that has one refuses the next at once.
func TestDivertsOutOfOrder(t *testing.T) {
	var shared offer.Broker
	w, p, _ := end(t, &shared)
	first := server(1)
	p.relay.Store(&first)
	ctx, giveUp := context.WithCancel(context.Background())
	done := aside(func() error { return p.Divert(ctx, server(2)) })
	one := told[link.Divert](t, w)
	giveUp()
	if err := <-done; !errors.Is(err, ErrSilent) {
		t.Fatal(err)
	}
	done = aside(func() error { return p.Divert(context.Background(), server(3)) })
	other := told[link.Divert](t, w)
	answered(t, w, other.Number, errors.New("it is moving"))
	answered(t, w, one.Number, nil)
	if err := <-done; !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("the second is answered by what was said of the first: %v", err)
	}
	if err := p.Divert(context.Background(), first); err == nil || errors.Is(err, ErrSilent) {
		t.Errorf("to where it is: %v", err)
	}
}

// TestLeaseThatIsLeft: a relay that asks for a connection to where its session is not any more is
// told so, one question at a time; one that asks on and on is ended.
func TestLeaseThatIsLeft(t *testing.T) {
	var shared offer.Broker
	w, p, killed := end(t, &shared)
	first := server(1)
	p.relay.Store(&first)
	done := aside(func() error { return p.Divert(context.Background(), server(2)) })
	answered(t, w, told[link.Divert](t, w).Number, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	done = aside(func() error { return p.Settle(context.Background(), remote.LeaseID{2}, true) })
	answered(t, w, told[link.Settle](t, w).Number, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ask := link.Connect{Session: remote.NewSessionID()}
	for range 3 {
		if err := w.Send(ask); err != nil {
			t.Fatal(err)
		}
		if m := told[link.Connected](t, w); m.Errno != unix.ENOENT || m.Text != errLeft.Error() {
			t.Errorf("where its configuration says: %+v", m)
		}
		ask.Again = true
	}
	for range 2 {
		if err := w.Send(ask); err != nil {
			t.Fatal(err)
		}
	}
	awaitKill(t, killed)
}
