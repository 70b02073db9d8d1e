package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
)

// TestGatherFills: as many records leave at once as a frame, and the server's mirror, have room
// for, to the byte; one that is longer than a frame leaves alone.
func TestGatherFills(t *testing.T) {
	rec := func(sizes ...int) (list []remote.Incoming) {
		for _, n := range sizes {
			list = append(list, remote.Incoming{Flags: remote.RecordReply, Bytes: make([]byte, n)})
		}
		return list
	}
	const ring = remote.RingSize
	for name, x := range map[string]struct {
		there []remote.Incoming
		sent  uint64 // and not done
		bytes int
		full  bool
	}{
		"a frame":              {rec(batchMost-64, 64), 0, batchMost, false},
		"a frame and more":     {rec(batchMost-64, 65), 0, batchMost - 64, true},
		"one longer":           {rec(batchMost+1, 64), 0, batchMost + 1, true},
		"one longer behind":    {rec(64, batchMost+1), 0, 64, true},
		"just room":            {rec(100), ring - 100, 100, false},
		"no room":              {rec(101), ring - 100, 0, true},
		"room for one":         {rec(60, 40, 1), ring - 100, 100, true},
		"one longer, no room":  {rec(batchMost + 1), ring - batchMost, 0, true},
		"one longer, all room": {rec(batchMost + 1), ring - batchMost - 1, batchMost + 1, false},
		"none, all full":       {nil, ring, 0, false},
	} {
		s := &Session{ring: &lateRing{there: x.there}, batch: make([]byte, frame.HeaderSize, 1024)}
		s.sent = 1000 + x.sent
		s.head.Store(1000)
		if full, err := s.gather(); full != x.full || err != nil || len(s.batch) != frame.HeaderSize+x.bytes {
			t.Errorf("%s: %d bytes, full %v, %v", name, len(s.batch)-frame.HeaderSize, full, err)
		}
	}
}

// TestAnswers: a READ is answered in chunks, is refused where its memory is not there, and has
// begun where it stands still; also where the stream has room of its own.
func TestAnswers(t *testing.T) {
	for name, x := range map[string]struct {
		e       frame.Extent
		set     func(s *Session)
		fills   error
		frames  []uint32 // of what length; 0: it is refused
		want    error
		left    uint64
		filling bool // only there
	}{
		"a chunk":       {frame.Extent{Region: 1, Size: chunk}, nil, nil, []uint32{chunk}, nil, 0, false},
		"one byte more": {frame.Extent{Region: 1, Size: chunk + 1}, nil, nil, []uint32{chunk, 1}, nil, 0, false},
		"not there":     {frame.Extent{Region: 9, Size: chunk + 1}, nil, nil, []uint32{0}, nil, 0, false},
		"beyond":        {frame.Extent{Region: 1, Offset: 1 << 20, Size: 1}, nil, nil, []uint32{0}, nil, 0, false},
		"gone":          {frame.Extent{Region: 1, Size: 1}, func(s *Session) { s.gone = true }, nil, []uint32{0}, nil, 0, false},
		"still":         {frame.Extent{Region: 1, Size: 5}, func(s *Session) { s.still = true }, nil, nil, errStill, 5, false},
		"cannot leave":  {frame.Extent{Region: 1, Size: 5}, nil, errTest, []uint32{5}, ErrServer, 5, true},
	} {
		for _, filling := range []bool{false, true} {
			up := newFork()
			up.fills = x.fills
			s, conn, _ := wideSession(0)
			if x.set != nil {
				x.set(s)
			}
			o := &out{conn: up}
			if !filling {
				if x.filling {
					conn.writes = x.fills
				}
				o = &s.out
			}
			r := &read{7, x.e}
			err := s.answer(o, r, make([]byte, frame.HeaderSize+chunk))
			wrote := up.pausing.out
			if !filling {
				wrote = conn.out
			}
			var frames []uint32
			for len(wrote) >= frame.HeaderSize {
				h := frame.ParseHeader(wrote)
				if h.Kind != frame.Data || h.Arg != 7 || (h.Flags == frame.Refused) != (h.Len == 0) {
					t.Errorf("%s: %+v", name, h)
				}
				frames = append(frames, h.Len)
				wrote = wrote[frame.HeaderSize+h.Len:]
			}
			if fmt.Sprint(frames) != fmt.Sprint(x.frames) || !errors.Is(err, x.want) || (err == nil) != (x.want == nil) || err == nil && x.e.Region == 1 && len(frames) > 0 && frames[0] != 0 && r.Size != 0 || x.left > 0 && r.Size != x.left {
				t.Errorf("%s, filling %v: %v, %v, %d are left", name, filling, frames, err, r.Size)
			}
		}
	}
}

