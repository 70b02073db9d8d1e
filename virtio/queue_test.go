package virtio_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ram makes guest RAM of size bytes at gpa and adds it to mem.
func ram(t testing.TB, mem *vhostuser.Memory, gpa, size uint64) *vhosttest.Memory {
	t.Helper()
	g, err := vhosttest.NewMemory(gpa, size)
	must(t, err)
	fd, err := g.DupFD()
	must(t, err)
	must(t, mem.Add(fd, gpa, size, g.User, 0))
	t.Cleanup(func() {
		mem.Clear()
		g.Close()
	})
	return g
}

func newQueue(t testing.TB, size int, o virtiotest.Options) (*virtio.Queue, *virtiotest.Driver, *vhostuser.Memory) {
	t.Helper()
	mem := vhostuser.NewMemory()
	d := virtiotest.NewDriver(ram(t, mem, 0x100000, 8<<20), size, o)
	q, err := virtio.NewQueue(mem, d.Config())
	must(t, err)
	t.Cleanup(func() { q.Stop(0) })
	return q, d, mem
}

func allOptions(t *testing.T, f func(t *testing.T, o virtiotest.Options)) {
	for name, o := range map[string]virtiotest.Options{"plain": {}, "indirect": {Indirect: true}, "event": {EventIdx: true},
		"both": {Indirect: true, EventIdx: true}} {
		t.Run(name, func(t *testing.T) { f(t, o) })
	}
}

func TestRoundTrip(t *testing.T) {
	allOptions(t, func(t *testing.T, o virtiotest.Options) {
		q, d, _ := newQueue(t, 8, o)
		in, out := d.Alloc(100), d.Alloc(5000)
		copy(in.Bytes, "question")
		for i := 0; i < 70000; i += 1 + 997*(i/100) { // past the wrap of 16-bit indexes
			head, err := d.Add([]virtiotest.Buffer{in}, []virtiotest.Buffer{out})
			must(t, err)
			c, err := q.Pop()
			must(t, err)
			var b [100]byte
			if n := c.ReadAt(b[:], 0); n != 100 || !strings.HasPrefix(string(b[:]), "question") {
				t.Fatalf("readable: %d bytes %q", n, b[:8])
			}
			if c.WritableLen() != 5000 || c.Writable[0].GPA != out.GPA || c.Readable[0].GPA != in.GPA {
				t.Fatalf("segments %v %v", c.Readable, c.Writable)
			}
			if n := c.WriteAt([]byte("answer"), 4998); n != 2 {
				t.Fatalf("wrote %d bytes past the end", n)
			}
			c.WriteAt([]byte("answer"), 0)
			c.Complete(6)
			u, ok := d.Poll()
			if !ok || u.Head != head || u.Len != 6 || string(out.Bytes[:6]) != "answer" {
				t.Fatalf("used %+v %v", u, ok)
			}
			if _, ok := d.Poll(); ok {
				t.Fatal("a second used entry")
			}
		}
		if c, err := q.Pop(); c != nil || err != nil {
			t.Errorf("Pop of an empty ring = %v, %v", c, err)
		}
	})
}

