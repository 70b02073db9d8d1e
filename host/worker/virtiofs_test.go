package worker

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// filesOf counts the descriptors of this process whose file has a name that begins so.
func filesOf(t testing.TB, name string) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(to, "/memfd:"+name) {
			n++
		}
	}
	return n
}

// linkPair is a link within this process.
func linkPair(t testing.TB) (*link.ParentEnd, *link.WorkerEnd) {
	t.Helper()
	parent, child, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(child.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = child.Close()
	var worker *link.WorkerEnd
	if err == nil {
		worker, err = link.NewWorkerEnd(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = parent.Close()
		_ = worker.Close()
	})
	return parent, worker
}

// memfile is memory in a file of this name.
func memfile(t testing.TB, name string, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestGuestMemoryByChance: parts of the VM's memory come and go. A range is found in the part that
// has all of it, at its place in that part's file, or not at all, and of each part that is there
// one descriptor is open.
func TestGuestMemoryByChance(t *testing.T) {
	const name, page, parts = "causeway-test-guest", 4096, 6
	parent, worker := linkPair(t)
	rng, l := rand.New(rand.NewPCG(1, 2)), newVirtiofs(worker)
	there := map[uint64]link.MemoryRegion{}
	tell := func(m link.ToWorker) {
		t.Helper()
		err := parent.Send(m)
		var r link.Received[link.ToWorker]
		if err == nil {
			r, err = worker.Receive()
		}
		if err == nil {
			err = l.handle(r)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for step := range 500 {
		gpa := (1 + rng.Uint64N(parts)) << 20 // parts of up to 16 pages, far apart
		_, has := there[gpa]
		switch {
		case has && rng.IntN(4) == 0:
			tell(link.RemoveMemory{GPA: gpa})
			delete(there, gpa)
		case !has:
			m := link.MemoryRegion{GPA: gpa, Size: (1 + rng.Uint64N(16)) * page, Offset: rng.Uint64N(4) * page}
			fd := memfile(t, name, int64(m.Offset+m.Size))
			tell(link.AddMemory{Memory: []link.BackedMemory{{MemoryRegion: m, File: fd}}})
			_ = unix.Close(fd)
			there[gpa] = m
		}
		if n := filesOf(t, name); n != len(there) {
			t.Fatalf("step %d: %d descriptors are open of %d parts", step, n, len(there))
		}
		e := link.Range{GPA: gpa + rng.Uint64N(20)*page - page, Size: (1 + rng.Uint64N(17)) * page}
		if rng.IntN(10) == 0 {
			e.Size = -e.GPA - page // it ends at the end of all addresses
		}
		m, has := there[gpa]
		inside := has && e.GPA >= m.GPA && e.GPA < m.GPA+m.Size && e.Size <= m.GPA+m.Size-e.GPA
		if run, err := l.locate(e); (err == nil) != inside || inside && (run.Offset != int64(m.Offset+e.GPA-m.GPA) || run.Size != e.Size) {
			t.Fatalf("step %d: %+v of %+v is %+v, %v", step, e, m, run, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if n := filesOf(t, name); n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// TestPagesOfARegion: a region's pages are those that were listed last for each of its parts, and
// of one that ended and comes again those that were listed since.
func TestPagesOfARegion(t *testing.T) {
	const page = 4096
	parent, worker := linkPair(t)
	l := newVirtiofs(worker)
	defer l.Close()
	tell := func(m link.ToWorker) error {
		t.Helper()
		if err := parent.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := worker.Receive()
		if err != nil {
			t.Fatal(err)
		}
		return l.handle(r)
	}
	fd := memfile(t, "causeway-test-pages", 16*page)
	err := tell(link.AddMemory{Memory: []link.BackedMemory{{MemoryRegion: link.MemoryRegion{GPA: 1 << 30, Size: 16 * page}, File: fd}}})
	_ = unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	pages := func(at, first, n uint64, last bool) error {
		return tell(link.AddPages{Region: 1, At: at * page, Last: last, Ranges: []link.Range{{GPA: 1<<30 + first*page, Size: n * page}}})
	}
	begin := func(n uint64) error { return tell(link.AddRegion{Region: 1, VA: 1 << 40, Size: n * page}) }
	first := func() (at []int64) {
		runs, err := l.runs(1)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			at = append(at, r.Offset/page)
		}
		return at
	}
	if err := errors.Join(begin(4), pages(2, 10, 2, false), pages(0, 3, 2, true)); err != nil || !slices.Equal(first(), []int64{3, 10}) {
		t.Errorf("pages %v, %v", first(), err)
	}
	if err := pages(2, 6, 2, true); err != nil || !slices.Equal(first(), []int64{3, 6}) {
		t.Errorf("other pages %v, %v", first(), err)
	}
	if err := pages(2, 15, 2, true); err == nil {
		t.Error("a page behind the end of memory is the region's")
	}
	if err := tell(link.EndRegion{Region: 1}); err != nil {
		t.Fatal(err)
	}
	if r, err := parent.Receive(); err != nil || r.Message() != (link.RegionEnded{Region: 1}) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := errors.Join(begin(2), pages(0, 8, 2, true)); err != nil || !slices.Equal(first(), []int64{8}) {
		t.Errorf("pages of the next region %v, %v", first(), err)
	}
	if err := tell(link.EndRegion{Region: 7}); !errors.Is(err, errEnded) {
		t.Errorf("the end of no region: %v", err)
	}
}

// TestAdoptedMemoryIsWhole: state whose descriptors or ranges do not match is refused, and none of
// its descriptors stays.
func TestAdoptedMemoryIsWhole(t *testing.T) {
	const name, page = "causeway-test-adopted", 4096
	region := shm.RegionState{ID: 1, VA: 1 << 40, Size: page}
	memory := link.MemoryRegion{GPA: 1 << 30, Size: page}
	pieces := func(gpa uint64) map[uint32]map[uint64][]link.Range {
		return map[uint32]map[uint64][]link.Range{1: {0: {{GPA: gpa, Size: page}}}}
	}
	for what, c := range map[string]struct {
		files int
		state virtiofsState
	}{
		"a descriptor too few":         {1, virtiofsState{Guest: []link.MemoryRegion{memory}}},
		"a descriptor too many":        {3, virtiofsState{Guest: []link.MemoryRegion{memory}}},
		"no descriptor at all":         {0, virtiofsState{}},
		"a region twice":               {2, virtiofsState{Guest: []link.MemoryRegion{memory}, Regions: []shm.RegionState{region, region}, Pieces: pieces(1 << 30)}},
		"pages that are not memory":    {2, virtiofsState{Guest: []link.MemoryRegion{memory}, Regions: []shm.RegionState{region}, Pieces: pieces(1<<30 + page)}},
		"a region without its pages":   {2, virtiofsState{Guest: []link.MemoryRegion{memory}, Regions: []shm.RegionState{region}}},
		"no region 0":                  {2, virtiofsState{Guest: []link.MemoryRegion{memory}, Regions: []shm.RegionState{region}, Pieces: pieces(1 << 30)}},
		"a region of no size":          {1, virtiofsState{Regions: []shm.RegionState{{ID: 1}}}},
		"more memory than its file is": {2, virtiofsState{Guest: []link.MemoryRegion{{GPA: 1 << 30, Size: 1 << 40}}, Regions: []shm.RegionState{{ID: 0, Size: 1 << 39}}}},
	} {
		var files []int
		for range c.files {
			files = append(files, memfile(t, name, page))
		}
		if l, err := adoptVirtiofs(nil, &c.state, files); err == nil {
			t.Errorf("%s: it is adopted", what)
			_ = l.Close()
		}
		if n := filesOf(t, name); n != 0 {
			t.Errorf("%s: %d descriptors are left", what, n)
			for _, fd := range files {
				_ = unix.Close(fd)
			}
		}
	}
}

// handoverPair is a worker's end of a stream to another, and that other.
func handoverPair(t *testing.T) (*handover, *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHandover(pair[0], 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	other, err := sys.UnixConn(pair[1], "other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.close()
		_ = other.Close()
	})
	return h, other
}

// TestDescriptorsBetweenWorkers: what another worker says of its descriptors is bounded before
// anything more is read, as many come as it said, and of a stream that breaks off none stays.
func TestDescriptorsBetweenWorkers(t *testing.T) {
	const name = "causeway-test-sent"
	count := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	send := func(t *testing.T, c *net.UnixConn, n int) {
		t.Helper()
		for ; n > 0; n -= fileBatch {
			var files []int
			for range min(n, fileBatch) {
				files = append(files, memfile(t, name, 0))
			}
			if err := sys.SendPacket(c, []byte{1}, files); err != nil {
				t.Fatal(err)
			}
			sys.CloseAll(files)
		}
	}
	lent := func(h *handover) ([]int, error) {
		list, err := h.receiveLent()
		var files []int
		for _, l := range list {
			files = append(files, l.File)
		}
		return files, err
	}
	for what, c := range map[string]struct {
		say  []byte
		sent int
		take func(h *handover) ([]int, error)
		want int // descriptors; negative: it is refused
		cut  bool
	}{
		"none":                      {count(0), 0, (*handover).receiveFiles, 0, false},
		"one":                       {count(1), 1, (*handover).receiveFiles, 1, false},
		"more than fit a packet":    {count(fileBatch + 7), fileBatch + 7, (*handover).receiveFiles, fileBatch + 7, false},
		"more than may be":          {count(maxHandoverFiles + 1), 0, (*handover).receiveFiles, -1, false},
		"fewer than it said":        {count(fileBatch + 7), fileBatch, (*handover).receiveFiles, -1, true},
		"bytes without descriptors": {append(count(2), 1), 0, (*handover).receiveFiles, -1, true},
		"nothing":                   {nil, 0, (*handover).receiveFiles, -1, true},
		"nothing is lent":           {count(0), 0, lent, 0, false},
		"pieces":                    {slices.Concat(count(2), make([]byte, 2*lentEntry), count(2)), 2, lent, 2, false},
		"too many pieces":           {count(mostLent + 1), 0, lent, -1, false},
		"far too many pieces":       {count(1<<32/lentEntry + 1), 0, lent, -1, false},
		"pieces that break off":     {append(count(2), make([]byte, 2*lentEntry-1)...), 0, lent, -1, true},
		"fewer files than pieces":   {slices.Concat(count(2), make([]byte, 2*lentEntry), count(1)), 1, lent, -1, false},
		"more files than pieces":    {slices.Concat(count(1), make([]byte, lentEntry), count(2)), 2, lent, -1, false},
	} {
		t.Run(what, func(t *testing.T) {
			h, other := handoverPair(t)
			if _, err := other.Write(c.say); err != nil {
				t.Fatal(err)
			}
			send(t, other, c.sent)
			_ = other.CloseWrite()
			files, err := c.take(h)
			if (err == nil) != (c.want >= 0) || err == nil && len(files) != c.want {
				t.Errorf("%d descriptors, %v", len(files), err)
			}
			if ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); ended != c.cut {
				t.Errorf("it read to the end of the stream: %v, %v", ended, err)
			}
			sys.CloseAll(files)
			if n := filesOf(t, name); n != 0 {
				t.Errorf("%d descriptors are left", n)
			}
		})
	}
}

// TestAnswersNobodyAwaits: of an answer about sharing that nobody takes, whenever it comes, no
// descriptor stays; one that is taken is the asker's.
func TestAnswersNobodyAwaits(t *testing.T) {
	const name = "causeway-test-shared"
	answer := func(n uint64, errno unix.Errno) link.Answer {
		return link.Answer{Request: n, Errno: errno, File: link.FileOf(memfile(t, name, 0))}
	}
	for what, do := range map[string]func(s *sharing, c chan link.Answer){
		"to nobody":         func(s *sharing, _ chan link.Answer) { s.answered(answer(9, 0)) },
		"twice":             func(s *sharing, _ chan link.Answer) { s.answered(answer(1, 0)); s.answered(answer(1, 0)) },
		"too late":          func(s *sharing, _ chan link.Answer) { s.forget(1); s.answered(answer(1, 0)) },
		"while it gives up": func(s *sharing, _ chan link.Answer) { s.answered(answer(1, 0)) },
		"taken": func(s *sharing, c chan link.Answer) {
			s.answered(answer(1, 0))
			_ = unix.Close((<-c).File.FD())
		},
	} {
		c := make(chan link.Answer, 1)
		s := &sharing{open: map[uint64]chan link.Answer{1: c}}
		do(s, c)
		s.forget(1)
		if n := filesOf(t, name); n != 0 || len(s.open) != 0 {
			t.Errorf("%s: %d descriptors and %d questions are left", what, n, len(s.open))
		}
	}
	// One that fails says so, and its descriptor, if there is one, is nobody's.
	_, worker := linkPair(t)
	s := &sharing{link: worker}
	for _, errno := range []unix.Errno{0, unix.EINVAL} {
		_, fd, err := s.ask(func(n uint64) link.ToParent {
			s.answered(answer(n, errno))
			return link.Redeem{Request: n}
		})
		if (err == nil) != (errno == 0) || (fd >= 0) != (errno == 0) || errno != 0 && !errors.Is(err, errno) {
			t.Errorf("%v: descriptor %d, %v", errno, fd, err)
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// TestMoveThatFailsLetsGo: whenever a move fails, at whatever it was about to send or hear, the
// session has its guest's memory again.
func TestMoveThatFailsLetsGo(t *testing.T) {
	mem, err := unix.Mmap(-1, 0, int(remote.Region0Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	for what, c := range map[string]struct {
		takes   int64 // bytes of the session
		refuses bool  // it, once it has all
	}{
		"nobody there":         {},
		"while it says how":    {takes: 2},
		"behind descriptors":   {takes: 5},
		"in the midst of it":   {takes: 60},
		"it is not taken over": {refuses: true},
	} {
		w, _ := newFake(t, nil)
		l := newVirtiofs(nil)
		if l.ring, err = shm.NewRing(mem, 0); err != nil {
			t.Fatal(err)
		}
		event, err := sys.NewEvent()
		if err == nil {
			l.bell, err = shm.NewBell(event, func(uint32) {})
		}
		if err != nil {
			t.Fatal(err)
		}
		w.carrier = l
		h, other := handoverPair(t)
		if c.refuses {
			verdict := state.NewWriter(other)
			verdict.Bytes([]byte("no"))
			if err := verdict.Flush(); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, other) }()
		} else {
			go func() {
				_, _ = io.CopyN(io.Discard, other, c.takes)
				_ = other.Close()
			}()
		}
		if _, err := w.move(h, time.Now().Add(quiesceForMove), inVainLeast); err == nil {
			t.Errorf("%s: it moved", what)
		}
		if !w.guestMu.TryLock() {
			t.Errorf("%s: its guest's memory stays out of reach", what)
		}
		_ = l.Close()
	}
}
