package remotetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"causeway/remote"
)

// Conformance is what every carrier must do: a session's ring, its replies and words, its guest's
// memory, its doorbell, its ends, and a guest that breaks rules. open makes a session that nobody
// has used.
func Conformance(t *testing.T, open func() (Ends, error)) {
	for name, test := range map[string]func(*testing.T, *session){
		"ring": testRing, "replies": testReplies, "words": testWords, "memory": testMemory, "order": testOrder, "regions": testRegions,
		"crowd": testCrowd, "doorbell": testDoorbell, "guest ends": testGuestEnds, "host ends": testHostEnds,
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, open)
			test(t, s)
			s.end(t)
		})
	}
	t.Run("violations", func(t *testing.T) { testViolations(t, open) })
	t.Run("refused", func(t *testing.T) { testRefused(t, open) })
}

// session is a guest and its host's end, which the test plays.
type session struct {
	*Guest
	remote.Carrier
	seq    uint32
	closed bool
}

func start(t *testing.T, open func() (Ends, error)) *session {
	t.Helper()
	ends, err := open()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{}
	accepted := make(chan error, 1)
	go func() {
		var err error
		if s.Carrier, err = ends.Accept(); err == nil {
			err = s.Carrier.Welcome(0, "")
		}
		accepted <- err
	}()
	if s.Guest, err = ends.Connect(); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	s.Carrier.Ring().SetState(remote.WorkerPolling)
	return s
}

// end ends a session by its guest, if it goes on, and the host's part of it.
func (s *session) end(t *testing.T) {
	t.Helper()
	if !s.closed {
		if err := s.Guest.Close(); err != nil {
			t.Error(err)
		}
	}
	s.awaitEnd(t)
	if err := s.Carrier.Close(); err != nil {
		t.Error(err)
	}
}

func (s *session) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-s.Carrier.Done():
	case <-time.After(Limit):
		t.Fatal("the session goes on without its guest")
	}
}

// next is the next record, for which the host sleeps if it must.
func (s *session) next(t *testing.T) remote.Incoming {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	in, err := s.await(ctx)
	if err != nil {
		t.Fatal("next record: ", err)
	}
	return in
}

func (s *session) await(ctx context.Context) (in remote.Incoming, err error) {
	ring := s.Carrier.Ring()
	idle := remote.NewIdle(ring, s.Carrier.Doorbell(), func() bool { return false })
	for {
		ok, err := ring.Next(&in)
		if ok || err != nil {
			return in, err
		}
		if err := idle.Sleep(ctx); err != nil {
			return in, err
		}
	}
}

// record is one whose body is a pattern, that wants its reply in a slot; slot 0 of no request:
// none.
func (s *session) record(slot uint32, size int) []byte {
	s.seq++
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + int(s.seq)*13)
	}
	le := binary.LittleEndian
	le.PutUint32(b[remote.RecordSizeOffset:], uint32(size))
	le.PutUint16(b[remote.RecordOpOffset:], 77)
	le.PutUint16(b[remote.RecordFlagsOffset:], uint16(remote.RecordReply))
	le.PutUint32(b[remote.RecordSlotOffset:], slot)
	le.PutUint32(b[remote.RecordSeqOffset:], s.seq)
	le.PutUint32(b[remote.RecordCtxOffset:], 5)
	le.PutUint32(b[remote.RecordThreadOffset:], 6)
	return b
}

// consume takes the next record and advances. OpSkip is passed over.
func (s *session) consume(t *testing.T) remote.Incoming {
	t.Helper()
	for {
		in := s.next(t)
		in.Bytes = bytes.Clone(in.Bytes)
		if s.Carrier.Ring().Advance() {
			s.Carrier.Doorbell().Wake(remote.SlotCount)
		}
		if in.Op != remote.OpSkip {
			return in
		}
	}
}

