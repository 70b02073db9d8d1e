package cuda

import (
	"runtime"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/host/spin"
)

const (
	laneSpin  = 50 * time.Microsecond // how long a lane looks for its next call before it sleeps
	spinTurns = 64                    // pauses between looks at the clock
)

// lane is a thread that makes driver calls in the order in which the worker goroutine put them.
type lane struct {
	s     *session
	index int
	mem   laneMemory
	sent  *atomic.Uint64 // calls put; written by the worker goroutine
	done  *atomic.Uint64 // calls made; written by the lane
	// then gets the result of the call in its place of the queue; nil: a failure is deferred. Written before the call is put.
	then   [laneDepth]func(cuda.Result)
	handed atomic.Uint64 // orders then for those who do not see the order of sent and done in C memory: the race detector
	asleep atomic.Bool
	wake   chan struct{}
	quit   chan struct{}
}

func newLane(s *session, index int) *lane {
	m := newLaneMemory(s.fn.cuCtxSetCurrent)
	l := &lane{s: s, index: index, mem: m, sent: m.sent(), done: m.done(), wake: make(chan struct{}, 1), quit: make(chan struct{})}
	go l.run()
	return l
}

// idle reports whether every call that was put has been made.
func (l *lane) idle() bool { return l.done.Load() == l.sent.Load() }

// next is the item to fill in for put. It waits for room: a full lane has work for milliseconds, so not for each place that becomes
// free, which would cost the lane the peace of its core.
func (l *lane) next() item {
	at := l.sent.Load()
	if at-l.done.Load() >= laneDepth {
		l.reach(at-laneDepth/4*3, nil)
	}
	return l.mem.item(at)
}

// tell has then run with the result of the call that is about to be put, on the lane's thread.
func (l *lane) tell(i item, then func(cuda.Result)) {
	l.handed.Load()
	l.then[l.sent.Load()%laneDepth] = then
	l.handed.Add(1)
	i.tells()
}

// put hands over what next returned and returns its number, counted from 1.
func (l *lane) put() uint64 {
	n := l.sent.Add(1)
	if l.asleep.Load() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return n
}

// reach waits until n calls have been made, or stop is closed; it reports which. Any goroutine.
func (l *lane) reach(n uint64, stop <-chan struct{}) bool {
	for range 4 * spinTurns {
		if l.done.Load() >= n {
			return true
		}
		spin.Pause()
	}
	for begin := time.Now(); l.done.Load() < n; {
		if time.Since(begin) > laneSpin {
			select {
			case <-stop:
				return false
			default:
			}
			nap(watchNap)
			continue
		}
		for range spinTurns {
			spin.Pause()
		}
	}
	return true
}

// run is the lane's thread.
func (l *lane) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with its context binding
	for {
		switch why, res := l.mem.run(); why {
		case laneTell:
			l.told(res)
		default:
			if !l.await() {
				return
			}
		}
	}
}

// told deals with the result of the call that was made last, and counts it.
func (l *lane) told(res cuda.Result) {
	l.handed.Load()
	n := l.done.Load()
	l.mem.item(n).release()
	l.s.note(res)
	then := l.then[n%laneDepth]
	l.then[n%laneDepth] = nil
	l.handed.Add(1)
	switch {
	case then != nil:
		then(res)
	case res != cuda.Success:
		l.s.host.Deferred(res)
	}
	l.done.Store(n + 1)
}

// await sleeps until there is a call; false when the session ends.
func (l *lane) await() bool {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	for l.idle() {
		select {
		case <-l.wake:
		case <-l.quit:
			return false
		}
	}
	return true
}

// stop ends the thread if it waits. Inside the driver it ends with the process.
func (l *lane) stop() {
	close(l.quit)
}
