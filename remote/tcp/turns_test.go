package tcp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"causeway/remote"
	"causeway/remote/frame"
)

// taken is a stream that keeps what is written.
type taken struct {
	net.Conn
	mu     sync.Mutex
	out    []byte
	writes int
}

func (c *taken) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out, c.writes = append(c.out, p...), c.writes+1
	return len(p), nil
}
func (c *taken) Read([]byte) (int, error) { return 0, io.EOF }
func (c *taken) Close() error             { return nil }

// sent takes the headers of what was written since.
func (c *taken) sent() (list []frame.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) >= frame.HeaderSize {
		h := frame.ParseHeader(c.out)
		list, c.out = append(list, h), c.out[frame.HeaderSize+h.Len:]
	}
	return list
}

// bare is a carrier of which nobody follows the stream, with region 1 of a MiB.
func bare(t *testing.T, most int) (*Carrier, *taken) {
	t.Helper()
	conn := &taken{}
	c, err := newCarrier(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.release() })
	c.wide.most = most
	for id, size := range map[uint32]uint64{0: remote.Region0Size, 1: 1 << 20} {
		if err := c.mem.declare(id, remote.Declared{Size: size}); err != nil {
			t.Fatal(err)
		}
	}
	return c, conn
}

// TestTurnsOfReads: READs have numbers of their own, and are answered in their order where there is
// one stream; with branches in any, each by the stream that began to, and by no more than was asked
// for.
func TestTurnsOfReads(t *testing.T) {
	for _, most := range []int{0, 2} {
		c, conn := bare(t, most)
		var done []<-chan error
		var p [3][]byte
		for i := range p {
			p[i] = make([]byte, 8)
			d, err := c.mem.Begin(1, p[i], 0)
			if err != nil {
				t.Fatal(err)
			}
			done = append(done, d)
		}
		if early := conn.sent(); len(early) != 0 {
			t.Errorf("%+v left before they were all there", early)
		}
		writes := conn.writes
		c.mem.Ask()
		asked := conn.sent()
		if conn.writes != writes+1 {
			t.Errorf("they left with %d writes", conn.writes-writes)
		}
		if len(asked) != 3 || asked[0].Arg == asked[1].Arg || asked[1].Arg == asked[2].Arg || asked[0].Arg == asked[2].Arg || asked[0].Arg == 0 {
			t.Fatalf("%+v", asked)
		}
		data := func(i, by, n int, flags uint16) error {
			h := frame.Header{Kind: frame.Data, Arg: asked[i].Arg, Len: uint32(n), Flags: flags}
			return c.mem.data(h, bufio.NewReader(bytes.NewReader(bytes.Repeat([]byte{byte(i + 1)}, n))), by)
		}
		breaks := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, remote.ErrProtocol) {
				t.Errorf("%d branches, %s: %v", most, what, err)
			}
		}
		if err := data(1, trunk, 4, 0); (err == nil) != (most > 0) {
			t.Errorf("%d branches: the second comes first: %v", most, err)
		}
		breaks("more than was asked for", data(0, trunk, 9, 0))
		breaks("nothing", data(0, trunk, 0, 0))
		breaks("a refusal with bytes", data(0, trunk, 1, frame.Refused))
		if err := data(0, trunk, 3, 0); err != nil {
			t.Error(err)
		}
		breaks("of another stream", data(0, trunk+1, 3, 0))
		breaks("more than is left", data(0, trunk, 6, 0))
		if len(done[0]) != 0 {
			t.Error("it is over before all has come")
		}
		if err := data(0, trunk, 5, 0); err != nil || len(done[0]) != 1 || <-done[0] != nil || !bytes.Equal(p[0], bytes.Repeat([]byte{1}, 8)) {
			t.Errorf("%v, %v", p[0], err)
		}
		breaks("again", data(0, trunk, 1, 0))
		if most > 0 {
			if err := data(1, trunk, 4, 0); err != nil || <-done[1] != nil {
				t.Error(err)
			}
			if err := data(2, trunk+2, 0, frame.Refused); err != nil || !errors.Is(<-done[2], remote.ErrOutOfBounds) {
				t.Error(err)
			}
			continue
		}
		if err := data(1, trunk, 0, frame.Refused); err != nil || !errors.Is(<-done[1], remote.ErrOutOfBounds) {
			t.Error(err)
		}
		c.mem.fail(errTurn)
		if !errors.Is(<-done[2], errTurn) || len(c.mem.reads) != 0 {
			t.Error("what waits does not hear of the end")
		}
	}
}

var errTurn = errors.New("over")

