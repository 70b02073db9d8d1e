package virtio_test

import (
	"errors"
	"testing"

	"causeway/vhostuser"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// TestBadChains: each goes back to the guest with 0 bytes, and the queue works on.
func TestBadChains(t *testing.T) {
	const table = 0x180000
	for name, build := range map[string]func(d *virtiotest.Driver){
		"loop of one":        func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, 0x180000, 1, virtiotest.Next, 0) },
		"next out of range":  func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, 0x180000, 1, virtiotest.Next, 8) },
		"unmapped":           func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, 0x10, 1, 0, 0) },
		"end unmapped":       func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, 0x8ff000, 0x1001, 0, 0) },
		"wraps":              func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, ^uint64(0)-10, 100, 0, 0) },
		"4 GiB":              func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, 0x180000, ^uint32(0), 0, 0) },
		"indirect empty":     func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, table, 0, virtiotest.Indirect, 0) },
		"indirect odd":       func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, table, 17, virtiotest.Indirect, 0) },
		"indirect huge":      func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, table, 16*1025, virtiotest.Indirect, 0) },
		"indirect unmapped":  func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, 0x8ffff8, 16, virtiotest.Indirect, 0) },
		"indirect continued": func(d *virtiotest.Driver) { d.PutDesc(d.Desc, 0, table, 16, virtiotest.Indirect|virtiotest.Next, 1) },
		"indirect nested": func(d *virtiotest.Driver) {
			d.PutDesc(d.Desc, 0, table, 16, virtiotest.Indirect, 0)
			d.PutDesc(table, 0, table, 16, virtiotest.Indirect, 0)
		},
		"indirect loop": func(d *virtiotest.Driver) {
			d.PutDesc(d.Desc, 0, table, 32, virtiotest.Indirect, 0)
			d.PutDesc(table, 0, table, 16, virtiotest.Next, 1)
			d.PutDesc(table, 1, table, 16, virtiotest.Next, 0)
		},
		"indirect next out of range": func(d *virtiotest.Driver) {
			d.PutDesc(d.Desc, 0, table, 16, virtiotest.Indirect, 0)
			d.PutDesc(table, 0, table, 16, virtiotest.Next, 1)
		},
		"readable after writable": func(d *virtiotest.Driver) {
			d.PutDesc(d.Desc, 0, 0x180000, 1, virtiotest.Next|virtiotest.Write, 1)
			d.PutDesc(d.Desc, 1, 0x180000, 1, 0, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, d, _ := newQueue(t, 8, virtiotest.Options{Indirect: true})
			build(d)
			d.Offer(0)
			c, err := q.Pop()
			if c != nil || err == nil || errors.Is(err, virtio.ErrBroken) {
				t.Fatalf("Pop = %v, %v", c, err)
			}
			if u, ok := d.Poll(); !ok || u.Head != 0 || u.Len != 0 {
				t.Errorf("used %+v %v", u, ok)
			}
			d.PutDesc(d.Desc, 3, 0x180000, 16, 0, 0)
			d.Offer(3)
			c, err = q.Pop()
			if c == nil || err != nil || c.ReadableLen() != 16 {
				t.Fatalf("the next chain: %v, %v", c, err)
			}
			c.Complete(0)
		})
	}
}

func TestIndirectNeedsNegotiation(t *testing.T) {
	q, d, _ := newQueue(t, 8, virtiotest.Options{})
	d.PutDesc(d.Desc, 0, 0x180000, 16, virtiotest.Indirect, 0)
	d.Offer(0)
	if _, err := q.Pop(); !errors.Is(err, virtio.ErrBadDescriptor) {
		t.Errorf("Pop = %v", err)
	}
}

// TestIndirectAfterDirect: a chain may end in an indirect table (virtio 1.2, 2.7.5.3.2).
func TestIndirectAfterDirect(t *testing.T) {
	q, d, _ := newQueue(t, 8, virtiotest.Options{Indirect: true})
	d.PutDesc(d.Desc, 0, 0x190000, 3, virtiotest.Next, 1)
	d.PutDesc(d.Desc, 1, 0x180000, 32, virtiotest.Indirect, 0)
	d.PutDesc(0x180000, 0, 0x190100, 4, virtiotest.Next, 1)
	d.PutDesc(0x180000, 1, 0x190200, 0, virtiotest.Write, 0) // an empty buffer is legal
	d.Offer(0)
	c, err := q.Pop()
	must(t, err)
	if c.ReadableLen() != 7 || len(c.Readable) != 2 || c.WritableLen() != 0 {
		t.Errorf("chain %+v", c)
	}
	c.Complete(100) // more than there is room for
	if u, _ := d.Poll(); u.Len != 0 {
		t.Errorf("used length %d", u.Len)
	}
}

func TestBrokenRings(t *testing.T) {
	t.Run("available index jumps", func(t *testing.T) {
		q, d, _ := newQueue(t, 8, virtiotest.Options{})
		d.SetAvailIdx(9)
		for i := 0; i < 3; i++ {
			if _, err := q.Pop(); !errors.Is(err, virtio.ErrBroken) {
				t.Errorf("Pop = %v", err)
			}
		}
	})
	t.Run("head out of range", func(t *testing.T) {
		q, d, _ := newQueue(t, 8, virtiotest.Options{})
		d.Offer(8)
		if _, err := q.Pop(); !errors.Is(err, virtio.ErrBroken) {
			t.Errorf("Pop = %v", err)
		}
	})
	t.Run("more chains than descriptors", func(t *testing.T) {
		q, d, _ := newQueue(t, 4, virtiotest.Options{})
		d.PutDesc(d.Desc, 0, 0x180000, 1, 0, 0)
		var kept []*virtio.Chain
		for i := 0; i < 4; i++ {
			d.Offer(0)
			c, err := q.Pop()
			must(t, err)
			kept = append(kept, c)
		}
		d.Offer(0)
		if _, err := q.Pop(); !errors.Is(err, virtio.ErrBroken) {
			t.Errorf("Pop = %v", err)
		}
		for _, c := range kept {
			c.Complete(0)
		}
	})
}

func TestBadConfig(t *testing.T) {
	mem := vhostuser.NewMemory()
	g := ram(t, mem, 0x100000, 1<<20)
	good := virtiotest.NewDriver(g, 8, virtiotest.Options{}).Config()
	for name, change := range map[string]func(c *vhostuser.QueueConfig){
		"size 0":       func(c *vhostuser.QueueConfig) { c.Size = 0 },
		"size 3":       func(c *vhostuser.QueueConfig) { c.Size = 3 },
		"size 65536":   func(c *vhostuser.QueueConfig) { c.Size = 65536 },
		"size -8":      func(c *vhostuser.QueueConfig) { c.Size = -8 },
		"desc away":    func(c *vhostuser.QueueConfig) { c.Desc = 0 },
		"desc at end":  func(c *vhostuser.QueueConfig) { c.Desc = 0x1ffff0 },
		"desc odd":     func(c *vhostuser.QueueConfig) { c.Desc = 0x100008 },
		"avail odd":    func(c *vhostuser.QueueConfig) { c.Avail = 0x100001 },
		"used odd":     func(c *vhostuser.QueueConfig) { c.Used = 0x100002 },
		"used at end":  func(c *vhostuser.QueueConfig) { c.Used = 0x1ffffc },
		"avail at end": func(c *vhostuser.QueueConfig) { c.Avail = 0x1ffffe },
	} {
		c := good
		change(&c)
		if q, err := virtio.NewQueue(mem, c); err == nil {
			q.Stop(0)
			t.Errorf("%s: accepted", name)
		}
	}
}
