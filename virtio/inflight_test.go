package virtio

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio/virtiotest"
)

// TestResume: whoever takes a queue over gets each chain that was in flight once, then those that
// nobody has taken, at whatever moment the process before it died.
func TestResume(t *testing.T) {
	shared, err := unix.Mmap(-1, 0, InFlightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewInFlight(shared[4:]); err == nil {
		t.Error("memory that is too short is accepted")
	}
	f, err := NewInFlight(shared)
	if err != nil {
		t.Fatal(err)
	}
	mem := vhostuser.NewMemory()
	ram, err := vhosttest.NewMemory(0x100000, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := ram.DupFD()
	if err == nil {
		err = mem.Add(fd, 0x100000, 8<<20, ram.User, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	defer mem.Clear()
	const size = 64
	d := virtiotest.NewDriver(ram, size, virtiotest.Options{Indirect: true, EventIdx: true})
	in, out := d.Alloc(16), d.Alloc(16)
	queue := func() *Queue {
		q, err := NewQueue(mem, d.Config())
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	if left := queue().Resume(f); left != nil {
		t.Errorf("%d chains of a queue that never ran", len(left))
	}
	r := rand.New(rand.NewPCG(1, 2))
	q := queue()
	q.Track(f)
	waiting := map[uint16]bool{} // heads that the driver waits for
	taken := []*Chain{}
	reap := func() {
		for u, ok := d.Poll(); ok; u, ok = d.Poll() {
			if !waiting[u.Head] {
				t.Fatalf("head %d is answered twice", u.Head)
			}
			delete(waiting, u.Head)
		}
	}
	for death := range 300 {
		for range r.IntN(200) {
			switch k := r.IntN(3); {
			case k == 0 && len(waiting) < size/2:
				head, err := d.Add([]virtiotest.Buffer{in}, []virtiotest.Buffer{out})
				if err != nil {
					t.Fatal(err)
				}
				waiting[head] = true
			case k == 1:
				c, err := q.Pop()
				if err != nil {
					t.Fatal(err)
				}
				if c != nil {
					taken = append(taken, c)
				}
			case k == 2 && len(taken) > 0:
				i := r.IntN(len(taken))
				taken[i].Complete(0)
				taken[i] = taken[len(taken)-1]
				taken = taken[:len(taken)-1]
				reap()
			}
		}
		var last *Chain
		switch death % 4 {
		case 1: // it has noted a head, not that it took the entry
			if c, err := q.Pop(); err == nil && c != nil {
				taken = append(taken, c)
				f.advance(q.next - 1)
			}
		case 2: // it has published a completion, not that the chain is no more in flight
			if len(taken) > 0 {
				last, taken = taken[0], taken[1:]
				head := last.head
				last.Complete(0)
				f.take(head)
				f.finish(head, q.used)
			}
		case 3: // it was about to publish a completion
			if len(taken) > 0 {
				f.finish(taken[0].head, q.used+1)
			}
		}
		want := maps.Clone(waiting)
		if last != nil {
			reap()
			want = maps.Clone(waiting)
		}
		taken = taken[:0] // they died with it
		q = queue()
		left := q.Resume(f)
		for {
			c, err := q.Pop()
			if err != nil {
				t.Fatal(err)
			}
			if c == nil {
				break
			}
			left = append(left, c)
		}
		for _, c := range left {
			if !want[c.head] {
				t.Fatalf("death %d: head %d, which nobody waits for or which came before", death, c.head)
			}
			delete(want, c.head)
			c.Complete(0)
		}
		if reap(); len(want) > 0 || len(waiting) > 0 {
			t.Fatalf("death %d: nobody answers %v", death, want)
		}
		cfg := d.Config()
		cfg.Base = q.Next()
		if q, err = NewQueue(mem, cfg); err != nil {
			t.Fatal(err)
		}
		q.Track(f)
	}
}

// newInFlight is of memory that nobody has used.
func newInFlight(t *testing.T) *InFlight {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, InFlightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	f, err := NewInFlight(mem)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestBeginsAnew: of what was before a queue begins nothing is left, a completion that was under
// way neither.
func TestBeginsAnew(t *testing.T) {
	f := newInFlight(t)
	if _, _, ok := f.left(0); ok {
		t.Error("it never ran")
	}
	f.begin(4)
	f.take(3)
	f.take(100)
	f.finish(3, 9)
	f.begin(7)
	f.take(3)
	if next, heads, ok := f.left(9); !ok || next != 7 || len(heads) != 1 || heads[0] != 3 {
		t.Errorf("next %d, in flight %v, %v", next, heads, ok)
	}
}

// TestCompletionUnderWay: of what was published and not noted nothing is in flight any more; a word
// that no process writes is none of a completion's, however it got there.
func TestCompletionUnderWay(t *testing.T) {
	for what, c := range map[string]struct {
		last uint32
		left []uint16
	}{
		"none":                 {0, []uint16{0, 3, 32767}},
		"of the first":         {1<<16 | 9, []uint16{3, 32767}},
		"of another":           {4<<16 | 9, []uint16{0, 32767}},
		"of the last":          {32768<<16 | 9, []uint16{0, 3}},
		"that was not reached": {4<<16 | 8, []uint16{0, 3, 32767}},
		"of none that is":      {32769<<16 | 9, []uint16{0, 3, 32767}},
		"of none at all":       {0xffff<<16 | 9, []uint16{0, 3, 32767}},
		"of nobody":            {9, []uint16{0, 3, 32767}},
	} {
		f := newInFlight(t)
		f.begin(4)
		for _, head := range []uint16{0, 3, 32767} {
			f.take(head)
		}
		f.set(inFlightLast, c.last)
		if next, heads, ok := f.left(9); !ok || next != 4 || !slices.Equal(heads, c.left) {
			t.Errorf("%s: next %d, in flight %v, %v", what, next, heads, ok)
		}
	}
}

// TestResumeOfNonsense: what was in flight by another process's word, and cannot be, is not taken;
// a chain that makes no sense goes back.
func TestResumeOfNonsense(t *testing.T) {
	f := newInFlight(t)
	mem := vhostuser.NewMemory()
	ram, err := vhosttest.NewMemory(0x100000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	fd, err := ram.DupFD()
	if err == nil {
		err = mem.Add(fd, 0x100000, 1<<20, ram.User, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Clear()
	d := virtiotest.NewDriver(ram, 8, virtiotest.Options{})
	good := d.Alloc(16)
	d.PutDesc(d.Desc, 1, good.GPA, 16, 0, 0)
	d.PutDesc(d.Desc, 2, 0, 16, 0, 0) // no guest memory
	d.PutDesc(d.Desc, 3, good.GPA, 16, 0, 0)
	f.begin(3)
	for _, head := range []uint16{1, 2, 3, 8, 100} {
		f.take(head)
	}
	q, err := NewQueue(mem, d.Config())
	if err != nil {
		t.Fatal(err)
	}
	list := q.Resume(f)
	if len(list) != 2 || list[0].head != 1 || list[1].head != 3 || q.Next() != 3 {
		t.Fatalf("%d chains, next %d", len(list), q.Next())
	}
	if u, ok := d.Poll(); !ok || u.Head != 2 || u.Len != 0 {
		t.Errorf("a chain that makes no sense: %+v %v", u, ok)
	}
	for _, c := range list {
		c.Complete(0)
	}
	if d.UsedIdx() != 3 {
		t.Errorf("%d came back", d.UsedIdx())
	}
	q.Stop(0)
}

// TestResumeOfNothing: a queue of which nothing is known goes on where its front end says that it
// stands.
func TestResumeOfNothing(t *testing.T) {
	mem := vhostuser.NewMemory()
	ram, err := vhosttest.NewMemory(0x100000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer ram.Close()
	fd, err := ram.DupFD()
	if err == nil {
		err = mem.Add(fd, 0x100000, 1<<20, ram.User, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Clear()
	cfg := virtiotest.NewDriver(ram, 8, virtiotest.Options{}).Config()
	cfg.Base = 5
	for what, f := range map[string]*InFlight{"nobody noted anything": nil, "a queue that never ran": newInFlight(t)} {
		q, err := NewQueue(mem, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if list := q.Resume(f); len(list) != 0 || q.Next() != 5 {
			t.Errorf("%s: %d chains, next %d", what, len(list), q.Next())
		}
		q.Stop(0)
	}
}

// TestShellsAreKept: those of some chains are used again, of a flood of them the rest is forgotten.
func TestShellsAreKept(t *testing.T) {
	q := &Queue{}
	for range 200 {
		(&Chain{q: q}).recycleLocked()
	}
	if len(q.free) != 64 {
		t.Errorf("%d are kept", len(q.free))
	}
	q.ring = &ring{size: 100}
	for n := 63; n >= 0; n-- {
		last := q.free[n]
		if c, err := q.take(); err != nil || c != last || len(q.free) != n {
			t.Errorf("another is made where %d are kept: %v", n+1, err)
		}
	}
	if c, err := q.take(); err != nil || c == nil || c.q != q || q.inflight != 65 {
		t.Errorf("none is made: %v, %d in flight", err, q.inflight)
	}
}

// TestEveryHeadIsKept: each of all heads that there may be is in flight from when it is taken until
// it is dropped, and says nothing of others; a completion that was under way is known for each.
func TestEveryHeadIsKept(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, 2*InFlightSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	for off := 1; off < 8; off++ {
		if _, err := NewInFlight(mem[off:][:InFlightSize]); (err == nil) != (off%4 == 0) {
			t.Errorf("words %d bytes behind a page's beginning: %v", off, err)
		}
	}
	f, err := NewInFlight(mem[:InFlightSize])
	if err != nil {
		t.Fatal(err)
	}
	f.begin(5)
	in := func() (heads []uint16) {
		_, heads, _ = f.left(1)
		return heads
	}
	for head := 0; head < 32768; head += 31 {
		f.take(uint16(head))
		if !f.has(uint16(head)) || f.has(uint16((head+1)%32768)) || f.has(uint16((head+32767)%32768)) {
			t.Fatalf("%d is taken", head)
		}
		f.drop(uint16(head))
		if f.has(uint16(head)) {
			t.Fatalf("%d is dropped", head)
		}
	}
	for _, head := range []uint16{0, 1, 31, 32, 33, 1000, 32766, 32767} {
		f.take(head)
		if got := in(); len(got) != 1 || got[0] != head {
			t.Errorf("%d is in flight: %v", head, got)
		}
		f.finish(head, 1)
		if got := in(); len(got) != 0 {
			t.Errorf("%d was published: %v", head, got)
		}
	}
	f.take(7)
	f.finish(7, 2)
	if got := in(); len(got) != 1 {
		t.Errorf("7 was not published: %v", got)
	}
}

// queueOn is a driver and its queue of so many entries, in memory of their own.
func queueOn(t *testing.T, size int, o virtiotest.Options) (*virtiotest.Driver, func() *Queue) {
	t.Helper()
	mem := vhostuser.NewMemory()
	ram, err := vhosttest.NewMemory(0x100000, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := ram.DupFD()
	if err == nil {
		err = mem.Add(fd, 0x100000, 1<<20, ram.User, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mem.Clear(); ram.Close() })
	d := virtiotest.NewDriver(ram, size, o)
	return d, func() *Queue {
		q, err := NewQueue(mem, d.Config())
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
}

// TestResumeOfAHostileRing: whoever takes a queue over believes nothing of its ring, as who had it
// before: an entry that names no descriptor ends the queue, and not who reads it.
func TestResumeOfAHostileRing(t *testing.T) {
	for _, head := range []uint16{64, 32767, 32768, 65535} {
		d, queue := queueOn(t, 64, virtiotest.Options{})
		f := newInFlight(t)
		queue().Track(f)
		d.Offer(head)
		q := queue()
		if left := q.Resume(f); len(left) != 0 {
			t.Errorf("%d chains of a queue that had taken none", len(left))
		}
		if _, err := q.Pop(); !errors.Is(err, ErrBroken) {
			t.Errorf("an entry that names descriptor %d of 64: %v", head, err)
		}
	}
	// Nor what the queue never was.
	_, queue := queueOn(t, 64, virtiotest.Options{})
	f := newInFlight(t)
	f.begin(0)
	f.take(64)
	q := queue()
	if left := q.Resume(f); len(left) != 0 {
		t.Errorf("%d chains at descriptors that there are not", len(left))
	}
	if lost := q.Stop(0); lost != 0 {
		t.Errorf("%d chains are waited for that nobody has", lost)
	}
}

// TestEventfdChangesUnderACompletion: an answer that is published behind a change of the eventfd is
// told to the new one. The front end has what comes over the old one looked at before it closes it.
func TestEventfdChangesUnderACompletion(t *testing.T) {
	d, queue := queueOn(t, 64, virtiotest.Options{})
	q := queue()
	event := func() *vhostuser.EventFD {
		fd, err := sys.NewEvent()
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		e, err := vhostuser.DupEventFD(fd, "call")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		return e
	}
	cfg := d.Config()
	old := event()
	cfg.Call = old
	q.Update(cfg)
	b := d.Alloc(16)
	if _, err := d.Add([]virtiotest.Buffer{b}, nil); err != nil {
		t.Fatal(err)
	}
	c, err := q.Pop()
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	q.mu.Lock()
	done := make(chan struct{})
	go func() { c.Complete(0); close(done) }()
	time.Sleep(20 * time.Millisecond) // it is about to publish
	cfg.Call = event()
	q.Update(cfg)
	if err := cfg.Call.Wait(); err != nil { // the one of the change itself
		t.Fatal(err)
	}
	old.Close()
	q.mu.Unlock()
	<-done
	if _, ok := d.Poll(); !ok {
		t.Fatal("nothing was published")
	}
	late := time.AfterFunc(5*time.Second, cfg.Call.Interrupt)
	defer late.Stop()
	if err := cfg.Call.Wait(); err != nil {
		t.Errorf("the driver does not hear of the answer: %v", err)
	}
}
