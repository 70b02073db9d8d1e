package worker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"causeway/host/worker/link"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/remotetest"
	"causeway/remote/resume"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// side is a host's part in agreeing on what a session goes over.
type side struct {
	*starter
	parent *link.ParentEnd
	keys   mtls.Pinned
	client bool
}

func newSide(t *testing.T, keys mtls.Pinned, client bool, cfg link.Config, r rdma) *side {
	t.Helper()
	s := &side{&starter{cfg: cfg, rdma: r, log: slog.New(slog.DiscardHandler)}, nil, keys, client}
	s.parent, s.link = ends(t)
	t.Cleanup(func() { _ = errors.Join(s.parent.Close(), s.link.Close()) })
	return s
}

// told is the next thing that the parent is told.
func (s *side) told(t *testing.T) string {
	t.Helper()
	r, err := s.parent.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return r.Message().(link.Carried).Over
}

func (s *side) secure(c net.Conn) (*frame.Secure, error) {
	make, upgrade := s.keys.Server, frame.Server
	if s.client {
		make, upgrade = s.keys.Client, frame.Client
	}
	cfg, err := make(mtls.SessionProtocols(true)...)
	if err != nil {
		return nil, err
	}
	return upgrade(context.Background(), c, cfg)
}

// meet has two sides do something each inside of one more connection.
func meet(t *testing.T, a, b *side, doA, doB func(c *frame.Secure) error) {
	t.Helper()
	near, far, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		c, err := a.secure(far)
		if err == nil {
			err = doA(c)
		}
		failed <- err
	}()
	c, err := b.secure(near)
	if err == nil {
		err = doB(c)
	}
	if err := errors.Join(err, <-failed); err != nil {
		t.Fatal(err)
	}
}

// TestCarriedElsewhere: where a session comes to another host both ends agree by that one's
// adapters, or stay on TLS, and either host says so and why; over the connections that follow, too.
func TestCarriedElsewhere(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	for name, x := range map[string]struct {
		cfg    link.Config
		rdma   func(f *verbstest.Fabric) rdma
		server string // how the server's host says what it is over
		client string
	}{
		"an adapter": {link.Config{RDMA: link.RDMAAuto}, func(f *verbstest.Fabric) rdma { return rdma{adapters: []verbs.Adapter{f.Adapter("d", here)}} }, "RoCE v2 by s port 1", "RoCE v2 by d port 1"},
		"none": {link.Config{RDMA: link.RDMAAuto}, func(*verbstest.Fabric) rdma { return rdma{why: "this machine has none"} },
			onTCP + ": no RDMA: the other end: this machine has none", onTCP + ": no RDMA: this machine has none"},
		"off": {link.Config{}, func(*verbstest.Fabric) rdma { return rdma{} }, onTCP + ": no RDMA: the other end: " + noRDMA, onTCP + ": no RDMA: " + noRDMA},
	} {
		t.Run(name, func(t *testing.T) {
			f := verbstest.New()
			serverKeys, clientKeys, err := mtls.NewPinnedPair()
			if err != nil {
				t.Fatal(err)
			}
			auto := link.Config{RDMA: link.RDMAAuto}
			server := newSide(t, serverKeys, false, auto, rdma{adapters: []verbs.Adapter{f.Adapter("s", here)}})
			first := newSide(t, clientKeys, true, auto, rdma{adapters: []verbs.Adapter{f.Adapter("c", here)}})
			second := newSide(t, clientKeys, true, x.cfg, x.rdma(f))
			var at, by resume.Lifted
			meet(t, server, first, func(c *frame.Secure) (err error) {
				at, err = server.over(context.Background(), c, false)
				return err
			}, func(c *frame.Secure) (err error) {
				by, err = first.over(context.Background(), c, true)
				return err
			})
			if over := first.told(t) + server.told(t); !strings.HasPrefix(over, "RoCE v2 by c") {
				t.Fatal(over)
			}
			by.Way.Abort() // its host has gone
			l := second.elsewhere(&telling{s: second.starter})
			if l.Stays != nil {
				meetsAndStays(t, server, second, at, l)
			} else if name == "an adapter" {
				t.Error("the session waits until it is known whether there is RDMA")
			}
			for range 2 {
				var ways [2]resume.Way
				meet(t, server, second, func(c *frame.Secure) (err error) {
					ways[0], err = at.Again(context.Background(), c)
					return err
				}, func(c *frame.Secure) (err error) {
					ways[1], err = l.Again(context.Background(), c)
					return err
				})
				if over := server.told(t); !strings.HasPrefix(over, x.server) {
					t.Errorf("the server says %q", over)
				}
				if over := second.told(t); !strings.HasPrefix(over, x.client) {
					t.Errorf("the host says %q", over)
				}
				for _, w := range ways {
					w.Abort()
				}
			}
			at.Way.Abort()
			if n := f.Left(); n != 0 {
				t.Errorf("%d queue pairs and registrations are left", n)
			}
		})
	}
}

// meetsAndStays has a connection be gone on over at once: both hosts say that there is no RDMA yet.
func meetsAndStays(t *testing.T, server, client *side, at, by resume.Lifted) {
	t.Helper()
	meet(t, server, client, func(c *frame.Secure) error {
		_, err := at.Again(context.Background(), c)
		return err
	}, func(c *frame.Secure) error {
		_, err := by.Stays(context.Background(), c)
		return err
	})
	if over := server.told(t); over != onTCP+": no RDMA: the other end: "+noneYet {
		t.Errorf("the server says %q", over)
	}
	if over := client.told(t); over != onTCP+": no RDMA: "+noneYet {
		t.Errorf("the host says %q", over)
	}
}

// TestTellsLater: what a stream goes over to which a session may never come is told when it does,
// the last of it, and from then on at once; an agreement that ends after one that began later is
// not told.
func TestTellsLater(t *testing.T) {
	s := newSide(t, mtls.Pinned{}, true, link.Config{}, rdma{})
	to := &telling{s: s.starter, later: true}
	says := func(turn uint64, what string) {
		t.Helper()
		if err := to.tell(turn, func(o *carriedOver) { o.frame = what }); err != nil {
			t.Fatal(err)
		}
	}
	first, second, third := to.begin(), to.begin(), to.begin()
	says(second, "second")
	says(first, "first, which ended after it")
	if err := s.tell(func(o *carriedOver) { o.frame = "where it is" }); err != nil {
		t.Fatal(err)
	}
	if err := to.now(); err != nil {
		t.Fatal(err)
	}
	says(third, "third")
	says(second, "second, which ended after it")
	says(to.begin(), "fourth")
	for _, want := range []string{"where it is", "second", "third", "fourth"} {
		if got := s.told(t); got != want {
			t.Errorf("%q is told, not %q", got, want)
		}
	}
	if err := (&telling{s: s.starter, later: true}).now(); err != nil { // nothing was agreed on
		t.Error(err)
	}
}
