package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
)

// TestSpaceAtAQuarter: who waits for space is woken when a quarter of the ring is free, not a
// record before; once, and if there is somebody.
func TestSpaceAtAQuarter(t *testing.T) {
	const most = remote.RingSize / 4 * 3
	for _, x := range []struct {
		left  uint64 // when a record is consumed
		waits uint32
		wakes bool
	}{{most + 32, 1, false}, {most, 1, true}, {most - 32, 7, true}, {most, 0, false}} {
		r, mem := newTestRing(t, 0)
		const size = headStep // of which the producer is told at once
		put(mem, 0, remote.Record{Size: uint32(size)})
		r.Publish(x.left + size)
		var in remote.Incoming
		if ok, err := r.Next(&in); !ok || err != nil {
			t.Fatal(ok, err)
		}
		r.spaceWaits.Store(x.waits)
		if wakes := r.Advance(); wakes != x.wakes || x.wakes == (r.spaceWaits.Load() != 0) && x.waits != 0 || r.headWord.Load() != size {
			t.Errorf("%+v: wakes %v, %d wait, head %d", x, wakes, r.spaceWaits.Load(), r.headWord.Load())
		}
	}
}

// TestHeadInSteps: the producer hears of what was consumed in steps while more is known to be
// there, and at once of the last.
func TestHeadInSteps(t *testing.T) {
	r, mem := newTestRing(t, 0)
	const n = 2*headStep/32 + 3
	for i := range uint64(n) {
		put(mem, 32*i, remote.Record{Size: 32})
	}
	r.Publish(32 * n)
	var in remote.Incoming
	for i := range uint64(n) {
		if ok, err := r.Next(&in); !ok || err != nil {
			t.Fatal(ok, err)
		}
		r.Advance()
		want := 32 * (i + 1) / headStep * headStep
		if i == n-1 {
			want = 32 * n
		}
		if got := r.headWord.Load(); got != want {
			t.Fatalf("after %d records it is told %d, want %d", i+1, got, want)
		}
	}
}

// TestRing0: a ring is of a region of its size, aligned; a control page says what it is by three
// words.
func TestRing0(t *testing.T) {
	mem := region0(t)
	for _, b := range [][]byte{mem[:len(mem)-64], mem[64:], nil} {
		if _, err := NewRing(b, 0); err == nil {
			t.Errorf("a ring of %d bytes", len(b))
		}
	}
	two, err := unix.Mmap(-1, 0, 2*int(remote.Region0Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(two) }()
	for _, off := range []int{1, 8, 32, 63} {
		if _, err := NewRing(two[off:][:remote.Region0Size], 0); err == nil {
			t.Errorf("a ring %d bytes behind a page's beginning", off)
		}
	}
	if r, err := NewRing(two[64:][:remote.Region0Size], 96); err != nil || r.Head() != 96 {
		t.Error(err)
	}
	copy(mem, controlPage())
	if err := CheckControl(mem); err != nil {
		t.Error(err)
	}
	for _, off := range []int{0, 4, 8} {
		mem[off]++
		if err := CheckControl(mem); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("another word at %d: %v", off, err)
		}
		mem[off]--
	}
}

// TestHelloRules: what is no hello is refused by name, with its descriptors; of one that is, who
// the guest is stays.
func TestHelloRules(t *testing.T) {
	good := remote.Hello{Type: remote.MsgHello, Version: remote.ProtocolVersion, Va: 0x6a0000000000, Size: remote.Region0Size, Pid: 77, Flags: remote.EnvFirstDevice}
	for name, x := range map[string]struct {
		change func(h *remote.Hello)
		files  int // 2: memory and a doorbell; -2: and memory for one
		ok     bool
	}{
		"as it should":    {func(*remote.Hello) {}, 2, true},
		"another message": {func(h *remote.Hello) { h.Type = remote.MsgRegion }, 2, false},
		"another region":  {func(h *remote.Hello) { h.Region = 1 }, 2, false},
		"a larger one":    {func(h *remote.Hello) { h.Size += pageSize }, 2, false},
		"another version": {func(h *remote.Hello) { h.Version++ }, 2, false},
		"no doorbell":     {func(*remote.Hello) {}, 1, false},
		"no eventfd":      {func(*remote.Hello) {}, -2, false},
		"nothing":         {func(*remote.Hello) {}, 0, false},
		"one more":        {func(*remote.Hello) {}, 3, false},
	} {
		before := memfiles(t)
		guest, host := connected(t)
		u := newUnix(host)
		h := good
		x.change(&h)
		var files []int
		for i := range max(x.files, -x.files) {
			if i == 1 && x.files > 0 {
				bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, bell)
				continue
			}
			fd := memfile(t, int64(remote.Region0Size)+pageSize)
			if _, err := unix.Pwrite(fd, controlPage(), 0); err != nil {
				t.Fatal(err)
			}
			files = append(files, fd)
		}
		err := u.hello(h, files)
		if (err == nil) != x.ok || err != nil && !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if x.ok && (u.PID() != 77 || u.Env() != remote.EnvFirstDevice) {
			t.Errorf("%s: process %d, %#x", name, u.PID(), u.Env())
		}
		_, _ = u.release(), guest.Close()
		if n := memfiles(t); n != before {
			t.Errorf("%s: %d descriptors, %d before", name, n, before)
		}
	}
}

