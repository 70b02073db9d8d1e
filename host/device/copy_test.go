package device_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"

	"causeway/host/api"
	"causeway/host/device"
	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio/fs/fstest"
)

// copying is a pre-copy between two devices, over a connection that a test can cut.
type copying struct {
	ends     [2]net.Conn // as the source and the destination have them
	more     []net.Conn  // as the source has them
	out, in  chan error
	from, to *vm
}

// precopy starts one.
func precopy(t *testing.T, from, to *vm, opt device.CopyOptions) *copying {
	t.Helper()
	c := &copying{out: make(chan error, 1), in: make(chan error, 1), from: from, to: to}
	c.ends[0], c.ends[1] = net.Pipe()
	ctx, cancel := cancellable()
	t.Cleanup(cancel)
	go func() { c.out <- from.device.CopyTo(ctx, c.ends[0], opt) }()
	go func() { c.in <- to.device.CopyFrom(ctx, c.ends[1]) }()
	for range opt.Connections - 1 {
		a, b := net.Pipe()
		c.more = append(c.more, a)
		go func() { _ = from.device.CopyAlong(ctx, a, opt.Attempt) }()
		go func() { _ = to.device.CopyFrom(ctx, b) }()
	}
	return c
}

func (c *copying) status() api.Copy {
	if st := c.from.device.Status().Copy; st != nil {
		return *st
	}
	return api.Copy{}
}

// ready waits until what is left is little.
func (c *copying) ready(t *testing.T, sessions int) {
	t.Helper()
	eventually(t, "the pre-copy is not ready", func() bool { st := c.status(); return st.Ready && st.Sessions == sessions })
}

// cut closes the connection and waits for both ends.
func (c *copying) cut(t *testing.T) (out, in error) {
	t.Helper()
	_ = c.ends[0].Close()
	return c.ended(t)
}

// ended waits for both ends.
func (c *copying) ended(t *testing.T) (out, in error) {
	t.Helper()
	return await(t, "the pre-copy does not end at its source", c.out), await(t, "the pre-copy does not end at its destination", c.in)
}

// moves has the VM go to the host of that front end with its state, and run there; the copy's
// connection has ended by then.
func (c *copying) moves(t *testing.T, v *vm, front *vhosttest.Frontend, state []byte) {
	t.Helper()
	left, err := v.MoveTo(front, state)
	if err != nil {
		t.Fatal(err)
	}
	left.Close()
	c.cut(t)
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
}

// logs has the VM's front end log writes, as for a migration.
func logs(t *testing.T, v *vm) {
	t.Helper()
	if err := v.Front.SetFeatures(vhostuser.Features); err != nil {
		t.Fatal(err)
	}
}

// write changes a part of the device memory.
func (h *holding) write(t *testing.T, at, n int) {
	t.Helper()
	for i := range n {
		h.want[at+i] ^= 0x5a
	}
	copy(h.region, h.want)
	h.copy(t, h.at, h.pinned)
}

