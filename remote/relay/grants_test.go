package relay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/relay"
	"causeway/remote/remotetest"
	"causeway/remote/shm"
	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// reaching is a rig over RDMA, whose server reaches memory by itself.
type reaching struct {
	*rig
	*verbstest.Fabric
	far *verbs.Conn
}

func newReaching(t *testing.T) *reaching {
	t.Helper()
	f, here := verbstest.New(), netip.MustParseAddr("127.0.0.1")
	nearBase, farBase, err := remotetest.PairTCP()
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		c   *verbs.Conn
		err error
	}
	upgraded := make(chan end, 2)
	up := func(client bool) end {
		base, a := farBase, f.Adapter("server", here)
		if client {
			base, a = nearBase, f.Adapter("relay", here)
		}
		c, err := verbs.Upgrade(context.Background(), base, []verbs.Adapter{a}, "", client)
		if err != nil {
			return end{nil, err}
		}
		return end{c.(*verbs.Conn), nil}
	}
	go func() { upgraded <- up(false) }()
	near, far := up(true), <-upgraded
	if err := errors.Join(near.err, far.err); err != nil {
		t.Fatal(err)
	}
	return &reaching{newRigOn(t, near.c, far.c, 0, 0), f, far.c}
}

// granted is the next frame, which grants a region.
func (r *reaching) granted(t *testing.T, id uint32, size int) frame.Granted {
	t.Helper()
	h, b := r.frame(t)
	if h.Kind != frame.Grant || h.Arg != uint64(id) || len(b) != frame.GrantSize {
		t.Fatalf("%+v is no grant of region %d", h, id)
	}
	g, err := frame.ParseGranted(b)
	if err != nil || g.Size != uint64(size) {
		t.Fatalf("%+v, of %d bytes: %v", g, size, err)
	}
	return g
}

func (r *reaching) memory() *shm.Memory { return r.local.Memory().(*shm.Memory) }

// park parks the session, and says how that went.
func (r *reaching) park() chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), remotetest.Limit)
		defer cancel()
		_, err := r.relay.Park(ctx, r.memory().Detach)
		done <- err
	}()
	return done
}

func (r *reaching) kind(t *testing.T, want frame.Kind) {
	t.Helper()
	if h, _ := r.frame(t); h.Kind != want {
		t.Fatalf("frame of type %d, not %d", h.Kind, want)
	}
}

// over ends a session that the server has ended, by a use of what it had no more, and nothing is
// left of it.
func (r *reaching) over(t *testing.T, g frame.Granted) {
	t.Helper()
	err := r.far.Fetch(make([]byte, 64), g, 0)
	if !errors.Is(err, verbs.RemoteAccess) && !errors.Is(err, io.EOF) {
		// Whose connection the relay may have ended before it hears why.
		t.Errorf("the server: %v", err)
	}
	if err := r.end(t); !errors.Is(err, relay.ErrServer) || !errors.Is(err, verbs.ErrQueue) || r.State() != remote.WorkerDead {
		t.Errorf("the relay: %v", err)
	}
	_ = r.Close()
	_ = r.far.Close()
	if n := r.Left(); n != 0 {
		t.Errorf("%d queue pairs and registrations are left", n)
	}
}

// TestGrants: the server reaches each region from its declaration to its end, and no byte beside;
// region 0 is never granted.
func TestGrants(t *testing.T) {
	r := newReaching(t)
	const size = 64 << 10
	mem := [3][]byte{}
	grants := [3]frame.Granted{}
	for i := range mem {
		mem[i] = r.declare(t, uint32(i+1), size)
		grants[i] = r.granted(t, uint32(i+1), size)
	}
	p := bytes.Repeat([]byte{9}, 5000)
	copy(mem[1][100:], "theirs")
	if err := errors.Join(r.far.Store(p, grants[0], size-5000), r.far.Fetch(p, grants[1], 100)); err != nil || !bytes.HasPrefix(p, []byte("theirs")) {
		t.Errorf("%q, %v", p[:6], err)
	}
	if mem[0][size-5001] != 0 || mem[0][size-5000] != 9 || mem[0][size-1] != 9 {
		t.Error("bytes are elsewhere")
	}
	if err := r.EndRegion(1); err != nil {
		t.Fatal(err)
	}
	r.kind(t, frame.RegionEnd)
	if err := r.far.Fetch(p[:6], grants[1], 100); err != nil {
		t.Errorf("another region: %v", err)
	}
	r.over(t, grants[0])
}