// TestMessageRules: a region comes with its files and goes without any; no other message is one,
// and none leaves a descriptor.
func TestMessageRules(t *testing.T) {
	guest, u := begun(t)
	defer guest.Close()
	region := remote.Hello{Type: remote.MsgRegion, Region: 1, Va: 0x6a0000400000, Size: pageSize}
	before := memfiles(t)
	for _, x := range []struct {
		name   string
		change func(h *remote.Hello)
		files  int
		kept   int // -1: it is refused
	}{
		{"a region without files", func(*remote.Hello) {}, 0, -1},
		{"region 0", func(h *remote.Hello) { h.Region = 0 }, 1, -1},
		{"another message with files", func(h *remote.Hello) { h.Type = remote.MsgWelcome }, 1, -1},
		{"an end with files", func(h *remote.Hello) { h.Type = remote.MsgRegionEnd }, 1, -1},
		{"another message", func(h *remote.Hello) { h.Type = remote.MsgHello }, 0, -1},
		{"a region", func(*remote.Hello) {}, 1, 1},
		{"region 0 ends", func(h *remote.Hello) { h.Type, h.Region = remote.MsgRegionEnd, 0 }, 0, -1},
		{"more files than it may have", func(h *remote.Hello) {
			h.Region, h.Size, h.Part, h.Va = 2, (uint64(remote.RegionParts)+1)*pageSize, pageSize, 0x6a0001400000
		}, int(remote.RegionParts) + 1, -1},
		{"as many", func(h *remote.Hello) {
			h.Region, h.Size, h.Part, h.Va = 2, uint64(remote.RegionParts)*pageSize, pageSize, 0x6a0001400000
		}, int(remote.RegionParts), int(remote.RegionParts) + 1},
		{"it ends", func(h *remote.Hello) { h.Type, h.Region = remote.MsgRegionEnd, 2 }, 0, 1},
		{"it is no more", func(h *remote.Hello) { h.Type, h.Region = remote.MsgRegionEnd, 2 }, 0, -1},
	} {
		h := region
		x.change(&h)
		var files []int
		for range x.files {
			files = append(files, memfile(t, pageSize))
		}
		was := memfiles(t) - x.files
		err := u.message(h, files)
		if (err == nil) != (x.kept >= 0) {
			t.Errorf("%s: %v", x.name, err)
		}
		want := before + x.kept
		if x.kept < 0 {
			want = was
		}
		if n := memfiles(t); n != want {
			t.Errorf("%s: %d descriptors, want %d", x.name, n, want)
		}
	}
	if err := errors.Join(u.Close(), u.Err()); err != nil {
		// An end that was asked for has no reason.
		t.Error(err)
	}
}

// memfiles counts the descriptors of guests' regions, which nobody closes beside the test.
func memfiles(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "/memfd:region") {
			n++
		}
	}
	return n
}

// TestEndsOfConnections: a guest that goes, in order or not, is no error; one that breaks a rule
// is.
func TestEndsOfConnections(t *testing.T) {
	for name, end := range map[string]func(guest interface{ Close() error }, u *Unix){
		"it closes":    func(guest interface{ Close() error }, _ *Unix) { _ = guest.Close() },
		"it is closed": func(_ interface{ Close() error }, u *Unix) { _ = u.conn.Close() },
		"it closes and has not read all": func(guest interface{ Close() error }, u *Unix) {
			if err := u.Welcome(0, ""); err != nil {
				t.Error(err)
			}
			_ = guest.Close()
		},
		"breaks a rule": nil,
	} {
		guest, u := begun(t)
		if end != nil {
			end(guest, u)
		} else if err := send(guest, remote.FormatHello(remote.Hello{Type: remote.MsgHello}, "")); err != nil {
			t.Fatal(err)
		}
		<-u.Done()
		if err := u.Err(); (err != nil) != (end == nil) || err != nil && !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		u.fail(errors.New("later"))
		if err := u.Err(); end == nil && !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("another reason: %v", err)
		}
		_ = guest.Close()
		_ = u.Close()
	}
}

// told lists what a watcher hears.
type told struct{ list []string }