// TestServesTheRest: a READ that was begun is answered on, whether its stream is away or not.
func TestServesTheRest(t *testing.T) {
	s, conn, _ := wideSession(0)
	ctx, cancel := context.WithCancel(t.Context())
	s.answering = &read{3, frame.Extent{Region: 1, Size: 8}}
	asked := 0
	err := make(chan error, 1)
	go func() { err <- s.serve(ctx, &s.lane, s.reads, func() bool { asked++; return asked == 2 }) }()
	conn.await(func() bool { return len(conn.out) == frame.HeaderSize+8 })
	s.reads <- read{4, frame.Extent{Region: 1, Size: 8}}
	conn.await(func() bool { return len(conn.out) == 2*(frame.HeaderSize+8) })
	s.reads <- read{5, frame.Extent{Region: 1, Size: 8}}
	if e := <-err; !errors.Is(e, errAway) || s.answering == nil || s.answering.id != 5 {
		t.Errorf("%v, %+v", e, s.answering)
	}
	s.answering = nil
	cancel()
	if e := s.serve(ctx, &s.lane, s.reads, nil); !errors.Is(e, context.Canceled) {
		t.Error(e)
	}
}

// TestErrnos: what a guest is told of why it has no session.
func TestErrnos(t *testing.T) {
	for _, x := range []struct {
		err  error
		want unix.Errno
		says string
	}{
		{&Refusal{unix.EBUSY, ""}, unix.EBUSY, "refused: device or resource busy"},
		{fmt.Errorf("wrapped: %w", &Refusal{unix.EPERM, "text"}), unix.EPERM, "wrapped: text"},
		{fmt.Errorf("wrapped: %w", resume.ErrBudget), unix.ENOMEM, ""},
		{errTest, unix.ENODEV, ""},
	} {
		if got := Errno(x.err); got != x.want || x.says != "" && x.err.Error() != x.says {
			t.Errorf("%v: %v", x.err, got)
		}
	}
}

