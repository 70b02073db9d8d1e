package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// channel is a client's, of which an Upgrade has so much until the client goes on by itself: then
// words of who passes on are its own, as in a guest library.
type channel struct {
	net.Conn
	lost chan []byte
}

// Read implements io.Reader.
func (c *channel) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && bytes.HasPrefix(b[:n], []byte("CWVLST\x00\x01")) {
		c.lost <- bytes.Clone(b[:n])
		return 0, io.EOF
	}
	return n, err
}

// Close has who reads return. The channel itself goes on.
func (c *channel) Close() error { return c.SetReadDeadline(time.Unix(1, 0)) }

// gap is a client whose session goes on, through Pass, to ends of a server's.
type gap struct {
	*verbstest.Fabric
	client net.Conn // the channel
	up     *channel
	near   *verbs.Conn
	fars   chan net.Conn
	refuse chan struct{} // has a server's next end have no adapter
	got    chan uint64   // what another was told
	ended  chan error
}

const serverHas = 4711

func newGap(t *testing.T) *gap {
	t.Helper()
	g := &gap{Fabric: verbstest.New(), fars: make(chan net.Conn, 4), refuse: make(chan struct{}, 1), got: make(chan uint64, 9), ended: make(chan error, 1)}
	near, client, err1 := remotetest.PairTCP()
	server, farBase, err2 := remotetest.PairTCP()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	g.client = near
	far := g.Adapter("far", here)
	go func() {
		_, err := verbs.Pass(context.Background(), client, server, func(string) error { return nil }, func(_ context.Context, _ error, got uint64) (net.Conn, uint64, error) {
			g.got <- got
			server, farBase, err := remotetest.PairTCP()
			if err != nil {
				return nil, 0, err
			}
			go func() {
				select {
				case <-g.refuse:
					_, _ = verbs.Upgrade(context.Background(), farBase, nil, "no adapter for now", false)
				default:
					c, _ := verbs.UpgradeAgain(context.Background(), farBase, far, false)
					g.fars <- c
				}
			}()
			return server, serverHas, nil
		}, time.Minute)
		g.ended <- err
	}()
	go func() {
		c, _ := verbs.Upgrade(context.Background(), farBase, []verbs.Adapter{far}, "", false)
		g.fars <- c
	}()
	if err := g.lift(); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gap) lift() error {
	g.up = &channel{g.client, make(chan []byte, 1)}
	c, err := verbs.UpgradeAgain(context.Background(), g.up, g.Adapter("near", here), true)
	if err == nil {
		g.near = c.(*verbs.Conn)
	}
	return err
}

// says that the client is lost, and has so many bytes; and hears how many the server has.
func (g *gap) says(t *testing.T, n uint64) {
	t.Helper()
	_ = g.client.SetReadDeadline(time.Time{})
	b := binary.LittleEndian.AppendUint64([]byte("CWVLST\x00\x01"), n)
	_, err := g.client.Write(b)
	for { // one that was said meanwhile may come first
		if err == nil {
			_, err = io.ReadFull(g.client, b)
		}
		if err != nil || !bytes.HasPrefix(b, []byte("CWVLST\x00\x01")) {
			break
		}
	}
	if err != nil || string(b[:8]) != "CWVGOT\x00\x01" || binary.LittleEndian.Uint64(b[8:]) != serverHas {
		t.Fatalf("it hears %q, %v", b, err)
	}
	if got := <-g.got; got != n {
		t.Errorf("another connection for a client that has %d bytes, not %d", got, n)
	}
}

func (g *gap) exchange(t *testing.T) (far net.Conn) {
	t.Helper()
	far = <-g.fars
	sent := bytes.Repeat([]byte("some bytes, "), 20_000)
	go func() { _, _ = g.near.Write(sent) }()
	b := make([]byte, len(sent))
	if _, err := io.ReadFull(far, b); err != nil || !bytes.Equal(b, sent) {
		t.Fatal("other bytes, or none: ", err)
	}
	if !far.(*verbs.Conn).Alone() {
		t.Error("the server is not told whose the other end is")
	}
	return far
}

// TestPassAgain: where the way is lost, whoever finds it, both ends agree again inside another
// connection, at once or when it comes to that; and the session ends as any.
func TestPassAgain(t *testing.T) {
	g := newGap(t)
	far := g.exchange(t)
	// The client finds that its queue pair has failed.
	g.near.Abort()
	g.says(t, 1000)
	if err := g.lift(); err != nil {
		t.Fatal(err)
	}
	far.(*verbs.Conn).Abort() // as a server does with what another has replaced
	far = g.exchange(t)
	// The server does: its connection is gone, and nobody said that this was all.
	far.(*verbs.Conn).Abort()
	if b := <-g.up.lost; binary.LittleEndian.Uint64(b[8:]) != 0 {
		t.Errorf("%q", b)
	}
	g.near.Abort()
	g.refuse <- struct{}{}
	g.says(t, 2000)
	if err := g.lift(); !errors.Is(err, verbs.ErrStays) {
		t.Fatal("what the server refuses: ", err)
	}
	g.says(t, 2000)
	if err := g.lift(); err != nil {
		t.Fatal(err)
	}
	far = g.exchange(t)
	closed := make(chan error, 1)
	go func() { closed <- far.Close() }()
	if n, err := g.near.Read(make([]byte, 1)); err != io.EOF {
		t.Error(n, err)
	}
	g.near.Abort()
	_ = g.client.Close()
	if err := errors.Join(<-closed, <-g.ended); err != nil {
		t.Error(err)
	}
	if n := g.Left(); n != 0 {
		t.Errorf("%d queue pairs and registrations are left", n)
	}
}

