package device

import (
	"bytes"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"causeway/host/worker/link"
	"causeway/remote"
	"causeway/virtio"
	"causeway/virtio/fs"
)

// TestBoundsOfALoan: a loan is of pages of its region, of one at least, to the page; then its
// buffer is looked at.
func TestBoundsOfALoan(t *testing.T) {
	const p = pageSize
	for _, c := range []struct {
		off, size uint64
		ok        bool
	}{
		{0, p, true}, {0, 4 * p, true}, {p, 3 * p, true}, {3 * p, p, true}, {0, 0, false}, {4 * p, 0, false}, {0, 5 * p, false}, {p, 4 * p, false},
		{4 * p, p, false}, {5 * p, p, false}, {1, p, false}, {1 << 43, p, false}, {1<<64 - p, p, false}, {1<<64 - p, 2 * p, false},
	} {
		r := &region{id: 1, size: 4 * p, pieces: map[uint64]*piece{}}
		// Which has no pages.
		_, err := r.lend(c.off, &fs.ReadRequest{Size: int(c.size)}, time.Now())
		if err == nil || errors.Is(err, errLoan) != c.ok {
			t.Errorf("%#x+%#x: %v", c.off, c.size, err)
		}
		if r.lent != 0 || len(r.pieces) != 0 || r.changed {
			t.Errorf("%#x+%#x: %d bytes are lent", c.off, c.size, r.lent)
		}
	}
}

// TestPagesOfABuffer: a buffer is of whole pages, as many as the READ says, in no more ranges than
// fit a message.
func TestPagesOfABuffer(t *testing.T) {
	const p = pageSize
	many := func(n int) (list []virtio.Range) {
		for i := range n {
			list = append(list, virtio.Range{GPA: uint64(2*i) * p, Len: p})
		}
		return list
	}
	for what, c := range map[string]struct {
		list []virtio.Range
		size uint64
		ok   bool
	}{
		"a page": {many(1), p, true}, "pages": {many(3), 3 * p, true}, "a page too many": {many(2), p, false}, "one that is missing": {many(2), 3 * p, false}, "none": {nil, p, false},
		"as many as there may be": {many(link.MaxRanges), link.MaxRanges * p, true}, "one more": {many(link.MaxRanges + 1), (link.MaxRanges + 1) * p, false},
		"an odd place": {[]virtio.Range{{GPA: 512, Len: p}}, p, false}, "an odd length": {[]virtio.Range{{GPA: 0, Len: p + 512}}, p + 512, false},
	} {
		es, err := pages(c.list, c.size)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, errLoan) {
			t.Errorf("%s: %v", what, err)
		}
		if c.ok && len(es) != len(c.list) {
			t.Errorf("%s: %d ranges of %d", what, len(es), len(c.list))
		}
		for i := range es {
			if es[i] != (link.Range{GPA: c.list[i].GPA, Size: uint64(c.list[i].Len)}) {
				t.Errorf("%s: %v is %v", what, c.list[i], es[i])
			}
		}
	}
}

// TestOldestLoan: what lapses first is what was renewed first, of what is lent; at the end of its
// term, and not before.
func TestOldestLoan(t *testing.T) {
	const term = 2 * time.Second
	now := time.Now()
	at := func(ago time.Duration) time.Time { return now.Add(-ago) }
	lent := &fs.ReadRequest{}
	for what, c := range map[string]struct {
		pieces []piece
		oldest time.Time
	}{
		"none":                    {nil, time.Time{}},
		"all have lapsed":         {[]piece{{renewed: at(term)}}, time.Time{}},
		"one":                     {[]piece{{req: lent, renewed: at(1)}}, at(1)},
		"the first":               {[]piece{{req: lent, renewed: at(3)}, {req: lent, renewed: at(2)}, {req: lent, renewed: at(1)}}, at(3)},
		"the last":                {[]piece{{req: lent, renewed: at(1)}, {req: lent, renewed: at(2)}, {req: lent, renewed: at(3)}}, at(3)},
		"beside one that is over": {[]piece{{renewed: at(3)}, {req: lent, renewed: at(2)}}, at(2)},
	} {
		r := &region{pieces: map[uint64]*piece{}}
		for i := range c.pieces {
			r.pieces[uint64(i)*pageSize] = &c.pieces[i]
		}
		for range 20 { // in whatever order
			if got := r.oldest(); !got.Equal(c.oldest) {
				t.Fatalf("%s: %v", what, now.Sub(got))
			}
		}
		if c.oldest.IsZero() {
			if r.expired(now.Add(time.Hour), term) {
				t.Errorf("%s: it has lapsed", what)
			}
			continue
		}
		if end := c.oldest.Add(term); r.expired(end.Add(-1), term) || !r.expired(end, term) {
			t.Errorf("%s: it lapses at another moment than %v", what, end)
		}
		if r.renew(now); !r.oldest().Equal(now) {
			t.Errorf("%s: renewed at %v", what, now.Sub(r.oldest()))
		}
	}
}

