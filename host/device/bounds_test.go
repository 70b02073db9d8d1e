package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
	"causeway/vhostuser"
	"causeway/virtio"
	"causeway/virtio/fs"
)

// TestTermsStandWithTheVM: while a VM stands with memory that a busy GPU keeps no loan lapses,
// however long that takes, and when it goes on each has its whole term again.
func TestTermsStandWithTheVM(t *testing.T) {
	inKernel(t, func(k *kernel) {
		zero := k.begin()
		c := k.lend(loanAt(0, 0), zero)
		w := k.worker()
		w.busy = true
		paused := make(chan bool)
		go func() { paused <- k.d.fs.Pause(1) }()
		if kept := <-paused; !kept {
			t.Error("nothing is kept of a GPU that works")
		}
		parks := w.parks
		k.sleep(10 * loanTerm)
		k.pending("while the VM stands", c)
		if w.parks != parks {
			t.Errorf("it is to park %d times while the VM stands", w.parks-parks)
		}
		k.d.fs.Resume(1, true)
		if at := k.session().due(); !at.Equal(time.Now().Add(loanTerm)) {
			t.Errorf("its loan lapses %v after the VM went on", time.Until(at))
		}
		w.busy = false
		k.sleep(loanTerm / 2)
		k.pending("a loan, half a term after the VM went on", c)
		k.sleep(loanTerm)
		k.want("the loan, after its term", c, 0)
	})
}

// TestCopyFrameBounds: each kind of frame has the sizes that it may have, to the byte; only what
// belongs to streams has a number; and only data that has become smaller says what it was, which is
// no more than fits a frame.
func TestCopyFrameBounds(t *testing.T) {
	frame := func(kind, size uint32, seq uint64, plain uint32) error {
		b := putCopyHeader(make([]byte, copyHeader+size), kind, 1, seq)
		sizeFrame(b, plain)
		f, err := readCopyFrame(bytes.NewReader(b), make([]byte, mostCopyData))
		if err == nil && (f.kind != kind || f.stream != 1 || f.seq != seq || uint32(len(f.body)) != size || f.plain != plain || f.wire != uint64(len(b))) {
			t.Errorf("kind %d of %d bytes is read as %+v", kind, size, f)
		}
		return err
	}
	for kind, most := range copyBounds {
		seq := uint64(0)
		if ofStreams(kind) {
			seq = 9
		}
		for size, fits := range map[uint32]bool{most[0] - 1: false, most[0]: true, most[1]: true, most[1] + 1: false, 1<<32 - 1: false} {
			if size > mostCopyData+1 { // it is said, and not there
				b := putCopyHeader(make([]byte, copyHeader), kind, 1, seq)
				binary.LittleEndian.PutUint32(b[8:], size)
				if _, err := readCopyFrame(bytes.NewReader(b), nil); !errors.Is(err, errCopyFrame) {
					t.Errorf("kind %d of %d bytes: %v", kind, size, err)
				}
			} else if err := frame(kind, size, seq, 0); (err == nil) != fits || !fits && !errors.Is(err, errCopyFrame) {
				t.Errorf("kind %d of %d bytes: %v", kind, size, err)
			}
		}
		if err := frame(kind, most[0], 9-seq, 0); !errors.Is(err, errCopyFrame) {
			t.Errorf("kind %d of number %d: %v", kind, 9-seq, err)
		}
		for plain, fits := range map[uint32]bool{most[0]: false, most[0] + 1: true, mostCopyData: true, mostCopyData + 1: false, 1<<32 - 1: false} {
			if plain == 0 {
				continue // not packed
			}
			if err := frame(kind, most[0], seq, plain); (err == nil) != (fits && kind == copyData) {
				t.Errorf("kind %d of %d bytes that were %d: %v", kind, most[0], plain, err)
			}
		}
	}
	if err := frame(99, 0, 0, 0); !errors.Is(err, errCopyFrame) {
		t.Errorf("a kind that is none: %v", err)
	}
}

// TestClaims: what went ahead of a session's memory is that session's, of the program that it is of
// and once, and only if all of it came; a session of which nothing went ahead ends what was on its
// way.
func TestClaims(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	who, other := fs.Caller{UID: 1000, GID: 1000, PID: 7}, fs.Caller{UID: 1001, GID: 1000, PID: 7}
	token := func(i byte) []byte { return bytes.Repeat([]byte{i}, tokenSize) }
	arrive := func(id uint32, c fs.Caller, whole bool) *session {
		s := newSession(d, uint64(id), c)
		ours, theirs, err := streamPair()
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(theirs)
		a := &arrival{s: s, conn: ours, whole: whole}
		copy(a.token[:], token(byte(id)))
		d.in.streams[id] = a
		return s
	}
	d.in.streams = map[uint32]*arrival{}
	one, _, half := arrive(1, who, true), arrive(2, other, true), arrive(3, who, false)
	for what, c := range map[string]struct {
		token []byte
		of    fs.Caller
	}{"of another program": {token(2), who}, "of the program as another": {token(1), other}, "half of it": {token(3), who}, "what did not come": {token(9), who}, "of none": {make([]byte, tokenSize), who}, "a part of a token": {token(1)[1:], who}} {
		if s, err := d.in.claim(c.token, c.of); err == nil || s != nil || len(d.in.streams) != 3 {
			t.Errorf("%s: %v, %v, %d are left", what, s, err, len(d.in.streams))
		}
	}
	if s, err := d.in.claim(token(1), who); err != nil || s != one || len(d.in.streams) != 2 {
		t.Errorf("%v, %v, %d are left", s, err, len(d.in.streams))
	}
	if s, err := d.in.claim(token(1), who); err == nil {
		t.Errorf("twice: %v", s)
	}
	if s, err := d.in.claim(nil, who); err != nil || s != nil || len(d.in.streams) != 1 || d.in.streams[2] == nil || half.state != released {
		t.Errorf("of nothing: %v, %v, %d are left, what was on its way is %v", s, err, len(d.in.streams), half.state)
	}
	d.in.unclaimed(nil)
	if len(d.in.streams) != 0 {
		t.Errorf("%d are left", len(d.in.streams))
	}
}

// TestKeeperLetsGo: the keeper has a front end's connection as long as the device has, and no
// longer.
func TestKeeperLetsGo(t *testing.T) {
	pair := func(kind int) (a, b *net.UnixConn) {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var errs [2]error
		a, errs[0] = sys.UnixConn(fds[0], "a")
		b, errs[1] = sys.UnixConn(fds[1], "b")
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return a, b
	}
	log := slog.New(slog.DiscardHandler)
	device, link := pair(unix.SOCK_SEQPACKET)
	queues, err := keeperQueuesIn(make([]byte, keeperMemory))
	if err != nil {
		t.Fatal(err)
	}
	mem := vhostuser.NewMemory()
	standby := vhostuser.NewStandby(mem, fs.NewEnded(mem, requestQueues, func(q int) *virtio.InFlight { return queues[q] }, log), vhostuser.Options{Logger: log})
	heard := make(chan error, 1)
	go func() { heard <- receiveStates(link, standby) }()
	k := &Keeper{link: device, log: log}
	for range 3 {
		front, sock := pair(unix.SOCK_STREAM)
		k.Connected(sock)
		_ = sock.Close()
		k.Gone()
		_ = front.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := front.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("the keeper has the connection still: %v", err)
		}
	}
	_ = device.Close()
	if err := <-heard; err != nil {
		t.Error(err)
	}
}
