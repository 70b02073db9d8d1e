package main

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestParseTrusted(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.0/24": "", "fd00:1::/64": "", "192.0.2.7/32": "",
		"192.0.2.0": "is no network", "": "is no network", "0.0.0.0/0": "every address", "::/0": "every address",
		"192.0.2.7/24": "write 192.0.2.0/24, or the address alone as 192.0.2.7/32", "::ffff:192.0.2.0/120": "as an IPv4 network",
	} {
		if got, err := parseTrusted([]string{in}); want == "" && (err != nil || len(got) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
}

// TestTrustedAddress: only addresses of the networks are listened on, and none that stands for all
// of them.
func TestTrustedAddress(t *testing.T) {
	ours := []string{"192.0.2.0/24", "fd00:1::/64", "0.0.0.0/8"}
	for _, x := range []struct {
		networks []string
		listen   string
		ok       bool
	}{
		{nil, "127.0.0.1:1", true}, {nil, "127.9.9.9:1", true}, {nil, "[::1]:1", true}, {nil, "[::ffff:127.0.0.1]:1", true},
		{nil, ":1", false}, {nil, "0.0.0.0:1", false}, {nil, "[::]:1", false}, {nil, "192.0.2.7:1", false}, {nil, "[::ffff:192.0.2.7]:1", false},
		{ours, "192.0.2.7:1", true}, {ours, "[fd00:1::7]:1", true}, {ours, "[::ffff:192.0.2.7]:1", true},
		{ours, "127.0.0.1:1", false}, {ours, "192.0.3.7:1", false}, {ours, "[fd00:2::7]:1", false}, {ours, ":1", false}, {ours, "0.0.0.0:1", false}, {ours, "[::]:1", false},
	} {
		n, err := parseTrusted(x.networks)
		if err != nil {
			t.Fatal(err)
		}
		if addr, err := n.address(x.listen); (err == nil) != x.ok || (addr == nil) == x.ok {
			t.Errorf("%v, --listen %s: %v, %v", x.networks, x.listen, addr, err)
		}
	}
	if (trusted{netip.MustParsePrefix("fe80::/64")}).has(netip.MustParseAddr("fe80::1%eth0")) != true {
		t.Error("an address with a zone is not of its network")
	}
}

// TestTrustedAccept: a connection from an address of no trusted network is closed unread, and the
// next one from one is taken.
func TestTrustedAccept(t *testing.T) {
	n, err := parseTrusted([]string{"127.0.0.0/30"})
	if err != nil {
		t.Fatal(err)
	}
	addr, err := n.address("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dial := func(from byte) net.Conn {
		t.Helper()
		c, err := net.DialTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}, ln.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	stranger, friend := dial(9), dial(2)
	var said bytes.Buffer
	c, err := n.accept(ln, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, want := c.(*net.TCPConn).RemoteAddr().String(), friend.LocalAddr().String(); got != want {
		t.Errorf("taken: %s, want %s", got, want)
	}
	if b, err := io.ReadAll(stranger); len(b) != 0 || err != nil {
		t.Errorf("the other got %q, %v", b, err)
	}
	if !strings.Contains(said.String(), stranger.LocalAddr().String()) {
		t.Errorf("the log has %q", said.String())
	}
	_ = ln.Close()
	if c, err := n.accept(ln, slog.New(slog.DiscardHandler)); c != nil || err == nil {
		t.Errorf("a closed listener: %v, %v", c, err)
	}
}