// TestWhatWorkersAreTold of a region: that it is there, once; its pages each time, the last of them
// marked, and then they are known.
func TestWhatWorkersAreTold(t *testing.T) {
	r := &region{id: 7, va: 1 << 40, size: 3 * pageSize, changed: true, pieces: map[uint64]*piece{0: {size: pageSize}, pageSize: {size: pageSize}, 2 * pageSize: {size: pageSize}}}
	for round := range 2 {
		ms := r.messages()
		if round == 0 {
			if add, ok := ms[0].(link.AddRegion); !ok || add != (link.AddRegion{Region: 7, VA: 1 << 40, Size: 3 * pageSize}) {
				t.Errorf("%+v", ms[0])
			}
			ms = ms[1:]
		}
		if len(ms) != 3 || !r.sent || r.changed {
			t.Fatalf("round %d: %+v", round, ms)
		}
		for i, m := range ms {
			if p, ok := m.(link.AddPages); !ok || p.Region != 7 || p.Last != (i == 2) || r.pieces[p.At] == nil {
				t.Errorf("round %d: message %d is %+v", round, i, m)
			}
		}
	}
}

// TestCopyHands: half of the host's processors, one at least, and not so many that other VMs' are
// taken.
func TestCopyHands(t *testing.T) {
	for cpus, want := range map[int]int{1: 1, 2: 1, 3: 1, 4: 2, 6: 3, 11: 5, 12: 6, 64: 6} {
		if got := copyHands(cpus); got != want {
			t.Errorf("%d processors: %d", cpus, got)
		}
	}
}

// TestExtentsOfARegion: an extent means the pages at its place, over the borders of loans, and to
// the last byte; where one is not lent, or it is none, nothing.
func TestExtentsOfARegion(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		k.want("region", k.declare(1, 5), 0)
		first, second := k.pages(1), k.pages(2)
		k.lend(loanAt(1, 0), first)
		k.lend(loanAt(1, pageSize), second) // then two pages that are not lent
		mem := append(append([]byte(nil), first[0].Bytes...), second[0].Bytes...)
		for i := range mem {
			mem[i] = byte(i>>8 ^ i*7)
		}
		copy(first[0].Bytes, mem)
		copy(second[0].Bytes, mem[pageSize:])
		s := k.session()
		lent := func(off uint64, size int) ([]virtio.Segment, syscall.Errno) {
			var c copying
			defer c.release()
			errno := s.lentLocked(&extent{off: remote.FileExtent | off, size: size}, &c)
			return c.lent, errno
		}
		for _, c := range []struct {
			id    uint32
			at    uint64
			size  int
			errno syscall.Errno
		}{
			{1, 0, 1, 0}, {1, 0, pageSize, 0}, {1, 5, pageSize, 0}, {1, pageSize - 1, 1, 0}, {1, pageSize - 1, 2, 0}, {1, pageSize, 1, 0}, {1, 3*pageSize - 1, 1, 0}, {1, 1, 3*pageSize - 1, 0},
			{1, 0, 0, 0}, {1, 5 * pageSize, 0, 0}, {1, 4 * pageSize, 0, 0},
			{1, 3 * pageSize, 1, syscall.EAGAIN}, {1, 3*pageSize - 1, 2, syscall.EAGAIN}, {1, 0, 5 * pageSize, syscall.EAGAIN}, {1, 5*pageSize - 1, 1, syscall.EAGAIN},
			{1, 5 * pageSize, 1, syscall.EINVAL}, {1, 5*pageSize + 1, 0, syscall.EINVAL}, {1, 5*pageSize - 1, 2, syscall.EINVAL}, {1, 0, 5*pageSize + 1, syscall.EINVAL},
			{1, 1<<44 - 1, 1, syscall.EINVAL}, {0, 0, 1, syscall.EINVAL}, {2, 0, 1, syscall.EINVAL},
		} {
			s.mu.Lock()
			segs, errno := lent(uint64(c.id)<<44|c.at, c.size)
			s.mu.Unlock()
			var got []byte
			for _, g := range segs {
				got = append(got, g.Data...)
			}
			if errno != c.errno || errno == 0 && !bytes.Equal(got, mem[min(c.at, uint64(len(mem))):][:c.size]) {
				t.Errorf("%d bytes at %#x of region %d: %v, %d bytes", c.size, c.at, c.id, errno, len(got))
			}
		}
		for state, want := range map[state]syscall.Errno{opening: syscall.EAGAIN, parking: syscall.EAGAIN, parked: syscall.EAGAIN, suspended: syscall.EAGAIN, dead: syscall.EPIPE, released: syscall.EPIPE, running: 0} {
			s.mu.Lock()
			was := s.state
			s.state = state
			_, errno := lent(1<<44, 1)
			s.state = was
			s.mu.Unlock()
			if errno != want {
				t.Errorf("of a session that is %v: %v", state, errno)
			}
		}
		r := s.regions[1]
		r.ending = true
		if _, errno := lent(1<<44, 1); errno != syscall.EINVAL {
			t.Errorf("of a region that ends: %v", errno)
		}
		r.ending = false
	})
}

