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

// TestAhead: a relay is told once of a server that is to await its session, and then that the
// session goes there; one that says that it knows of no rounds may be told all at once.
func TestAhead(t *testing.T) {
	var shared offer.Broker
	w, p, _ := end(t, &shared)
	first := server(1)
	p.relay.Store(&first)
	done := aside(func() error { return p.Ahead(context.Background(), server(2)) })
	m := told[link.Divert](t, w)
	if !m.Ahead || m.To.Lease != server(2).Lease {
		t.Errorf("told %+v", m)
	}
	if err := w.Send(link.Diverted{Number: m.Number, Status: link.StatusOf(unix.ENOSYS, errors.New("it has none"))}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrNoRounds) {
		t.Error(err)
	}
	for _, goes := range []bool{true, false} {
		done = aside(func() error { return p.Ahead(context.Background(), server(2)) })
		if m = told[link.Divert](t, w); !m.Ahead {
			t.Errorf("told %+v", m)
		}
		answered(t, w, m.Number, nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := p.Ahead(context.Background(), server(2)); err == nil || errors.Is(err, ErrNoRounds) {
			t.Errorf("twice: %v", err)
		}
		if !goes {
			break
		}
		done = aside(func() error { return p.Divert(context.Background(), server(2)) })
		if m = told[link.Divert](t, w); m.Ahead {
			t.Errorf("told %+v", m)
		}
		answered(t, w, m.Number, nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := p.Divert(context.Background(), server(2)); err == nil {
			t.Error("it goes where it is")
		}
		done = aside(func() error { return p.Settle(context.Background(), remote.LeaseID{2}, false) })
		answered(t, w, told[link.Settle](t, w).Number, nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if to, _, gone := p.route(remote.LeaseID{2}); to == nil || gone {
		t.Error("connections of the server that awaits the session go nowhere")
	}
}

// TestRound: a round's answer is its own, not that of one for which nobody waited; what a relay
// says against it is said, also by its end.
func TestRound(t *testing.T) {
	var shared offer.Broker
	w, p, _ := end(t, &shared)
	type said struct {
		m   link.Copied
		err error
	}
	round := func(ctx context.Context) <-chan said {
		c := make(chan said, 1)
		go func() {
			m, err := p.Round(ctx)
			c <- said{m, err}
		}()
		return c
	}
	ctx, giveUp := context.WithCancel(context.Background())
	late := round(ctx)
	one := told[link.Copy](t, w)
	giveUp()
	if s := <-late; !errors.Is(s.err, ErrSilent) {
		t.Errorf("given up: %v", s.err)
	}
	next := round(context.Background())
	other := told[link.Copy](t, w)
	if one.Number == other.Number || other.Rehearsal || other.Stream.FD() >= 0 {
		t.Errorf("told %+v, then %+v", one, other)
	}
	for _, m := range []link.Copied{{Number: one.Number, Sent: 1, Looked: 1}, {Number: other.Number, Sent: 2, Looked: 3}} {
		if err := w.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if s := <-next; s.err != nil || s.m.Sent != 2 || s.m.Looked != 3 {
		t.Errorf("%+v", s)
	}
	next = round(context.Background())
	if err := w.Send(link.Copied{Number: told[link.Copy](t, w).Number, Status: link.StatusOf(unix.EOPNOTSUPP, errors.New("lost"))}); err != nil {
		t.Fatal(err)
	}
	if s := <-next; !errors.Is(s.err, unix.EOPNOTSUPP) {
		t.Error(s.err)
	}
	next = round(context.Background())
	told[link.Copy](t, w)
	_ = w.Close()
	if s := <-next; !errors.Is(s.err, ErrEnded) {
		t.Error(s.err)
	}
}