// TestCutAnswers: a stream that ends within an answer ends that, once; the session's end tells who
// waits for it.
func TestCutAnswers(t *testing.T) {
	c, conn := bare(t, 0)
	done, err := c.mem.Begin(1, make([]byte, 8), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.mem.Ask()
	id := conn.sent()[0].Arg
	if err := c.mem.data(frame.Header{Kind: frame.Data, Arg: id, Len: 8}, bufio.NewReader(bytes.NewReader(make([]byte, 3))), trunk); !errors.Is(err, io.ErrUnexpectedEOF) || len(done) != 0 {
		t.Error(err)
	}
	c.mem.fail(errTurn)
	if !errors.Is(<-done, errTurn) {
		t.Error("nobody hears of it")
	}
}

// TestRegionBounds: regions are declared once, up to their number, and end; what leaves one is
// found out here, and region 0 is not written.
func TestRegionBounds(t *testing.T) {
	c, _ := bare(t, 0)
	m := c.mem
	for id := uint32(2); id < maxRegions; id++ {
		if err := m.declare(id, remote.Declared{Size: maxRegionSize}); err != nil {
			t.Fatal(err)
		}
	}
	breaks := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	breaks("one more", m.declare(maxRegions, remote.Declared{Size: 1}))
	changed := m.changed
	m.reach.granted[5], m.reach.granted[6] = frame.Granted{Size: 1}, frame.Granted{Size: 2}
	if err := m.end(5); err != nil || len(m.reach.granted) != 1 || m.reach.granted[6].Size != 2 {
		// What is declared by that number next has not been granted.
		t.Error(err, m.reach.granted)
	}
	breaks("ends again", m.end(5))
	breaks("ends of another number", m.end(1<<32|6))
	for _, d := range []remote.Declared{{}, {Size: maxRegionSize + 1}, {VA: ^uint64(0) - 10, Size: 12}} {
		breaks("it cannot be", m.declare(5, d))
	}
	breaks("declared twice", m.declare(1, remote.Declared{Size: 1}))
	if err := m.declare(5, remote.Declared{VA: ^uint64(0) - 10, Size: 10}); err != nil || m.changed == changed {
		t.Error(err)
	}
	for _, x := range []struct {
		id     uint32
		off, n uint64
		write  bool
		want   error
	}{
		{1, 0, 1 << 20, true, nil}, {1, 1 << 20, 0, true, nil}, {1, 1<<20 + 1, 0, true, remote.ErrOutOfBounds}, {1, 1, 1 << 20, false, remote.ErrOutOfBounds},
		{1, 5, ^uint64(0) - 2, false, remote.ErrOutOfBounds}, {0, 0, 8, false, nil}, {0, 0, 8, true, remote.ErrUnknownRegion}, {9999, 0, 1, false, remote.ErrUnknownRegion},
	} {
		if err := m.check(x.id, x.off, x.n, x.write); !errors.Is(err, x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if err := m.ReadAt(1, nil, 0); err != nil {
		t.Error(err)
	}
	if _, err := m.Begin(1, nil, 0); err == nil {
		t.Error("nothing is read ahead")
	}
	if _, err := m.Begin(5, make([]byte, 11), 0); !errors.Is(err, remote.ErrOutOfBounds) {
		t.Error(err)
	}
	for n, ok := range map[int]bool{1: true, frame.MaxRead: true, frame.MaxRead + 1: false} {
		// One READ's.
		if _, err := m.Begin(7, make([]byte, n), 0); (err == nil) != ok {
			t.Errorf("%d bytes ahead: %v", n, err)
		}
	}
	m.fail(errTurn)
	m.fail(errTurn) // by a second stream
	if _, err := m.Await(t.Context(), 5); err != nil {
		t.Errorf("what there was: %v", err)
	}
	if _, err := m.Await(t.Context(), maxRegions); !errors.Is(err, errTurn) {
		t.Error(err)
	}
}

// extents are those of the READs and WRITEs that were written since, which stay.
func extents(c *taken) (list []frame.Extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := c.out; len(b) >= frame.HeaderSize; {
		h := frame.ParseHeader(b)
		if h.Kind == frame.Read || h.Kind == frame.Write {
			list = append(list, frame.ParseExtent(b[frame.HeaderSize:]))
		}
		b = b[frame.HeaderSize+h.Len:]
	}
	return list
}

// follow reports whether extents of region 1 lie one behind the other from an offset on, and are so
// many bytes.
func follow(list []frame.Extent, off, n uint64) bool {
	for _, e := range list {
		if e.Region != 1 || e.Offset != off || e.Size > n {
			return false
		}
		off, n = off+e.Size, n-e.Size
	}
	return n == 0
}

// TestParts: a copy is asked for in parts where there are branches that bring them, none of them
// small, and else at once; its WRITEs are cut as frames are.
func TestParts(t *testing.T) {
	for _, x := range []struct {
		most, n, want int
	}{{0, 1, frame.MaxRead}, {0, frame.MaxRead, frame.MaxRead}, {2, 1, wideLeast}, {2, wideParts * wideLeast, wideLeast}, {2, wideParts*wideLeast + 1, wideLeast + 1}, {2, 1 << 30, frame.MaxRead}} {
		if got := (&wide{most: x.most}).part(x.n); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
	for _, most := range []int{0, 2} {
		c, conn := bare(t, most)
		_ = c.mem.request(1, make([]byte, 2*wideLeast+1), 5)
		c.mem.Ask()
		if conn.writes != 1 {
			t.Errorf("%d branches: the READs leave by %d writes", most, conn.writes)
		}
		at := extents(conn)
		if n, want := len(conn.sent()), map[int]int{0: 1, 2: 3}[most]; n != want || len(c.mem.reads) != want || c.mem.reads[0].whole.left != want || !follow(at, 5, 2*wideLeast+1) {
			t.Errorf("%d branches: %d READs, %d are listed, of %v", most, n, len(c.mem.reads), at)
		}
	}
	c, conn := bare(t, 0)
	for _, n := range []int{1, writePart, writePart + 1, 2*writePart - 3} {
		if err := c.mem.WriteAt(1, make([]byte, n), 3); err != nil {
			t.Fatal(err)
		}
		if err := c.send(frame.Header{Kind: frame.Word}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if at := extents(conn); !follow(at, 3, uint64(n)) {
			t.Errorf("%d bytes go to %v", n, at)
		}
		_ = conn.sent()
	}
	if err := c.mem.WriteAt(1, make([]byte, writePart+5), 3); err != nil {
		t.Fatal(err)
	}
	if err := c.send(frame.Header{Kind: frame.Word}, nil, nil); err != nil {
		// Which takes them along.
		t.Fatal(err)
	}
	if list := conn.sent(); len(list) != 3 || list[0].Len != frame.ExtentSize+writePart || list[1].Len != frame.ExtentSize+5 || list[2].Kind != frame.Word {
		t.Errorf("%+v", list)
	}
}

// TestRingSays: of what its worker is the guest hears only that it is dead, and all else of a ring
// as it comes; nothing of slots and words that are not.
func TestRingSays(t *testing.T) {
	c, conn := bare(t, 0)
	r := c.ring
	for _, state := range []uint32{remote.WorkerPolling, remote.WorkerSleeping} {
		if r.SetState(state); len(conn.sent()) != 0 {
			t.Errorf("state %d is said", state)
		}
	}
	r.SetState(remote.WorkerDead)
	r.SetSticky(7)
	r.SetConsole(8)
	r.Complete(remote.WordCount-1, 9)
	r.Complete(remote.WordCount, 9)
	r.Reply(&remote.Outgoing{Slot: remote.SlotCount - 1, Payload: []byte("answer")})
	r.Reply(&remote.Outgoing{Slot: remote.SlotCount})
	want := []frame.Header{
		{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageWorkerStateOffset, remote.WorkerDead)}, {Kind: frame.Control, Arg: frame.Pair(remote.ControlPageStickyOffset, 7)},
		{Kind: frame.Control, Arg: frame.Pair(remote.ControlPageConsoleOffset, 8)}, {Kind: frame.Word, Arg: frame.Pair(remote.WordCount-1, 9)},
		{Kind: frame.Slot, Arg: uint64(remote.SlotCount) - 1, Len: frame.SlotHeader + 6},
	}
	got := conn.sent()
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
}

// TestBehindTheTail: what lies behind the tail is of an earlier turn of the ring, and no record
// that comes.
func TestBehindTheTail(t *testing.T) {
	const size = 32
	c, _ := bare(t, 0)
	for pos := uint64(0); pos < 4*size; pos += size {
		binary.LittleEndian.PutUint32(c.mirror[remote.RingOffset+pos+remote.RecordSizeOffset:], size)
	}
	c.ring.publish(2 * size)
	for at, want := range map[uint64]bool{0: true, size: true, 2 * size: false, 3 * size: false} {
		var in remote.Incoming
		if next, ok := c.ring.Behind(at, &in); ok != want || ok && next != at+size || !ok && next != at {
			t.Errorf("at %d: %v, the next is at %d", at, ok, next)
		}
	}
}

// idleBranch has so much to send.
type idleBranch struct {
	frame.Branch
	backlog uint64
}

func (b *idleBranch) Backlog() uint64 { return b.backlog }

// TestLeast: a WRITE goes by the branch that has least to send, and by another each time where
// several have: the receiver of the one before has that to decrypt.
func TestLeast(t *testing.T) {
	for name, x := range map[string]struct{ backlogs, want []uint64 }{
		"none busy": {[]uint64{0, 0, 0}, []uint64{0, 1, 2, 0, 1}},
		"one busy":  {[]uint64{0, 9, 0}, []uint64{0, 2, 0, 2}},
		"one away":  {[]uint64{frame.Away, 5, 5}, []uint64{1, 2, 1}},
		"the least": {[]uint64{9, 8, 7}, []uint64{2, 2}},
	} {
		var w wide
		var list []*branch
		for i, n := range x.backlogs {
			list = append(list, &branch{n: uint32(i), up: &idleBranch{backlog: n}})
		}
		w.all.Store(&list)
		for i, want := range x.want {
			if b := w.least(); b == nil || uint64(b.n) != want {
				t.Errorf("%s: WRITE %d goes by %+v, want %d", name, i, b, want)
			}
		}
	}
	var w wide
	away := []*branch{{up: &idleBranch{backlog: frame.Away}}}
	if w.all.Store(&away); w.least() != nil {
		t.Error("a WRITE goes by a branch that has no connection")
	}
}
