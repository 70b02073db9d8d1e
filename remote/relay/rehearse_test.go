package relay

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
)

// rehearsing is roundRun for a server that says what a session is made of, too.
func rehearsing(t testing.TB) *rounding {
	t.Helper()
	x := roundRun(t)
	x.parks.mu.Lock()
	x.rehearses = true
	x.parks.mu.Unlock()
	return x
}

// tries has a session be rehearsed, its server be asked what it is made of.
func (x *rounding) tries(ctx context.Context, t testing.TB) {
	t.Helper()
	n := x.count(frame.Rehearse)
	x.two.say(awaited)
	go func() { x.moved <- x.Rehearse(ctx, x.two, remote.Hello{Pid: 7}, "gpu2") }()
	x.one.await(func() bool { return countIn(x.one.out, frame.Rehearse) == n+1 })
}

// says has the server say all of what a session is made of, and the other one be told so.
func (x *rounding) says() {
	x.one.say(state([]byte("a module")))
	x.one.say(whole(frame.Round{Looked: 8, Sent: 8}))
	x.two.await(func() bool { return bytes.HasSuffix(x.two.out, state(nil)) })
}

// TestRehearse: what a session is made of is passed on while the program's calls are, and the other
// server's answer is what is said of it. Nothing of it is there then, and the session can go there,
// or elsewhere.
func TestRehearse(t *testing.T) {
	x := rehearsing(t)
	for n, row := range []struct {
		status unix.Errno
		want   error
		not    error
	}{{0, nil, ErrCannot}, {unix.EADDRNOTAVAIL, ErrCannot, nil}, {unix.EIO, ErrRefused, ErrCannot}, {0, nil, ErrCannot}} {
		x.tries(t.Context(), t)
		x.calls(t, uint32(2*n+1))
		if _, err := x.Ahead(t.Context(), newPausing(), remote.Hello{}, 0, "gpu3"); !errors.Is(err, ErrMoving) {
			t.Errorf("it goes elsewhere meanwhile: %v", err)
		}
		x.says()
		x.calls(t, uint32(2*n+2))
		x.two.say(welcome(uint32(row.status), "a variable comes out beside"))
		err := <-x.moved
		if !errors.Is(err, row.want) || row.not != nil && errors.Is(err, row.not) || err != nil && !strings.Contains(err.Error(), "gpu2: ") {
			t.Errorf("%v, want %v", err, row.want)
		}
		if row.want != nil && !strings.HasSuffix(err.Error(), "a variable comes out beside") {
			t.Errorf("it does not say why: %v", err)
		}
		kinds, args, text := frames(t, x.two.sent())
		if !slices.Equal(kinds, []frame.Kind{frame.Rehearse, frame.State, frame.State}) || args[0] != 0 || string(text) != "a module" {
			t.Errorf("frames %d to the other server, and %q", kinds, text)
		}
		if x.count(frame.Stay) != n+1 || !x.two.isClosed() {
			t.Errorf("rehearsed %d times, %d times STAY", n+1, x.count(frame.Stay))
		}
		x.two = newPausing()
	}
	x.begins(t)
	x.asks(t.Context(), t)
	x.one.say(whole(frame.Round{}))
	if err := errorOf(x); err != nil {
		t.Error(err)
	}
	if err := x.m.Decide(false); err != nil {
		t.Error(err)
	}
	x.guestGoes(t)
}

