package relay_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/remotetest"
	"causeway/remote/shm"
)

// rig is a guest and its relay, to a server that the test plays.
type rig struct {
	*remotetest.Guest
	local  *shm.Unix
	relay  *relay.Session
	server net.Conn
	in     *bufio.Reader // what the server is sent
	ended  chan error
	forks  []*remotetest.Fork
	forkIn []*bufio.Reader
}

// newRig begins a session. What the relay sends is read by the test alone: the stream has no room
// of its own.
func newRig(t testing.TB) *rig { return newRigOf(t, 0, 0) }

// newRigOf is newRig with a stream that may have so many branches.
func newRigOf(t testing.TB, branches int, patience time.Duration) *rig {
	t.Helper()
	near, far := net.Pipe()
	return newRigOn(t, near, far, branches, patience)
}

// newRigOn is newRigOf over a connection, whose end near is the relay's.
func newRigOn(t testing.TB, near, far net.Conn, branches int, patience time.Duration) *rig {
	t.Helper()
	gc, hc, err := remotetest.Pair()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{server: far, in: bufio.NewReaderSize(far, 4<<10), ended: make(chan error, 1)}
	stream := frame.Stream(near)
	if branches > 0 {
		forked := remotetest.NewForked(near, branches)
		stream, r.forks = forked, forked.Forks
		for _, f := range r.forks {
			r.forkIn = append(r.forkIn, bufio.NewReaderSize(f.Far, 4<<10))
		}
	}
	opened := make(chan error, 1)
	go func() {
		var err error
		if r.local, err = shm.AcceptUnix(hc); err == nil {
			r.relay, err = relay.Open(context.Background(), r.local, stream, remote.Hello{Pid: 7, Flags: remote.EnvFirstDevice}, branches, "gpu1", slog.New(slog.DiscardHandler))
		}
		if err == nil {
			err = r.local.Welcome(0, "")
		}
		opened <- err
	}()
	connected := make(chan error, 1)
	go func() {
		var err error
		r.Guest, err = remotetest.ConnectUnix(gc, 0)
		connected <- err
	}()
	h, b := r.frame(t)
	m, _, err := remote.ParseHello(b)
	if err != nil || h.Kind != frame.Hello || m.Type != remote.MsgHello || m.Pid != 7 || m.Flags != remote.EnvFirstDevice || m.Size != remote.Region0Size || m.Va == 0 {
		t.Fatalf("hello %+v, %+v, %v", h, m, err)
	}
	r.say(t, frame.Header{Kind: frame.Welcome}, remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Size: uint64(branches)}, ""))
	if err := errors.Join(<-opened, <-connected); err != nil {
		t.Fatal(err)
	}
	if branches > 0 {
		r.relay.SetPatience(patience)
	}
	go func() {
		err := r.relay.Run(context.Background())
		r.ended <- errors.Join(err, r.local.Close())
	}()
	return r
}

// frame is the next frame of the relay's.
func (r *rig) frame(t testing.TB) (frame.Header, []byte) {
	t.Helper()
	_ = r.server.SetReadDeadline(time.Now().Add(remotetest.Limit))
	h, err := frame.ReadHeader(r.in)
	if err != nil {
		t.Fatal("next frame: ", err)
	}
	b := make([]byte, h.Len)
	if _, err := io.ReadFull(r.in, b); err != nil {
		t.Fatal("next frame: ", err)
	}
	return h, b
}

func encode(h frame.Header, payload []byte) []byte {
	h.Len = uint32(len(payload))
	return append(h.Append(nil), payload...)
}

// say sends a frame of the server's.
func (r *rig) say(t testing.TB, h frame.Header, payload []byte) {
	t.Helper()
	_ = r.server.SetWriteDeadline(time.Now().Add(remotetest.Limit))
	if _, err := r.server.Write(encode(h, payload)); err != nil {
		t.Fatal("say: ", err)
	}
}

// end awaits the relay's end.
func (r *rig) end(t testing.TB) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(remotetest.Limit):
		t.Fatal("the session goes on")
		return nil
	}
}

// close ends a session by its guest.
func (r *rig) close(t testing.TB) {
	t.Helper()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	_ = r.server.Close()
}

