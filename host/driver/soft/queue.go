package soft

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"causeway/cuda"
	"causeway/remote/sys"
)

// Bounds on work that is queued. Beyond them the submitting call waits for room, as a driver does
// with full channels.
const (
	maxTasks = 1 << 16
	maxBytes = 256 << 20 // of parameters and inline data
)

// task is one piece of queued work: a node of a graph whose edges are stream order and events.
type task struct {
	ctx    *gpuContext // nil: of no context
	run    func() cuda.Result
	always bool // run also after the context failed or the session ended: somebody waits for it
	bytes  int64

	done  atomic.Bool
	waits int     // predecessors that are not done; queue.mu
	next  []*task // successors; queue.mu
}

// finished reports whether t is done; a nil task is.
func (t *task) finished() bool { return t == nil || t.done.Load() }

// queue runs tasks when their predecessors are done. submit belongs to the worker goroutine.
type queue struct {
	failed func(*gpuContext, cuda.Result) // hears of a task's error before its successors run

	mu      sync.Mutex
	changed *sync.Cond // room or idleness appeared, or closed
	tasks   int64
	bytes   int64
	closed  bool
	stopped atomic.Bool // closed, for tasks
	group   sync.WaitGroup
}

func newQueue(failed func(*gpuContext, cuda.Result)) *queue {
	q := &queue{failed: failed}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// submit queues t behind deps, of which those that are done do not matter.
func (q *queue) submit(t *task, deps []*task) {
	q.mu.Lock()
	for (q.tasks >= maxTasks || q.bytes >= maxBytes) && !q.closed {
		q.changed.Wait()
	}
	q.tasks++
	q.bytes += t.bytes
	for _, d := range deps {
		if !d.finished() {
			d.next = append(d.next, t)
			t.waits++
		}
	}
	ready := t.waits == 0
	q.mu.Unlock()
	if ready {
		q.start(t)
	}
}

func (q *queue) start(t *task) { q.group.Go(func() { q.routine(t) }) }

// routine runs t and then one successor after the other; more than one that becomes ready get
// routines of their own.
func (q *queue) routine(t *task) {
	debug.SetPanicOnFault(true) // guests can take away memory that they share
	for t != nil {
		if res := q.attempt(t); res != cuda.Success {
			q.failed(t.ctx, res)
		}
		t = q.complete(t)
	}
}

// attempt runs a task. Memory that vanished under it is its error.
func (q *queue) attempt(t *task) cuda.Result {
	if t.run == nil || !t.always && (q.stopped.Load() || t.ctx != nil && t.ctx.sticky() != cuda.Success) {
		return cuda.Success
	}
	return guarded(t.run)
}

// guarded turns an access to memory that is gone into an error. The goroutine has
// debug.SetPanicOnFault.
func guarded(run func() cuda.Result) (res cuda.Result) {
	defer func() {
		if sys.Faulted(recover()) != nil {
			res = cuda.ErrorIllegalAddress
		}
	}()
	return run()
}

// complete marks t done and returns one task that became ready.
func (q *queue) complete(t *task) *task {
	q.mu.Lock()
	t.done.Store(true)
	t.run = nil
	var first *task
	var more []*task
	for _, n := range t.next {
		if n.waits--; n.waits > 0 {
			continue
		}
		if first == nil {
			first = n
		} else {
			more = append(more, n)
		}
	}
	t.next = nil
	q.tasks--
	q.bytes -= t.bytes
	q.changed.Broadcast()
	q.mu.Unlock()
	for _, n := range more {
		q.start(n)
	}
	return first
}

// idle waits until nothing is queued or running.
func (q *queue) idle(ctx context.Context) error {
	return q.wait(ctx, func() bool { return q.tasks == 0 })
}

// wait waits until ok, which is asked after each task, with mu held.
func (q *queue) wait(ctx context.Context, ok func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for !ok() {
		if err := ctx.Err(); err != nil {
			return err
		}
		q.changed.Wait()
	}
	return nil
}

// close drops what has not begun and waits for what runs; the caller has cancelled it.
func (q *queue) close() {
	q.stopped.Store(true)
	q.mu.Lock()
	q.closed = true
	q.changed.Broadcast()
	q.mu.Unlock()
	q.group.Wait()
}
