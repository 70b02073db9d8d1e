package virtio_test

import (
	"errors"
	"testing"
	"time"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// echo completes chains at once and says so.
type echo struct{ came chan struct{} }

func (e echo) Handle(_ int, c *virtio.Chain) {
	c.Complete(0)
	e.came <- struct{}{}
}
func (e echo) Quiesce(int) {}

// TestNoKickIsLost: what a driver adds while the device is about to sleep is taken, although the
// driver was told that no kick is needed. Each chain is added as soon as the one before was taken,
// which is when the device goes to sleep.
func TestNoKickIsLost(t *testing.T) {
	allOptions(t, func(t *testing.T, o virtiotest.Options) {
		b := newRunner(t, o)
		e := echo{make(chan struct{}, 1)}
		b.r = virtio.NewRunner(b.mem, 1, e, quiet())
		must(t, b.r.StartQueue(0, b.cfg))
		lost := time.AfterFunc(2*time.Minute, func() { panic("a chain was added and never taken") })
		defer lost.Stop()
		kicks := 0
		const rounds = 20000
		for range rounds {
			_, err := b.d.Add(nil, []virtiotest.Buffer{{GPA: 0x180000, Bytes: make([]byte, 16)}})
			must(t, err)
			if b.d.NeedKick() {
				kicks++
				b.kick.Signal()
			}
			<-e.came
			b.d.Poll()
		}
		b.r.StopQueue(0)
		if kicks == 0 || kicks == rounds {
			t.Logf("%d kicks of %d: no race was run", kicks, rounds)
		}
	})
}

// TestOnceStoppedNothingIsTaken: a queue that was stopped leaves what comes later for the next
// start.
func TestOnceStoppedNothingIsTaken(t *testing.T) {
	b := newRunner(t, virtiotest.Options{})
	must(t, b.r.StartQueue(0, b.cfg))
	b.add(t, 2)
	b.await(t, 2)
	if next := b.r.StopQueue(0); next != 2 {
		t.Errorf("stopped at %d", next)
	}
	b.add(t, 1)
	b.kick.Signal()
	if len(b.k.came) != 0 || b.d.UsedIdx() != 2 {
		t.Error("a stopped queue took a chain")
	}
	b.cfg.Base = 2
	must(t, b.r.StartQueue(0, b.cfg))
	b.await(t, 1)
	for range 3 { // it listens to its kicks again
		b.add(t, 1)
		b.await(t, 1)
	}
	b.r.StopQueue(0)
}

// TestErrorsGoToTheNewestEventfd: also of a queue that runs since before.
func TestErrorsGoToTheNewestEventfd(t *testing.T) {
	b := newRunner(t, virtiotest.Options{})
	must(t, b.r.StartQueue(0, b.cfg))
	fault, err := vhosttest.NewEvent()
	must(t, err)
	defer fault.Close()
	b.cfg.Err, err = vhostuser.DupEventFD(fault.FD(), "error")
	must(t, err)
	defer b.cfg.Err.Close()
	b.r.UpdateQueue(0, b.cfg)
	b.d.SetAvailIdx(1000)
	b.kick.Signal()
	if !fault.Wait(time.Minute) || b.err.Wait(0) {
		t.Error("an error went elsewhere")
	}
	b.r.StopQueue(0)
}

// TestNoTableWithinATable: an indirect table holds buffers only.
func TestNoTableWithinATable(t *testing.T) {
	q, d, _ := newQueue(t, 8, virtiotest.Options{Indirect: true})
	inner, outer := d.Alloc(4096), d.Alloc(4096)
	d.PutDesc(inner.GPA, 0, 0x180000, 16, 0, 0)
	d.PutDesc(outer.GPA, 0, inner.GPA, 16, virtiotest.Indirect, 0)
	d.PutDesc(d.Desc, 0, outer.GPA, 16, virtiotest.Indirect, 0)
	d.Offer(0)
	if _, err := q.Pop(); !errors.Is(err, virtio.ErrBadDescriptor) {
		t.Errorf("a table within a table: %v", err)
	}
}

// TestChainsAreBoundedInAll: what the device reads and what it writes count together (virtio 1.2,
// 2.7.5).
func TestChainsAreBoundedInAll(t *testing.T) {
	const piece = 256 << 20
	mem := vhostuser.NewMemory()
	g := ram(t, mem, 0, piece+1<<20) // nothing of it is touched
	d := virtiotest.NewDriver(g, 64, virtiotest.Options{})
	q, err := virtio.NewQueue(mem, d.Config())
	must(t, err)
	defer q.Stop(0)
	base := g.GPA + 1<<20
	pieces := func(n int) []virtiotest.Buffer {
		list := make([]virtiotest.Buffer, n)
		for i := range list {
			list[i] = virtiotest.Buffer{GPA: base, Bytes: g.Bytes[1<<20:][:piece]}
		}
		return list
	}
	for _, c := range []struct {
		in, out int
		ok      bool
	}{{15, 0, true}, {0, 15, true}, {7, 8, true}, {16, 0, false}, {0, 16, false}, {8, 8, false}, {9, 9, false}, {15, 15, false}} {
		_, err := d.Add(pieces(c.in), pieces(c.out))
		must(t, err)
		chain, err := q.Pop()
		if c.ok != (err == nil) || err != nil && !errors.Is(err, virtio.ErrBadDescriptor) {
			t.Errorf("%d pieces to read and %d to write: %v", c.in, c.out, err)
		}
		if err == nil {
			if chain.ReadableLen() != c.in*piece || chain.WritableLen() != c.out*piece {
				t.Errorf("%d and %d bytes", chain.ReadableLen(), chain.WritableLen())
			}
			chain.Complete(0)
		}
		if _, ok := d.Poll(); !ok {
			t.Fatal("the chain did not come back")
		}
	}
	for n, ok := range map[int]bool{piece - 1: true, piece: false} { // to the byte
		_, err := d.Add(append(pieces(15), virtiotest.Buffer{GPA: base, Bytes: g.Bytes[1<<20:][:n]}), nil)
		must(t, err)
		if chain, err := q.Pop(); ok != (err == nil) {
			t.Errorf("15 pieces and %d bytes: %v", n, err)
		} else if err == nil {
			chain.Complete(0)
		}
		if _, ok := d.Poll(); !ok {
			t.Fatal("the chain did not come back")
		}
	}
}

// TestEveryWriteToTheRingIsLogged: of a ring over several pages those are marked that the device
// wrote, and no others.
func TestEveryWriteToTheRingIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		options virtiotest.Options
		// The page marked by asking for kicks: avail_event lies behind the entries, flags before.
		kicks string
	}{
		"event index": {virtiotest.Options{EventIdx: true}, "302"},
		"flags":       {virtiotest.Options{}, "300"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vhostuser.NewMemory()
			g := ram(t, mem, 0, 8<<20)
			d := virtiotest.NewDriver(g, 1024, c.options)
			cfg := d.Config()
			cfg.LogUsed, cfg.LogAddr = true, 0x300000
			q, err := virtio.NewQueue(mem, cfg)
			must(t, err)
			defer q.Stop(0)
			buf := virtiotest.Buffer{GPA: 0x400000, Bytes: make([]byte, 16)}
			step := func() {
				_, err := d.Add([]virtiotest.Buffer{buf}, nil)
				must(t, err)
				chain, err := q.Pop()
				must(t, err)
				chain.Complete(0)
				d.Poll()
			}
			// The used index is in the first page, entries of 8 bytes lie behind it: 511 is in two
			// pages.
			for i := range 514 {
				if i < 510 {
					step()
					continue
				}
				log := vhosttestLog(t, mem)
				step()
				want := "300 301"
				if i == 510 {
					want = "300"
				}
				if got := log(); got != want {
					t.Errorf("entry %d marked %q, want %q", i, got, want)
				}
				mem.StopLog()
			}
			log := vhosttestLog(t, mem)
			q.DisableKicks()
			q.EnableKicks()
			if got := log(); got != c.kicks {
				t.Errorf("asking for kicks marked %q, want %q", got, c.kicks)
			}
		})
	}
}

// TestUpdateSignalsOnce: who takes over the interrupts of a running queue hears of completions that
// the one before may have missed.
func TestUpdateSignalsOnce(t *testing.T) {
	b := newRunner(t, virtiotest.Options{EventIdx: true})
	must(t, b.r.StartQueue(0, b.cfg))
	b.call.Wait(0)
	b.r.UpdateQueue(0, b.cfg)
	if !b.call.Wait(0) {
		t.Error("no signal")
	}
	if b.call.Wait(0) {
		t.Error("two signals")
	}
	b.r.StopQueue(0)
}