// TestPassAgainEnds: a client that goes while another connection is looked for, or says what it may
// not then, is waited for no more.
func TestPassAgainEnds(t *testing.T) {
	good := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 5, GID: [16]byte{1}, Window: verbs.Window{Size: verbs.LeastWindow, Address: 4096}}.Append(nil)
	begun := append(bytes.Clone(good), 0, 0, 0, 0)
	for name, c := range map[string]struct {
		says string
		want error
	}{
		"goes":        {"", nil},
		"goes, found": {"", nil},
		"found first": {"CWVGOT\x00\x0112345678", remote.ErrProtocol},
	} {
		near, client, err1 := remotetest.PairTCP()
		server, far, err2 := remotetest.PairTCP()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		asked := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			_, err := verbs.Pass(context.Background(), client, server, func(string) error { return nil }, func(ctx context.Context, _ error, _ uint64) (net.Conn, uint64, error) {
				close(asked)
				if name == "goes, found" { // the client hears of it as it goes
					_ = near.(*net.TCPConn).SetLinger(0)
					_ = near.Close()
					server, far, err := remotetest.PairTCP()
					if err == nil {
						defer far.Close()
					}
					return server, 0, err
				}
				<-ctx.Done()
				return nil, 0, ctx.Err()
			}, time.Minute)
			ended <- err
		}()
		go func() { _, _ = far.Write(begun) }()
		go func() { _, _ = io.Copy(io.Discard, near) }()
		_, _ = near.Write(begun)
		if name == "found first" {
			_, _ = near.Write([]byte(c.says))
		} else {
			_, _ = near.Write([]byte("CWVLST\x00\x0112345678"))
			<-asked
			_ = near.Close()
		}
		endsWith(t, name, ended, c.want)
		_, _ = near.Close(), far.Close()
	}
}

// TestPassAgainInVain: a session that had begun, whose way is lost and for which there is no other,
// ends with an error that says so in one line. It is none of a process that is no RDMA end, which
// comes again by another way, whatever the last attempt came to.
func TestPassAgainInVain(t *testing.T) {
	good := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 5, GID: [16]byte{1}, Window: verbs.Window{Size: verbs.LeastWindow, Address: 4096}}.Append(nil)
	declined := verbs.Offer{Declined: "no adapter for now"}.Append(nil)
	errGone := errors.New("it has no such session")
	for name, c := range map[string]struct {
		answer []byte // of the server, inside another connection; nil: there is none
		want   string
	}{
		"gone":    {nil, errGone.Error()},
		"refused": {declined, "no adapter for now"},
	} {
		near, client, err1 := remotetest.PairTCP()
		server, far, err2 := remotetest.PairTCP()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := verbs.Pass(ctx, client, server, func(string) error { return nil }, func(context.Context, error, uint64) (net.Conn, uint64, error) {
				if c.answer == nil {
					return nil, 0, errGone
				}
				server, far, err := remotetest.PairTCP()
				if err == nil {
					t.Cleanup(func() { _ = far.Close() })
					_, err = far.Write(c.answer)
				}
				return server, serverHas, err
			}, time.Minute)
			ended <- err
		}()
		begun := append(bytes.Clone(good), 0, 0, 0, 0)
		_, _ = far.Write(begun)
		_, _ = near.Write(append(bytes.Clone(begun), "CWVLST\x00\x0112345678"...))
		if c.answer != nil {
			// The client hears of the connection, and what has come of it; the time is over then.
			_, _ = near.Write(good)
			heard, b := []byte{}, make([]byte, 512)
			for !bytes.HasSuffix(heard, []byte("no adapter for now")) {
				n, err := near.Read(b)
				if heard = append(heard, b[:n]...); err != nil {
					t.Fatalf("%s: the client hears %q, %v", name, heard, err)
				}
			}
			cancel()
		}
		err := <-ended
		cancel()
		if err == nil || errors.Is(err, verbs.ErrStays) || c.answer == nil && !errors.Is(err, errGone) {
			t.Errorf("%s: %v", name, err)
		} else if text := err.Error(); !strings.Contains(text, "is lost, and there was no other: ") || !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
			t.Errorf("%s: %q", name, text)
		}
		_, _ = near.Close(), far.Close()
	}
}

// late is a connection whose time is up when its deadline is taken back: who accepts others has
// closed it.
type late struct{ net.Conn }

func (c late) SetDeadline(t time.Time) error {
	if t.IsZero() {
		return net.ErrClosed
	}
	return c.Conn.SetDeadline(t)
}

// TestUpgradeOfAConnectionThatIsClosed: what had been made for it is given back once, whether the
// two had agreed or not.
func TestUpgradeOfAConnectionThatIsClosed(t *testing.T) {
	for _, agrees := range []bool{true, false} {
		f := verbstest.New()
		near, far, err := remotetest.PairTCP()
		if err != nil {
			t.Fatal(err)
		}
		clients := []verbs.Adapter{f.Adapter("near", here)}
		if !agrees {
			clients = nil
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := verbs.Upgrade(context.Background(), near, clients, "it has none", true); err == nil {
				c.(*verbs.Conn).Abort()
			}
		}()
		c, err := verbs.Upgrade(context.Background(), late{far}, []verbs.Adapter{f.Adapter("far", here)}, "", false)
		if c != nil || !errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EINVAL) {
			t.Errorf("%v, %v", c, err)
		}
		<-done
		_ = near.Close()
		if n := f.Left(); n != 0 {
			t.Errorf("%d queue pairs and registrations are left", n)
		}
	}
}
