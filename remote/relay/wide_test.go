package relay_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/remotetest"
)

// newForked begins a session that may have n branches, and has them begun by a READ, whose answer
// the test takes.
func newForked(t testing.TB, n int, patience time.Duration) (*rig, []byte) {
	t.Helper()
	r := newRigOf(t, n, patience)
	mem := r.declare(t, 1, 4*frame.Bulk)
	r.ask(t, 1, frame.Bulk)
	if h, _ := r.answer(t, frame.Bulk); h.Arg != 1 {
		t.Fatalf("%+v", h)
	}
	return r, mem
}

func (r *rig) ask(t testing.TB, id, size uint64) {
	t.Helper()
	r.say(t, frame.Header{Kind: frame.Read, Arg: id}, frame.Extent{Region: 1, Size: size}.Append(nil))
}

// came is a frame of an answer, and over which stream: -1 is the first.
type came struct {
	frame.Header
	by  int
	err error
}

// answer takes the DATA of one READ, over whichever stream it comes, of which it is all.
func (r *rig) answer(t testing.TB, size uint64) (frame.Header, int) {
	t.Helper()
	list := make(chan came, 1+len(r.forks))
	stop := time.Now().Add(remotetest.Limit)
	one := func(in *bufio.Reader, by int) {
		var h frame.Header
		var err error
		for left := size; left > 0 && err == nil; left -= uint64(h.Len) {
			if h, err = frame.ReadHeader(in); err == nil {
				_, err = io.CopyN(io.Discard, in, int64(h.Len))
			}
		}
		list <- came{h, by, err}
	}
	_ = r.server.SetReadDeadline(stop)
	go one(r.in, -1)
	for n, f := range r.forks {
		_ = f.Far.SetReadDeadline(stop)
		go one(r.forkIn[n], n)
	}
	first := <-list
	_ = r.server.SetReadDeadline(time.Unix(1, 0)) // the others have nothing
	for _, f := range r.forks {
		_ = f.Far.SetReadDeadline(time.Unix(1, 0))
	}
	for range r.forks {
		if c := <-list; c.err == nil {
			t.Errorf("DATA came over %d and %d", first.by, c.by)
		}
	}
	if first.err != nil || first.Kind != frame.Data {
		t.Fatal(first.by, first.Header, first.err)
	}
	return first.Header, first.by
}

// TestBranchAway: a READ goes to a branch that has a connection, and to the first stream while none
// has.
func TestBranchAway(t *testing.T) {
	r, _ := newForked(t, 2, remotetest.Limit)
	for _, c := range []struct {
		away [2]bool
		by   []int
	}{
		{[2]bool{false, false}, []int{0, 1}}, {[2]bool{true, false}, []int{1}}, {[2]bool{false, true}, []int{0}}, {[2]bool{true, true}, []int{-1}}, {[2]bool{false, false}, []int{0, 1}},
	} {
		for n, away := range c.away {
			r.forks[n].SetAway(away)
		}
		for id := range uint64(6) {
			r.ask(t, 10+id, 2*frame.Bulk)
			if h, by := r.answer(t, 2*frame.Bulk); h.Arg != 10+id || !bytes.ContainsRune([]byte{byte(c.by[0] + 1), byte(c.by[len(c.by)-1] + 1)}, rune(by+1)) {
				t.Errorf("with %v away READ %d is answered by %d", c.away, h.Arg, by)
			}
		}
	}
	r.close(t)
}

// TestBehind: what stands behind a BEHIND waits for the WRITEs that it counts.
func TestBehind(t *testing.T) {
	r, mem := newForked(t, 2, remotetest.Limit)
	write := encode(frame.Header{Kind: frame.Write}, append(frame.Extent{Region: 1, Size: 8}.Append(nil), "theirs!!"...))
	both := append(frame.Header{Kind: frame.Behind, Arg: frame.Pair(1, 2)}.Append(nil), frame.Header{Kind: frame.Word, Arg: frame.Pair(200, 7)}.Append(nil)...)
	if _, err := r.server.Write(both); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if r.Word(200) == 7 {
			t.Error("the word comes first")
		}
		if _, err := r.forks[1].Far.Write(write); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(remotetest.Limit); r.Word(200) != 7 && time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
	if r.Word(200) != 7 || !bytes.Equal(mem[:8], []byte("theirs!!")) {
		t.Errorf("word %d, %q", r.Word(200), mem[:8])
	}
	r.close(t)
}

