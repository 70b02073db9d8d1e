package frame_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/remotetest"
)

// TestBody: a body comes in the parts in which the stream has it, and no more of the stream is
// read; what f refuses stays unread.
func TestBody(t *testing.T) {
	in := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("a"), 20)), bytes.NewReader([]byte("bcd"))), 16)
	var got []byte
	parts := 0
	each := func(b []byte) error {
		got, parts = append(got, b...), parts+1
		return nil
	}
	if err := frame.Body(in, 21, each); err != nil || string(got) != "aaaaaaaaaaaaaaaaaaaab" || parts != 3 {
		t.Errorf("%q in %d parts, %v", got, parts, err)
	}
	refuses := errors.New("no")
	if err := frame.Body(in, 1, func([]byte) error { return refuses }); err != refuses {
		t.Error(err)
	}
	got = nil
	if err := frame.Body(in, 3, each); err != io.ErrUnexpectedEOF || string(got) != "cd" {
		t.Errorf("%q, %v", got, err)
	}
	if err := frame.Body(in, 0, each); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

func TestHeader(t *testing.T) {
	h := frame.Header{Len: 5, Kind: frame.Write, Flags: frame.Refused, Arg: 1<<63 + 7}
	b := append(h.Append(nil), "bytes"...)
	placed := make([]byte, frame.HeaderSize)
	if h.Put(placed); !bytes.Equal(placed, b[:frame.HeaderSize]) {
		t.Errorf("%x is not %x", placed, b)
	}
	in := bufio.NewReader(bytes.NewReader(b))
	if got, err := frame.ReadHeader(in); err != nil || got != h {
		t.Errorf("%+v, %v", got, err)
	}
	if rest, _ := io.ReadAll(in); string(rest) != "bytes" {
		t.Errorf("%q is left", rest)
	}
	for n, want := range map[int]error{0: io.EOF, 1: io.ErrUnexpectedEOF, 15: io.ErrUnexpectedEOF} {
		if _, err := frame.ReadHeader(bufio.NewReader(bytes.NewReader(b[:n]))); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	long := frame.Header{Len: frame.Max + 1}.Append(nil)
	if _, err := frame.ReadHeader(bufio.NewReader(bytes.NewReader(long))); !errors.Is(err, remote.ErrProtocol) {
		t.Error(err)
	}
}

func TestParts(t *testing.T) {
	e := frame.Extent{Region: 7, Offset: 1 << 40, Size: 9}
	if got := frame.ParseExtent(e.Append(nil)); got != e {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		off, size, of uint64
		in            bool
	}{{0, 0, 0, true}, {4, 4, 8, true}, {4, 5, 8, false}, {9, 0, 8, false}, {^uint64(0), 1, 8, false}, {1, ^uint64(0), 8, false}} {
		if (frame.Extent{Offset: c.off, Size: c.size}).Within(c.of) != c.in {
			t.Errorf("%+v", c)
		}
	}
	r := frame.Reply{Seq: 1, Result: 2, Len: 3, Total: 4}
	if got := frame.ParseReply(r.Append(nil)); got != r {
		t.Errorf("%+v", got)
	}
	if which, value := frame.Halves(frame.Pair(3, 1<<31)); which != 3 || value != 1<<31 {
		t.Error(which, value)
	}
}

// counter counts what leaves.
type counter struct {
	net.Conn
	writes int
}

func (c *counter) Write(p []byte) (int, error) {
	c.writes++
	return c.Conn.Write(p)
}

// ends are of a connection, with what each needs for TLS.
func ends(t *testing.T) (near, far net.Conn, server, client *tls.Config) {
	t.Helper()
	near, far, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	server, client, err = remotetest.Lease()
	if err != nil {
		t.Fatal(err)
	}
	return near, far, server, client
}

// TestPatience: a connection with TLS can be given more time than it began with.
func TestPatience(t *testing.T) {
	near, far, server, client := ends(t)
	shaken := make(chan error, 1)
	go func() {
		_, err := frame.Server(context.Background(), far, server)
		shaken <- err
	}()
	c, err := frame.Client(context.Background(), near, client)
	if err := errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	defer c.Abort()
	raw, err := near.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []time.Duration{frame.Silent, frame.Lost} {
		if err := c.Tune(limit); err != nil {
			t.Fatal(err)
		}
		var got, probes int
		err := raw.Control(func(fd uintptr) {
			got, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			probes, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
		})
		if err != nil || got != int(limit/time.Millisecond) || probes != int(limit/time.Second)-3 {
			t.Errorf("%v: %d ms, %d probes, %v", limit, got, probes, err)
		}
	}
}

// TestSecure: bytes of all lengths come as they went, each Write of a chunk in one system call,
// whether or not the reader looks before it sleeps; who ends the connection is heard to have.
func TestSecure(t *testing.T) {
	for _, cores := range []int{1, 64} {
		t.Run(fmt.Sprint(cores, " cores"), func(t *testing.T) { secure(t, cores) })
	}
}

func secure(t *testing.T, cores int) {
	near, far, server, client := ends(t)
	for _, c := range []net.Conn{near, far} {
		if err := frame.Tune(c, frame.Silent); err != nil {
			t.Fatal(err)
		}
	}
	accepted := make(chan *frame.Secure, 1)
	go func() {
		s, err := frame.Server(context.Background(), far, server)
		if err != nil {
			t.Error(err)
		}
		accepted <- s
	}()
	out := &counter{Conn: near}
	c, err := frame.Client(context.Background(), out, client)
	if err != nil {
		t.Fatal(err)
	}
	s := <-accepted
	s.Eager(cores)
	for _, size := range []int{1, 100, 16 << 10, 16<<10 + 1, 128<<10 + 16, 1 << 20} {
		p, got := make([]byte, size), make([]byte, size)
		_, _ = rand.Read(p)
		before := out.writes
		sent := make(chan error, 1)
		go func() {
			_, err := c.Write(p)
			sent <- err
		}()
		if _, err := io.ReadFull(s, got); err != nil {
			t.Fatal(err)
		}
		if err := <-sent; err != nil || !bytes.Equal(p, got) {
			t.Errorf("%d bytes: %v, or others", size, err)
		}
		if n := out.writes - before; n > 1+size>>17 {
			t.Errorf("%d bytes took %d writes", size, n)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
	_ = s.Close()
}

// TestLongestFrame: a frame may be as long as Max says, and no byte longer; one that ends within
// its header is cut.
func TestLongestFrame(t *testing.T) {
	for n, ok := range map[uint32]bool{0: true, frame.Max: true, frame.Max + 1: false, 1<<32 - 1: false} {
		h := frame.Header{Kind: frame.Write, Len: n, Arg: 7}
		got, err := frame.ReadHeader(bufio.NewReader(bytes.NewReader(h.Append(nil))))
		if (err == nil) != ok || ok && got != h || !ok && !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%d bytes: %+v, %v", n, got, err)
		}
	}
	for n, want := range map[int]error{0: io.EOF, 1: io.ErrUnexpectedEOF, frame.HeaderSize - 1: io.ErrUnexpectedEOF} {
		if _, err := frame.ReadHeader(bufio.NewReader(bytes.NewReader(make([]byte, n)))); err != want {
			t.Errorf("%d bytes of a header: %v", n, err)
		}
	}
}
