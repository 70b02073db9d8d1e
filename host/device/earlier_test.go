package device

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/meter"
	"causeway/virtio/fs"
)

// TestArrivalsOfAnEarlierCopy: another pre-copy begins with nothing of the one before, whose
// sessions end.
func TestArrivalsOfAnEarlierCopy(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	d.in.streams, d.in.total = map[uint32]*arrival{}, 77
	var all []*session
	for id := range uint32(3) {
		ours, theirs, err := streamPair()
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(theirs)
		s := newSession(d, uint64(id), fs.Caller{PID: 7})
		d.in.streams[id] = &arrival{s: s, conn: ours, whole: true}
		all = append(all, s)
	}
	if n := d.in.ended(); n != 3 {
		t.Fatalf("%d wait for their VM", n)
	}
	if err := d.in.begin(d, io.NopCloser(strings.NewReader("")), &toSource{w: io.Discard}); err != nil {
		t.Fatal(err)
	}
	for i, s := range all {
		if s.state != released {
			t.Errorf("session %d is %v", i, s.state)
		}
	}
	if len(d.in.streams) != 0 || d.in.total != 0 || d.in.expiry != nil {
		t.Errorf("%d sessions and %d bytes of the earlier one are left", len(d.in.streams), d.in.total)
	}
}

// TestWatchLimit: a vGPU is over its limit when more is used than that, and one without is never.
func TestWatchLimit(t *testing.T) {
	budget, err := memory.New(0)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{budget: budget, log: slog.New(slog.DiscardHandler)}
	defer budget.Close()
	slot, err := budget.Take()
	if err != nil {
		t.Fatal(err)
	}
	budget.SetBeside(slot, 1000)
	for _, c := range []struct {
		limit uint64
		over  bool
	}{{1001, false}, {1000, false}, {999, true}, {1, true}, {0, false}, {999, true}, {1000, false}} {
		budget.SetLimit(c.limit)
		if d.watchLimit(); d.audit.over != c.over {
			t.Errorf("1000 bytes of %d: over its limit: %v", c.limit, d.audit.over)
		}
	}
}

// TestStoreOfASessionThatIsNotParked: nothing is written, and what it was to be written to is given
// back.
func TestStoreOfASessionThatIsNotParked(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"", t.TempDir()} {
		kept, err := newStored(folder, 0)
		if err != nil {
			t.Fatal(err)
		}
		files := append(kept.memory, kept.f)
		if _, err := newSession(d, 1, fs.Caller{PID: 7}).store(kept, false); err == nil {
			t.Error("a session without a worker was stored")
		}
		for i, f := range files {
			if _, err := f.Stat(); err == nil {
				t.Errorf("file %d of %d stays open", i, len(files))
			}
		}
	}
}

// spent is a worker that has used time of the processor.
type spent struct {
	workerProcess
	cpu  time.Duration
	done chan struct{}
}

func (w *spent) CPU() time.Duration    { return w.cpu }
func (w *spent) Done() <-chan struct{} { return w.done }

// TestTimeOfWorkersThatAreLeft: the time of all workers that a session has had counts, and goes on
// to count when they end.
func TestTimeOfWorkersThatAreLeft(t *testing.T) {
	var r resources
	var all []*spent
	want := time.Duration(0)
	for i := range 5 {
		w := &spent{cpu: time.Second << i, done: make(chan struct{})}
		want += w.cpu
		if got := r.cpuTime(w); got != want {
			t.Errorf("with worker %d: %v, not %v", i, got, want)
		}
		r.left, all = append(r.left, w), append(all, w)
		for _, old := range all[:i/2] {
			select {
			case <-old.done:
			default:
				close(old.done)
			}
		}
		if got := r.cpuTime(nil); got != want {
			t.Errorf("after worker %d: %v, not %v", i, got, want)
		}
	}
}

// successors are workers to which sessions move that end meanwhile.
type successors struct {
	workers
	next []*spent
	s    *session
}

func (f *successors) rebuild(context.Context, workerProcess, *Place, link.Config) (workerProcess, error) {
	f.s.state = dead
	w := f.next[0]
	f.next = f.next[1:]
	return w, nil
}

func (*spent) Kill() {}

// TestWorkersThatARebuildLeaves: a session that moves again and again has the time of each worker
// that it was at.
func TestWorkersThatARebuildLeaves(t *testing.T) {
	d, err := New(quietDevice(library(t)))
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(d, 1, fs.Caller{PID: 7})
	f := &successors{s: s}
	for i := range 4 {
		f.next = append(f.next, &spent{cpu: time.Second << i, done: make(chan struct{})})
	}
	d.workers = f
	page, err := meter.New()
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	s.res, s.proc, s.at = &resources{meter: page}, f.next[0], &Place{}
	f.next = f.next[1:]
	for i := range 3 {
		s.state = running
		if err := s.rebuild(t.Context(), false); !errors.Is(err, errState) {
			t.Fatalf("move %d: %v", i, err)
		}
		if got, want := s.res.cpuTime(s.proc), time.Second<<(i+2)-time.Second; got != want {
			t.Errorf("after %d moves: %v, not %v", i+1, got, want)
		}
	}
}

// TestStoredThatCannotBeRead: who reads a stored session, whose memory follows, hears that it is
// not whole.
func TestStoredThatCannotBeRead(t *testing.T) {
	kept, err := newStored("", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	_ = kept.f.Close()
	r := kept.read()
	defer r.Close()
	if b, err := io.ReadAll(r); err == nil {
		t.Errorf("%d bytes, and no error", len(b))
	}
}