// TestPreCopy: of memory that went ahead only what changed since comes with the VM's state, there
// and back, with a program that has just begun.
func TestPreCopy(t *testing.T) {
	hosts := []*vm{onSoft(t, nil), empty(t, nil)}
	v := hosts[0]
	programs := []*holding{hold(t, v, 1), hold(t, v, 2)}
	for round := range 4 {
		from, to := hosts[round%2], hosts[(round+1)%2]
		c := precopy(t, from, to, device.CopyOptions{Connections: 1 + round, Attempt: uint64(round)})
		c.ready(t, len(programs))
		if st := to.device.Status(); st.Copy == nil || st.Copy.Way != api.CopyIn || len(st.Sessions) != len(programs) || st.Sessions[0].State != "arriving" {
			t.Errorf("round %d: the destination has %+v", round, st)
		}
		front, err := fstest.Await(to.socket)
		if err != nil {
			t.Fatal(err)
		}
		logs(t, v)
		programs[0].write(t, 5000*round, 77)
		state := save(t, v)
		if len(state) > held/2 {
			t.Errorf("round %d: the state has %d bytes, although %d went ahead", round, len(state), c.status().Total)
		}
		if round == 2 { // what was sealed stays without its connection
			if out, in := c.cut(t); out == nil || in == nil {
				t.Error(out, in)
			}
		}
		left, err := v.MoveTo(front, state)
		if err != nil {
			t.Fatal(round, err)
		}
		left.Close()
		if round != 2 {
			c.cut(t)
		}
		if err := v.StartRings(); err != nil {
			t.Fatal(err)
		}
		for _, h := range programs {
			h.check(t)
		}
		if st := to.device.Status(); len(st.Sessions) != len(programs) || st.Sessions[0].State == "arriving" {
			t.Errorf("round %d: %+v", round, st.Sessions)
		}
		nothingIn(t, from)
		t.Logf("round %d: %d bytes ahead, a state of %d", round, from.device.Status().Copied, len(state))
		if round == 0 {
			programs = append(programs, hold(t, v, 3))
		}
	}
	for _, h := range programs {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPreCopyForNothing: what went ahead and cannot be relied on is left aside: all memory is in
// the state, which any device takes, and nothing stays behind where it came.
func TestPreCopyForNothing(t *testing.T) {
	v, to, other := onSoft(t, nil), empty(t, nil), empty(t, nil)
	h := hold(t, v, 4)
	for name, prepare := range map[string]func(t *testing.T, c *copying){
		"no VM is awaited there": func(t *testing.T, _ *copying) { logs(t, v) },
		"the VM does not move": func(t *testing.T, _ *copying) {
			front, err := fstest.Await(to.socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(front.Close)
		},
		"the connection is cut": func(t *testing.T, c *copying) {
			logs(t, v)
			c.cut(t)
		},
		"one of three connections is cut": func(t *testing.T, c *copying) {
			logs(t, v)
			_ = c.more[0].Close()
			c.ended(t)
		},
		"the other host is silent": func(t *testing.T, c *copying) {
			logs(t, v)
			c.ends[1].Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := precopy(t, v, to, device.CopyOptions{Connections: 3})
			c.ready(t, 1)
			prepare(t, c)
			state := save(t, v)
			if len(state) < held {
				t.Errorf("the state has %d bytes only", len(state))
			}
			c.ends[0].Close()
			nothingIn(t, to)
			arrive(t, v, other.socket, state)
			h.check(t)
			eventually(t, "the source has something", func() bool { return v.device.Status().Copy == nil })
			// Back, for the next case.
			arrive(t, v, v.socket, save(t, v))
			h.check(t)
		})
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestPreCopyElsewhere: a state whose memory went ahead is of no use to any other device, nor
// twice; the VM goes on where it is.
func TestPreCopyElsewhere(t *testing.T) {
	v, to, other := onSoft(t, nil), empty(t, nil), empty(t, nil)
	h := hold(t, v, 5)
	c := precopy(t, v, to, device.CopyOptions{})
	c.ready(t, 1)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, v)
	state := slices.Clone(save(t, v))
	if _, err := v.Move(other.socket, state); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("another device took it: %v", err)
	}
	nothingIn(t, other)
	if len(to.device.Status().Sessions) != 1 {
		t.Error("what was sealed is gone")
	}
	front.Close() // the QEMU that waited is killed
	nothingIn(t, to)
	if _, err := v.Move(to.socket, state); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("taken without its memory: %v", err)
	}
	c.cut(t)
	nothingIn(t, to)
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	h.check(t)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

// TestPreCopyRefused: a device that the sessions cannot come to says so before any memory is sent.
func TestPreCopyRefused(t *testing.T) {
	v := onSoft(t, nil)
	h, more := hold(t, v, 6), hold(t, v, 8)
	busy := onSoft(t, nil)
	there := hold(t, busy, 7)
	for name, to := range map[string]*vm{
		"another GPU":     empty(t, func(o *device.Options) { o.Tree.GPU = "Other GPU" }),
		"another backend": empty(t, func(o *device.Options) { o.Worker.GPU = "test" }),
		"too small":       empty(t, func(o *device.Options) { o.Limits.Memory = held * 3 / 2 }),
		"a VM is there":   busy,
	} {
		t.Run(name, func(t *testing.T) {
			c := precopy(t, v, to, device.CopyOptions{})
			out, in := c.ended(t)
			if out == nil || in == nil || errors.Is(out, io.EOF) {
				t.Errorf("source: %v; destination: %v", out, in)
			}
			t.Log(out)
		})
	}
	there.check(t)
	h.check(t)
	if err := errors.Join(h.Close(), more.Close(), there.Close()); err != nil {
		t.Error(err)
	}
}