func TestSegments(t *testing.T) {
	allOptions(t, func(t *testing.T, o virtiotest.Options) {
		mem := vhostuser.NewMemory()
		g := ram(t, mem, 0x100000, 1<<20)
		next := ram(t, mem, 0x200000, 1<<20) // adjacent in guest memory, not here
		d := virtiotest.NewDriver(g, 16, o)
		q, err := virtio.NewQueue(mem, d.Config())
		must(t, err)
		defer q.Stop(0)
		at := func(m *vhosttest.Memory, gpa, n uint64) virtiotest.Buffer {
			return virtiotest.Buffer{GPA: gpa, Bytes: m.At(gpa, n)}
		}
		_, err = d.Add([]virtiotest.Buffer{at(g, 0x180000, 4096), at(g, 0x181000, 4096), at(g, 0x190000, 10)},
			[]virtiotest.Buffer{{GPA: 0x1ff000, Bytes: make([]byte, 8192)}, at(next, 0x201000, 1)})
		must(t, err)
		c, err := q.Pop()
		must(t, err)
		var got []virtio.Range
		for _, s := range append(c.Readable, c.Writable...) {
			got = append(got, virtio.Range{GPA: s.GPA, Len: uint32(len(s.Data))})
		}
		want := []virtio.Range{{0x180000, 8192}, {0x190000, 10}, {0x1ff000, 4096}, {0x200000, 4097}}
		if len(got) != len(want) {
			t.Fatalf("ranges %x, not %x", got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("ranges %x, not %x", got, want)
			}
		}
		msg := bytes.Repeat([]byte("0123456789"), 500)
		if n := c.WriteAt(msg, 10); n != 5000 {
			t.Fatalf("wrote %d", n)
		}
		if string(g.Bytes[0xff000+10:0x100000])+string(next.Bytes[:5000-4086]) != string(msg) {
			t.Error("the write did not land across both regions")
		}
		s := virtio.Slice(nil, c.Writable, 4000, 200)
		if len(s) != 2 || s[0].GPA != 0x1ff000+4000 || len(s[0].Data) != 96 || s[1].GPA != 0x200000 || len(s[1].Data) != 104 {
			t.Errorf("Slice = %+v", s)
		}
		c.Complete(0)
	})
}

func TestOutOfOrderFromManyGoroutines(t *testing.T) {
	q, d, _ := newQueue(t, 256, virtiotest.Options{Indirect: true, EventIdx: true})
	buf := d.Alloc(64)
	var wg sync.WaitGroup
	pending := map[uint16]bool{}
	for round := 0; round < 50; round++ {
		var chains []*virtio.Chain
		for i := 0; i < 200; i++ {
			head, err := d.Add(nil, []virtiotest.Buffer{buf})
			must(t, err)
			pending[head] = true
			c, err := q.Pop()
			must(t, err)
			chains = append(chains, c)
		}
		rand.Shuffle(len(chains), func(i, j int) { chains[i], chains[j] = chains[j], chains[i] })
		for i := 0; i < 4; i++ {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for _, c := range chains[i*50 : (i+1)*50] {
					c.Complete(7)
				}
			}()
		}
		wg.Wait()
		for range chains {
			u, ok := d.Poll()
			if !ok || !pending[u.Head] || u.Len != 7 {
				t.Fatalf("used %+v %v", u, ok)
			}
			delete(pending, u.Head)
		}
	}
}

func TestNotification(t *testing.T) {
	call, err := vhosttest.NewEvent()
	must(t, err)
	defer call.Close()
	newWithCall := func(t *testing.T, o virtiotest.Options) (*virtio.Queue, *virtiotest.Driver) {
		q, d, _ := newQueue(t, 8, o)
		c := d.Config()
		e, err := vhostuser.DupEventFD(call.FD(), "call")
		must(t, err)
		t.Cleanup(e.Close)
		c.Call = e
		q.Update(c)
		call.Wait(0)
		return q, d
	}
	step := func(t *testing.T, q *virtio.Queue, d *virtiotest.Driver) bool {
		_, err := d.Add(nil, []virtiotest.Buffer{{GPA: 0x180000, Bytes: make([]byte, 1)}})
		must(t, err)
		c, err := q.Pop()
		must(t, err)
		c.Complete(0)
		return call.Wait(0)
	}
	t.Run("flags", func(t *testing.T) {
		q, d := newWithCall(t, virtiotest.Options{})
		if !step(t, q, d) {
			t.Error("no interrupt")
		}
		d.SetAvailFlags(1)
		if step(t, q, d) {
			t.Error("an interrupt that the driver refused")
		}
		q.DisableKicks()
		if d.UsedFlags() != 1 || d.NeedKick() {
			t.Error("kicks stay on")
		}
		if q.EnableKicks() || d.UsedFlags() != 0 || !d.NeedKick() {
			t.Error("kicks stay off")
		}
		d.Offer(0)
		if !q.EnableKicks() {
			t.Error("an entry was missed")
		}
	})
	t.Run("event index", func(t *testing.T) {
		q, d := newWithCall(t, virtiotest.Options{EventIdx: true})
		d.SetUsedEvent(2) // interrupt when the used index passes 2
		for i, want := range []bool{false, false, true, false} {
			if got := step(t, q, d); got != want {
				t.Errorf("completion %d: interrupt %v", i, got)
			}
		}
		if q.EnableKicks() || d.AvailEvent() != 4 {
			t.Errorf("avail_event is %d", d.AvailEvent())
		}
		d.NeedKick() // what was added before counts as told
		d.Offer(0)
		if !d.NeedKick() {
			t.Error("no kick for the awaited entry")
		}
		d.Offer(0)
		if d.NeedKick() {
			t.Error("a kick for an entry beyond avail_event")
		}
		if !q.EnableKicks() {
			t.Error("an entry was missed")
		}
	})
}

