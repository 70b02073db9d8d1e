package resume

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// stranger is a connection of the lease's keys to the server's end, as a client's end makes one.
func (r *rig) stranger(t testing.TB) (*frame.Secure, chan error) {
	t.Helper()
	near, far := pair(t)
	accepted := make(chan error, 1)
	go func() { accepted <- r.server.Accept(far, r.serverAgain) }()
	s, err := frame.Client(context.Background(), near, r.clientAgain)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Abort)
	return s, accepted
}

// TestProof: what does not show the session's secret, shows it for another connection, or for an
// attempt that was, changes nothing.
func TestProof(t *testing.T) {
	r := newRig(t, minute, nil)
	exchange(t, r.client, r.server, 10_000)
	first, accepted := r.stranger(t)
	bind, err := derived(first, labelBind)
	if err != nil {
		t.Fatal(err)
	}
	good := greeting{Attempt: 7, Got: 0}
	good.Proof = good.proof(r.client.secret, bind, fromClient)
	for name, change := range map[string]func(*greeting, digest){
		"another secret": func(g *greeting, bind digest) { g.Proof = g.proof(digest{1}, bind, fromClient) },
		"replayed":       func(*greeting, digest) {},
		"the server's":   func(g *greeting, bind digest) { g.Proof = g.proof(r.client.secret, bind, fromServer) },
		"position":       func(g *greeting, bind digest) { g.Proof = g.proof(r.client.secret, bind, fromClient); g.Got++ },
		"an old attempt": func(g *greeting, bind digest) { g.Attempt = 0; g.Proof = g.proof(r.client.secret, bind, fromClient) },
	} {
		s, accepted := r.stranger(t)
		bind, err := derived(s, labelBind)
		if err != nil {
			t.Fatal(err)
		}
		g := good
		change(&g, bind)
		if _, err := s.Write(g.encode()); err != nil {
			t.Fatal(err)
		}
		if err := <-accepted; !errors.Is(err, ErrProof) {
			t.Errorf("%s: %v", name, err)
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, s) // the server's greeting, at most
		}()
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Fatalf("%s: it stays connected", name)
		}
		exchange(t, r.client, r.server, 1000)
	}
	first.Abort()
	if err := <-accepted; err == nil { // it gave way to those that came later
		t.Error("a connection that said nothing was taken")
	}
	if r.dials.Load() != 0 {
		t.Error("the session's connection was lost")
	}
}

// TestNewest: one that shows that it is the session's takes the place of a connection that still
// stands.
func TestNewest(t *testing.T) {
	r := newRig(t, minute, nil)
	exchange(t, r.client, r.server, 10_000)
	r.client.mu.Lock()
	up := r.client.up
	r.client.loseLocked(errors.New("the client thinks so"))
	r.client.mu.Unlock()
	exchange(t, r.client, r.server, 100_000)
	_ = up.SetReadDeadline(time.Now().Add(minute))
	if _, err := io.Copy(io.Discard, up); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the former connection stands")
	}
}

