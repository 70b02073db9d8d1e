package virtio_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"causeway/vhostuser"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// TestStopWaitsForAll: it waits until the last chain is back, and no longer.
func TestStopWaitsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time passes by the test's own clock
		q, d, _ := newQueue(t, 8, virtiotest.Options{})
		var cs []*virtio.Chain
		for range 3 {
			_, err := d.Add(nil, []virtiotest.Buffer{d.Alloc(16)})
			must(t, err)
			c, err := q.Pop()
			must(t, err)
			cs = append(cs, c)
		}
		go func() {
			for _, c := range cs {
				time.Sleep(time.Second)
				c.Complete(0)
			}
		}()
		begin := time.Now()
		if lost, took := q.Stop(time.Minute), time.Since(begin); lost != 0 || took != 3*time.Second {
			t.Errorf("%d lost after %v", lost, took)
		}
		if d.UsedIdx() != 3 {
			t.Errorf("%d came back", d.UsedIdx())
		}
	})
}

// TestOnlyWhatIsWrittenIsDirty: of a chain's buffers those behind its answer are not marked.
func TestOnlyWhatIsWrittenIsDirty(t *testing.T) {
	mem := vhostuser.NewMemory()
	g := ram(t, mem, 0, 8<<20)
	d := virtiotest.NewDriver(g, 8, virtiotest.Options{})
	q, err := virtio.NewQueue(mem, d.Config())
	must(t, err)
	defer q.Stop(0)
	buffers := []virtiotest.Buffer{{GPA: 0x400000, Bytes: make([]byte, 16)}, {GPA: 0x500000, Bytes: make([]byte, 16)}, {GPA: 0x600000, Bytes: make([]byte, 16)}}
	for written, want := range map[uint32]string{0: "", 16: "400", 17: "400 500", 32: "400 500", 48: "400 500 600"} {
		_, err = d.Add(nil, buffers)
		must(t, err)
		c, err := q.Pop()
		must(t, err)
		log := vhosttestLog(t, mem)
		c.Complete(written)
		if got := log(); got != want {
			t.Errorf("%d bytes marked %q, not %q", written, got, want)
		}
		mem.StopLog()
		d.Poll()
	}
}

// TestLongestChains: a chain may have as many descriptors as are promised, its table one of them,
// and not one more; its table may be full although little of it is used.
func TestLongestChains(t *testing.T) {
	const most = 1024
	q, d, _ := newQueue(t, 8, virtiotest.Options{Indirect: true})
	table, data := d.Alloc(16*most), d.Alloc(4096)
	for i := range most {
		d.PutDesc(table.GPA, i, data.GPA, 1, virtiotest.Next, uint16(i+1))
	}
	for _, c := range []struct {
		buffers, table int
		want           error
	}{{most - 1, most - 1, nil}, {most - 1, most, nil}, {1, most, nil}, {most, most, virtio.ErrTooLong}, {1, most + 1, virtio.ErrTooLong}} {
		d.PutDesc(table.GPA, c.buffers-1, data.GPA, 1, 0, 0)
		d.PutDesc(d.Desc, 0, table.GPA, uint32(16*c.table), virtiotest.Indirect, 0)
		d.Offer(0)
		chain, err := q.Pop()
		if !errors.Is(err, c.want) || err == nil && chain.ReadableLen() != c.buffers {
			t.Errorf("%d buffers in a table of %d: %v, %v", c.buffers, c.table, chain, err)
		}
		if err == nil {
			chain.Complete(0)
		}
		d.PutDesc(table.GPA, c.buffers-1, data.GPA, 1, virtiotest.Next, uint16(c.buffers))
	}
}

// TestTableAcrossRegions: an indirect table may lie in two regions of guest memory.
func TestTableAcrossRegions(t *testing.T) {
	mem := vhostuser.NewMemory()
	g := ram(t, mem, 0x100000, 1<<20)
	next := ram(t, mem, 0x200000, 1<<20)
	d := virtiotest.NewDriver(g, 8, virtiotest.Options{Indirect: true})
	q, err := virtio.NewQueue(mem, d.Config())
	must(t, err)
	defer q.Stop(0)
	// Three descriptors: two before the border, and one behind it.
	own := *d
	own.Mem = next
	d.PutDesc(0x1fffe0, 0, 0x180000, 1, virtiotest.Next, 1)
	d.PutDesc(0x1fffe0, 1, 0x181000, 2, virtiotest.Next, 2)
	own.PutDesc(0x200000, 0, 0x282000, 4, 0, 0)
	d.PutDesc(d.Desc, 0, 0x1fffe0, 48, virtiotest.Indirect, 0)
	d.Offer(0)
	c, err := q.Pop()
	must(t, err)
	if c.ReadableLen() != 7 || len(c.Readable) != 3 || c.Readable[2].GPA != 0x282000 {
		t.Errorf("%+v", c.Readable)
	}
	c.Complete(0)
}

