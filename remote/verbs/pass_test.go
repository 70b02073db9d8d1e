package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/remotetest"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// passing is a client's end and a server's, and who passes on between them what they say.
type passing struct {
	*verbstest.Fabric
	near, far  net.Conn
	nearBase   net.Conn
	serverBase *tuned // of who passes on
	farBase    *tuned
	cancel     context.CancelFunc
	about      chan string
	ended      chan error
	passed     verbs.Passed
}

// tuned is a connection that remembers how much time it was given.
type tuned struct {
	net.Conn
	limit time.Duration
}

func (c *tuned) Tune(limit time.Duration) error {
	c.limit = limit
	return nil
}

// pass has both ends begin, each of which would have further queue pairs for copies, that nobody
// passes on. The client's adapters may be none.
func pass(t *testing.T, clients []verbs.Adapter) (p *passing, nearErr, farErr error) {
	t.Helper()
	p = &passing{Fabric: verbstest.New(), about: make(chan string, 1), ended: make(chan error, 1)}
	if clients == nil {
		clients = []verbs.Adapter{p.Adapter("near", here)}
	}
	nearBase, client, err1 := remotetest.PairTCP()
	server, farBase, err2 := remotetest.PairTCP()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	p.nearBase, p.farBase = nearBase, &tuned{Conn: farBase}
	p.serverBase = &tuned{Conn: server}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	t.Cleanup(cancel)
	go func() {
		passed, err := verbs.Pass(ctx, client, p.serverBase, func(about string) error {
			p.about <- about
			return nil
		}, nil, 0)
		p.passed = passed
		p.ended <- err
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.far, farErr = verbs.UpgradeWide(context.Background(), p.farBase, []verbs.Adapter{p.Adapter("far", here)}, "", false, 4)
	}()
	p.near, nearErr = verbs.UpgradeWide(context.Background(), nearBase, clients, "it has none", true, 4)
	<-done
	return p, nearErr, farErr
}

// end waits for the end of passing on.
func (p *passing) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
		return nil
	}
}

// TestPass: the two ends agree through a third, which sees some hundred bytes, and nothing of what
// goes by RDMA; the end of the one is heard by the other.
func TestPass(t *testing.T) {
	p, err1, err2 := pass(t, nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if about := <-p.about; about != "RoCE v2 by the guest's own adapter (127.0.0.1), MTU 1024, copies one-sided" {
		t.Error(about)
	}
	if p.serverBase.limit != frame.Lost || p.farBase.limit != frame.Lost {
		t.Errorf("a link that is gone ends the session after %v at the host and %v at the server, where no other connection comes", p.serverBase.limit, p.farBase.limit)
	}
	sent := bytes.Repeat([]byte("some bytes of a copy, "), 200_000)
	wrote := make(chan error, 1)
	go func() {
		_, err := p.near.Write(sent)
		wrote <- errors.Join(err, p.near.Close())
	}()
	got, err := io.ReadAll(p.far)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
	}
	if err := errors.Join(<-wrote, p.far.Close(), p.end(t)); err != nil {
		t.Error(err)
	}
	if n := p.passed.Total(); n == 0 || n > 1024 {
		t.Errorf("%d bytes were passed on, beside %d by RDMA", n, len(sent))
	}
	if n := p.Left(); n != 0 {
		t.Errorf("%d queue pairs and registrations are left", n)
	}
}

// TestNotAlone: ends that find one another without a third are not patient, since another
// connection can come.
func TestNotAlone(t *testing.T) {
	f := verbstest.New()
	near, far, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	nearBase, farBase := &tuned{Conn: near}, &tuned{Conn: far}
	done := make(chan net.Conn, 1)
	go func() {
		c, err := verbs.Upgrade(context.Background(), farBase, []verbs.Adapter{f.Adapter("far", here)}, "", false)
		if err != nil {
			t.Error(err)
		}
		done <- c
	}()
	c, err := verbs.Upgrade(context.Background(), nearBase, []verbs.Adapter{f.Adapter("near", here)}, "", true)
	if err != nil {
		t.Fatal(err)
	}
	if nearBase.limit != 0 || farBase.limit != 0 {
		t.Error(nearBase.limit, farBase.limit)
	}
	c.(*verbs.Conn).Abort()
	(<-done).(*verbs.Conn).Abort()
}

