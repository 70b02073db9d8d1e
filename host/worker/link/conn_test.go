package link_test

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/worker/link"
	"causeway/host/worker/link/linktest"
)

func ends(t testing.TB) (*link.ParentEnd, *link.WorkerEnd) {
	t.Helper()
	parent, f, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	worker, err := link.NewWorkerEnd(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = parent.Close()
		_ = worker.Close()
	})
	return parent, worker
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestSend sends a message of each kind over a link: it arrives as what it was, with descriptors of
// its own, which Discard closes.
func TestSend(t *testing.T) {
	parent, worker := ends(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	before := descriptors(t)
	for _, m := range linktest.ToWorker(fd) {
		if err := parent.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := worker.Receive()
		if err != nil {
			t.Fatal(err)
		}
		arrived(t, m, r.Message())
		if err := r.Refuse(); !errors.Is(err, link.ErrUnexpected) || !strings.HasSuffix(err.Error(), ": "+link.Name(m)) {
			t.Errorf("%s is refused by %q", link.Name(m), err)
		}
	}
	for _, m := range linktest.ToParent(fd) {
		if err := worker.Send(m); err != nil {
			t.Fatal(err)
		}
		r, err := parent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		arrived(t, m, r.Message())
		r.Discard()
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// arrived compares what was sent with what came, whose descriptors have other numbers.
func arrived(t *testing.T, sent, got link.Message) {
	t.Helper()
	a, files, err := link.Encode(sent)
	if err != nil {
		t.Fatal(err)
	}
	b, others, err := link.Encode(got)
	if err != nil || string(a) != string(b) || len(files) != len(others) {
		t.Errorf("%s: %d bytes with %d descriptors became %d with %d, %v", link.Name(sent), len(a), len(files), len(b), len(others), err)
	}
	for _, fd := range others {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: descriptor %d: flags %#x, %v", link.Name(sent), fd, flags, err)
		}
	}
}

// TestDirections: neither end takes what only the other may be sent. The types forbid to send it; a
// worker that was taken over writes bytes.
func TestDirections(t *testing.T) {
	parent, worker := ends(t)
	for _, m := range linktest.ToWorker(0) {
		b, _, err := link.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := worker.Raw(b); err != nil {
			t.Fatal(err)
		}
		if r, err := parent.Receive(); !errors.Is(err, link.ErrMessage) {
			t.Errorf("a worker says %s: %v, %v", link.Name(m), r, err)
		}
	}
	for _, m := range linktest.ToParent(0) {
		b, _, err := link.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Raw(b); err != nil {
			t.Fatal(err)
		}
		if r, err := worker.Receive(); !errors.Is(err, link.ErrMessage) {
			t.Errorf("a parent says %s: %v, %v", link.Name(m), r, err)
		}
	}
}

func TestEnds(t *testing.T) {
	parent, worker := ends(t)
	for _, n := range []int{1, 3, link.MaxPacket + 1, 2 * link.MaxPacket} {
		if err := worker.Raw(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := parent.Receive(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	_ = worker.Close()
	if _, err := parent.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// TestDeaf: who sends does not wait for a worker that reads nothing, but once, and whoever sends
// beside it no longer; and one that reads, however slowly, is sent all.
func TestDeaf(t *testing.T) {
	const hearing, slow = 300 * time.Millisecond, 20 * time.Millisecond
	pages := link.AddPages{Ranges: make([]link.Range, link.MaxRanges)}
	for i := range pages.Ranges {
		pages.Ranges[i] = link.Range{GPA: uint64(i) << 13, Size: 1 << 12}
	}
	parent, worker := ends(t)
	parent.SetHearing(hearing)
	read := make(chan int)
	go func() {
		n := 0
		for ; n < 30; n++ {
			time.Sleep(slow)
			if _, err := worker.Receive(); err != nil {
				t.Error(err)
				break
			}
		}
		read <- n
	}()
	for range 30 { // of 64 KiB, for which it takes twice as long as may pass with none
		if err := parent.Send(pages); err != nil {
			t.Fatalf("to a worker that is slow: %v", err)
		}
	}
	if n := <-read; n != 30 {
		t.Fatalf("it has read %d messages of 30", n)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			for range 10000 {
				if err := parent.Send(pages); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, link.ErrDeaf) {
				t.Errorf("to a worker that does not read: %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("who sends to a worker that does not read waits for ever")
		}
	}
	begin := time.Now()
	if err := parent.Send(link.Quit{}); !errors.Is(err, link.ErrDeaf) || time.Since(begin) > hearing/2 {
		t.Errorf("and then: %v, after %v", err, time.Since(begin))
	}
}
