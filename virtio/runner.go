package virtio

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"causeway/vhostuser"
)

// A Handler consumes the chains of a device's queues.
type Handler interface {
	// Handle takes over c. It is called on queue's goroutine, must not block for long, and
	// completes c exactly once, now or later.
	Handle(queue int, c *Chain)
	// Quiesce completes every chain of queue that Handle kept. No new ones come meanwhile. The
	// front end waits.
	Quiesce(queue int)
}

// A Pauser is a Handler that may leave chains in flight while a queue stands.
type Pauser interface {
	Handler
	// Pause is Quiesce for a queue that may go on. With kept some chains stay in flight: they are
	// completed after Resume, and nothing of them is written before.
	Pause(queue int) (kept bool)
	// Resume follows a Pause that kept chains. Without same the driver has another queue now, and
	// they are lost: to complete them does nothing.
	Resume(queue int, same bool)
}

// drainLimit is how long StopQueue waits for chains that Quiesce left behind. QEMU is blocked
// meanwhile.
const drainLimit = time.Second

// Runner runs one goroutine for each started queue. StartQueue, UpdateQueue and StopQueue have the
// contract of vhostuser.Device, and its goroutine.
type Runner struct {
	mem     *vhostuser.Memory
	handler Handler
	log     *slog.Logger
	queues  []*running // nil where stopped
	paused  []*Queue   // with chains that were kept; nil: none were
	track   func(queue int) *InFlight
	live    atomic.Int32 // queues that run
}

// Running reports whether any queue runs. It may be called from any goroutine.
func (r *Runner) Running() bool { return r.live.Load() > 0 }

// Track has the queues say what is in flight, for a process that takes over. Before the first
// StartQueue.
func (r *Runner) Track(track func(queue int) *InFlight) { r.track = track }

type running struct {
	index   int
	q       *Queue
	kick    *vhostuser.EventFD
	err     atomic.Pointer[vhostuser.EventFD]
	stop    atomic.Bool
	done    chan struct{}
	lastLog time.Time
}

// NewRunner makes a Runner for n queues over mem.
func NewRunner(mem *vhostuser.Memory, n int, h Handler, log *slog.Logger) *Runner {
	return &Runner{mem: mem, handler: h, log: log, queues: make([]*running, n), paused: make([]*Queue, n)}
}

// Queues is the number of queues.
func (r *Runner) Queues() int { return len(r.queues) }

// StartQueue implements vhostuser.Device.
func (r *Runner) StartQueue(index int, cfg vhostuser.QueueConfig) error {
	if index >= 0 && index < len(r.queues) && r.paused[index] != nil {
		q := r.paused[index]
		r.paused[index] = nil
		same := q.restart(cfg)
		r.handler.(Pauser).Resume(index, same)
		if same {
			r.run(index, q, cfg)
			return nil
		}
	}
	return r.start(index, cfg, func(q *Queue) {
		if r.track != nil {
			q.Track(r.track(index))
		}
	})
}

// ResumeQueue starts a queue where another process has left it, as f says, with the chains that it
// had in flight.
func (r *Runner) ResumeQueue(index int, cfg vhostuser.QueueConfig, f *InFlight) error {
	return r.start(index, cfg, func(q *Queue) {
		for _, c := range q.Resume(f) {
			r.handler.Handle(index, c)
		}
	})
}

// start has a queue made ready before its goroutine begins.
func (r *Runner) start(index int, cfg vhostuser.QueueConfig, ready func(*Queue)) error {
	if index < 0 || index >= len(r.queues) || r.queues[index] != nil {
		return fmt.Errorf("queue %d cannot start: no such queue, or running", index)
	}
	q, err := NewQueue(r.mem, cfg)
	if err != nil {
		return fmt.Errorf("queue %d: %w", index, err)
	}
	ready(q)
	r.run(index, q, cfg)
	return nil
}

func (r *Runner) run(index int, q *Queue, cfg vhostuser.QueueConfig) {
	run := &running{index: index, q: q, kick: cfg.Kick, done: make(chan struct{})}
	run.err.Store(cfg.Err)
	run.kick.Rearm()
	r.queues[index] = run
	r.live.Add(1)
	go r.routineQueue(run)
}

// UpdateQueue implements vhostuser.Device.
func (r *Runner) UpdateQueue(index int, cfg vhostuser.QueueConfig) {
	if run := r.queues[index]; run != nil {
		run.err.Store(cfg.Err)
		run.q.Update(cfg)
	}
}

// StopQueue implements vhostuser.Device.
func (r *Runner) StopQueue(index int) uint16 {
	run := r.queues[index]
	if run == nil {
		return 0
	}
	r.queues[index] = nil
	r.live.Add(-1)
	run.stop.Store(true)
	run.kick.Interrupt()
	<-run.done
	if p, ok := r.handler.(Pauser); !ok {
		r.handler.Quiesce(index)
	} else if p.Pause(index) {
		run.q.Stop(0)
		r.paused[index] = run.q
		return run.q.Next()
	}
	if lost := run.q.Stop(drainLimit); lost > 0 {
		r.log.Error("requests did not complete before the ring stopped; the guest will wait for them for ever",
			"queue", index, "requests", lost)
	}
	return run.q.Next()
}

// routineQueue takes chains until the queue is stopped or breaks.
func (r *Runner) routineQueue(run *running) {
	defer close(run.done)
	for !run.stop.Load() {
		run.q.DisableKicks()
		if !r.drain(run) {
			return
		}
		if run.q.EnableKicks() {
			continue
		}
		if err := run.kick.Wait(); err != nil {
			if !run.stop.Load() {
				r.log.Error("kick eventfd failed", "queue", run.index, "error", err)
			}
			return
		}
	}
}

// drain hands over all available chains. It returns false when the queue is stopped or broken.
func (r *Runner) drain(run *running) bool {
	for !run.stop.Load() {
		c, err := run.q.Pop()
		switch {
		case errors.Is(err, ErrBroken):
			r.log.Error("virtqueue stopped until the guest resets it", "queue", run.index, "error", err)
			run.err.Load().Signal()
			return false
		case err != nil:
			// The guest can produce these at will: at most one line a second.
			if now := time.Now(); now.Sub(run.lastLog) > time.Second {
				run.lastLog = now
				r.log.Warn("malformed request", "queue", run.index, "error", err)
			}
		case c == nil:
			return true
		default:
			r.handler.Handle(run.index, c)
		}
	}
	return false
}