// TestRehearseInVain: whatever is in the way of an answer, or whoever gives one that is none, says
// nothing of the session, which runs on.
func TestRehearseInVain(t *testing.T) {
	for name, row := range map[string]struct {
		do   func(x *rounding, off func())
		want error
		over bool // its server has nothing more to say
	}{
		"its server refuses": {func(x *rounding, _ func()) {
			x.one.say(framed(frame.Header{Kind: frame.State, Flags: frame.Refused}, []byte("it stays")))
		}, ErrRefused, true},
		"the other answers before all has come":  {func(x *rounding, _ func()) { x.two.say(welcome(0, "")) }, remote.ErrProtocol, false},
		"the other refuses before all has come":  {func(x *rounding, _ func()) { x.two.say(welcome(5, "no room")) }, ErrRefused, false},
		"the other says something else":          {func(x *rounding, _ func()) { x.says(); x.two.say(word(1, 1)) }, remote.ErrProtocol, true},
		"the other asks for memory":              {func(x *rounding, _ func()) { x.says(); x.two.say(framed(frame.Header{Kind: frame.Read}, nil)) }, remote.ErrProtocol, true},
		"the other is lost":                      {func(x *rounding, _ func()) { x.two.do('c') }, ErrServer, false},
		"the other is lost before it answers":    {func(x *rounding, _ func()) { x.says(); x.two.do('c') }, ErrServer, true},
		"it is called off":                       {func(_ *rounding, off func()) { off() }, context.Canceled, false},
		"it is called off before it is answered": {func(x *rounding, off func()) { x.says(); off() }, context.Canceled, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := rehearsing(t)
			ctx, off := context.WithCancel(t.Context())
			defer off()
			x.tries(ctx, t)
			row.do(x, off)
			if !row.over {
				x.one.await(func() bool { return x.one.sends(frame.Stay) })
				x.one.say(append(state(make([]byte, 1000)), whole(frame.Round{})...))
			}
			if err := <-x.moved; !errors.Is(err, row.want) || errors.Is(err, ErrCannot) {
				t.Errorf("%v, want %v", err, row.want)
			}
			if x.count(frame.Stay) != 1 || !x.two.isClosed() {
				t.Errorf("%d times STAY", x.count(frame.Stay))
			}
			x.calls(t, 1)
			x.two = newPausing()
			x.begins(t)
			x.guestGoes(t)
		})
	}
}

// TestRehearseOfVersions: a server that does not say what a session is made of is not asked, and
// one that takes the hello for none rehearses nothing; neither says anything of the session.
func TestRehearseOfVersions(t *testing.T) {
	for name, row := range map[string]struct {
		old  bool
		says []byte
		want error
	}{
		"the first one":         {old: true, want: ErrNoRehearsal},
		"the other one":         {says: welcome(71, "handshake: frame 25 of 64 bytes is no hello"), want: ErrNoRehearsal},
		"one that has it":       {says: welcome(0, ""), want: remote.ErrProtocol},
		"one that says a word":  {says: word(1, 1), want: remote.ErrProtocol},
		"one that is there not": {want: ErrServer},
	} {
		t.Run(name, func(t *testing.T) {
			x := rehearsing(t)
			x.parks.mu.Lock()
			x.rehearses = !row.old
			x.parks.mu.Unlock()
			if row.says != nil {
				x.two.say(row.says)
			} else if !row.old {
				x.two.do('c')
			}
			if err := x.Rehearse(t.Context(), x.two, remote.Hello{}, "gpu2"); !errors.Is(err, row.want) || errors.Is(err, ErrCannot) {
				t.Errorf("%v, want %v", err, row.want)
			}
			if !x.two.isClosed() || x.count(frame.Rehearse)+x.count(frame.Stay) != 0 {
				t.Error("the first server has heard of it, or the other's stream is open")
			}
			x.guestGoes(t)
		})
	}
}

// TestRehearseAndAnEnd: a session whose guest goes while it is rehearsed ends, and so does that.
func TestRehearseAndAnEnd(t *testing.T) {
	for name, says := range map[string]bool{"before all has come": false, "before the answer": true} {
		t.Run(name, func(t *testing.T) {
			x := rehearsing(t)
			x.tries(t.Context(), t)
			if says {
				x.says()
			}
			x.guestGoes(t)
			if err := <-x.moved; err == nil || errors.Is(err, ErrCannot) {
				t.Error(err)
			}
			x.two.await(func() bool { return x.two.closed })
		})
	}
}

// FuzzRehearse: the other server says whatever it likes of a session that is rehearsed there. The
// session runs on, hears nothing of it, and can be there only if that is the answer.
func FuzzRehearse(f *testing.F) {
	f.Add(true, welcome(0, ""))
	f.Add(true, welcome(uint32(unix.EADDRNOTAVAIL), "a variable comes out beside"))
	f.Add(false, welcome(uint32(unix.EADDRNOTAVAIL), "early"))
	f.Add(false, welcome(0, ""))
	f.Add(true, append(word(9, 8), welcome(0, "")...))
	f.Fuzz(func(t *testing.T, says bool, b []byte) {
		x := rehearsing(t)
		x.tries(t.Context(), t)
		if says {
			x.says()
		}
		x.two.say(b)
		time.AfterFunc(time.Millisecond, func() { x.two.do('c') })
		if !says {
			x.one.await(func() bool { return x.one.sends(frame.Stay) })
			x.one.say(whole(frame.Round{}))
		}
		err := <-x.moved
		if err == nil && (!says || len(b) < frame.HeaderSize || frame.ParseHeader(b).Kind != frame.Welcome) {
			t.Errorf("%x says that it can be there", b)
		}
		x.calls(t, 1)
		x.guestGoes(t)
	})
}
