package verbstest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"causeway/remote/verbs"
)

// queue implements verbs.Queue. Fabric.mu guards all of it.
type queue struct {
	f    *Fabric
	a    *Adapter
	num  uint32
	size verbs.QueueSize

	peer     verbs.Offer
	ready    bool // connected
	failed   bool
	closed   bool
	work     []job
	receives int
	posted   uint64 // the newest work request's number
	// Of the newest whose completion was taken: the send queue has room for all up to it.
	polled uint64
	cq     []verbs.Completion
	armed  bool
	news   chan struct{} // one place
	wg     sync.WaitGroup
}

// job is work under way; bytes are its inline ones.
type job struct {
	verbs.Work
	bytes []byte
}

// NewQueue implements verbs.Adapter.
func (a *Adapter) NewQueue(size verbs.QueueSize) (verbs.Queue, error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	if a.f.refuses != "" {
		return nil, fmt.Errorf("queue pair: %s", a.f.refuses)
	}
	q := &queue{f: a.f, a: a, num: a.f.numberLocked(), size: size, news: make(chan struct{}, 1)}
	a.f.queues[q.num] = q
	q.wg.Go(q.routineWork)
	return q, nil
}

// Number implements verbs.Queue.
func (q *queue) Number() uint32 { return q.num }

// Inline implements verbs.Queue.
func (q *queue) Inline() int { return q.size.Inline }

// Connect implements verbs.Queue.
func (q *queue) Connect(p verbs.Path) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.f.refuses != "" {
		return fmt.Errorf("connect: %s", q.f.refuses)
	}
	q.peer, q.ready = p.Peer.Offer(), true
	return nil
}

// Post implements verbs.Queue.
func (q *queue) Post(ws []verbs.Work) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	switch {
	case !q.ready:
		return errors.New("post: not connected")
	case q.f.refuses != "":
		return fmt.Errorf("post: %s", q.f.refuses)
	}
	for _, w := range ws {
		if q.posted = w.ID; q.posted-q.polled > uint64(q.size.Send) {
			return errors.New("post: no room")
		}
		j := job{Work: w}
		if w.Inline {
			mem, ok := q.f.atLocked(q.a, w.LocalKey, w.Local, w.Length, 0)
			if !ok || int(w.Length) > q.size.Inline {
				return errors.New("post: inline bytes")
			}
			j.bytes = slices.Clone(mem)
		}
		q.work = append(q.work, j)
	}
	q.f.changed.Broadcast()
	return nil
}

// PostReceive implements verbs.Queue.
func (q *queue) PostReceive(n int) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.receives += n; q.receives > q.size.Receive {
		return errors.New("post receives: no room")
	}
	return nil
}

// routineWork does what is posted, in its order, until Close.
func (q *queue) routineWork() {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	for {
		for !q.closed && (len(q.work) == 0 || q.f.held || q.f.stuck == q.a) {
			q.f.changed.Wait()
		}
		if q.closed {
			return
		}
		j := q.work[0]
		q.work = q.work[1:]
		q.doLocked(j)
	}
}

func (q *queue) doLocked(j job) {
	c := verbs.Completion{ID: j.ID, Status: verbs.Flushed}
	if !q.failed {
		c.Status = q.flapLocked(j)
	}
	switch {
	case c.Status == verbs.Success && j.Signaled:
		q.completeLocked(c)
	case c.Status == verbs.Flushed:
		q.completeLocked(c)
	case c.Status != verbs.Success:
		q.failLocked(c)
	}
}

// flapLocked is executeLocked on a fabric that may lose connections.
func (q *queue) flapLocked(j job) verbs.Status {
	q.f.works++
	lost := q.f.flaps > 0 && q.f.works%q.f.flaps == 0
	if lost && q.f.works/q.f.flaps%2 == 0 {
		return verbs.RetryExceeded
	}
	s := q.executeLocked(j)
	if lost {
		return verbs.RetryExceeded
	}
	return s
}

// executeLocked is one work request on a queue pair that goes on.
func (q *queue) executeLocked(j job) verbs.Status {
	to := q.f.queues[q.peer.Queue]
	if q.f.cut || to == nil || !to.ready || to.failed || to.peer.Queue != q.num {
		return verbs.RetryExceeded
	}
	if s := q.f.faultLocked(q.a, to.a); s != verbs.Success {
		return s
	}
	local, remote, status := q.memoryLocked(to, j)
	if status != verbs.Success {
		return status
	}
	if j.Op == verbs.WriteImmediate && to.receives == 0 {
		return verbs.NotReadyExceeded
	}
	q.f.movedLocked(q.a, j)
	if j.Op == verbs.Read {
		copy(local, remote)
		return verbs.Success
	}
	copy(remote, local)
	if j.Op == verbs.WriteImmediate {
		to.receives--
		to.completeLocked(verbs.Completion{Received: true, Immediate: j.Immediate})
	}
	return verbs.Success
}

// memoryLocked is both ends' memory of a work request.
func (q *queue) memoryLocked(to *queue, j job) (local, remote []byte, s verbs.Status) {
	if j.Length == 0 {
		return nil, nil, verbs.Success
	}
	may := verbs.RemoteWrite
	if j.Op == verbs.Read {
		may = verbs.RemoteRead
	}
	ok := true
	if local = j.bytes; !j.Inline {
		local, ok = q.f.atLocked(q.a, j.LocalKey, j.Local, j.Length, 0)
	}
	if !ok {
		return nil, nil, verbs.LocalProtection
	}
	if remote, ok = q.f.atLocked(to.a, j.RemoteKey, j.Remote, j.Length, may); !ok {
		// The responder's end fails, too, and is told no more than that.
		to.failLocked(verbs.Completion{Status: verbs.Flushed})
		return nil, nil, verbs.RemoteAccess
	}
	return local, remote, verbs.Success
}

// failLocked ends a queue pair: c says why, and what is left of its work is flushed, a receive for
// all of them.
func (q *queue) failLocked(c verbs.Completion) {
	if q.failed || q.closed {
		return
	}
	q.failed = true
	q.completeLocked(c)
	if q.receives > 0 {
		q.completeLocked(verbs.Completion{Status: verbs.Flushed, Received: true})
	}
}

func (q *queue) completeLocked(c verbs.Completion) {
	q.cq = append(q.cq, c)
	if q.armed {
		q.armed = false
		q.Kick()
	}
}

// Poll implements verbs.Queue.
func (q *queue) Poll(cs []verbs.Completion) (int, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	n := copy(cs, q.cq)
	q.cq = q.cq[n:]
	for _, c := range cs[:n] {
		if !c.Received && c.Status == verbs.Success {
			q.polled = c.ID
		}
	}
	return n, nil
}

// Arm implements verbs.Queue.
func (q *queue) Arm() error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	q.armed = true
	return nil
}

// Wait implements verbs.Queue.
func (q *queue) Wait() error {
	<-q.news
	return nil
}

// Kick implements verbs.Queue.
func (q *queue) Kick() {
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// Close implements verbs.Queue.
func (q *queue) Close() error {
	q.f.mu.Lock()
	q.closed = true
	delete(q.f.queues, q.num)
	q.f.changed.Broadcast()
	q.f.mu.Unlock()
	q.wg.Wait()
	return nil
}
