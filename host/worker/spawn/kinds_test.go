package spawn

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/link/linktest"
	"causeway/host/worker/offer"
	"causeway/remote"
)

// TestEveryKind: the parent does something about each kind of message that a worker sends, by kind:
// a new one that nobody thought of fails here, and would end the worker.
func TestEveryKind(t *testing.T) {
	var shared offer.Broker
	w, p, killed := end(t, &shared)
	woken := make(chan uint32, 1)
	wake := func(slot uint32) { woken <- slot }
	p.wake.Store(&wake)
	p.relay.Store(&link.Relay{Addresses: []string{"127.0.0.1:1"}, Lease: remote.LeaseID{1}})
	p.diverts.mu.Lock()
	// Which the sample of Connect names.
	p.diverts.routes[remote.LeaseID{2}] = &route{to: *p.relay.Load()}
	diverted := make(chan link.Diverted, 1)
	p.diverts.asked[12] = diverted // what the sample of Diverted answers
	p.diverts.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply := func(m link.ToParent) {
		got, err := p.Await(ctx, func(link.ToParent) bool { return true })
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v, %v", m, got, err)
		}
	}
	answer := func(link.ToParent) {
		r, err := w.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := r.Message().(link.Answer); !ok {
			t.Errorf("answered by %+v", r.Message())
		}
		r.Discard()
	}
	seen := map[string]func(link.ToParent){
		"started": reply, "region ended": reply, "parked": reply, "rebuilt": reply, "adopted": reply, "exported": reply,
		"offer": answer, "redeem": answer, "let go": answer,
		"connect": func(link.ToParent) {
			r, err := w.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if m, ok := r.Message().(link.Connected); !ok || m.Errno != unix.ECONNREFUSED || m.Text != "gpu server 127.0.0.1:1: connection refused" {
				t.Errorf("connected: %+v", r.Message())
			}
		},
		"withdraw": func(m link.ToParent) {
			answer(m)
			if r := ask(t, w, 99, link.Redeem{Request: 99, Token: m.(link.Withdraw).Token}); r.Errno == 0 {
				t.Error("a token holds after withdraw")
			}
		},
		"want": func(m link.ToParent) {
			if got := <-p.Wants(); !reflect.DeepEqual(got, m) {
				t.Errorf("wants %+v", got)
			}
		},
		"copied": func(m link.ToParent) {
			if c := <-p.Copied(); !reflect.DeepEqual(c, m) {
				t.Errorf("copied %+v", c)
			}
		},
		"probed": func(m link.ToParent) {
			if got := <-p.probes.answer; !reflect.DeepEqual(got, m) {
				t.Errorf("probed %+v", got)
			}
		},
		"diverted": func(m link.ToParent) {
			if got := <-diverted; !reflect.DeepEqual(got, m) {
				t.Errorf("diverted %+v", got)
			}
		},
		"wake": func(m link.ToParent) {
			if slot := <-woken; slot != m.(link.Wake).Slot {
				t.Errorf("slot %d was woken", slot)
			}
		},
		"carried": func(m link.ToParent) {
			if err := w.Send(link.Wake{Slot: 1}); err != nil { // which is followed after it
				t.Error(err)
			}
			<-woken
			if got := p.Carried(); got != m.(link.Carried).Over {
				t.Errorf("carried over %q", got)
			}
		},
		"rehearses": func(link.ToParent) {
			if err := w.Send(link.Wake{Slot: 1}); err != nil { // which is followed after it
				t.Error(err)
			}
			<-woken
			if !p.Rehearses() {
				t.Error("nobody has heard that it rehearses")
			}
		},
		"measured": func(m link.ToParent) {
			if u := <-p.use.answer; !reflect.DeepEqual(u, m.(link.Measured).Use) {
				t.Errorf("measured %+v", u)
			}
		},
	}
	for _, m := range linktest.ToParent(0) {
		if c, ok := m.(link.Connect); ok {
			c.Again = false // there is no session yet that could go on
			m = c
		}
		see := seen[link.Name(m)]
		if see == nil {
			t.Errorf("nobody says what the parent does about %q", link.Name(m))
			continue
		}
		if err := w.Send(m); err != nil {
			t.Fatal(err)
		}
		see(m)
	}
	select {
	case <-killed:
		t.Error("a worker that says what workers say was ended")
	default:
	}
}

