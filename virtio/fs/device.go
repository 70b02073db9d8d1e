package fs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"causeway/vhostuser"
	"causeway/virtio"
)

// Options of a Device. Zero values take the defaults.
type Options struct {
	// That QEMU may use at most (num-request-queues); default 64, idle ones cost nothing.
	RequestQueues int
	// Asynchronous requests that the guest may have pending; default 1024.
	MaxBackground uint16
	MaxHandles    int // control files open at once; default 4096
	// Pieces of guest memory in pending requests, headers among them (about 100 bytes here each);
	// default 1 Mi.
	MaxPages int
	Logger   *slog.Logger // default slog.Default()

	// RevokeLimit bounds ControlHandle.Revoke; default 2 s. QEMU waits that long at most, so keep
	// it short.
	RevokeLimit time.Duration

	// PauseLimit bounds Pauser.Pause, for which QEMU waits with its VM standing; default 5 s.
	// MoveLimit is the same while the VM is about to move, when what is kept ends the move; default
	// 10 s.
	PauseLimit, MoveLimit time.Duration

	// Track keeps what is in flight on a queue for a process that takes over; nil: nobody does. See
	// Ended.
	Track func(queue int) *virtio.InFlight

	// OnReset is called after the guest was reset and all handles were released; OnDisconnect
	// likewise after the front end went away. Both on the connection's goroutine.
	OnReset, OnDisconnect func()
}

// Device is a virtio-fs device. It implements vhostuser.Device and vhostuser.StateHandler.
type Device struct {
	*virtio.Runner
	mem     *vhostuser.Memory
	opts    Options
	log     *slog.Logger
	nodes   []*node // by id-1
	born    time.Time
	queues  []*request   // one per queue, used by its goroutine alone
	leaving atomic.Bool  // the front end has gone
	parked  atomic.Int64 // pieces of guest memory in pending requests
	sums    func() ([]nodeSum, error)
	room    room

	mu      sync.Mutex // guards what follows
	handles map[uint64]*handle
	lastFH  uint64
}

var (
	_ vhostuser.Device       = (*Device)(nil)
	_ vhostuser.StateHandler = (*Device)(nil)
	_ vhostuser.Observer     = (*Device)(nil)
	_ virtio.Pauser          = (*Device)(nil)
	_ vhostuser.Leaver       = (*Device)(nil)
)

// New makes a device that serves root to the guest behind mem. root must not change any more.
func New(mem *vhostuser.Memory, root *Dir, o Options) (*Device, error) {
	if o.RequestQueues == 0 {
		o.RequestQueues = 64
	}
	if o.MaxBackground == 0 {
		o.MaxBackground = 1024
	}
	if o.MaxHandles == 0 {
		o.MaxHandles = 4096
	}
	if o.MaxPages == 0 {
		o.MaxPages = 1 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.RevokeLimit == 0 {
		o.RevokeLimit = 2 * time.Second
	}
	if o.PauseLimit == 0 {
		o.PauseLimit = 5 * time.Second
	}
	if o.MoveLimit == 0 {
		o.MoveLimit = 10 * time.Second
	}
	if o.RequestQueues < 1 || o.RequestQueues > 255 {
		return nil, fmt.Errorf("virtio-fs: %d request queues, not 1 to 255", o.RequestQueues)
	}
	nodes, err := root.n.number(nil)
	if err != nil {
		return nil, fmt.Errorf("virtio-fs: %w", err)
	}
	d := &Device{mem: mem, opts: o, log: o.Logger, nodes: nodes, born: time.Now(), handles: map[uint64]*handle{}}
	d.sums = sync.OnceValues(d.sumNodes)
	n := 1 + o.RequestQueues // queue 0 carries FORGET and INTERRUPT (virtio 1.2, 5.11.2)
	for i := 0; i < n; i++ {
		d.queues = append(d.queues, newRequest(d, i))
	}
	d.Runner = virtio.NewRunner(mem, n, d, o.Logger)
	if o.Track != nil {
		d.Runner.Track(o.Track)
	}
	mem.Observe(d)
	return d, nil
}

// node looks an inode up by the guest's number.
func (d *Device) node(id uint64) *node {
	if id < rootID || id-rootID >= uint64(len(d.nodes)) {
		return nil
	}
	return d.nodes[id-rootID]
}

// Handle implements virtio.Handler.
func (d *Device) Handle(queue int, c *virtio.Chain) { d.queues[queue].serve(c) }

// Pause implements virtio.Pauser: the rings stand because the VM does, mostly, and whoever cannot
// let go of its pages keeps them until it goes on.
func (d *Device) Pause(queue int) bool {
	if d.leaving.Load() {
		d.Quiesce(queue)
		return false
	}
	limit := d.opts.PauseLimit
	if d.mem.Logging() {
		limit = d.opts.MoveLimit
	}
	return d.ask(d.allHandles(), func(p *pending) bool { return p.queue == queue }, limit, func(ctx context.Context, h *handle, reqs []Request) bool {
		if p, ok := h.ctl.(Pauser); ok {
			return p.Pause(ctx, reqs)
		}
		h.ctl.Revoke(ctx, reqs)
		return false
	})
}

// Resume implements virtio.Pauser.
func (d *Device) Resume(queue int, same bool) {
	if !same {
		d.log.Warn("requests were kept for a ring that does not go on", "queue", queue)
		for _, h := range d.allHandles() {
			h.abandon()
		}
		d.Quiesce(queue)
	}
	for _, h := range d.allHandles() {
		if h.unhold(queue) {
			h.ctl.(Pauser).Resume()
		}
	}
}

// Leave implements vhostuser.Leaver.
func (d *Device) Leave() { d.leaving.Store(true) }

// Quiesce implements virtio.Handler: it takes back the pages of all pending requests of a queue.
func (d *Device) Quiesce(queue int) {
	d.revoke(func(p *pending) bool { return p.queue == queue })
}

// CancelPending takes back the pages of all pending requests: it calls Revoke of each handle
// concerned, then completes what is left. The guest may issue new ones at once.
func (d *Device) CancelPending() {
	d.revoke(func(*pending) bool { return true })
}

// MemoryAdded implements vhostuser.Observer.
func (d *Device) MemoryAdded(*vhostuser.Region) {}

// MemoryRemoving implements vhostuser.Observer: pages of r are taken back.
func (d *Device) MemoryRemoving(r *vhostuser.Region) {
	d.revoke(func(p *pending) bool {
		for _, s := range p.segs {
			if s.GPA < r.GPA()+r.Size() && r.GPA() < s.GPA+uint64(len(s.Data)) {
				return true
			}
		}
		return false
	})
}

// Reset implements vhostuser.Device: the guest rebooted, its processes are gone.
func (d *Device) Reset() {
	d.releaseAll()
	if d.opts.OnReset != nil {
		d.opts.OnReset()
	}
}

// Disconnect implements vhostuser.Device.
func (d *Device) Disconnect() {
	d.releaseAll()
	d.leaving.Store(false)
	if d.opts.OnDisconnect != nil {
		d.opts.OnDisconnect()
	}
}
