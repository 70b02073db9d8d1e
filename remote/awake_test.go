package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func awakePair(t *testing.T) (*Awake, *net.TCPConn, *net.TCPConn) {
	t.Helper()
	_, near, far := eagerPair(t)
	a := NewAwake(near, plentyCores)
	if a == nil {
		t.Fatal("a TCP connection is not")
	}
	return a, near, far
}

// TestAwakeReads: what is there, what comes while it sleeps in the kernel, and in the runtime's
// poller, and behind several sleeps; then the end.
func TestAwakeReads(t *testing.T) {
	a, _, far := awakePair(t)
	for _, came := range []time.Duration{0, time.Hour} { // ago
		for _, before := range []time.Duration{0, awakeEach / 2, 3 * awakeEach} {
			a.came = time.Now().Add(-came)
			go func() {
				time.Sleep(before)
				_, _ = far.Write([]byte("a part"))
			}()
			b := make([]byte, 6)
			if n, err := io.ReadFull(a, b); n != 6 || string(b) != "a part" || err != nil {
				t.Fatalf("%v behind the last, %v later: %d bytes %q, %v", came, before, n, b, err)
			}
			if time.Since(a.came) > time.Minute {
				t.Errorf("%v behind the last, %v later: it does not know when the last came", came, before)
			}
		}
	}
	_ = far.Close()
	if n, err := a.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d bytes, %v", n, err)
	}
	if n, err := a.Read(nil); n != 0 || err != nil {
		t.Errorf("nothing to read: %d, %v", n, err)
	}
}

// TestAwakeEnds: a deadline, an end of its own and a reset have it return from sleep in the kernel,
// with errors as the connection's own.
func TestAwakeEnds(t *testing.T) {
	for _, c := range endings {
		a, near, far := awakePair(t)
		a.came = time.Now().Add(time.Hour) // it never goes to the poller
		time.AfterFunc(awakeEach/2, func() { c.end(near, far) })
		if n, err := a.Read(make([]byte, 1)); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: %d bytes, %v", c.name, n, err)
		}
	}
	_, near, _ := awakePair(t)
	if NewAwake(struct{ net.Conn }{near}, plentyCores) != nil || NewAwake(near, plentyCores-1) != nil {
		t.Error("where there is no descriptor, or cores are few")
	}
}

// TestAlarm: each ring wakes one of those who wait, RingAll all of them; of no effect until Use.
func TestAlarm(t *testing.T) {
	var a Alarm
	var left atomic.Int32
	take := func() bool {
		for n := left.Load(); n > 0; n = left.Load() {
			if left.CompareAndSwap(n, n-1) {
				return true
			}
		}
		return false
	}
	asked := false
	a.Ring()
	if a.Await(context.Background(), func() bool { asked = true; return true }); asked {
		t.Error("an alarm that is not used is waited for")
	}
	a.Use()
	const n = 4
	for _, ring := range []func(){func() { a.Ring() }, func() { a.RingAll() }} {
		var wg sync.WaitGroup
		var got atomic.Int32
		for range n {
			wg.Go(func() {
				for a.Await(context.Background(), func() bool { return left.Load() > 0 }); !take(); {
					a.Await(context.Background(), func() bool { return left.Load() > 0 })
				}
				got.Add(1)
			})
		}
		for a.Sleepers() < n {
			time.Sleep(time.Millisecond)
		}
		for range n {
			left.Add(1)
			ring()
		}
		wg.Wait()
		if got.Load() != n || a.Sleepers() != 0 {
			t.Errorf("%d were woken, %d sleep", got.Load(), a.Sleepers())
		}
	}
}

// TestAlarmEnds: who waits for what does not come has something else to wait for soon, and at once
// when its context ends.
func TestAlarmEnds(t *testing.T) {
	var a Alarm
	a.Use()
	never := func() bool { return false }
	start := time.Now()
	a.Await(context.Background(), never)
	if took := time.Since(start); took < awakeFor {
		t.Errorf("given up behind %v", took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	asks := 0
	a.Await(ctx, func() bool { asks++; return false })
	if asks != 1 {
		t.Errorf("asked %d times behind the end", asks)
	}
}

// TestAwakePlaces: a process has places for all who sleep, and none where nobody does.
func TestAwakePlaces(t *testing.T) {
	if n := AwakePlaces(4, plentyCores); n != 12 {
		t.Errorf("%d for 4 connections", n)
	}
	if a, b := AwakePlaces(4, plentyCores-1), AwakePlaces(0, plentyCores); a != 0 || b != 0 {
		t.Errorf("%d where cores are few, %d without connections", a, b)
	}
}
