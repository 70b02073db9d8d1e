package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

func region0(t testing.TB) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, int(remote.Region0Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func newTestRing(t testing.TB, head uint64) (*Ring, []byte) {
	t.Helper()
	mem := region0(t)
	r, err := NewRing(mem, head)
	if err != nil {
		t.Fatal(err)
	}
	return r, mem
}

// put writes a record header at a position of the ring.
func put(mem []byte, pos uint64, h remote.Record) {
	b := mem[remote.RingOffset+pos%remote.RingSize:]
	binary.LittleEndian.PutUint32(b, h.Size)
	binary.LittleEndian.PutUint16(b[4:], h.Op)
	binary.LittleEndian.PutUint16(b[6:], h.Flags)
	binary.LittleEndian.PutUint32(b[8:], h.Slot)
	binary.LittleEndian.PutUint32(b[12:], h.Seq)
	binary.LittleEndian.PutUint32(b[16:], h.Ctx)
	binary.LittleEndian.PutUint32(b[20:], h.Thread)
}

func TestRingRules(t *testing.T) {
	const start = remote.RingSize - 64 // two records from the end
	for name, c := range map[string]struct {
		tail uint64
		size uint32
		want int // records, -1: violation
	}{
		"empty":                {start, 0, 0},
		"one":                  {start + 32, 32, 1},
		"two":                  {start + 64, 32, 2},
		"to the end":           {start + 64, 64, 1},
		"beyond the end":       {start + 96, 96, -1},
		"beyond tail":          {start + 32, 64, -1},
		"below header":         {start + 32, 24, -1},
		"odd size":             {start + 64, 36, -1},
		"no size":              {start + 32, 0, -1},
		"huge size":            {start + 32, 0xfffffff8, -1},
		"tail behind head":     {start - 32, 32, -1},
		"tail far ahead":       {start + remote.RingSize + 8, 32, -1},
		"tail within a record": {start + 8, 32, -1},
		"odd tail":             {start + 33, 32, -1},
	} {
		r, mem := newTestRing(t, start)
		for pos := uint64(start); pos < start+64; pos += 32 {
			put(mem, pos, remote.Record{Size: c.size, Op: 5, Slot: 1, Seq: 2, Ctx: 3, Thread: 4})
		}
		r.Publish(c.tail)
		got := 0
		for {
			var in remote.Incoming
			ok, err := r.Next(&in)
			if err != nil {
				if !errors.Is(err, remote.ErrProtocol) {
					t.Errorf("%s: %v", name, err)
				}
				if got != 0 {
					t.Errorf("%s: %d records ahead of what breaks a rule", name, got)
				}
				got = -1
			}
			if !ok {
				break
			}
			if in.Op != 5 || in.Slot != 1 || in.Seq != 2 || in.Ctx != 3 || in.Thread != 4 || len(in.Bytes) != int(c.size) {
				t.Errorf("%s: %+v", name, in)
			}
			got++
			r.Advance()
		}
		if got != c.want {
			t.Errorf("%s: %d records, want %d", name, got, c.want)
		}
	}
}

// TestPoll: who looks for records sees what is there already without a look, what comes at the
// first look behind it, and gives up after so many; and looks at the producer's word alone.
func TestPoll(t *testing.T) {
	r, mem := newTestRing(t, 0)
	for n := range 3 {
		if r.Poll(n) {
			t.Errorf("%d looks at an empty ring see something", n)
		}
	}
	seen := make(chan bool)
	go func() { seen <- r.Poll(1 << 62) }() // which ends with what comes alone
	for pos := uint64(0); pos < 64; pos += 32 {
		put(mem, pos, remote.Record{Size: 32})
	}
	r.Publish(64)
	if !<-seen {
		t.Error("what came was not seen")
	}
	var in remote.Incoming
	for n := range 2 { // what is known is there, whatever the word says now
		if !r.Poll(0) {
			t.Errorf("record %d is not seen", n)
		}
		if ok, err := r.Next(&in); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if n == 0 {
			r.Publish(32)
		}
		r.Advance()
	}
	r.Publish(64)
	if r.Poll(5) {
		t.Error("all is read, and something is seen")
	}
}

// TestLessThanAHeader: what lies between head and tail and has no room for a header is no record,
// whatever lies behind it: that is not looked at.
func TestLessThanAHeader(t *testing.T) {
	for _, head := range []uint64{0, remote.RingSize - 32, 5*remote.RingSize - 8} {
		for n := uint64(8); n < 32; n += 8 {
			r, mem := newTestRing(t, head)
			put(mem, head&^31, remote.Record{Size: 32})
			r.Publish(head + n)
			var in remote.Incoming
			if ok, err := r.Next(&in); ok || !errors.Is(err, remote.ErrProtocol) || !strings.Contains(err.Error(), "are no record") {
				t.Errorf("%d bytes at %d: %v, %v", n, head, ok, err)
			}
		}
	}
}

func TestReply(t *testing.T) {
	r, mem := newTestRing(t, 0)
	w := r.waitWord(3)
	w.Store(1)
	payload := []byte("answer")
	if !r.Reply(&remote.Outgoing{Slot: 3, Seq: 9, Result: 7, Payload: payload, Total: 100}) {
		t.Error("sleeping thread is not to be woken")
	}
	if r.Reply(&remote.Outgoing{Slot: 3, Seq: 10}) {
		t.Error("thread is to be woken twice")
	}
	behind := bytes.Clone(mem[uint64(remote.SlotsOffset)+uint64(remote.SlotCount)*uint64(remote.SlotSize):])
	if r.Reply(&remote.Outgoing{Slot: remote.SlotCount, Seq: 1, Result: 1, Payload: payload}) || !bytes.Equal(behind, mem[len(mem)-len(behind):]) {
		t.Error("slot that does not exist")
	}
	s := mem[remote.SlotsOffset+3*uint64(remote.SlotSize):]
	if binary.LittleEndian.Uint32(s) != 10 || w.Load() != 0 {
		t.Errorf("seq_done %d, waiting %d", binary.LittleEndian.Uint32(s), w.Load())
	}
	if string(s[64:70]) != "answer" {
		t.Errorf("payload %q", s[64:70])
	}
	behind = bytes.Clone(mem)
	r.Complete(remote.WordCount, 1)
	if !bytes.Equal(behind, mem) {
		t.Error("a completion word that does not exist")
	}
	r.Complete(5, 77)
	if got := binary.LittleEndian.Uint32(mem[remote.WordsOffset+20:]); got != 77 {
		t.Errorf("completion word %d", got)
	}
}

// TestWordsOfTheRing: what a consumer says besides replies stands where the guest looks for it, and
// of a slot that does not exist nothing does.
func TestWordsOfTheRing(t *testing.T) {
	r, mem := newTestRing(t, 0)
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(mem[at:]) }
	r.SetSticky(700)
	r.SetConsole(5)
	r.SetState(remote.WorkerSleeping)
	if word(remote.ControlPageStickyOffset) != 700 || word(remote.ControlPageConsoleOffset) != 5 || word(remote.ControlPageWorkerStateOffset) != remote.WorkerSleeping {
		t.Errorf("sticky %d, console %d, state %d", word(remote.ControlPageStickyOffset), word(remote.ControlPageConsoleOffset), word(remote.ControlPageWorkerStateOffset))
	}
	if r.waitWord(remote.SlotCount) != r.spaceWaits || r.waitWord(remote.SlotCount-1) == r.spaceWaits {
		t.Error("who waits for space sleeps on a slot, or the other way round")
	}
	for slot, ok := range map[uint32]bool{0: true, remote.SlotCount - 1: true, remote.SlotCount: false, 1 << 31: false} {
		want := uintptr(0)
		if ok {
			want = uintptr(unsafe.Pointer(&mem[remote.SlotsOffset+uint64(slot)*uint64(remote.SlotSize)+remote.SlotGpuDoneOffset]))
		}
		if at, got := r.GPUDone(slot); got != ok || at != want {
			t.Errorf("slot %d: %#x, %v, want %#x", slot, at, got, want)
		}
	}
}

