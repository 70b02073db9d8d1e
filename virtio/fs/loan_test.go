package fs_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"causeway/vhostuser"
	"causeway/virtio/fs"
	"causeway/virtio/fs/fstest"
)

// pend opens the session file and leaves n READs pending.
func pend(t *testing.T, g *fstest.Guest, ctl *testControl, n int) (*fstest.File, *testHandle, []*fstest.Call, []*fs.ReadRequest) {
	t.Helper()
	f, err := g.Open(syscall.O_RDWR, fuse.Caller{}, "session")
	if err != nil {
		t.Fatal(err)
	}
	h := ctl.last()
	var calls []*fstest.Call
	var reads []*fs.ReadRequest
	for i := 0; i < n; i++ {
		c, err := f.Read(i%2, 0, g.Pages(2))
		if err != nil {
			t.Fatal(err)
		}
		calls, reads = append(calls, c), append(reads, <-h.reads)
	}
	return f, h, calls, reads
}

func TestSuspendReturnsLoans(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2})
	f, h, calls, reads := pend(t, g, ctl, 300)
	start := time.Now()
	if err := g.StopRings(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("stopping took %v", d)
	}
	for i, c := range calls {
		if p, errno, err := c.Wait(time.Minute); len(p) != 0 || errno != 0 || err != nil {
			t.Fatalf("READ %d = %d bytes, %v, %v", i, len(p), errno, err)
		}
		if reads[i].Complete(0, 0) {
			t.Fatalf("READ %d was still pending", i)
		}
	}
	if n := <-h.revoked + <-h.revoked; n != 300 {
		t.Errorf("%d requests were revoked", n)
	}
	if err := g.StartRings(); err != nil {
		t.Fatal(err)
	}
	// The guest renews and the session goes on.
	c, err := f.Read(0, 0, g.Pages(1))
	if err != nil {
		t.Fatal(err)
	}
	(<-h.reads).Complete(1, 0)
	if p, _, err := c.Wait(time.Minute); len(p) != 1 || err != nil {
		t.Errorf("READ after resume = %d, %v", len(p), err)
	}
}

func TestDeathOfTheFrontEnd(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2})
	_, h, _, reads := pend(t, g, ctl, 10)
	g.Front.Sock.Close()
	<-h.released
	for _, r := range reads {
		if r.Complete(0, 0) {
			t.Fatal("a READ outlived the front end")
		}
	}
}

func TestResetReleasesSessions(t *testing.T) {
	ctl := &testControl{}
	reset := make(chan struct{}, 2)
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2, OnReset: func() { reset <- struct{}{} }})
	<-reset // the handshake's
	_, h, _, _ := pend(t, g, ctl, 4)
	if err := g.StopRings(); err != nil {
		t.Fatal(err)
	}
	if err := g.Front.Set(vhostuser.ResetDevice, nil); err != nil {
		t.Fatal(err)
	}
	<-reset
	<-h.released
	if err := errors.Join(g.StartRings(), g.Mount()); err != nil {
		t.Errorf("mount after the reset: %v", err)
	}
}

func TestMemoryRemovalRevokes(t *testing.T) {
	ctl := &testControl{}
	g, dev := boot(t, ctl, fs.Options{RequestQueues: 2})
	_, h, calls, reads := pend(t, g, ctl, 2)
	_ = dev
	if err := g.Front.RemoveMemory(g.Mem); err != nil {
		t.Fatal(err)
	}
	if n := <-h.revoked; n != 2 {
		t.Errorf("%d requests were revoked", n)
	}
	for i, c := range calls {
		// The rings pin their region, so that the answers still arrive.
		if _, errno, err := c.Wait(time.Minute); errno != 0 || err != nil || reads[i].Complete(0, 0) {
			t.Errorf("READ %d: %v %v", i, errno, err)
		}
	}
}

func TestRevokeThatHangs(t *testing.T) {
	ctl := &testControl{}
	g, dev := boot(t, ctl, fs.Options{RequestQueues: 2, RevokeLimit: 20 * time.Millisecond})
	f, h, calls, _ := pend(t, g, ctl, 1)
	h.hang = make(chan struct{})
	dev.CancelPending()
	if _, errno, err := calls[0].Wait(time.Minute); errno != 0 || err != nil {
		t.Errorf("READ: %v %v", errno, err)
	}
	close(h.hang)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestLoanIsLogged: while a migration runs, the end of a loan marks all its pages, for anything
// in them may have changed.
func TestLoanIsLogged(t *testing.T) {
	x := newDirect(t)
	const size = 4096
	fd, err := unix.MemfdCreate("dirty-log", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	bits, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(bits)
	if err := x.mem.StartLog(fd, size, 0); err != nil {
		t.Fatal(err)
	}
	defer x.mem.StopLog()
	x.prepare(14, 6, make([]byte, 8), 16)
	x.run(t)
	before := append([]byte(nil), bits...)
	x.prepare(15, 6, append(u64s(1, 0), append(u32s(8192, 0), make([]byte, 16)...)...), 8192)
	x.run(t)
	if !bytes.Equal(before, bits) {
		t.Error("pages were marked while the loan lasts")
	}
	x.dev.CancelPending()
	for page := x.out.GPA >> 12; page <= (x.out.GPA+8192)>>12; page++ {
		if bits[page/8]>>(page%8)&1 == 0 {
			t.Errorf("page %#x of the loan is not marked", page)
		}
	}
}

// A request that the front end's end took away touches no memory any more, which is unmapped by
// then.
func TestRequestsOfTheGone(t *testing.T) {
	ctl := &testControl{}
	g, _ := boot(t, ctl, fs.Options{RequestQueues: 2})
	_, h, _, reads := pend(t, g, ctl, 2)
	if n := reads[0].CopyIn([]byte("here"), 0); n != 4 {
		t.Fatalf("%d bytes fit a pending READ", n)
	}
	g.Front.Sock.Close()
	<-h.released
	for _, r := range reads {
		if n := r.CopyIn([]byte("gone"), 0); n != 0 {
			t.Errorf("%d bytes were copied to pages that were taken back", n)
		}
	}
}