func (w *told) Declared(id uint32, d remote.Declared) { w.list = append(w.list, fmt.Sprint("+", id)) }
func (w *told) Dropped(id uint32)                     { w.list = append(w.list, fmt.Sprint("-", id)) }

// TestWatchersHear: of each region that can be reached a watcher hears once, also of those that
// could be before it watched, and of its end; of region 0 and of what was never reachable nothing.
func TestWatchersHear(t *testing.T) {
	m := NewMemory()
	fd := testFile(t, 2)
	one, other := []Run{{FD: fd, Size: pageSize}}, []Run{{FD: fd, Offset: pageSize, Size: pageSize}}
	for id := range uint32(4) {
		if err := m.Declare(id, remote.Declared{Size: pageSize}, nil); err != nil {
			t.Fatal(err)
		}
	}
	w := &told{}
	check := func(what, want string, errs ...error) {
		t.Helper()
		if got := strings.Join(w.list, " "); got != want || errors.Join(errs...) != nil {
			t.Errorf("%s: %q, want %q, %v", what, got, want, errors.Join(errs...))
		}
		w.list = nil
	}
	errs := []error{m.SetRuns(0, one), m.SetRuns(1, one)}
	m.Watch(w)
	for what, c := range map[string]struct {
		list []RegionState
		want string
	}{"declared": {m.Declared(), "0 1 2 3"}, "within reach": {m.Regions(), "0 1"}} {
		var ids []string
		for _, r := range c.list {
			if ids = append(ids, fmt.Sprint(r.ID)); r.Size != pageSize {
				t.Errorf("%+v is %s", r, what)
			}
		}
		if slices.Sort(ids); strings.Join(ids, " ") != c.want {
			t.Errorf("%s are %v", what, ids)
		}
	}
	check("what there was", "+1", errs...)
	check("one more", "+2", m.SetRuns(2, one))
	check("other pages", "", m.SetRuns(2, other))
	check("region 0", "", m.SetRuns(0, other))
	check("an end", "-1", m.End(1))
	check("of what was never there", "", m.End(3))
	if _, err := m.Map(2, 0); err != nil {
		t.Fatal(err)
	}
	check("of what is mapped", "-2", m.End(2))
	check("all", "", m.Close())
}

// TestAwaitIsWoken: who waits for a region hears when it can be reached, that it will not be, and,
// where it is there or memory is away, at once.
func TestAwaitIsWoken(t *testing.T) {
	no := errors.New("no memory")
	fd := testFile(t, 1)
	for name, x := range map[string]struct {
		then func(m *Memory) error
		want error
	}{
		"it can":      {func(m *Memory) error { return m.SetRuns(1, []Run{{FD: fd, Size: pageSize}}) }, nil},
		"it will not": {func(m *Memory) error { return m.Refuse(2, remote.Declared{Size: pageSize}, no) }, no},
	} {
		m := NewMemory()
		if err := m.Declare(1, remote.Declared{Size: pageSize}, nil); err != nil {
			t.Fatal(err)
		}
		id := map[error]uint32{nil: 1, no: 2}[x.want]
		looks := make(chan struct{}, 2)
		m.poll = func() { looks <- struct{}{} }
		heard := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err := m.Await(ctx, id)
			heard <- err
		}()
		<-looks
		m.mu.Lock()
		changed := m.changed
		m.mu.Unlock()
		if err := x.then(m); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		default:
			t.Fatalf("%s: who waits is not told", name)
		}
		if m.changed == changed {
			t.Fatalf("%s: who waits next hears of it all the time", name)
		}
		if err := <-heard; !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
		if len(looks) != 0 {
			t.Errorf("%s: it looks twice", name)
		}
		_ = m.Close()
	}
	m := NewMemory()
	if err := errors.Join(m.Declare(1, remote.Declared{Size: pageSize}, nil), m.Detach()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Await(t.Context(), 1); err != nil {
		t.Errorf("while memory is away: %v", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Await(over, 9); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Error(err)
	}
	_ = m.Close()
	m = NewMemory()
	for id := range uint32(40) { // whose word is there, whoever has no time to wait for it
		m.poll = func() {
			if err := errors.Join(m.Declare(id, remote.Declared{Size: pageSize}, nil), m.SetRuns(id, []Run{{FD: fd, Size: pageSize}})); err != nil {
				t.Error(err)
			}
		}
		if _, err := m.Await(over, id); err != nil {
			t.Fatalf("region %d: %v", id, err)
		}
	}
	_ = m.Close()
}

// TestUnmapRules: only what is mapped is unmapped, once, also what takes long; what was unmapped
// can be mapped, and end.
func TestUnmapRules(t *testing.T) {
	for _, size := range []uint64{pageSize, unmapAside - pageSize, unmapAside} {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, int64(size))
		}
		if err != nil {
			t.Fatal(err)
		}
		m := NewMemory()
		if err := errors.Join(m.Declare(1, remote.Declared{Size: size}, nil), m.SetRuns(1, []Run{{FD: fd, Size: size}})); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := m.Unmap(1); !errors.Is(err, remote.ErrUnknownRegion) {
				t.Errorf("what is not mapped: %v", err)
			}
			mem, err := m.Map(1, 0)
			if err != nil || !reachable(mem) {
				t.Fatal(err)
			}
			if err := m.Unmap(1); err != nil {
				t.Error(err)
			}
			// Which is had behind the pages' end.
			m.mu.Lock()
			if reachable(mem) || m.regions[1].mapped || m.regions[1].mem != nil || len(m.vacated.spans) != 0 {
				// Nobody has chosen where they lie.
				t.Errorf("%d bytes stay, or where they lay", size)
			}
			m.mu.Unlock()
		}
		if err := errors.Join(m.End(1), m.Close(), unix.Close(fd)); err != nil {
			t.Error(err)
		}
		if err := m.Unmap(1); !errors.Is(err, remote.ErrUnknownRegion) {
			t.Error(err)
		}
	}
	m := NewMemory()
	fd := testFile(t, 2)
	if err := errors.Join(m.Declare(1, remote.Declared{Size: 2 * pageSize}, nil), m.SetRuns(1, []Run{{FD: fd, Size: 2 * pageSize}})); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		off uint64
		n   int
		ok  bool
	}{{0, 2 * pageSize, true}, {2 * pageSize, 0, true}, {2*pageSize + 1, 0, false}, {pageSize, pageSize, true}, {pageSize, pageSize + 1, false}} {
		if err := m.ReadAt(1, make([]byte, x.n), x.off); (err == nil) != x.ok || err != nil && !errors.Is(err, remote.ErrOutOfBounds) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if _, err := m.Map(9, 0); !errors.Is(err, remote.ErrUnknownRegion) {
		t.Error(err)
	}
	_ = m.Close()
}