func record(size int, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, size)
	copy(b, []byte{byte(size), byte(size >> 8), byte(size >> 16), 0, 77, 0, 0, 0})
	return b
}

// declare adds a region, of which the server is told.
func (r *rig) declare(t testing.TB, id uint32, size int) []byte {
	t.Helper()
	mem, va, err := r.AddRegion(id, size)
	if err != nil {
		t.Fatal(err)
	}
	h, b := r.frame(t)
	m, _, err := remote.ParseHello(b)
	if err != nil || h.Kind != frame.Region || h.Arg != uint64(id) || m.Type != remote.MsgRegion || m.Region != id || m.Va != va || m.Size != uint64(size) {
		t.Fatalf("%+v, %+v, %v", h, m, err)
	}
	return mem
}

// awaitWord has everything done that was said before.
func (r *rig) awaitWord(t testing.TB, value uint32) {
	t.Helper()
	r.say(t, frame.Header{Kind: frame.Word, Arg: frame.Pair(200, value)}, nil)
	for end := time.Now().Add(remotetest.Limit); r.Word(200) != value; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("the word does not come")
		}
	}
}

// TestServerGone: the guest hears of a server that closes, of one that is cut in the middle of a
// frame, and of one whose worker failed.
func TestServerGone(t *testing.T) {
	for name, last := range map[string][]byte{
		"closes": nil, "cut": encode(frame.Header{Kind: frame.Slot}, make([]byte, 16))[:20],
		"dead": encode(frame.Header{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageWorkerStateOffset, remote.WorkerDead)}, nil),
	} {
		r := newRig(t)
		_, _ = r.server.Write(last)
		_ = r.server.Close()
		if err := r.end(t); !errors.Is(err, relay.ErrServer) || r.State() != remote.WorkerDead {
			t.Errorf("%s: %v, state %d", name, err, r.State())
		}
		_ = r.Close()
	}
}

