package main

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"time"
)

// weather is what a link does to packets.
type weather struct {
	delay, jitter     time.Duration
	loss, late, twice float64
	rate              int64
	queue             int
}

// overtaken is how much later a packet comes that those behind it overtake.
const overtaken = 3 * time.Millisecond

// tally counts what became of packets.
type tally struct{ passed, lost, late, twice, full int }

// way is one direction of a link.
type way struct {
	weather
	chance *rand.Rand

	mu     sync.Mutex
	wake   chan struct{}
	queued pending
	free   time.Time // when what was sent has left, at this rate
	last   time.Time // of the newest packet that keeps its order
	seq    int
	sum    tally
}

func newWay(w weather, chance *rand.Rand) *way {
	return &way{weather: w, chance: chance, wake: make(chan struct{}, 1)}
}

func (w *way) told() tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sum
}

// send decides what becomes of a packet that is sent now.
func (w *way) send(now time.Time, p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.chance.Float64() < w.loss {
		w.sum.lost++
		return
	}
	if w.rate > 0 {
		waits := max(0, w.free.Sub(now))
		if int64(waits.Seconds()*float64(w.rate))+int64(len(p)) > int64(w.queue) {
			w.sum.full++
			return
		}
		w.free = now.Add(waits + time.Duration(float64(len(p))/float64(w.rate)*1e9))
		now = w.free
	}
	at := now.Add(w.delay)
	if w.jitter > 0 {
		at = at.Add(time.Duration(w.chance.Int64N(int64(w.jitter))))
	}
	if w.chance.Float64() < w.late {
		w.sum.late++
		at = at.Add(w.jitter + overtaken)
	} else {
		if at.Before(w.last) {
			at = w.last
		}
		w.last = at
	}
	w.sum.passed++
	w.enqueue(at, p)
	if w.chance.Float64() < w.twice {
		w.sum.twice++
		w.enqueue(at, p)
	}
}

func (w *way) enqueue(at time.Time, p []byte) {
	w.seq++
	heap.Push(&w.queued, due{at, w.seq, p})
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take is the packet that is due now, or says how long until one is; 0: none is under way.
func (w *way) take(now time.Time) (p []byte, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queued) == 0 {
		return nil, 0
	}
	if wait := w.queued[0].at.Sub(now); wait > 0 {
		return nil, wait
	}
	return heap.Pop(&w.queued).(due).p, 0
}

// deliver hands packets over when they are due.
func (w *way) deliver(to func(p []byte)) {
	for {
		p, wait := w.take(time.Now())
		switch {
		case p != nil:
			to(p)
		case wait == 0:
			<-w.wake
		default:
			t := time.NewTimer(wait)
			select {
			case <-w.wake:
			case <-t.C:
			}
			t.Stop()
		}
	}
}

// due is a packet under way; pending has them by time, and those of one time in their order.
type due struct {
	at  time.Time
	seq int
	p   []byte
}

type pending []due

func (q pending) Len() int { return len(q) }
func (q pending) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at.Equal(q[j].at) && q[i].seq < q[j].seq
}
func (q pending) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *pending) Push(x any)   { *q = append(*q, x.(due)) }
func (q *pending) Pop() any {
	old := *q
	n := len(old) - 1
	x := old[n]
	old[n] = due{}
	*q = old[:n]
	return x
}
