package virtio_test

import (
	"fmt"
	"testing"

	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// pauser is a keeper that keeps its chains over a pause if it is told to.
type pauser struct {
	keeper
	keep bool
	said []string
}

func (p *pauser) Pause(q int) bool {
	if !p.keep {
		p.Quiesce(q)
	}
	return p.keep
}

func (p *pauser) Resume(q int, same bool) { p.said = append(p.said, fmt.Sprint(q, " ", same)) }

// TestPauses: chains that are kept go on with the same queue, and with it alone; every pause that
// kept some is resumed once, others are not.
func TestPauses(t *testing.T) {
	b := newRunner(t, virtiotest.Options{EventIdx: true})
	p := &pauser{keeper: keeper{came: make(chan int, 100)}}
	b.k = &p.keeper
	b.r = virtio.NewRunner(b.mem, 2, p, quiet())
	back := func(want int) {
		t.Helper()
		n := 0
		for _, ok := b.d.Poll(); ok; _, ok = b.d.Poll() {
			n++
		}
		if n != want {
			t.Errorf("%d chains came back, not %d", n, want)
		}
	}
	said := func(want ...string) {
		t.Helper()
		if fmt.Sprint(p.said) != fmt.Sprint(want) {
			t.Errorf("resumed %q, not %q", p.said, want)
		}
		p.said = nil
	}
	end := func(keep bool) {
		p.keep = keep
		b.cfg.Base = b.r.StopQueue(1)
	}
	must(t, b.r.StartQueue(1, b.cfg))
	for range 3 {
		b.add(t, 2)
		b.await(t, 2)
		end(true)
		back(0)
		b.add(t, 1) // while it stands
		must(t, b.r.StartQueue(1, b.cfg))
		said("1 true")
		b.await(t, 1)
		p.Quiesce(1)
		back(3)
		end(false) // nothing is in flight, and nothing is kept
		must(t, b.r.StartQueue(1, b.cfg))
		said()
	}
	// A queue of another driver: what was kept is lost, and completing it writes nothing.
	b.add(t, 2)
	b.await(t, 2)
	end(true)
	b.cfg.Base++
	must(t, b.r.StartQueue(1, b.cfg))
	said("1 false")
	p.Quiesce(1)
	back(0)
	end(false)
	must(t, b.r.StartQueue(1, b.cfg))
	said()
	end(false)
}

// TestFullRing: all entries of a ring are taken when all are there, in every turn of it.
func TestFullRing(t *testing.T) {
	allOptions(t, func(t *testing.T, o virtiotest.Options) {
		const size = 8
		q, d, _ := newQueue(t, size, o)
		in := d.Alloc(16)
		for turn := range 3 {
			for range size {
				_, err := d.Add([]virtiotest.Buffer{in}, nil)
				must(t, err)
			}
			var taken []*virtio.Chain
			for range size {
				c, err := q.Pop()
				if err != nil || c == nil {
					t.Fatalf("turn %d: %d of %d chains, %v", turn, len(taken), size, err)
				}
				taken = append(taken, c)
			}
			if c, err := q.Pop(); c != nil || err != nil {
				t.Fatalf("one more: %v, %v", c, err)
			}
			for _, c := range taken {
				c.Complete(0)
			}
			for range size {
				if _, ok := d.Poll(); !ok {
					t.Fatalf("turn %d: a chain did not come back", turn)
				}
			}
		}
	})
}