// TestGrantedBeside: a server that reads and writes a byte beyond a region ends its session, and
// the byte stays.
func TestGrantedBeside(t *testing.T) {
	r := newReaching(t)
	r.declare(t, 1, 8192)
	g := r.granted(t, 1, 8192)
	g.Address += 4096
	beside := frame.Granted{Address: g.Address + 4090, Size: 64, Key: g.Key}
	r.over(t, beside)
}

// TestRecall: before the pages go the server is asked to let go, and later it has them again; what
// it had before opens nothing.
func TestRecall(t *testing.T) {
	r := newReaching(t)
	mem := r.declare(t, 1, 8192)
	old := r.granted(t, 1, 8192)
	for round := range 2 {
		parked := r.park()
		r.kind(t, frame.Recall)
		if err := r.far.Fetch(make([]byte, 64), old, 0); err != nil { // it has not answered yet
			t.Fatal(err)
		}
		r.say(t, frame.Header{Kind: frame.Recalled}, nil)
		if err := <-parked; err != nil {
			t.Fatal(err)
		}
		if err := r.relay.Resume(r.memory().Attach); err != nil {
			t.Fatal(err)
		}
		again := r.granted(t, 1, 8192)
		if again == old {
			t.Errorf("round %d: the same key", round)
		}
		mem[7] = byte(10 + round)
		p := make([]byte, 8)
		if err := r.far.Fetch(p, again, 0); err != nil || p[7] != byte(10+round) {
			t.Errorf("round %d: %v, %v", round, p, err)
		}
		old, again = again, old
		if round == 1 {
			r.over(t, again)
		}
	}
}

// TestRecallUnanswered: a server that does not let go loses the pages all the same, in time; the
// session goes on, and grants again once it has answered.
func TestRecallUnanswered(t *testing.T) {
	r := newReaching(t)
	r.declare(t, 1, 8192)
	old := r.granted(t, 1, 8192)
	if err := <-r.park(); err != nil { // without an answer
		t.Fatal(err)
	}
	r.kind(t, frame.Recall)
	if err := r.relay.Resume(r.memory().Attach); err != nil {
		t.Fatal(err)
	}
	mem := r.declare(t, 2, 4096)
	mem[1] = 5
	// Nothing is granted: what the server still says is answered by frames.
	r.say(t, frame.Header{Kind: frame.Read, Arg: 1}, frame.Extent{Region: 2, Size: 2}.Append(nil))
	if h, b := r.frame(t); h.Kind != frame.Data || !bytes.Equal(b, []byte{0, 5}) {
		t.Fatalf("%+v, %v", h, b)
	}
	r.say(t, frame.Header{Kind: frame.Recalled}, nil)
	r.granted(t, 1, 8192)
	r.granted(t, 2, 4096)
	r.over(t, old)
}

// TestGrantsAgain: a park that fails leaves the server with what it had, and a region that ends and
// comes again is granted again.
func TestGrantsAgain(t *testing.T) {
	r := newReaching(t)
	r.declare(t, 1, 4096)
	r.granted(t, 1, 4096)
	failed := make(chan error, 1)
	no := errors.New("not now")
	go func() {
		_, err := r.relay.Park(context.Background(), func() error { return no })
		failed <- err
	}()
	r.kind(t, frame.Recall)
	r.say(t, frame.Header{Kind: frame.Recalled}, nil)
	if err := <-failed; !errors.Is(err, no) {
		t.Fatal(err)
	}
	g := r.granted(t, 1, 4096)
	if err := r.far.Fetch(make([]byte, 64), g, 0); err != nil {
		t.Error(err)
	}
	if err := r.EndRegion(1); err != nil {
		t.Fatal(err)
	}
	r.kind(t, frame.RegionEnd)
	r.declare(t, 1, 8192)
	g = r.granted(t, 1, 8192)
	if err := r.far.Fetch(make([]byte, 8192), g, 0); err != nil {
		t.Error(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r.in) }()
	if err := errors.Join(r.Close(), r.end(t), r.far.Close()); err != nil {
		t.Error(err)
	}
	if n := r.Left(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

// TestGrantRefused: memory that may not be pinned goes by frames.
func TestGrantRefused(t *testing.T) {
	r := newReaching(t)
	r.Pin(2*verbs.MostWindow + 100<<10)
	mem := r.declare(t, 1, 256<<10)
	r.declare(t, 2, 64<<10)
	r.granted(t, 2, 64<<10)
	mem[3] = 4
	r.say(t, frame.Header{Kind: frame.Read, Arg: 1}, frame.Extent{Region: 1, Size: 4}.Append(nil))
	if h, b := r.frame(t); h.Kind != frame.Data || !bytes.Equal(b, []byte{0, 0, 0, 4}) {
		t.Fatalf("%+v, %v", h, b)
	}
	r.close(t)
}
