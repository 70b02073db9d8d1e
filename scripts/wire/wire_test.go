package main

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// sent has a way take n packets, one each interval, and returns the order in which they come, and
// when the last does.
func sent(w weather, n, size int, interval time.Duration) (order []int, took time.Duration, sum tally) {
	way := newWay(w, rand.New(rand.NewPCG(1, 1)))
	began := time.Unix(0, 0)
	for i := range n {
		p := make([]byte, size)
		p[0], p[1] = byte(i), byte(i>>8)
		way.send(began.Add(time.Duration(i)*interval), p)
	}
	now := began
	for {
		p, wait := way.take(now)
		if p == nil && wait == 0 {
			return order, took, way.told()
		}
		if p == nil {
			now = now.Add(wait)
			continue
		}
		order, took = append(order, int(p[0])|int(p[1])<<8), now.Sub(began)
	}
}

func TestWeather(t *testing.T) {
	const n = 2000
	fine, took, _ := sent(weather{delay: 5 * time.Millisecond, jitter: 2 * time.Millisecond}, n, 1000, 100*time.Microsecond)
	if len(fine) != n || !slices.IsSorted(fine) || took < 204*time.Millisecond || took > 207*time.Millisecond {
		t.Errorf("of packets that are late: %d, in order %v, the last after %v", len(fine), slices.IsSorted(fine), took)
	}
	lossy, _, sum := sent(weather{loss: 0.1}, n, 1000, 0)
	if len(lossy)+sum.lost != n || sum.lost < n/20 || sum.lost > n/5 || !slices.IsSorted(lossy) {
		t.Errorf("of packets one tenth of which are lost: %d come, %+v", len(lossy), sum)
	}
	mixed, _, sum := sent(weather{late: 0.1}, n, 1000, 100*time.Microsecond)
	if len(mixed) != n || slices.IsSorted(mixed) || sum.late < n/20 {
		t.Errorf("of packets that are overtaken: %d come, sorted %v, %+v", len(mixed), slices.IsSorted(mixed), sum)
	}
	if double, _, sum := sent(weather{twice: 0.1}, n, 1000, 0); len(double) != n+sum.twice || sum.twice < n/20 {
		t.Errorf("of packets that come twice: %d, %+v", len(double), sum)
	}
	slow, took, sum := sent(weather{rate: 1e6, queue: 100e3}, n, 1000, 500*time.Microsecond)
	if sum.full == 0 || len(slow)+sum.full != n || took < 900*time.Millisecond || took > 1200*time.Millisecond {
		t.Errorf("2 MB a second by a link of 1: %d come, the last after %v, %+v", len(slow), took, sum)
	}
}

// TestProxy: bytes come through, do not while the link is down, and a reset reaches both ends.
func TestProxy(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	k, err := newLink("127.0.0.1:0", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	go k.serve()
	defer k.listener.Close()
	links := []*link{k}
	tell := func(line string) string {
		var out bytes.Buffer
		if err := obey(links, line, &out); err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(out.String())
	}
	near, err := net.Dial("tcp", k.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	b := make([]byte, 5)
	pass := func(text string) {
		if _, err := io.WriteString(near, text); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(far, b); err != nil || string(b) != text {
			t.Errorf("%q came: %v", b, err)
		}
	}
	pass("first")
	if got := tell("count"); got != "connections 1" {
		t.Errorf("count says %q", got)
	}
	tell("down 0")
	if _, err := io.WriteString(near, "later"); err != nil {
		t.Error(err)
	}
	_ = far.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := far.Read(b); err == nil {
		t.Errorf("%d bytes came by a link that is down", n)
	}
	_ = far.SetReadDeadline(time.Time{})
	tell("up 0")
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "later" {
		t.Errorf("%q came: %v", b, err)
	}
	tell("reset 0")
	for _, c := range []net.Conn{near, far} {
		if _, err := c.Read(b); err == nil || err == io.EOF {
			t.Errorf("an end is told of a reset by %v", err)
		}
	}
	if err := obey(links, "reset 1", io.Discard); err == nil {
		t.Error("there is no link 1")
	}
}