// testRing sends more than the ring holds, several times over, in records of all sizes, while the
// host is at times behind.
func testRing(t *testing.T, s *session) {
	const records = 600
	sizes := func(i int) int { return 32 * (1 + i*i*31%1500) }
	sent := make(chan []byte, records)
	failed := make(chan error, 1)
	go func() {
		defer close(sent)
		for i := range records {
			r := s.record(uint32(i)%remote.SlotCount, sizes(i))
			sent <- r
			if err := s.Append(r); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	before := uint64(0)
	for i := range records {
		if i%50 == 0 { // asked for twice it is the same
			a := s.next(t)
			if b := s.next(t); b.Seq != a.Seq || len(a.Bytes) != len(b.Bytes) || s.Carrier.Ring().Head() < before {
				t.Fatalf("record %d is %+v, then %+v", i, a, b)
			}
		}
		in, want := s.consume(t), <-sent
		if !bytes.Equal(in.Bytes, want) || in.Op != 77 || in.Seq != uint32(i+1) || in.Slot != uint32(i)%remote.SlotCount || in.Ctx != 5 || in.Thread != 6 {
			t.Fatalf("record %d of %d bytes came as %d bytes, op %d, seq %d", i, len(want), len(in.Bytes), in.Op, in.Seq)
		}
		if head := s.Carrier.Ring().Head(); head < before+uint64(len(want)) {
			t.Fatalf("head %d after %d and %d bytes", head, before, len(want))
		}
		before = s.Carrier.Ring().Head()
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	var in remote.Incoming
	if ok, err := s.Carrier.Ring().Next(&in); ok || err != nil {
		t.Errorf("a record behind the last: %+v, %v", in, err)
	}
}

// reply answers as a worker does.
func (s *session) reply(o remote.Outgoing) {
	if s.Carrier.Ring().Reply(&o) {
		s.Carrier.Doorbell().Wake(o.Slot)
	}
}

// testReplies: each length of a reply, to a guest that sleeps or does not, in each slot.
func testReplies(t *testing.T, s *session) {
	for i, size := range []int{0, 1, 16, 4000, int(remote.SlotPayload), int(remote.SlotPayload)} {
		slot := uint32(i*13) % remote.SlotCount
		r := s.record(slot, 64)
		if err := s.Append(r); err != nil {
			t.Fatal(err)
		}
		in := s.consume(t)
		payload := bytes.Repeat([]byte{byte(i + 1)}, size)
		total := uint32(size)
		if i == 5 {
			total = 1 << 20
		}
		answer := func() {
			s.reply(remote.Outgoing{Slot: in.Slot, Seq: in.Seq, Result: uint32(100 + i), Payload: payload, Total: total})
		}
		if i%2 == 0 {
			answer()
		} else {
			go answer() // the guest waits already, or will
		}
		if err := s.Await(slot, in.Seq); err != nil {
			t.Fatal(err)
		}
		if res, got, all := s.Guest.Reply(slot); res != uint32(100+i) || !bytes.Equal(got, payload) || all != total {
			t.Errorf("reply %d of %d bytes: %d, %d bytes of %d", i, size, res, len(got), all)
		}
	}
	s.reply(remote.Outgoing{Slot: remote.SlotCount, Seq: 1}) // no such slot: nothing happens
	s.fence(t)
}

// fence has everything that the host said before it seen by the guest.
func (s *session) fence(t *testing.T) {
	t.Helper()
	if err := s.Append(s.record(9, 32)); err != nil {
		t.Fatal(err)
	}
	in := s.consume(t)
	s.reply(remote.Outgoing{Slot: 9, Seq: in.Seq})
	if err := s.Await(9, in.Seq); err != nil {
		t.Fatal(err)
	}
}

func testWords(t *testing.T, s *session) {
	ring := s.Carrier.Ring()
	for i := uint32(0); i < remote.WordCount; i += 17 {
		ring.Complete(i, i+1000)
	}
	ring.Complete(remote.WordCount, 1) // the guest picked it: ignored
	ring.SetSticky(719)
	ring.SetConsole(12345)
	s.fence(t)
	for i := uint32(0); i < remote.WordCount; i += 17 {
		if got := s.Word(i); got != i+1000 {
			t.Errorf("word %d is %d", i, got)
		}
	}
	if s.Sticky() != 719 || s.Console() != 12345 {
		t.Errorf("sticky %d, console %d", s.Sticky(), s.Console())
	}
	ring.SetSticky(0)
	s.fence(t)
	if s.Sticky() != 0 {
		t.Error("sticky stays")
	}
}

// pattern is what region id holds at off in generation gen.
func pattern(p []byte, id uint32, off uint64, gen byte) []byte {
	for i := range p {
		x := off + uint64(i)
		p[i] = byte(x) ^ byte(x>>8) ^ byte(x>>16) ^ byte(id) ^ gen
	}
	return p
}

const big = 5<<20 + 4096

// declare adds a region and waits until the host can reach it.
func (s *session) declare(t *testing.T, id uint32, size int) []byte {
	t.Helper()
	mem, va, err := s.AddRegion(id, size)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	d, err := s.Memory().Await(ctx, id)
	if err != nil || d.VA != va || d.Size != uint64(size) {
		t.Fatalf("region of %d bytes at %#x: %+v, %v", size, va, d, err)
	}
	return mem
}

// testMemory: bytes of any place and number, each way, and what is refused.
func testMemory(t *testing.T, s *session) {
	m := s.Memory()
	mem := s.declare(t, 3, big)
	pattern(mem, 3, 0, 0)
	p, want := make([]byte, big), make([]byte, big)
	for _, x := range []struct{ off, n int }{{0, big}, {0, 1}, {big - 1, 1}, {4095, 2}, {12345, 1 << 20}, {1, 200_000}, {77, 0}} {
		if err := m.ReadAt(3, p[:x.n], uint64(x.off)); err != nil || !bytes.Equal(p[:x.n], pattern(want[:x.n], 3, uint64(x.off), 0)) {
			t.Errorf("%d bytes at %d are others, %v", x.n, x.off, err)
		}
	}
	for i, x := range []struct{ off, n int }{{0, big}, {4095, 2}, {big - 1, 1}, {999, 3 << 20}} {
		gen := byte(i + 1)
		if err := m.WriteAt(3, pattern(p[:x.n], 3, uint64(x.off), gen), uint64(x.off)); err != nil {
			t.Fatal(err)
		}
		s.fence(t)
		if !bytes.Equal(mem[x.off:x.off+x.n], p[:x.n]) {
			t.Errorf("%d bytes at %d were not written", x.n, x.off)
		}
	}
	for name, err := range map[string]error{
		"read beyond":        m.ReadAt(3, p[:2], big-1),
		"read far beyond":    m.ReadAt(3, p[:2], 1<<63),
		"read around":        m.ReadAt(3, p[:2], ^uint64(0)),
		"write beyond":       m.WriteAt(3, p[:2], big-1),
		"write around":       m.WriteAt(3, p[:2], ^uint64(0)),
		"read beyond 0":      m.ReadAt(0, p[:2], remote.Region0Size-1),
		"read of more":       m.ReadAt(3, make([]byte, big+1), 0),
		"write of much more": m.WriteAt(3, make([]byte, 2*big), 0),
	} {
		if !errors.Is(err, remote.ErrOutOfBounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{"read": m.ReadAt(4, p[:1], 0), "write": m.WriteAt(4, p[:1], 0)} {
		if !errors.Is(err, remote.ErrUnknownRegion) {
			t.Errorf("%s of no region: %v", name, err)
		}
	}
	// Region 0 can be read: what callbacks have done stands there.
	copy(s.Mem[remote.SlotsOffset+100:], "done")
	if err := m.ReadAt(0, p[:4], remote.SlotsOffset+100); err != nil || string(p[:4]) != "done" {
		t.Errorf("region 0 holds %q, %v", p[:4], err)
	}
	s.fence(t)
}

// testOrder: bytes are there when a word or a reply says so.
func testOrder(t *testing.T, s *session) {
	const size = 1 << 20
	mem, p := s.declare(t, 8, size), make([]byte, size)
	for round := range 20 {
		if err := s.Append(s.record(2, 32)); err != nil {
			t.Fatal(err)
		}
		in := s.consume(t)
		for i := range p {
			p[i] = byte(round)
		}
		if err := s.Memory().WriteAt(8, p, 0); err != nil {
			t.Fatal(err)
		}
		s.Carrier.Ring().Complete(4, uint32(round))
		s.reply(remote.Outgoing{Slot: 2, Seq: in.Seq})
		if err := s.Await(2, in.Seq); err != nil {
			t.Fatal(err)
		}
		if s.Word(4) != uint32(round) || !bytes.Equal(mem, p) {
			t.Fatalf("round %d: word %d, bytes %d and %d", round, s.Word(4), mem[0], mem[size-1])
		}
	}
}

// testRegions: regions come, go, and come again under the same number with other memory; one that
// nobody declares is waited for in vain.
func testRegions(t *testing.T, s *session) {
	m := s.Memory()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Await(ctx, 5); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Errorf("a region that is not declared: %v", err)
	}
	for gen := range 20 {
		size := 4096 * (1 + gen)
		mem := s.declare(t, 5, size)
		pattern(mem, 5, 0, byte(gen))
		p := make([]byte, size)
		if err := m.ReadAt(5, p, 0); err != nil || !bytes.Equal(p, mem) {
			t.Fatalf("generation %d: %v", gen, err)
		}
		s.fence(t)
		if x, ok := m.(remote.Mapper); ok {
			if err := x.Unmap(5); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.EndRegion(5); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(Limit); ; time.Sleep(time.Millisecond) {
			// Word of it travels beside the ring.
			if _, err := m.Await(ctx, 5); errors.Is(err, remote.ErrUnknownRegion) {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the region stays")
			}
		}
		if err := m.ReadAt(5, p[:1], 0); !errors.Is(err, remote.ErrUnknownRegion) {
			t.Fatalf("a region that ended: %v", err)
		}
	}
}

// testCrowd: copies both ways and calls at once, from many goroutines.
func testCrowd(t *testing.T, s *session) {
	const regions, rounds, size = 4, 8, 1 << 20
	m := s.Memory()
	var wg sync.WaitGroup
	for id := uint32(1); id <= regions; id++ {
		mem := s.declare(t, id, 2*size)
		pattern(mem[:size], id, 0, 0)
		wg.Go(func() {
			p, want := make([]byte, size), pattern(make([]byte, size), id, 0, 0)
			for range rounds {
				if err := m.ReadAt(id, p, 0); err != nil || !bytes.Equal(p, want) {
					t.Errorf("region %d: other bytes, %v", id, err)
				}
			}
		})
		wg.Go(func() {
			p := pattern(make([]byte, size), id, 0, 9)
			for range rounds {
				if err := m.WriteAt(id, p, size); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		s.fence(t)
	}
	wg.Wait()
	s.fence(t)
}
