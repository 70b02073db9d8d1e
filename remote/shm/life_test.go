package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// TestRingByChance has a producer of any records and a consumer take turns by chance, over several
// turns of the ring. What the producer is told lags behind by a bounded amount, is all there is
// when the ring is drained, and wakes who waits for space once, when there is some.
func TestRingByChance(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		start := remote.RingSize*seed - 8*seed*4
		ring, mem := newTestRing(t, start)
		ring.Publish(start)
		ring.headWord.Store(start)
		var sizes []uint64 // of records that are not consumed
		tail, head := start, start
		waits, woken := false, 0
		for range 3000 {
			if r.IntN(2) == 0 {
				size := uint64(32 + 8*r.IntN(4000))
				left := remote.RingSize - tail%remote.RingSize
				if size > left || left-size > 0 && left-size < 32 {
					size = left // as a producer pads
				}
				if tail+size-ring.headWord.Load() > remote.RingSize {
					ring.spaceWaits.Store(1)
					waits = true
				} else {
					put(mem, tail, remote.Record{Size: uint32(size), Op: uint16(len(sizes))})
					sizes = append(sizes, size)
					tail += size
					ring.Publish(tail)
				}
			}
			if r.IntN(2) == 0 && !waits {
				continue
			}
			if got := ring.Poll(0); got != (len(sizes) > 0) {
				t.Fatalf("seed %d: poll says %v with %d records", seed, got, len(sizes))
			}
			var in remote.Incoming
			ok, err := ring.Next(&in)
			if err != nil || ok != (len(sizes) > 0) {
				t.Fatalf("seed %d: %v, %v with %d records", seed, ok, err, len(sizes))
			}
			if !ok {
				continue
			}
			if uint64(len(in.Bytes)) != sizes[0] {
				t.Fatalf("seed %d: a record of %d bytes, put were %d", seed, len(in.Bytes), sizes[0])
			}
			before, known := ring.headWord.Load(), ring.tail
			wake := ring.Advance()
			head += sizes[0]
			sizes = sizes[1:]
			said := ring.headWord.Load()
			if ring.Head() != head || said > head || head-said >= headStep {
				t.Fatalf("seed %d: head %d, told %d, consumed %d", seed, ring.Head(), said, head)
			}
			if head != known && head-before < headStep && said != before {
				t.Fatalf("seed %d: told of %d while more is known, after %d", seed, head, before)
			}
			if len(sizes) == 0 && said != head {
				t.Fatalf("seed %d: the ring is drained to %d, the producer was told %d", seed, head, said)
			}
			room := tail-said <= remote.RingSize/4*3
			if wake {
				woken++
			}
			if wake && (!waits || !room) {
				t.Fatalf("seed %d: woken with %d bytes in the ring, waits %v", seed, tail-said, waits)
			}
			if waits && len(sizes) == 0 && !wake {
				t.Fatalf("seed %d: who waits for space sleeps beside an empty ring", seed)
			}
			if wake {
				waits = false
			}
		}
		if woken == 0 {
			t.Errorf("seed %d: nobody ever waited for space", seed)
		}
	}
}

// TestTailTooFar: a ring holds no more than its size, whatever stands in it, and consuming needs a
// record.
func TestTailTooFar(t *testing.T) {
	for _, head := range []uint64{0, 96, 7 * remote.RingSize} {
		for ahead, ok := range map[uint64]bool{32: true, remote.RingSize: true, remote.RingSize + 8: false, 2 * remote.RingSize: false, 1 << 63: false} {
			r, mem := newTestRing(t, head)
			for pos := uint64(0); pos < remote.RingSize; pos += 32 {
				put(mem, pos, remote.Record{Size: 32, Op: 1})
			}
			if r.Advance(); r.Head() != head {
				t.Fatal("consumed what was not delivered")
			}
			r.Publish(head + ahead)
			var in remote.Incoming
			got, err := r.Next(&in)
			if got != ok || ok != (err == nil) {
				t.Errorf("tail %d ahead of %d: %v, %v", ahead, head, got, err)
			}
			if ok {
				r.Advance()
				if r.Advance(); r.Head() != head+32 {
					t.Errorf("one record consumed twice: head %d", r.Head())
				}
			}
		}
	}
}

// TestSleepersAreWokenOnce: of a slot that the GPU answered, of a reply, and of space.
func TestSleepersAreWokenOnce(t *testing.T) {
	r, _ := newTestRing(t, 0)
	for slot := range remote.SlotCount {
		if r.Sleeps(slot) {
			t.Errorf("slot %d sleeps", slot)
		}
		r.waitWord(slot).Store(1)
		if !r.Sleeps(slot) || r.Sleeps(slot) {
			t.Errorf("slot %d is not woken once", slot)
		}
	}
	r.spaceWaits.Store(1) // which waitWord has behind the last slot
	if r.Sleeps(remote.SlotCount) || r.spaceWaits.Swap(0) != 1 {
		t.Error("who waits for space is taken for one who waits for a slot that does not exist, and is forgotten")
	}
	if r.Publish(32) {
		t.Error("a consumer that polls is to be rung")
	}
	r.SetState(remote.WorkerSleeping)
	if !r.Publish(64) {
		t.Error("a consumer that sleeps is not to be rung")
	}
}