// FuzzRing: whatever stands in the ring, records lie within it and the consumer ends.
func FuzzRing(f *testing.F) {
	good := make([]byte, 64)
	binary.LittleEndian.PutUint32(good, 64)
	f.Add(uint64(0), uint64(64), good)
	f.Add(uint64(remote.RingSize-32), uint64(remote.RingSize+32), good)
	f.Add(uint64(1<<40), uint64(1<<40+64), good)
	f.Add(^uint64(63), uint64(64), good)
	r0, mem := newTestRing(f, 0)
	f.Fuzz(func(t *testing.T, head, tail uint64, b []byte) {
		head &^= 7
		*r0 = *must(NewRing(mem, head))
		for i := range b {
			mem[remote.RingOffset+(head+uint64(i))%remote.RingSize] = b[i]
		}
		r0.Publish(tail)
		for range remote.RingSize/32 + 1 {
			var in remote.Incoming
			ok, err := r0.Next(&in)
			if err != nil && !errors.Is(err, remote.ErrProtocol) {
				t.Fatal(err)
			}
			if !ok {
				return
			}
			if len(in.Bytes) < 32 || len(in.Bytes)%8 != 0 || uint64(len(in.Bytes)) > remote.RingSize {
				t.Fatalf("record of %d bytes", len(in.Bytes))
			}
			r0.Advance()
		}
		t.Fatal("more records than fit the ring")
	})
}

func must(r *Ring, err error) *Ring {
	if err != nil {
		panic(err)
	}
	return r
}
