package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/state"
	"causeway/remote"
)

// controlPage is the beginning of one as a guest writes it.
func controlPage() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, remote.ControlPageMagicOffset), remote.HelloMagic)
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(b, remote.ProtocolVersion), remote.RingSize)
}

// startVirtiofs is a carrier with a region 0 that begins so, until the test ends.
func startVirtiofs(t *testing.T, worker *link.WorkerEnd, page []byte, fresh bool) (*virtiofs, error) {
	t.Helper()
	const gpa = 1 << 20
	l := newVirtiofs(worker)
	fd := memfile(t, "causeway-test-control", int64(remote.Region0Size))
	_, err := unix.Pwrite(fd, page, 0)
	l.guest = []link.BackedMemory{{MemoryRegion: link.MemoryRegion{GPA: gpa, Size: remote.Region0Size}, File: fd}}
	err = errors.Join(err, l.mem.Declare(0, remote.Declared{VA: 1 << 40, Size: remote.Region0Size}, nil),
		l.addPages(link.AddPages{Region: 0, Ranges: []link.Range{{GPA: gpa, Size: remote.Region0Size}}, Last: true}))
	bell, err2 := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l.bell != nil {
			_ = l.bell.Close()
		}
		if err := errors.Join(l.mem.Close(), unix.Close(fd)); err != nil {
			t.Error(err)
		}
	})
	return l, l.start(bell, 0, fresh)
}

// TestControlPageOfAVM: a guest whose library lays its memory out otherwise is refused when its
// session begins, not where one is adopted that has begun.
func TestControlPageOfAVM(t *testing.T) {
	right := controlPage()
	start := func(page []byte, fresh bool) error {
		_, worker := linkPair(t)
		_, err := startVirtiofs(t, worker, page, fresh)
		return err
	}
	if err := start(right, true); err != nil {
		t.Error(err)
	}
	for at := remote.ControlPageMagicOffset; int(at) < len(right); at++ {
		page := slices.Clone(right)
		page[at] ^= 0x40
		if err := start(page, true); !errors.Is(err, remote.ErrProtocol) {
			t.Errorf("byte %d: %v", at, err)
		}
		if err := start(page, false); err != nil {
			t.Errorf("byte %d of a session that goes on: %v", at, err)
		}
	}
}

// TestVirtiofsGoesOn: a carrier that another process takes over has the ring where it was, and each
// region's bytes, of whichever pages of the VM it is made.
func TestVirtiofsGoesOn(t *testing.T) {
	const page, gpa = 4096, 1 << 30
	_, worker := linkPair(t)
	l, err := startVirtiofs(t, worker, controlPage(), true)
	if err != nil {
		t.Fatal(err)
	}
	fd := memfile(t, "causeway-test-goes-on", 8*page)
	for i := range int64(8) {
		if _, err := unix.Pwrite(fd, bytes.Repeat([]byte{byte('a' + i)}, page), i*page); err != nil {
			t.Fatal(err)
		}
	}
	l.guest = append(l.guest, link.BackedMemory{MemoryRegion: link.MemoryRegion{GPA: gpa, Size: 8 * page}, File: fd})
	want := map[uint32]string{5: "hcd", 9: "a"}
	for id, pages := range want {
		if err := l.mem.Declare(id, remote.Declared{VA: 1<<41 + uint64(id)<<30, Size: uint64(len(pages)) * page}, nil); err != nil {
			t.Fatal(err)
		}
		for i, p := range pages { // each is lent by itself
			m := link.AddPages{Region: id, At: uint64(i) * page, Ranges: []link.Range{{GPA: gpa + uint64(p-'a')*page, Size: page}}, Last: i == len(pages)-1}
			if err := l.addPages(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	var snap snapshot
	files, err := l.describe(&snap)
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if files[i], err = unix.FcntlInt(uintptr(files[i]), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	w := state.NewWriter(&b)
	snap.Virtiofs.write(w)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	s := &starter{link: worker}
	carrier, err := s.adoptCarrier(&snapshot{Virtiofs: readVirtiofs(state.NewReader(&b, 1<<20))}, files)
	if err != nil {
		t.Fatal(err)
	}
	next := s.virtiofs // which the link's messages of memory go to
	if carrier != remote.Carrier(next) {
		t.Error("the session has another carrier than its memory")
	}
	for id, pages := range want {
		for i, p := range pages {
			got := make([]byte, page)
			if err := next.mem.ReadAt(id, got, uint64(i)*page); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{byte(p)}, page)) {
				t.Errorf("region %d, page %d: %q, %v", id, i, got[0], err)
			}
		}
	}
	if next.ring.Head() != l.ring.Head() {
		t.Errorf("the ring is at %d, and was at %d", next.ring.Head(), l.ring.Head())
	}
	if err := errors.Join(next.mem.Close(), next.bell.Close(), unix.Close(fd)); err != nil {
		t.Error(err)
	}
	for _, g := range next.guest {
		_ = unix.Close(g.File)
	}
}

// TestRehearsalSaysHowItsDriverStarted: what a session is rehearsed from says all that its next
// worker must know, of how its driver was started too.
func TestRehearsalSaysHowItsDriverStarted(t *testing.T) {
	for _, warm := range []bool{false, true} {
		s := newRecorded(t)
		s.must(0, &wire.SessionInitArgs{Version: remote.ProtocolVersion, Pid: 77})
		s.must(1, &wire.PrimaryCtxRetainArgs{Ctx: 1}, &wire.MemAllocArgs{Size: 64})
		parent, worker := linkPair(t)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		h, err := newHandover(pair[1], 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		defer h.close()
		go func() { _ = (<-s.w.tasks)() }()
		l, err := startVirtiofs(t, worker, controlPage(), true)
		if err != nil {
			t.Fatal(err)
		}
		from := &starter{link: worker, virtiofs: l, warm: warm}
		if err := from.rehearse(s.w, link.Copy{Number: 5, Rehearsal: true, Stream: link.FileOf(pair[0])}); err != nil {
			t.Fatal(err)
		}
		if err := h.readAhead(slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		snap, err := readSnapshot(h.in)
		if err != nil || snap.Warm != warm || len(snap.Requests) != 3 || snap.Virtiofs == nil {
			t.Fatalf("%+v, %v", snap, err)
		}
		r, err := parent.Receive()
		if m, ok := r.Message().(link.Copied); err != nil || !ok || m.Number != 5 || m.Status.Errno != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}
