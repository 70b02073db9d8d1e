package virtio_test

import (
	"errors"
	"testing"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// FuzzChains lets the guest write anything into its ring: the input's first byte chooses features,
// the second the available index; the rest is the memory that holds ring and tables (8 entries;
// descriptor table at 0, available ring at 128, used ring at 152, spare memory behind). Every
// segment must be touchable, chains must not exceed their limits, and each popped chain must come
// back exactly once.
func FuzzChains(f *testing.F) {
	const base = 0x100000
	mem := vhostuser.NewMemory()
	g, err := vhosttest.NewMemory(base, 1<<16)
	if err != nil {
		f.Fatal(err)
	}
	fd, err := g.DupFD()
	if err != nil {
		f.Fatal(err)
	}
	if err := mem.Add(fd, base, 1<<16, 0, 0); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		mem.Clear()
		g.Close()
	})
	for _, o := range []virtiotest.Options{{}, {Indirect: true}, {Indirect: true, EventIdx: true}} {
		f.Add(fuzzSeed(g, o))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 2 {
			return
		}
		clear(g.Bytes[:4096])
		copy(g.Bytes[:4096], in[2:])
		cfg := vhostuser.QueueConfig{Size: 8, Desc: base, Avail: base + 128, Used: base + 152,
			IndirectDesc: in[0]&1 != 0, EventIdx: in[0]&2 != 0}
		g.Bytes[130], g.Bytes[131] = in[1], 0
		q, err := virtio.NewQueue(mem, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var kept []*virtio.Chain
		popped := 0
		for range 64 {
			c, err := q.Pop()
			if errors.Is(err, virtio.ErrBroken) {
				break
			}
			if err != nil {
				continue
			}
			if c == nil {
				break
			}
			popped++
			touch(t, c)
			if popped%3 == 0 {
				kept = append(kept, c)
			} else {
				c.Complete(uint32(in[0]))
			}
			q.EnableKicks()
		}
		for _, c := range kept {
			c.Complete(1 << 31)
		}
		if lost := q.Stop(0); lost != 0 {
			t.Fatalf("%d chains in flight after all came back", lost)
		}
	})
}

// touch reads and writes a byte of each segment.
func touch(t *testing.T, c *virtio.Chain) {
	n, w := 0, 0
	for _, s := range c.Readable {
		n += len(s.Data)
		_ = s.Data[0]
		_ = s.Data[len(s.Data)-1]
	}
	for _, s := range c.Writable {
		w += len(s.Data)
		s.Data[0] = s.Data[len(s.Data)-1]
	}
	if n != c.ReadableLen() || w != c.WritableLen() {
		t.Fatalf("segments hold %d and %d bytes, lengths say %d and %d", n, w, c.ReadableLen(), c.WritableLen())
	}
}

// fuzzSeed is an input with three good chains.
func fuzzSeed(g *vhosttest.Memory, o virtiotest.Options) []byte {
	clear(g.Bytes)
	mark := g.Mark()
	g.Rewind(0)
	defer g.Rewind(mark)
	d := virtiotest.NewDriver(g, 8, o)
	at := func(off, n uint64) virtiotest.Buffer {
		return virtiotest.Buffer{GPA: g.GPA + off, Bytes: g.Bytes[off : off+n]}
	}
	for range 3 {
		if _, err := d.Add([]virtiotest.Buffer{at(0x2000, 40)}, []virtiotest.Buffer{at(0x3000, 16)}); err != nil {
			panic(err)
		}
	}
	flags := byte(0)
	if o.Indirect {
		flags |= 1
	}
	if o.EventIdx {
		flags |= 2
	}
	return append([]byte{flags, 3}, g.Bytes[:1024]...)
}