// TestExtentsAreCounted: what was copied counts; an extent that was answered is none that waits,
// and its pages are not answered for a second time.
func TestExtentsAreCounted(t *testing.T) {
	inKernel(t, func(k *kernel) {
		k.begin()
		k.want("region", k.declare(1, 2), 0)
		region, buffer := k.pages(2), k.pages(1)
		k.lend(loanAt(1, 0), region)
		region[0].Bytes[7], buffer[0].Bytes[8] = 'r', 'b'
		read, err := k.file.Read(0, int64(remote.FileExtent|1<<44), buffer)
		if err != nil {
			t.Fatal(err)
		}
		k.settle()
		k.want("to a buffer", read, 0)
		if buffer[0].Bytes[7] != 'r' || buffer[0].Bytes[8] != 0 || region[0].Bytes[8] != 0 {
			t.Error("a READ does not bring the region's bytes")
		}
		s := k.session()
		s.moved.Store(0)
		for i, size := range []int{1, 2} {
			c, err := k.file.Write(0, int64(remote.FileExtent|1<<44), k.pages(size))
			if err != nil {
				t.Fatal(err)
			}
			k.settle()
			k.want("an extent", c, 0)
			if want := int64([]int{1, 3}[i]) * pageSize; s.moved.Load() != want || len(s.extents) != 0 || len(k.d.hands) != 0 {
				t.Errorf("%d bytes count, not %d; %d wait, %d are at it", s.moved.Load(), want, len(s.extents), len(k.d.hands))
			}
		}
	})
}

// TestCopySegments: bytes go in order from segments of one shape to those of another, until one
// side is at its end.
func TestCopySegments(t *testing.T) {
	cut := func(b []byte, sizes ...int) (list []virtio.Segment) {
		for _, n := range sizes {
			list = append(list, virtio.Segment{Data: b[:n]})
			b = b[n:]
		}
		return list
	}
	src := []byte("abcdefghij")
	for _, c := range []struct {
		dst, src []int
		n        int
	}{
		{[]int{10}, []int{10}, 10}, {[]int{3, 0, 7}, []int{0, 5, 5}, 10}, {[]int{1, 1, 1}, []int{10}, 3}, {[]int{10}, []int{1, 2, 0}, 3}, {nil, []int{3}, 0}, {[]int{3}, nil, 0},
		{[]int{0, 0}, []int{3}, 0}, {[]int{4}, []int{0}, 0}, {[]int{2, 2}, []int{4, 1}, 4},
	} {
		dst := make([]byte, 10)
		if n := copySegments(cut(dst, c.dst...), cut(src, c.src...), new(atomic.Bool)); n != c.n || !bytes.Equal(dst[:n], src[:n]) || !bytes.Equal(dst[n:], make([]byte, 10-n)) {
			t.Errorf("%v to %v: %d bytes, %q", c.src, c.dst, n, dst)
		}
	}
}