// TestBehindForEver: a server that announces WRITEs which it does not send, or cannot have sent,
// ends the session within a bounded time, by name; one whose branch has no connection is waited
// for.
func TestBehindForEver(t *testing.T) {
	const patience = 200 * time.Millisecond
	for name, c := range map[string]struct {
		n, count uint32
		says     string
	}{"one that does not come": {0, 1, "do not come"}, "more than can be on their way": {1, 1 << 20, "cannot be"}, "a branch that is not": {2, 0, "of 2"}} {
		t.Run(name, func(t *testing.T) {
			r, _ := newForked(t, 2, patience)
			r.say(t, frame.Header{Kind: frame.Behind, Arg: frame.Pair(c.n, c.count)}, nil)
			if err := r.end(t); !errors.Is(err, remote.ErrProtocol) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
			_ = r.Close()
			_ = r.server.Close()
		})
	}
	r, _ := newForked(t, 1, patience)
	r.forks[0].SetAway(true)
	r.say(t, frame.Header{Kind: frame.Behind, Arg: frame.Pair(0, 1)}, nil)
	select {
	case err := <-r.ended:
		t.Error(err)
	case <-time.After(2 * patience): // longer than it waits for one that is there
	}
	r.forks[0].SetAway(false)
	_, _ = r.forks[0].Far.Write(encode(frame.Header{Kind: frame.Write}, frame.Extent{Region: 1}.Append(nil)))
	r.awaitWord(t, 9)
	r.close(t)
}

// branchRules are frames that break a rule where they come on a branch: its frames are WRITEs.
func branchRules() map[string][]byte {
	list := map[string][]byte{
		"behind":         encode(frame.Header{Kind: frame.Behind}, nil),
		"a word":         encode(frame.Header{Kind: frame.Word, Arg: frame.Pair(200, 1)}, nil),
		"a READ":         encode(frame.Header{Kind: frame.Read, Arg: 9}, frame.Extent{Region: 1, Size: 8}.Append(nil)),
		"a reply":        encode(frame.Header{Kind: frame.Slot}, frame.Reply{Seq: 1}.Append(nil)),
		"WRITE of flags": encode(frame.Header{Kind: frame.Write, Flags: 1}, frame.Extent{Region: 1}.Append(nil)),
	}
	for name, b := range broken() {
		if strings.HasPrefix(name, "write") && name != "write beyond" || name == "too long" {
			// The region is longer here.
			list[name] = b
		}
	}
	return list
}

// TestBranchRules: a server that breaks a rule on a branch ends the session, by name.
func TestBranchRules(t *testing.T) {
	for name, b := range branchRules() {
		t.Run(name, func(t *testing.T) {
			r, mem := newForked(t, 1, remotetest.Limit)
			_, _ = r.forks[0].Far.Write(b)
			if err := r.end(t); !errors.Is(err, remote.ErrProtocol) || r.State() != remote.WorkerDead || !bytes.Equal(mem, make([]byte, len(mem))) {
				t.Errorf("ended with %v, state %d", err, r.State())
			}
			_ = r.Close()
			_ = r.server.Close()
		})
	}
}

// FuzzBranch: a server says whatever it likes on a branch, and counts it. The session ends, with an
// error that says why.
func FuzzBranch(f *testing.F) {
	for _, b := range branchRules() {
		f.Add(b)
	}
	f.Add(encode(frame.Header{Kind: frame.Write}, append(frame.Extent{Region: 1, Offset: 8, Size: 8}.Append(nil), make([]byte, 8)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _ := newForked(t, 1, 50*time.Millisecond)
		before := bytes.Clone(r.Mem)
		go func() { _, _ = io.Copy(io.Discard, r.in) }()
		_ = r.server.SetWriteDeadline(time.Now().Add(remotetest.Limit))
		_, _ = r.server.Write(frame.Header{Kind: frame.Behind, Arg: frame.Pair(0, 2)}.Append(nil))
		_ = r.forks[0].Far.SetWriteDeadline(time.Now().Add(remotetest.Limit))
		_, _ = r.forks[0].Far.Write(b)
		_ = r.forks[0].Far.Close()
		_ = r.server.Close()
		if err := r.end(t); !errors.Is(err, remote.ErrProtocol) && !errors.Is(err, relay.ErrServer) {
			t.Errorf("ended with %v", err)
		}
		copy(before[remote.ControlPageWorkerStateOffset:], r.Mem[remote.ControlPageWorkerStateOffset:][:4])
		if !bytes.Equal(r.Mem, before) {
			t.Error("region 0 was written")
		}
		_ = r.Close()
	})
}
