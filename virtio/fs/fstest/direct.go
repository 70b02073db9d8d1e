package fstest

import (
	"errors"
	"fmt"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
	"causeway/virtio"
	"causeway/virtio/virtiotest"
)

// direct hands requests to a device by calls: no socket, no goroutine and no eventfd lies between,
// so that what happens depends on nothing but the order of the calls, and fake time
// (testing/synctest) works.
type direct struct {
	dev virtio.Handler
	q   *virtio.Queue
	mem *vhostuser.Memory
}

// Direct boots a guest with one request queue on dev, which was built on mem. Submit returns when
// the device has taken the request; answers are seen by Reap and Wait. Of the Guest's methods those
// of Front, StartRings and StopRings are not for it.
func Direct(mem *vhostuser.Memory, dev virtio.Handler, o Options) (*Guest, error) {
	if o.Memory == 0 {
		o.Memory = 64 << 20
	}
	if o.QueueSize == 0 {
		o.QueueSize = 1024
	}
	m, err := vhosttest.NewMemory(0x4000_0000, o.Memory)
	if err != nil {
		return nil, err
	}
	fd, err := m.DupFD()
	if err == nil {
		err = mem.Add(fd, m.GPA, o.Memory, 0, 0)
	}
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("guest memory: %w", err)
	}
	drv := virtiotest.NewDriver(m, o.QueueSize, virtiotest.Options{Indirect: true, EventIdx: true})
	q, err := virtio.NewQueue(mem, drv.Config())
	if err != nil {
		mem.Clear()
		m.Close()
		return nil, err
	}
	if s, ok := dev.(interface {
		Starts(index int, cfg vhostuser.QueueConfig)
	}); ok {
		s.Starts(1, drv.Config())
	}
	g := &Guest{Mem: m, opts: o, direct: &direct{dev: dev, q: q, mem: mem}}
	g.queues = []*queue{nil, {index: 1, drv: drv, waiting: map[uint16]*Call{}}}
	return g, g.Mount()
}

// hand passes what was submitted to the device.
func (d *direct) hand(index int) error {
	for {
		c, err := d.q.Pop()
		if err != nil || c == nil {
			return err
		}
		d.dev.Handle(index, c)
	}
}

// Reap takes what the device has answered; Calls become done.
func (g *Guest) Reap() {
	for _, q := range g.queues {
		if q != nil {
			q.reap()
		}
	}
}

// Halt ends a guest of Direct, whose device has been disconnected. It reports requests that were
// not answered.
func (g *Guest) Halt() error {
	lost := g.direct.q.Stop(0)
	g.direct.mem.Clear()
	g.Mem.Close()
	if lost > 0 {
		return errors.New("a request was not answered")
	}
	return nil
}
