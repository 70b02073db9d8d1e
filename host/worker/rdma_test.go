package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
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

// carriedBy has two ends of a lease agree on what frames go over, by what each is configured with,
// and returns what each told its parent. Some bytes then go through.
func carriedBy(t *testing.T, server, client *starter) (told [2]string) {
	t.Helper()
	keys, other, err := mtls.NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	conns, parents := [2]frame.Stream{}, [2]*link.ParentEnd{}
	failed := make(chan error, 2)
	for i, s := range []*starter{server, client} {
		parents[i], s.link = ends(t)
		s.log = slog.New(slog.DiscardHandler)
		defer parents[i].Close()
		defer s.link.Close()
		go func() {
			failed <- func() error {
				make, upgrade, c := keys.Server, frame.Server, far
				if s == client {
					make, upgrade, c = other.Client, frame.Client, near
				}
				cfg, err := make(mtls.SessionProtocols(s.cfg.RDMA != "")...)
				if err != nil {
					return err
				}
				secure, err := upgrade(context.Background(), c, cfg)
				if err != nil {
					return err
				}
				l, err := s.over(context.Background(), secure, s == client)
				if conns[i] = secure; l.Way != nil {
					conns[i] = l.Way
				}
				return err
			}()
		}()
	}
	if err := errors.Join(<-failed, <-failed); err != nil {
		t.Fatal(err)
	}
	for i, p := range parents {
		r, err := p.Receive()
		if err != nil {
			t.Fatal(err)
		}
		told[i] = r.Message().(link.Carried).Over
	}
	go func() { _, _ = conns[1].Write([]byte("frames")) }()
	b := make([]byte, 6)
	if _, err := io.ReadFull(conns[0], b); err != nil || string(b) != "frames" {
		t.Errorf("%q, %v", b, err)
	}
	closed := make(chan error, 1)
	go func() { closed <- conns[1].Close() }()
	_ = errors.Join(conns[0].Close(), <-closed)
	return told
}

// TestCarried: what frames go over, by what two hosts are told, and what either says of it.
func TestCarried(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	with := func(f *verbstest.Fabric, name string) *starter {
		return &starter{cfg: link.Config{RDMA: link.RDMAAuto}, rdma: rdma{adapters: []verbs.Adapter{f.Adapter(name, here)}}}
	}
	without := func() *starter {
		return &starter{cfg: link.Config{RDMA: link.RDMAAuto}, rdma: rdma{why: "this machine has none"}}
	}
	off := func() *starter { return &starter{} }
	f := verbstest.New()
	for name, x := range map[string]struct {
		server, client *starter
		told           [2]string // how each begins, and what follows somewhere
		why            [2]string
	}{
		"both":       {with(f, "s"), with(f, "c"), [2]string{"RoCE v2 by s port 1", "RoCE v2 by c port 1"}, [2]string{", " + gpuOff, ""}},
		"no server":  {without(), with(f, "c"), [2]string{onTCP, onTCP}, [2]string{"this machine has none", "the other end: this machine has none"}},
		"no client":  {with(f, "s"), without(), [2]string{onTCP, onTCP}, [2]string{"the other end: this machine has none", "this machine has none"}},
		"server off": {off(), with(f, "c"), [2]string{onTCP, onTCP}, [2]string{"", "the other host has RDMA off"}},
		"client off": {with(f, "s"), off(), [2]string{onTCP, onTCP}, [2]string{"the other host has RDMA off", ""}},
		"both off":   {off(), off(), [2]string{onTCP, onTCP}, [2]string{}},
	} {
		told := carriedBy(t, x.server, x.client)
		for i := range told {
			if !strings.HasPrefix(told[i], x.told[i]) || !strings.Contains(told[i], x.why[i]) {
				t.Errorf("%s: %q", name, told)
			}
		}
		if n := f.Left(); n != 0 {
			t.Errorf("%s: %d things are left", name, n)
		}
	}
}