func TestUsedRingIsLogged(t *testing.T) {
	mem := vhostuser.NewMemory()
	g := ram(t, mem, 0, 8<<20)
	d := virtiotest.NewDriver(g, 8, virtiotest.Options{EventIdx: true})
	log := vhosttestLog(t, mem)
	c := d.Config()
	c.LogUsed, c.LogAddr = true, 0x300000
	q, err := virtio.NewQueue(mem, c)
	must(t, err)
	defer q.Stop(0)
	buf := virtiotest.Buffer{GPA: 0x400ffe, Bytes: make([]byte, 5000)}
	_, err = d.Add(nil, []virtiotest.Buffer{buf})
	must(t, err)
	ch, err := q.Pop()
	must(t, err)
	if log() != "" {
		t.Errorf("dirty before any write: %s", log())
	}
	ch.Complete(3)
	if got := log(); got != "300 400 401" {
		t.Errorf("dirty pages %q", got)
	}
}

// Its limit elapses by a clock of its own.
func TestStop(t *testing.T) { synctest.Test(t, testStop) }

func testStop(t *testing.T) {
	q, d, mem := newQueue(t, 8, virtiotest.Options{})
	buf := d.Alloc(16)
	for i := 0; i < 3; i++ {
		_, err := d.Add(nil, []virtiotest.Buffer{buf})
		must(t, err)
	}
	var cs []*virtio.Chain
	for i := 0; i < 2; i++ {
		c, err := q.Pop()
		must(t, err)
		cs = append(cs, c)
	}
	go func() {
		time.Sleep(10 * time.Millisecond)
		cs[0].Complete(1)
	}()
	if lost := q.Stop(50 * time.Millisecond); lost != 1 {
		t.Errorf("%d chains lost", lost)
	}
	if q.Next() != 2 {
		t.Errorf("next is %d", q.Next())
	}
	used := d.UsedIdx()
	mem.Clear()
	copy(cs[1].Writable[0].Data, "x") // still pinned
	cs[1].Complete(1)
	if used != 1 || d.UsedIdx() != 1 {
		t.Errorf("used index %d, then %d: a late completion reached the guest", used, d.UsedIdx())
	}
}

func TestPopDoesNotAllocate(t *testing.T) {
	q, d, _ := newQueue(t, 256, virtiotest.Options{})
	var addr [16]byte
	binary.LittleEndian.PutUint64(addr[:], 0x180000)
	d.PutDesc(d.Desc, 0, 0x180000, 4096, virtiotest.Next, 1)
	d.PutDesc(d.Desc, 1, 0x190000, 4096, virtiotest.Write, 0)
	if n := testing.AllocsPerRun(1000, func() {
		d.Offer(0)
		c, err := q.Pop()
		if err != nil || c == nil {
			t.Fatal(err)
		}
		c.Complete(1)
	}); n != 0 {
		t.Errorf("%v allocations per chain", n)
	}
}

func BenchmarkChain(b *testing.B) {
	q, d, _ := newQueue(b, 256, virtiotest.Options{})
	d.PutDesc(d.Desc, 0, 0x180000, 4096, virtiotest.Next, 1)
	d.PutDesc(d.Desc, 1, 0x190000, 4096, virtiotest.Write, 0)
	b.ReportAllocs()
	for b.Loop() {
		d.Offer(0)
		c, err := q.Pop()
		if err != nil {
			b.Fatal(err)
		}
		c.Complete(1)
	}
}