// TestUnasked: a worker that answers more than it was asked is ended.
func TestUnasked(t *testing.T) {
	var shared offer.Broker
	w, _, killed := end(t, &shared)
	for range mostReplies + 1 {
		if err := w.Send(link.Parked{Number: 1}); err != nil {
			t.Fatal(err)
		}
	}
	awaitKill(t, killed)
}

// beginnings are those of so many sessions.
func beginnings(n int) iter.Seq[link.Connect] {
	return func(yield func(link.Connect) bool) {
		for range n {
			if !yield(link.Connect{Session: remote.NewSessionID()}) {
				return
			}
		}
	}
}

// TestUnaskedConnection: a worker that has a GPU is connected nowhere, and one that passes a
// session on has that one, to which it may be connected again and again.
func TestUnaskedConnection(t *testing.T) {
	one, other := remote.NewSessionID(), remote.NewSessionID()
	to := &link.Relay{Addresses: []string{"127.0.0.1:1"}}
	for name, c := range map[string]struct {
		relay *link.Relay
		asks  []link.Connect
		bad   bool // the last
	}{
		"a GPU":           {nil, []link.Connect{{Session: one}}, true},
		"a second":        {to, []link.Connect{{Session: one}, {Session: one}}, true},
		"another session": {to, []link.Connect{{Session: one}, {Session: other, Again: true}}, true},
		"none":            {to, []link.Connect{{}}, true},
		"none before":     {to, []link.Connect{{Session: one, Again: true}}, true},
		"as a second":     {to, []link.Connect{{Session: one}, {Session: other}, {Session: one, Again: true}}, true},
		"too many":        {to, slices.Collect(beginnings(link.Beginnings + 1)), true},
		"begun again":     {to, slices.Collect(beginnings(link.Beginnings)), false},
		"again":           {to, []link.Connect{{Session: one}, {Session: one, Again: true}, {Session: one, Again: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var shared offer.Broker
			w, p, killed := end(t, &shared)
			p.relay.Store(c.relay)
			for i, m := range c.asks {
				if err := w.Send(m); err != nil {
					t.Fatal(err)
				}
				if c.bad && i == len(c.asks)-1 {
					awaitKill(t, killed)
					return
				}
				r, err := w.Receive()
				if err != nil {
					t.Fatal(err)
				}
				r.Discard()
			}
		})
	}
}

// TestNotAWorker: one that says what only its parent may say, or nothing that is a message, is
// ended too, and its descriptors are closed.
func TestNotAWorker(t *testing.T) {
	for name, packet := range map[string][]byte{"quit": {12, 0, 0, 0}, "nothing": {0xff, 0, 0, 0}, "half a kind": {101, 0}, "a long wake": {102, 0, 0, 0, 1, 0, 0, 0, 0}} {
		t.Run(name, func(t *testing.T) {
			before := descriptors(t)
			var shared offer.Broker
			w, p, killed := end(t, &shared)
			f, err := w.File()
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Sendmsg(int(f.Fd()), packet, unix.UnixRights(0, 0), nil, 0); err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
			awaitKill(t, killed)
			<-p.drained
			if _, err := p.Await(context.Background(), func(link.ToParent) bool { return true }); !errors.Is(err, ErrEnded) {
				t.Errorf("awaited %v", err)
			}
			_ = w.Close()
			_ = p.link.Close()
			if after := descriptors(t); after > before {
				t.Errorf("%d descriptors before, %d after", before, after)
			}
		})
	}
}

func awaitKill(t *testing.T, killed <-chan struct{}) {
	t.Helper()
	select {
	case <-killed:
	case <-time.After(time.Minute):
		t.Fatal("the worker goes on")
	}
}
