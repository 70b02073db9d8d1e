package verbs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// against is a connection whose other end is the test's.
func against(t *testing.T, f *verbstest.Fabric) (*verbstest.Peer, net.Conn) {
	t.Helper()
	return againstOn(t, f.Adapter("near", here), f.Adapter("far", here))
}

// againstOn is against on ports.
func againstOn(t *testing.T, nearPort, farPort verbs.Adapter) (*verbstest.Peer, net.Conn) {
	t.Helper()
	near, far, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	p, c, err := verbstest.Against(near, far, nearPort, farPort, here)
	if err != nil {
		t.Fatal(err)
	}
	return p, c
}

// write says that n bytes came, none of which did.
func write(t *testing.T, p *verbstest.Peer, immediate uint32) {
	t.Helper()
	if err := p.Write(0, p.Offer.Window.Key, immediate); err != nil {
		t.Fatal(err)
	}
}

// TestHostileImmediates: a peer that says what cannot be ends the session, and nothing else.
func TestHostileImmediates(t *testing.T) {
	for name, values := range map[string][]uint32{
		"no bytes":               {0},
		"more than the window":   {verbs.MostWindow + 1},
		"much more":              {1<<31 - 1},
		"more than is free":      {verbs.MostWindow / 2, verbs.MostWindow / 2},
		"credit for nothing":     {1<<31 | 17},
		"credit for no messages": {1<<31 | 5<<21},
		"credit for everything":  {1<<32 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := verbstest.New()
			p, conn := against(t, f)
			f.Hold(true)
			for _, v := range values {
				write(t, p, v)
			}
			f.Hold(false) // they arrive at once
			var err error
			for err == nil {
				// As much as there was before is read.
				err = second(conn.Read(make([]byte, verbs.MostWindow)))
			}
			if !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("ended with %v", err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOften: a peer that writes more often than it may, while no credit can leave, is stopped
// before what it is owed can no longer be said.
func TestOften(t *testing.T) {
	_, conn := against(t, verbstest.New())
	c := conn.(*verbs.Conn)
	if err := c.Arrives(127, 1); err != nil {
		t.Error(err)
	}
	if err := c.Arrives(128, 1); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("one more than it may: %v", err)
	}
	c.Abort()
}

// TestFlood: a peer that rings without end fills nothing: its own queue pair fails when it runs out
// of receives.
func TestFlood(t *testing.T) {
	f := verbstest.New()
	p, conn := against(t, f)
	f.Hold(true)
	for range 500 {
		write(t, p, 1)
	}
	f.Hold(false)
	if got, err := p.Failed(); err != nil || got != verbs.NotReadyExceeded {
		t.Error(got, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// TestHostileOffers: each row is not taken.
func TestHostileOffers(t *testing.T) {
	good := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 7, PSN: 9, GID: here.As16(), Window: verbs.Window{Address: 1 << 40, Key: 5, Size: verbs.MostWindow}}
	if p, err := verbs.ParseOffer(good.Append(nil)); err != nil || p.Offer() != good {
		t.Fatal(p, err)
	}
	many := good
	many.Rails = 7
	if p, err := verbs.ParseOffer(many.Append(nil)); err != nil || p.Offer() != many {
		t.Error(p, err)
	}
	if p, err := verbs.ParseOffer(verbs.Offer{Declined: strings.Repeat("x", 5000)}.Append(nil)); err != nil || len(p.Offer().Declined) != 400 {
		t.Error(p, err)
	}
	for name, change := range map[string]func(o *verbs.Offer){
		"link":           func(o *verbs.Offer) { o.Link = 3 },
		"no MTU":         func(o *verbs.Offer) { o.MTU = 0 },
		"MTU":            func(o *verbs.Offer) { o.MTU = 6 },
		"no queue pair":  func(o *verbs.Offer) { o.Queue = 0 },
		"queue pair":     func(o *verbs.Offer) { o.Queue = 1 << 24 },
		"packet":         func(o *verbs.Offer) { o.PSN = 1 << 24 },
		"no window":      func(o *verbs.Offer) { o.Window.Size = 0 },
		"small window":   func(o *verbs.Offer) { o.Window.Size = 4096 },
		"large window":   func(o *verbs.Offer) { o.Window.Size = 2 * verbs.MostWindow },
		"odd window":     func(o *verbs.Offer) { o.Window.Size = verbs.MostWindow - 8 },
		"window around":  func(o *verbs.Offer) { o.Window.Address = ^uint64(0) - 4096 },
		"no address":     func(o *verbs.Offer) { o.GID = [16]byte{} },
		"rails":          func(o *verbs.Offer) { o.Rails = 8 },
		"no LID, no GID": func(o *verbs.Offer) { o.Link, o.GID = verbs.InfiniBand, [16]byte{} },
	} {
		o := good
		change(&o)
		if p, err := verbs.ParseOffer(o.Append(nil)); !errors.Is(err, remote.ErrProtocol) || p != (verbs.Peer{}) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

func FuzzOffer(f *testing.F) {
	f.Add(verbs.Offer{Declined: "no adapter"}.Append(nil))
	f.Add(verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 7, PSN: 9, GID: here.As16(), Window: verbs.Window{Address: 1 << 40, Key: 5, Size: verbs.MostWindow}}.Append(nil))
	f.Add(verbs.Offer{Link: verbs.InfiniBand, MTU: 5, LID: 3, Queue: 1<<24 - 1, Window: verbs.Window{Size: verbs.LeastWindow}}.Append(nil))
	for _, rails := range []int{1, 7, 8, 255} {
		f.Add(verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 7, GID: here.As16(), Window: verbs.Window{Size: verbs.LeastWindow}, Reach: true, Rails: rails}.Append(nil))
	}
	f.Add([]byte("CWVERBS\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := verbs.ParseOffer(b)
		if err != nil {
			if !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("unexpected kind of error: %v", err)
			}
			return
		}
		if o := p.Offer(); o.Declined == "" {
			if again, err := verbs.ParseOffer(o.Append(nil)); err != nil || again != p {
				t.Errorf("%+v is read as %+v, %v", o, again, err)
			}
		}
	})
}

// TestHostileUpgrade: an end that says something else, or too much, ends it.
func TestHostileUpgrade(t *testing.T) {
	f := verbstest.New()
	good := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 7, PSN: 9, GID: here.As16(), Window: verbs.Window{Address: 1 << 40, Key: 5, Size: verbs.MostWindow}}
	long := good.Append(nil)
	binary.LittleEndian.PutUint16(long[8:], 60000)
	for name, b := range map[string][]byte{
		"other bytes":     make([]byte, 64),
		"long reason":     long,
		"nothing":         nil,
		"half an offer":   good.Append(nil)[:40],
		"long complaint":  append(good.Append(nil), 0xff, 0xff),
		"half a sentence": append(good.Append(nil), 5, 0, 'w'),
	} {
		near, far, err := remotetest.PairTCP()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = near.Write(b)
		_ = near.(interface{ CloseWrite() error }).CloseWrite()
		c, err := verbs.Upgrade(context.Background(), far, []verbs.Adapter{f.Adapter("far", here)}, "", false)
		if c != nil || err == nil || errors.Is(err, verbs.ErrStays) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if n := f.Left(); n != 0 {
			t.Errorf("%s: %d things left", name, n)
		}
		_ = near.Close()
	}
}