// TestHello: what a guest is and where its first region lies is said, and the answer is waited for
// no longer than its context; behind the answer nothing is bounded, there are as many branches as
// both ends want, and whether the server sends memory ahead is known.
func TestHello(t *testing.T) {
	welcome := func(m remote.Hello) []byte {
		p := remote.FormatHello(m, "")
		return append(frame.Header{Kind: frame.Welcome, Len: uint32(len(p))}.Append(nil), p...)
	}
	for _, x := range []struct {
		want, takes, have int
		flags             uint32
		rounds            bool
	}{{4, 2, 2, 0, false}, {2, 4, 2, frame.Rounds, true}, {4, 0, 0, frame.Rounds | 2, true}, {1, 1, 1, 2, false}} {
		// Flag 2 is a later version's.
		conn, g := newPausing(), newGuest()
		conn.say(welcome(remote.Hello{Type: remote.MsgWelcome, Flags: x.flags, Size: uint64(x.takes)}))
		s, err := Open(t.Context(), fakeCarrier{g: g}, conn, remote.Hello{Pid: 7}, x.want, "gpu1", quietLog)
		if err != nil || s.wide.want != x.have || !conn.at.IsZero() || g.watch == nil {
			t.Fatalf("%v, %v", err, conn.at)
		}
		if s.Rounds() != x.rounds {
			t.Errorf("flags %#x: it sends memory ahead: %v", x.flags, s.Rounds())
		}
		h := frame.ParseHeader(conn.out)
		m, _, err := remote.ParseHello(conn.out[frame.HeaderSize:])
		if err != nil || h.Kind != frame.Hello || m.Type != remote.MsgHello || m.Pid != 7 || m.Region != 0 || m.Va != 0x1000 || m.Size != remote.Region0Size {
			t.Errorf("%+v, %+v, %v", h, m, err)
		}
	}
	for name, x := range map[string]struct {
		says []byte
		set  func(conn *pausing)
		want error
	}{
		"another kind": {frame.Header{Kind: frame.Word, Len: remote.HelloSize}.Append(make([]byte, 0)), nil, remote.ErrProtocol},
		"too little":   {frame.Header{Kind: frame.Welcome, Len: remote.HelloSize - 1}.Append(nil), nil, remote.ErrProtocol},
		"too much":     {frame.Header{Kind: frame.Welcome, Len: remote.HelloSize + remote.MaxText + 1}.Append(nil), nil, remote.ErrProtocol},
		"another word": {welcome(remote.Hello{Type: remote.MsgHello}), nil, remote.ErrProtocol},
		"refuses":      {welcome(remote.Hello{Type: remote.MsgWelcome, Status: uint32(unix.EBUSY)}), nil, ErrRefused},
		"ends":         {nil, func(conn *pausing) { conn.closed = true }, ErrServer},
		"ends within": {welcome(remote.Hello{Type: remote.MsgWelcome})[:30], func(conn *pausing) {
			go func() { conn.await(func() bool { return len(conn.in) == 0 }); _ = conn.Close() }()
		}, ErrServer},
		"takes no hello": {nil, func(conn *pausing) { conn.writes = errTest }, errTest},
	} {
		conn := newPausing()
		conn.say(x.says)
		if x.set != nil {
			x.set(conn)
		}
		s, err := Open(t.Context(), fakeCarrier{g: newGuest()}, conn, remote.Hello{}, 0, "gpu1", quietLog)
		if s != nil || !errors.Is(err, x.want) || !strings.HasPrefix(err.Error(), "gpu server gpu1: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		_, _ = io.ReadFull(far, make([]byte, frame.HeaderSize+remote.HelloSize))
		cancel()
	}()
	if _, err := Open(ctx, fakeCarrier{g: newGuest()}, near, remote.Hello{}, 0, "gpu1", quietLog); !errors.Is(err, ErrServer) {
		t.Errorf("a context that ends: %v", err)
	}
}

// TestDial: a session goes to the first address that answers, which hears whose it is first; where
// none does each is named, with why; where that is no link that is away it is not tried again.
func TestDial(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	shut, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	none := shut.Addr().String()
	_ = shut.Close()
	p := remote.Preface{}
	for _, dial := range []func(context.Context, []string, remote.Preface) (*net.TCPConn, error){Dial, DialFirst} {
		c, err := dial(t.Context(), []string{none, ln.Addr().String(), none}, p)
		if err != nil {
			t.Fatal(err)
		}
		far, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(p.Encode()))
		if _, err := io.ReadFull(far, got); err != nil || string(got) != string(p.Encode()) {
			t.Errorf("%q, %v", got, err)
		}
		_ = far.Close()
		_ = c.Close()
		if _, err := dial(t.Context(), nil, p); err == nil {
			t.Error("no address answers")
		}
		_, err = dial(t.Context(), []string{none, none}, p)
		if err == nil || strings.Count(err.Error(), "gpu server "+none+": connection refused") != 2 {
			t.Error(err)
		}
	}
	if Away(nil) || Away(errTest) || !Away(fmt.Errorf("wrapped: %w", unix.EPIPE)) {
		t.Error("what another connection mends is taken for what it does not")
	}
	closed, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	if err := begin(closed.(*net.TCPConn), p); err == nil {
		t.Error("a preface is sent over what is closed")
	}
}