// TestCarriedByRails: both hosts are told by how many queue pairs copies go, and when one is lost;
// not any more when frames go another way.
func TestCarriedByRails(t *testing.T) {
	f, here, there := verbstest.New(), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	with := func(name string, pairs int) *starter {
		return &starter{cfg: link.Config{RDMA: link.RDMAAuto, Pairs: pairs}, rdma: rdma{adapters: []verbs.Adapter{f.Adapter(name, here), f.Adapter(name+"2", there)}}}
	}
	for name, x := range map[string]struct {
		server, client *starter
		want           [2]string
	}{
		"each port":     {with("s", 0), with("c", 0), [2]string{", 2 queue pairs for them: s/1, s2/1, " + gpuOff, ", 2 queue pairs for them: c/1, c2/1"}},
		"one by client": {with("s", 0), with("c", 1), [2]string{"copies one-sided, " + gpuOff, "copies one-sided"}},
		"three":         {with("s", 3), with("c", 8), [2]string{", 3 queue pairs for them: s/1, s2/1, s/1, " + gpuOff, ", 3 queue pairs for them: c/1, c2/1, c/1"}},
	} {
		told := carriedBy(t, x.server, x.client)
		for i := range told {
			if !strings.HasSuffix(told[i], x.want[i]) {
				t.Errorf("%s: %q", name, told)
			}
		}
		if n := f.Left(); n != 0 {
			t.Errorf("%s: %d things are left", name, n)
		}
	}
	var parent *link.ParentEnd
	s := with("s", 0)
	parent, s.link = ends(t)
	defer parent.Close()
	defer s.link.Close()
	s.log = slog.New(slog.DiscardHandler)
	way := &verbs.Conn{}
	s.railLost(way, "not this one's") // says nothing: the next message is the next
	if err := s.tell(func(o *carriedOver) { o.by, o.frame = nil, onTCP }); err != nil {
		t.Fatal(err)
	}
	s.railLost(way, "not this one's")
	if err := s.tell(func(o *carriedOver) { o.frame = "last" }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{onTCP, "last"} {
		if r, err := parent.Receive(); err != nil || r.Message().(link.Carried).Over != want {
			t.Errorf("not %q: %v", want, err)
		}
	}
}

// TestOpenRDMA: adapters are opened for sessions between hosts, and a machine without them says why
// there are none.
func TestOpenRDMA(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, cfg := range []link.Config{{}, {RDMA: "none9"}, {TLS: &mtls.Pinned{}}} {
		var r rdma
		if r.open(cfg, true, log); r.why != "" || r.adapters != nil {
			t.Errorf("%+v: %+v", cfg, r)
		}
	}
	for _, cfg := range []link.Config{{RDMA: "none9", TLS: &mtls.Pinned{}}, {RDMA: "none9/1", Relay: &link.Relay{}}} {
		var r rdma
		if r.open(cfg, true, log); !strings.Contains(r.why, "none9") || r.adapters != nil {
			t.Errorf("%+v: %+v", cfg, r)
		}
	}
}

// TestCarriedAgain: inside of each connection that follows both ends agree anew, by the port that
// they had, and say what it is over.
func TestCarriedAgain(t *testing.T) {
	f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
	keys, other, err := mtls.NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	var sides [2]*starter
	var parents [2]*link.ParentEnd
	for i, name := range []string{"s", "c"} {
		s := &starter{cfg: link.Config{RDMA: link.RDMAAuto}, rdma: rdma{adapters: []verbs.Adapter{f.Adapter(name, here)}}, log: slog.New(slog.DiscardHandler)}
		parents[i], s.link = ends(t)
		defer parents[i].Close()
		defer s.link.Close()
		sides[i] = s
	}
	// both has each side do something with its end of one more connection.
	both := func(do func(i int, c *frame.Secure) error) {
		t.Helper()
		near, far, err := remotetest.PairTCP()
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 2)
		for i := range sides {
			go func() {
				make, upgrade, c := keys.Server, frame.Server, far
				if i == 1 {
					make, upgrade, c = other.Client, frame.Client, near
				}
				cfg, err := make(mtls.SessionProtocols(true)...)
				var s *frame.Secure
				if err == nil {
					s, err = upgrade(context.Background(), c, cfg)
				}
				if err == nil {
					err = do(i, s)
				}
				failed <- err
			}()
		}
		if err := errors.Join(<-failed, <-failed); err != nil {
			t.Fatal(err)
		}
	}
	told := func(want string) {
		t.Helper()
		for _, p := range parents {
			r, err := p.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if over := r.Message().(link.Carried).Over; !strings.HasPrefix(over, want) || strings.HasPrefix(over, onTCP) && strings.Contains(over, gpuOff) {
				t.Errorf("over %q, not %q", over, want)
			}
		}
	}
	var lifted [2]resume.Lifted
	both(func(i int, c *frame.Secure) (err error) {
		lifted[i], err = sides[i].over(context.Background(), c, i == 1)
		return err
	})
	told("RoCE v2 by ")
	var ways [2]resume.Way
	again := func(want string) {
		both(func(i int, c *frame.Secure) (err error) {
			ways[i], err = lifted[i].Again(context.Background(), c)
			return err
		})
		told(want)
		for _, w := range ways {
			w.Abort()
		}
	}
	again("RoCE v2 by ")
	f.Refuse("no more")
	again(onTCP + ": no RDMA: ")
	f.Heal()
	again("RoCE v2 by ")
	for _, l := range lifted {
		l.Way.Abort()
	}
	if n := f.Left(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}