// TestPassCut: a client's process that is killed says nothing. The server hears that this was all,
// at once, and not that a connection was lost, behind which another could come.
func TestPassCut(t *testing.T) {
	for name, end := range map[string]func(p *passing){
		"killed": func(p *passing) { _ = p.nearBase.Close() },
		"quit":   func(p *passing) { p.cancel() },
	} {
		p, err1, err2 := pass(t, nil)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if _, err := p.near.Write([]byte("begun")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(p.far, b); err != nil {
			t.Fatal(err)
		}
		end(p)
		if n, err := p.far.Read(b); err != io.EOF || !p.far.(*verbs.Conn).Ended() {
			t.Errorf("%s: the server reads %d, %v", name, n, err)
		}
		if err := p.end(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p.near.(*verbs.Conn).Abort()
		_ = p.far.Close()
	}
}

// TestPassStays: a client's end without an adapter says why, and who passes on knows; the server's
// end has its connection still, which ends.
func TestPassStays(t *testing.T) {
	p, nearErr, farErr := pass(t, []verbs.Adapter{})
	if !errors.Is(nearErr, verbs.ErrStays) || !errors.Is(farErr, verbs.ErrStays) {
		t.Error(nearErr, farErr)
	}
	if err := p.end(t); !errors.Is(err, verbs.ErrStays) || !strings.Contains(err.Error(), "the guest: it has none") {
		t.Error(err)
	}
	if _, err := p.far.Read(make([]byte, 1)); err == nil {
		t.Error("the server's connection goes on")
	}
}

// TestPassRules: what a hostile client says that is no offer, reason or word ends it, and reaches
// no server.
func TestPassRules(t *testing.T) {
	good := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 5, GID: [16]byte{1}, Window: verbs.Window{Size: verbs.LeastWindow, Address: 4096}}
	bad := good
	bad.Queue = 1 << 24
	for name, c := range map[string]struct {
		says []byte
		want error
	}{
		"no offer":    {bytes.Repeat([]byte{7}, 64), remote.ErrProtocol},
		"bad offer":   {bad.Append(nil), remote.ErrProtocol},
		"long reason": {append(good.Append(nil), 0xff, 0xff), remote.ErrProtocol},
		"declined":    {verbs.Offer{Declined: "no memory"}.Append(nil), verbs.ErrStays},
		"no word":     {append(good.Append(nil), "\x00\x00\x00\x00CWVCUT\x00\x01 8 bytes"...), remote.ErrProtocol},
	} {
		near, client, err1 := remotetest.PairTCP()
		server, far, err2 := remotetest.PairTCP()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := verbs.Pass(context.Background(), client, server, func(string) error { return nil }, nil, 0)
			ended <- err
		}()
		go func() { _, _ = far.Write(append(good.Append(nil), 0, 0, 0, 0)) }()
		_, _ = near.Write(c.says)
		heard := make(chan []byte, 1)
		go func() {
			b, _ := io.ReadAll(far)
			heard <- b
		}()
		endsWith(t, name, ended, c.want)
		if b := <-heard; strings.Contains(string(b), "CWVCUT\x00\x01 8") {
			t.Errorf("%s: the server hears %q", name, b)
		}
		_, _ = near.Close(), far.Close()
	}
}

// FuzzPass: whatever a client says, each connection to the server hears an offer that is one,
// reasons and words, and nothing else.
func FuzzPass(f *testing.F) {
	good := verbs.Offer{Link: verbs.Ethernet, MTU: 3, Queue: 5, GID: [16]byte{1}, Window: verbs.Window{Size: verbs.LeastWindow, Address: 4096}}.Append(nil)
	begun := append(bytes.Clone(good), 0, 0, 0, 0)
	lost := "CWVLST\x00\x01 8 bytes"
	f.Add(begun)
	f.Add(append(bytes.Clone(begun), "CWVBYE\x00\x01\x05\x00\x00\x00\x00\x00\x00\x00"...))
	f.Add(append(bytes.Clone(begun), "CWVACK\x00\x01 8 bytesCWVCUT"...))
	f.Add(append(bytes.Clone(good), "\x03\x00why\x00\x00"...))
	f.Add(verbs.Offer{Declined: "why"}.Append(nil))
	f.Add(slices.Concat(begun, []byte(lost), begun, []byte(lost), good, []byte("\x03\x00why"), []byte(lost), begun, []byte("CWVACK\x00\x01 8 bytes")))
	f.Add(slices.Concat(begun, []byte(lost), verbs.Offer{Declined: "why"}.Append(nil), []byte(lost), []byte(lost)))
	f.Fuzz(func(t *testing.T, says []byte) {
		client, near := net.Pipe()
		var heard []chan []byte // of each connection
		connection := func() net.Conn {
			server, far := net.Pipe()
			all := make(chan []byte, 1)
			heard = append(heard, all)
			go func() { _, _ = far.Write(begun) }()
			go func() {
				b, _ := io.ReadAll(far)
				all <- b
			}()
			return server
		}
		server := connection()
		go func() { _, _ = io.Copy(io.Discard, near) }()
		go func() {
			_, _ = near.Write(says)
			// A pipe that is closed takes what was to be said to it along.
			time.Sleep(time.Millisecond)
			_ = near.Close()
		}()
		_, _ = verbs.Pass(context.Background(), client, server, func(string) error { return nil }, func(context.Context, error, uint64) (net.Conn, uint64, error) {
			return connection(), 5, nil
		}, time.Minute)
		for _, all := range heard {
			hears(t, <-all)
		}
	})
}

// hears checks what a server was told.
func hears(t *testing.T, b []byte) {
	in := bytes.NewReader(b)
	peer, err := verbs.ReadOffer(in)
	if len(b) == 0 {
		return
	}
	if err != nil {
		t.Fatalf("the server hears %q: %v", b, err)
	}
	for n := 0; n < 2 && in.Len() > 0 && peer.Offer().Declined == ""; n++ {
		var size [2]byte
		_, _ = io.ReadFull(in, size[:])
		if _, err := io.CopyN(io.Discard, in, int64(size[0])|int64(size[1])<<8); err != nil {
			t.Fatalf("the server hears %q: %v", b, err)
		}
	}
	for in.Len() > 0 {
		var word [16]byte
		_, err := io.ReadFull(in, word[:])
		switch string(word[:8]) {
		case "CWVBYE\x00\x01", "CWVACK\x00\x01", "CWVCUT\x00\x01":
		default:
			err = errors.New("no word")
		}
		if err != nil {
			t.Fatalf("the server hears %q: %v", b, err)
		}
	}
}

// endsWith waits for a pass to end, with an error.
func endsWith(t *testing.T, name string, ended <-chan error, want error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	case <-time.After(time.Minute):
		t.Errorf("%s: it goes on", name)
	}
}