// TestPausedQueueIsTheSame: chains that were kept go on only if all of the queue is as it was, and
// where its used index stands.
func TestPausedQueueIsTheSame(t *testing.T) {
	for what, change := range map[string]func(*vhostuser.QueueConfig, *virtiotest.Driver){
		"":                 func(*vhostuser.QueueConfig, *virtiotest.Driver) {},
		"size":             func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.Size /= 2 },
		"descriptors":      func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.Desc += 16 },
		"available ring":   func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.Avail += 4 },
		"used ring":        func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.Used += 4 },
		"event index":      func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.EventIdx = !c.EventIdx },
		"indirect tables":  func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.IndirectDesc = !c.IndirectDesc },
		"what was used":    func(_ *vhostuser.QueueConfig, d *virtiotest.Driver) { d.Mem.At(d.Used+2, 2)[0]++ },
		"no ring any more": func(c *vhostuser.QueueConfig, _ *virtiotest.Driver) { c.Desc = 0 },
	} {
		t.Run(what, func(t *testing.T) {
			b := newRunner(t, virtiotest.Options{})
			p := &pauser{keeper: keeper{came: make(chan int, 100)}, keep: true}
			b.k = &p.keeper
			b.r = virtio.NewRunner(b.mem, 1, p, quiet())
			must(t, b.r.StartQueue(0, b.cfg))
			b.add(t, 2)
			b.await(t, 2)
			b.cfg.Base = b.r.StopQueue(0)
			b.call.Wait(0)
			cfg := b.cfg
			change(&cfg, b.d)
			used := b.d.UsedIdx()
			if err := b.r.StartQueue(0, cfg); (err != nil) != (what == "no ring any more") {
				t.Fatal(err)
			}
			want := "0 false"
			if what == "" {
				want = "0 true"
				if !b.call.Wait(0) {
					t.Error("whoever has the interrupts now is not told")
				}
			}
			if len(p.said) != 1 || p.said[0] != want {
				t.Errorf("resumed %q, not %q", p.said, want)
			}
			p.Quiesce(0)
			if n := b.d.UsedIdx() - used; n != 2 && what == "" || n != 0 && what != "" {
				t.Errorf("%d chains came back", n)
			}
			b.r.StopQueue(0)
		})
	}
}

// asks is a handler that looks at what the driver sees while it has a chain.
type asks struct {
	d    *virtiotest.Driver
	came chan uint16
}

func (a asks) Handle(_ int, c *virtio.Chain) {
	flags := a.d.UsedFlags()
	c.Complete(0)
	a.came <- flags
}
func (a asks) Quiesce(int) {}

// TestNoKicksWhileBusy: whoever adds chains while the device takes some is told that no kick is
// needed.
func TestNoKicksWhileBusy(t *testing.T) {
	b := newRunner(t, virtiotest.Options{})
	a := asks{b.d, make(chan uint16, 10)}
	b.r = virtio.NewRunner(b.mem, 1, a, quiet())
	must(t, b.r.StartQueue(0, b.cfg))
	b.add(t, 3)
	for range 3 {
		if flags := <-a.came; flags != 1 {
			t.Errorf("flags are %d", flags)
		}
	}
	b.r.StopQueue(0)
}

// TestWhatALogSays: of chains that make no sense there is a line a second, however many come; of
// chains that nobody completed there is one, and none where all came back.
func TestWhatALogSays(t *testing.T) {
	b, l := newRunner(t, virtiotest.Options{}), &virtiotest.Log{}
	b.r = virtio.NewRunner(b.mem, 1, b.k, slog.New(slog.NewTextHandler(l, nil)))
	begin := time.Now()
	must(t, b.r.StartQueue(0, b.cfg))
	b.d.PutDesc(b.d.Desc, 15, 0, 16, 0, 0)
	for range 10 {
		for range 10 {
			b.d.Offer(15)
		}
		b.add(t, 1)
		b.await(t, 1)
	}
	if n := strings.Count(l.String(), "malformed"); n == 0 || n > 1+int(time.Since(begin)/time.Second) {
		t.Errorf("%d lines after %v", n, time.Since(begin))
	}
	next := b.r.StopQueue(0)
	if strings.Count(l.String(), "did not complete") != 0 || strings.Contains(l.String(), "kick") {
		t.Error("a stop in order is logged")
	}
	b.cfg.Base = next
	must(t, b.r.StartQueue(0, b.cfg))
	b.add(t, 1)
	b.await(t, 1)
	b.k.leave = 1
	b.r.StopQueue(0)
	if strings.Count(l.String(), "did not complete") != 1 {
		t.Error("a chain that was forgotten is not logged")
	}
}

// TestRunnerTracks: what a queue that runs has in flight is where the device keeps it, for who
// takes over.
func TestRunnerTracks(t *testing.T) {
	b, f := diedInFlight(t, 0)
	q, err := virtio.NewQueue(b.mem, b.cfg)
	must(t, err)
	defer q.Stop(0)
	if list := q.Resume(f); len(list) != 3 {
		t.Errorf("%d chains are known to be in flight", len(list))
	}
}