// TestHostile: positions that cannot be end the session, by name, also if who says them is who it
// should be.
func TestHostile(t *testing.T) {
	say := func(h frame.Header, payload int) func(*testing.T, *rig) {
		return func(t *testing.T, r *rig) {
			if _, err := r.client.up.Write(append(h.Append(nil), make([]byte, payload)...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	greet := func(got uint64) func(*testing.T, *rig) {
		return func(t *testing.T, r *rig) {
			s, _ := r.stranger(t)
			bind, err := derived(s, labelBind)
			if err != nil {
				t.Fatal(err)
			}
			g := greeting{Attempt: 1, Got: got}
			g.Proof = g.proof(r.client.secret, bind, fromClient)
			if _, err := s.Write(g.encode()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, attack := range map[string]func(*testing.T, *rig){
		"ahead":     say(frame.Header{Kind: frame.Ack, Arg: 101}, 0),
		"far ahead": say(frame.Header{Kind: frame.Ack, Arg: ^uint64(0)}, 0),
		"back": func(t *testing.T, r *rig) {
			say(frame.Header{Kind: frame.Ack, Arg: 100}, 0)(t, r)
			say(frame.Header{Kind: frame.Ack, Arg: 99}, 0)(t, r)
		},
		"with bytes":      say(frame.Header{Kind: frame.Ack, Len: 4}, 4),
		"with flags":      say(frame.Header{Kind: frame.Ack, Flags: 1}, 0),
		"greeting ahead":  greet(101),
		"greeting beyond": greet(1 << 63),
		"greeting back": func(t *testing.T, r *rig) {
			r.server.mu.Lock()
			r.server.kept.drop(100) // it was told of 100
			r.server.mu.Unlock()
			greet(99)(t, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, minute, nil)
			if _, err := r.server.Write(append(frame.Header{Kind: frame.Data, Len: 84}.Append(nil), make([]byte, 84)...)); err != nil {
				t.Fatal(err)
			}
			attack(t, r)
			_ = r.server.SetReadDeadline(time.Now().Add(minute))
			if _, err := r.server.Read(make([]byte, 100)); !errors.Is(err, remote.ErrProtocol) {
				t.Error(err)
			}
		})
	}
}

// TestServerShowsWhoItIs: a client goes on over a connection only whose other end shows that it has
// the session, for this attempt and on this connection.
func TestServerShowsWhoItIs(t *testing.T) {
	r := newRig(t, minute, nil)
	for name, c := range map[string]struct {
		answer func(g *greeting, bind digest)
		ok     bool
	}{
		"as it should":    {func(g *greeting, bind digest) { g.Proof = g.proof(r.client.secret, bind, fromServer) }, true},
		"another secret":  {func(g *greeting, bind digest) { g.Proof = g.proof(digest{1}, bind, fromServer) }, false},
		"the client's":    {func(g *greeting, bind digest) { g.Proof = g.proof(r.client.secret, bind, fromClient) }, false},
		"elsewhere":       {func(g *greeting, _ digest) { g.Proof = g.proof(r.client.secret, digest{}, fromServer) }, false},
		"another attempt": {func(g *greeting, bind digest) { g.Attempt++; g.Proof = g.proof(r.client.secret, bind, fromServer) }, false},
		"nothing":         {func(*greeting, digest) {}, false},
	} {
		near, far := pair(t)
		go func() {
			s, err := frame.Server(context.Background(), far, r.serverAgain)
			if err != nil {
				return
			}
			t.Cleanup(s.Abort)
			bind, err := derived(s, labelBind)
			if err != nil {
				return
			}
			g, err := readGreeting(s)
			if err != nil {
				return
			}
			answer := greeting{Attempt: g.Attempt, Got: 0}
			c.answer(&answer, bind)
			_, _ = s.Write(answer.encode())
		}()
		s, err := frame.Client(context.Background(), near, r.clientAgain)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Abort)
		if err := r.client.greet(s); errors.Is(err, ErrProof) == c.ok {
			// That it has a connection is another matter.
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostileServer: a server's end that says more than the client has sent ends the client.
func TestHostileServer(t *testing.T) {
	r := newRig(t, minute, nil)
	r.server.mu.Lock()
	r.server.got = 1 << 40
	r.server.mu.Unlock()
	reset(r.server.up.(*frame.Secure).NetConn().(*frame.Buffered).Conn)
	_ = r.client.SetReadDeadline(time.Now().Add(minute))
	if _, err := r.client.Read(make([]byte, 1)); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
}

// FuzzStream: whatever a proven peer sends, an end delivers it frame by frame or ends;
// acknowledgements never come through, and never take more than there is.
func FuzzStream(f *testing.F) {
	ack := func(n uint64) []byte { return frame.Header{Kind: frame.Ack, Arg: n}.Append(nil) }
	f.Add(append(ack(16), frame.Header{Kind: frame.Word}.Append(nil)...))
	f.Add(append(frame.Header{Kind: frame.Data, Len: 3}.Append(nil), "abc"...))
	f.Add(ack(1 << 63))
	f.Add(append(ack(16), ack(8)...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 13, 0})
	k := newKeys(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := pair(t)
		made := make(chan *frame.Secure, 1)
		go func() {
			s, _ := frame.Server(context.Background(), far, k.server)
			made <- s
		}()
		peer, err := frame.Client(context.Background(), near, k.client)
		if err != nil {
			t.Fatal(err)
		}
		c, err := newConn(<-made, minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write(frame.Header{Kind: frame.Word}.Append(nil)); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = peer.Write(b)
			_ = peer.Close()
		}()
		var at boundary
		var got []byte
		for p := make([]byte, 1000); ; {
			n, err := c.Read(p)
			got = append(got, p[:n]...)
			if at.pass(p[:n]); err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, ErrLost) {
					t.Error(err)
				}
				break
			}
		}
		for rest := got; len(rest) >= frame.HeaderSize; {
			h := frame.ParseHeader(rest)
			if h.Kind == frame.Ack {
				t.Error("an acknowledgement was delivered")
			}
			rest = rest[min(uint64(len(rest)), frame.HeaderSize+uint64(h.Len)):]
		}
	})
}

func FuzzGreeting(f *testing.F) {
	f.Add(greeting{Attempt: 1, Got: 2, Proof: digest{3}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < greetingSize {
			return
		}
		g := parseGreeting([greetingSize]byte(b))
		for _, from := range []string{fromClient, fromClientBeside, fromClientOver, fromServer, fromServerBeside, fromServerOver} {
			if string(g.encode()) != string(b[:greetingSize]) || g.proven(digest{1}, digest{2}, from) {
				t.Errorf("%s: %+v", from, g)
			}
		}
	})
}