// TestFilesOfRegions: a region's file is one, and has all of the region's bytes where they are said
// to be.
func TestFilesOfRegions(t *testing.T) {
	fd := memfile(t, 3*pageSize)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(fd), unix.Close(null) }()
	for _, x := range []struct {
		fd     int
		offset int64
		size   uint64
		ok     bool
	}{
		{fd, 0, 3 * pageSize, true}, {fd, 2 * pageSize, pageSize, true}, {fd, 3 * pageSize, 0, true}, {fd, 0, 3*pageSize + 1, false}, {fd, pageSize, 3 * pageSize, false},
		{fd, 4 * pageSize, 0, false}, {fd, -pageSize, pageSize, false}, {fd, 5, pageSize, false}, {fd, pageSize, ^uint64(0), false}, {null, 0, 0, false}, {-1, 0, 0, false},
	} {
		if err := checkMemfd(x.fd, Run{FD: x.fd, Offset: x.offset, Size: x.size}, true, false); (err == nil) != x.ok {
			t.Errorf("%+v: %v", x, err)
		}
	}
	for _, x := range []struct {
		d     remote.Declared
		files int
		ok    bool
	}{
		{remote.Declared{Size: 3 * pageSize}, 1, true}, {remote.Declared{Size: pageSize, Offset: 2 * pageSize}, 1, true}, {remote.Declared{Size: 3 * pageSize}, 2, false}, {remote.Declared{Size: 3 * pageSize}, 0, false}, {remote.Declared{}, 1, false},
		{remote.Declared{Size: 3 * pageSize, Part: pageSize}, 3, true}, {remote.Declared{Size: 3 * pageSize, Part: 2 * pageSize}, 2, true}, {remote.Declared{Size: 3 * pageSize, Part: 3 * pageSize}, 1, true},
		{remote.Declared{Size: 3 * pageSize, Part: pageSize}, 2, false}, {remote.Declared{Size: 3 * pageSize, Part: pageSize}, 4, false}, {remote.Declared{Size: 3 * pageSize, Part: 4 * pageSize}, 1, false}, {remote.Declared{Size: 3 * pageSize, Part: 100}, 123, false},
		{remote.Declared{Size: 3 * pageSize, Part: pageSize, Shared: true}, 3, false}, {remote.Declared{Size: 2 * pageSize, Part: pageSize, Offset: pageSize}, 2, false},
	} {
		var files []int
		for range x.files {
			files = append(files, fd)
		}
		runs, err := runsOf(x.d, files, false)
		var total uint64
		for _, r := range runs {
			total += r.Size
		}
		if (err == nil) != x.ok || x.ok && (len(runs) != x.files || total != x.d.Size || runs[0].Offset != int64(x.d.Offset)) || err != nil && !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("%+v in %d files: %v, %v", x.d, x.files, runs, err)
		}
	}
}