// TestBatches: what waits in the ring goes in few frames, in order, and never more of it than the
// server's mirror has room for.
func TestBatches(t *testing.T) {
	r := newRig(t)
	const size = 32 << 10
	sent, many := make(chan error, 1), make(chan struct{})
	go func() {
		var err error
		for i := 0; i < 40 && err == nil; i++ { // 1.25 MiB: more than both rings hold
			if err = r.Append(record(size, byte(i))); i == 10 {
				close(many)
			}
		}
		sent <- err
	}()
	<-many // the first is on its way, and takes at most four along: the others wait
	at, head, frames := uint64(0), uint64(0), 0
	for at < 40*size {
		h, b := r.frame(t)
		if h.Kind != frame.Ring || h.Arg != at || len(b)%size != 0 || at+uint64(len(b))-head > remote.RingSize {
			t.Fatalf("%+v at %d, head %d", h, at, head)
		}
		for i := 0; i < len(b); i += size {
			if b[i+8] != byte((at+uint64(i))/size) {
				t.Fatalf("record at %d is %d", at+uint64(i), b[i+8])
			}
		}
		at += uint64(len(b))
		frames++
		if at-head == remote.RingSize { // the relay has nothing more to say until it is told
			head = at
			r.say(t, frame.Header{Kind: frame.Head, Arg: head}, nil)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if frames >= 40 {
		t.Errorf("%d frames for 40 records", frames)
	}
	r.close(t)
}

// TestServerThatDoesNotRead: the relay follows what such a server says; the guest that goes is
// noticed.
func TestServerThatDoesNotRead(t *testing.T) {
	r := newRig(t)
	mem := r.declare(t, 1, 1<<20)
	if err := r.Append(record(64, 1)); err != nil { // stays in the stream
		t.Fatal(err)
	}
	for i := range uint32(50) {
		r.say(t, frame.Header{Kind: frame.Read, Arg: uint64(i)}, frame.Extent{Region: 1, Size: 1 << 20}.Append(nil))
	}
	r.say(t, frame.Header{Kind: frame.Write}, append(frame.Extent{Region: 1, Offset: 5, Size: 4}.Append(nil), "here"...))
	r.awaitWord(t, 3)
	if string(mem[5:9]) != "here" {
		t.Errorf("the region holds %q", mem[5:9])
	}
	r.close(t)
}

// TestReads: several at once are answered in their order; what the guest has not declared is
// refused, and so is the rest of a region that goes meanwhile.
func TestReads(t *testing.T) {
	r := newRig(t)
	mem := r.declare(t, 1, 3<<20)
	for i := range mem {
		mem[i] = byte(i >> 12)
	}
	type ask struct {
		frame.Extent
		ok bool
	}
	asks := []ask{
		{frame.Extent{Region: 1, Size: 3 << 20}, true}, {frame.Extent{Region: 1, Offset: 3<<20 - 1, Size: 1}, true},
		{frame.Extent{Region: 1, Offset: 3<<20 - 1, Size: 2}, false}, {frame.Extent{Region: 9, Size: 1}, false},
		{frame.Extent{Region: 1, Offset: ^uint64(0), Size: 2}, false}, {frame.Extent{Region: 1, Offset: 4096, Size: 1 << 20}, true},
		{frame.Extent{Region: 0, Offset: remote.SlotsOffset, Size: 64}, true},
	}
	for i, a := range asks {
		r.say(t, frame.Header{Kind: frame.Read, Arg: uint64(100 + i)}, a.Append(nil))
	}
	for i, a := range asks {
		var got []byte
		for refused := false; !refused && uint64(len(got)) < a.Size; {
			h, b := r.frame(t)
			refused = h.Flags == frame.Refused
			if h.Kind != frame.Data || h.Arg != uint64(100+i) || refused == a.ok || refused != (len(b) == 0) {
				t.Fatalf("answer %d of %+v", i, h)
			}
			got = append(got, b...)
		}
		if a.Region == 1 && a.ok && !bytes.Equal(got, mem[a.Offset:a.Offset+a.Size]) {
			t.Errorf("answer %d has other bytes", i)
		}
	}
	// The answer is on its way, as far as the stream lets it, when the region goes.
	r.say(t, frame.Header{Kind: frame.Read, Arg: 1}, frame.Extent{Region: 1, Size: 3 << 20}.Append(nil))
	h, first := r.frame(t)
	if h.Kind != frame.Data {
		t.Fatalf("%+v", h)
	}
	if err := r.EndRegion(1); err != nil {
		t.Fatal(err)
	}
	refused, told := false, false
	for got := len(first); !refused && got < 3<<20 || !told; {
		h, b := r.frame(t)
		got += len(b)
		refused = refused || h.Kind == frame.Data && h.Flags == frame.Refused
		told = told || h.Kind == frame.RegionEnd && h.Arg == 1
	}
	r.say(t, frame.Header{Kind: frame.Read, Arg: 2}, frame.Extent{Region: 1, Size: 1}.Append(nil))
	if h, _ := r.frame(t); h.Kind != frame.Data || h.Arg != 2 || h.Flags != frame.Refused {
		t.Errorf("a region that went: %+v", h)
	}
	r.close(t)
}

// TestPark: nothing of the session touches guest memory while it is parked.
func TestPark(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	for round := range uint32(5) {
		if waiting, err := r.relay.Park(ctx, func() error { return nil }); err != nil || waiting {
			t.Fatal(waiting, err)
		}
		if _, err := r.relay.Park(ctx, nil); !errors.Is(err, relay.ErrParked) {
			t.Fatal(err)
		}
		if r.State() != remote.WorkerSleeping {
			t.Error("a guest that submits now does not ring")
		}
		// The receiver has it, or it waits in the stream.
		r.say(t, frame.Header{Kind: frame.Word, Arg: frame.Pair(3, round+1)}, nil)
		if err := r.relay.Resume(func() error {
			if r.Word(3) == round+1 {
				t.Error("a word came while the session was parked")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		r.awaitWord(t, round+1)
		if r.Word(3) != round+1 {
			t.Error("the word is lost")
		}
		if err := r.Append(record(64, 1)); err != nil {
			t.Fatal(err)
		}
		if h, _ := r.frame(t); h.Kind != frame.Ring || h.Arg != uint64(round)*64 {
			t.Errorf("%+v", h)
		}
	}
	no := errors.New("no")
	if _, err := r.relay.Park(ctx, func() error { return no }); !errors.Is(err, no) {
		t.Error(err)
	}
	if err := r.relay.Resume(nil); err == nil {
		t.Error("resumed without a park")
	}
	// A consumer that is busy with a stream that takes nothing: the park does not wait for it, and
	// it does not come back before the park's end.
	if err := r.Append(record(64<<10, 1)); err != nil {
		t.Fatal(err)
	}
	_, _ = r.in.Peek(1) // it is at it, and more is left than the test's reader holds
	if _, err := r.relay.Park(ctx, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := r.Append(record(64, 2)); err != nil {
		t.Fatal(err)
	}
	r.frame(t)
	if err := r.relay.Resume(func() error {
		if r.Idle() {
			t.Error("the ring was consumed while the session was parked")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if h, b := r.frame(t); h.Kind != frame.Ring || len(b) != 64 || b[8] != 2 {
		t.Errorf("%+v", h)
	}
	r.awaitWord(t, 99)
	if _, err := r.relay.Park(ctx, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	_ = r.server.Close() // the session ends while it is parked, and leaves memory alone
	if err := r.end(t); !errors.Is(err, relay.ErrServer) {
		t.Error(err)
	}
	if r.State() == remote.WorkerDead {
		t.Error("guest memory was touched")
	}
	if err := r.relay.Resume(nil); !errors.Is(err, relay.ErrOver) {
		t.Error(err)
	}
	if _, err := r.relay.Park(ctx, nil); !errors.Is(err, relay.ErrOver) {
		t.Error(err)
	}
	_ = r.Close()
}

// TestRefused: what a server says that takes no session reaches the guest's side as it is.
func TestRefused(t *testing.T) {
	refusal := func(status unix.Errno, text string) []byte {
		return encode(frame.Header{Kind: frame.Welcome}, remote.FormatHello(remote.Hello{Type: remote.MsgWelcome, Status: uint32(status)}, text))
	}
	longest := strings.Repeat("x", remote.MaxText)
	type words struct {
		status unix.Errno
		text   string
	}
	refused := map[string]words{"refused": {unix.EBUSY, "all GPUs are taken"}, "the least status": {1, "no"}, "the longest text": {unix.EPERM, longest}}
	for name, answer := range map[string][]byte{
		"refused":          refusal(unix.EBUSY, "all GPUs are taken"),
		"the least status": refusal(1, "no"),
		"the longest text": refusal(unix.EPERM, longest),
		"a longer text":    encode(frame.Header{Kind: frame.Welcome}, append(refusal(unix.EPERM, longest)[frame.HeaderSize:], 'x')),
		"no welcome":       encode(frame.Header{Kind: frame.Word}, nil),
		"short":            encode(frame.Header{Kind: frame.Welcome}, make([]byte, 5)),
		"a hello":          encode(frame.Header{Kind: frame.Welcome}, remote.FormatHello(remote.Hello{Type: remote.MsgHello}, "")),
		"closes":           nil,
	} {
		gc, hc, err := remotetest.Pair()
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = remotetest.ConnectUnix(gc, 0) }()
		local, err := shm.AcceptUnix(hc)
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		go func() {
			_, _ = io.CopyN(io.Discard, far, frame.HeaderSize+remote.HelloSize)
			_, _ = far.Write(answer)
			_ = far.Close()
		}()
		_, err = relay.Open(context.Background(), local, near, remote.Hello{}, 0, "gpu1", slog.New(slog.DiscardHandler))
		why, no := refused[name]
		switch {
		case no:
			if !errors.Is(err, relay.ErrRefused) || err.Error() != "gpu server gpu1: "+why.text || relay.Errno(err) != why.status {
				t.Errorf("%s: %v", name, err)
			}
		case name == "closes" && !errors.Is(err, relay.ErrServer) || name != "closes" && !errors.Is(err, remote.ErrProtocol):
			t.Errorf("%s: %v", name, err)
		}
		_ = near.Close()
		_ = local.Close()
	}
}