// reachable reports whether memory can be read, without the signal that a look would raise.
func reachable(mem []byte) bool {
	b := make([]byte, 1)
	local := []unix.Iovec{{Base: &b[0], Len: 1}}
	at := []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&mem[0])), Len: 1}}
	n, err := unix.ProcessVMReadv(os.Getpid(), local, at, 0)
	return err == nil && n == 1
}

// TestDetachedMemoryStaysAway: while memory is detached no page is reachable, whatever is told of
// it meanwhile: other pages, new regions, first mappings.
func TestDetachedMemoryStaysAway(t *testing.T) {
	m := NewMemory()
	defer m.Close()
	fd := testFile(t, 6)
	run := func(page int64) []Run { return []Run{{FD: fd, Offset: page * pageSize, Size: pageSize}} }
	declare := func(id uint32, page int64) {
		t.Helper()
		if err := errors.Join(m.Declare(id, remote.Declared{Size: pageSize}, nil), m.SetRuns(id, run(page))); err != nil {
			t.Fatal(err)
		}
	}
	mapped := func(id uint32) []byte {
		t.Helper()
		mem, err := m.Map(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		return mem
	}
	declare(1, 0)
	declare(2, 1)
	one := mapped(1)
	if !reachable(one) {
		t.Fatal("mapped memory is not reachable")
	}
	if err := m.Detach(); err != nil {
		t.Fatal(err)
	}
	away := func(when string, mems ...[]byte) {
		t.Helper()
		for i, mem := range mems {
			if reachable(mem) {
				t.Errorf("%s: region %d is reachable", when, i+1)
			}
		}
	}
	away("detached", one)
	if err := m.SetRuns(1, run(2)); err != nil {
		t.Fatal(err)
	}
	away("with other pages", one)
	two := mapped(2)
	declare(3, 3)
	three := mapped(3)
	away("mapped meanwhile", one, two, three)
	for id := range uint32(3) {
		if err := m.WriteAt(id+1, []byte("x"), 0); !errors.Is(err, remote.ErrClosed) {
			t.Errorf("write to region %d: %v", id+1, err)
		}
	}
	if err := m.Attach(); err != nil {
		t.Fatal(err)
	}
	if got := string([]byte{one[0], two[0], three[0]}); got != "cbd" {
		t.Errorf("pages %q, want %q", got, "cbd")
	}
	if err := m.SetRuns(1, run(4)); err != nil { // attached: in place
		t.Fatal(err)
	}
	if one[0] != 'e' {
		t.Errorf("page %q", one[0])
	}
	if err := m.Unmap(2); err != nil {
		t.Fatal(err)
	}
	away("unmapped", two)
	if err := m.End(2); err != nil {
		t.Fatal(err)
	}
	declare(2, 5)
	if two = mapped(2); two[0] != 'f' {
		t.Errorf("page %q", two[0])
	}
}

// TestEndsOfRegions: what came with a region is given back once, when it ends and not before, also
// by Close.
func TestEndsOfRegions(t *testing.T) {
	m := NewMemory()
	fd := testFile(t, 1)
	var ended []string
	for id := range uint32(3) {
		err := m.Declare(id, remote.Declared{Size: pageSize}, func() error {
			ended = append(ended, fmt.Sprint(id))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := m.SetRuns(1, []Run{{fd, 0, pageSize}}); err != nil {
		t.Fatal(err)
	}
	mem, err := m.Map(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.End(1); err == nil || len(ended) != 0 {
		t.Errorf("end of what is mapped: %v, %v", err, ended)
	}
	if err := m.End(0); err != nil || strings.Join(ended, "") != "0" {
		t.Errorf("%v, %v", err, ended)
	}
	if err := m.End(0); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Errorf("ended twice: %v", err)
	}
	if err := m.Close(); err != nil || len(ended) != 3 {
		t.Errorf("%v, %v", err, ended)
	}
	if reachable(mem) {
		t.Error("closed memory is reachable")
	}
}

// TestRegionsAreBounded: as many regions as there may be, and again after some have ended.
func TestRegionsAreBounded(t *testing.T) {
	m := NewMemory()
	declare := func(id int) error { return m.Declare(uint32(id), remote.Declared{Size: pageSize}, nil) }
	for id := range MaxRegions {
		if err := declare(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := declare(MaxRegions); !errors.Is(err, remote.ErrProtocol) {
		t.Errorf("one too many: %v", err)
	}
	if err := errors.Join(m.End(7), declare(MaxRegions), m.Close()); err != nil {
		t.Error(err)
	}
}

// TestAttachWithoutPages: a region that was mapped while memory was away, and of which no pages
// came, is not there when memory comes back.
func TestAttachWithoutPages(t *testing.T) {
	for _, comes := range []bool{false, true} {
		m := NewMemory()
		if err := errors.Join(m.Detach(), m.Declare(1, remote.Declared{Size: pageSize}, nil)); err != nil {
			t.Fatal(err)
		}
		mem, err := m.Map(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if comes {
			if err := m.SetRuns(1, []Run{{FD: testFile(t, 1), Size: pageSize}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Attach(); errors.Is(err, remote.ErrUnknownRegion) == comes || (err == nil) != comes || reachable(mem) != comes {
			t.Errorf("pages came: %v, reachable: %v; %v", comes, reachable(mem), err)
		}
		_ = m.Close()
	}
}
