package virtio_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// mapped counts the mappings of guest memory.
func mapped(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return strings.Count(string(b), "guest-ram")
}

// TestQueueSizes: a queue's size is a power of two up to the largest.
func TestQueueSizes(t *testing.T) {
	mem := vhostuser.NewMemory()
	d := virtiotest.NewDriver(ram(t, mem, 0x100000, 8<<20), 8, virtiotest.Options{})
	for size, ok := range map[int]bool{-8: false, 0: false, 1: true, 2: true, 3: false, 6: false, 1024: true, 32767: false, 32768: true, 65536: false} {
		cfg := d.Config()
		cfg.Size = size
		q, err := virtio.NewQueue(mem, cfg)
		if (err == nil) != ok {
			t.Errorf("%d: %v", size, err)
		}
		if err == nil {
			q.Stop(0)
		}
	}
}

// TestRingsLetGo: memory that a queue's ring lies in stays while the ring does, and no longer: also
// where a queue could not go on, and where one could not begin.
func TestRingsLetGo(t *testing.T) {
	before := mapped(t)
	for _, what := range []string{"stopped", "cannot begin", "another"} {
		b := newRunner(t, virtiotest.Options{})
		p := &pauser{keeper: keeper{came: make(chan int, 100)}, keep: what == "another"}
		b.k = &p.keeper
		b.r = virtio.NewRunner(b.mem, 1, p, quiet())
		cfg := b.cfg
		if what == "cannot begin" {
			cfg.Used++ // not aligned, behind two that are
			if b.r.StartQueue(0, cfg) == nil {
				t.Fatal("it begins")
			}
		} else {
			must(t, b.r.StartQueue(0, cfg))
			b.add(t, 2)
			b.await(t, 2)
			b.mem.Clear()
			if mapped(t) != before+2 { // the driver's, and the ring's
				t.Errorf("%s: the ring's memory is gone", what)
			}
			fd, err := b.d.Mem.DupFD()
			must(t, err)
			must(t, b.mem.Add(fd, 0x100000, 1<<20, b.d.Mem.User, 0))
			cfg.Base = b.r.StopQueue(0)
		}
		if what == "another" {
			b.d.Mem.At(b.d.Used+2, 2)[0]++ // somebody else used it
			must(t, b.r.StartQueue(0, cfg))
			p.keep = false
			b.r.StopQueue(0)
			p.Quiesce(0)
		}
		b.mem.Clear()
		if n := mapped(t); n != before+1 {
			t.Errorf("%s: %d mappings of guest memory, %d before", what, n, before)
		}
		b.d.Mem.Close()
		before = mapped(t)
	}
}

// TestKickThatFails: a queue whose kicks cannot be heard of ends, and says so once; it stops as any
// other.
func TestKickThatFails(t *testing.T) {
	b, l := newRunner(t, virtiotest.Options{}), &virtiotest.Log{}
	b.r = virtio.NewRunner(b.mem, 1, b.k, slog.New(slog.NewTextHandler(l, nil)))
	b.add(t, 1)
	must(t, b.r.StartQueue(0, b.cfg))
	b.await(t, 1)
	b.cfg.Kick.Close()
	for end := time.Now().Add(time.Minute); !strings.Contains(l.String(), "kick eventfd failed"); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("nobody says that it does not hear of kicks")
		}
	}
	if next := b.r.StopQueue(0); next != 1 || strings.Count(l.String(), "\n") != 1 {
		t.Errorf("stopped at %d: %s", next, l)
	}
}

// TestRunnerResumes: a queue that another process has left goes on with what that had in flight,
// and each chain of it comes back.
func TestRunnerResumes(t *testing.T) {
	b, f := diedInFlight(t, 1)
	left := b.k.kept
	for _, c := range left {
		if c.Live() {
			t.Error("of a queue that has stopped the driver hears")
		}
		c.Complete(0)
	}
	if b.d.UsedIdx() != 0 {
		t.Error("it hears of what was lost")
	}
	b.k.kept, b.k.leave = nil, 0
	for _, index := range []int{-1, 2} {
		if b.r.ResumeQueue(index, b.cfg, f) == nil {
			t.Errorf("there is a queue %d", index)
		}
	}
	must(t, b.r.ResumeQueue(1, b.cfg, f))
	if b.r.ResumeQueue(1, b.cfg, f) == nil || !b.r.Running() || b.r.Queues() != 2 {
		t.Error("it is resumed twice, or does not run")
	}
	b.await(t, 3)
	b.add(t, 1)
	b.await(t, 1)
	b.k.mu.Lock()
	if len(b.k.kept) != 4 || !b.k.kept[0].Live() {
		t.Errorf("%d chains", len(b.k.kept))
	}
	b.k.mu.Unlock()
	if next := b.r.StopQueue(1); next != 4 || b.d.UsedIdx() != 4 || b.r.Running() || b.r.StopQueue(1) != 0 {
		t.Errorf("stopped at %d, %d came back", next, b.d.UsedIdx())
	}
	b.r.UpdateQueue(1, b.cfg) // of one that has stopped
}

// TestBrokenOnce: of a queue that is broken the front end and the log hear once, and its goroutine
// looks at it no more.
func TestBrokenOnce(t *testing.T) {
	b, l := newRunner(t, virtiotest.Options{}), &virtiotest.Log{}
	b.r = virtio.NewRunner(b.mem, 1, b.k, slog.New(slog.NewTextHandler(l, nil)))
	b.d.Offer(99) // of 16
	must(t, b.r.StartQueue(0, b.cfg))
	if !b.err.Wait(time.Minute) {
		t.Fatal("the front end is not told")
	}
	b.kick.Signal()
	if b.err.Wait(10 * time.Millisecond) { // longer than a goroutine needs that would look again
		t.Error("it is told again")
	}
	b.r.StopQueue(0)
	if n := strings.Count(l.String(), "\n"); n != 1 {
		t.Errorf("%d lines", n)
	}
}
