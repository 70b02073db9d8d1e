package spawn

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

// TestRehearse: a relay is told of another server for a rehearsal alone, has connections there as
// long as that lasts, and says what comes of it: one errno alone says that the session cannot be
// there. It may go there next.
func TestRehearse(t *testing.T) {
	var shared offer.Broker
	w, p, _ := end(t, &shared)
	first := server(1)
	p.relay.Store(&first)
	to := server(2)
	for _, c := range []struct {
		errno  unix.Errno
		cannot bool
	}{{0, false}, {unix.EADDRNOTAVAIL, true}, {unix.ENOSYS, false}, {unix.EBUSY, false}, {0, false}} {
		done := aside(func() error { return p.Rehearse(context.Background(), to) })
		m := told[link.Rehearse](t, w)
		if at, _, gone := p.route(to.Lease); m.To.Lease != to.Lease || at == nil || gone {
			t.Errorf("told %+v, whose connections go to %v, %v", m, at, gone)
		}
		status := link.Status{}
		if c.errno != 0 {
			status = link.StatusOf(c.errno, errors.New("a variable comes out beside"))
		}
		if err := w.Send(link.Diverted{Number: m.Number, Status: status}); err != nil {
			t.Fatal(err)
		}
		err := <-done
		var cannot *Cannot
		if (err == nil) != (c.errno == 0) || errors.As(err, &cannot) != c.cannot || !c.cannot && c.errno != 0 && !errors.Is(err, c.errno) {
			t.Errorf("errno %d: %v", c.errno, err)
		}
		if c.cannot && err.Error() != "a variable comes out beside" {
			t.Errorf("it says %q", err)
		}
		if _, _, gone := p.route(to.Lease); !gone {
			t.Error("connections go there when it is over")
		}
	}
	if err := p.Rehearse(context.Background(), first); err == nil {
		t.Error("it is rehearsed where it is")
	}
	done := aside(func() error { return p.Divert(context.Background(), to) })
	answered(t, w, told[link.Divert](t, w).Number, nil)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var cannot *Cannot
	if err := p.Rehearse(context.Background(), to); err == nil || errors.As(err, &cannot) {
		t.Errorf("it is rehearsed where it has got: %v", err)
	}
	if at, _, gone := p.route(to.Lease); at == nil || gone {
		t.Error("which ends its connections there")
	}
}
