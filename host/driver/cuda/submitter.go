package cuda

import (
	"runtime"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
	"causeway/remote/sys"
)

const (
	// How long a submitter looks for its next call before it says that it will sleep.
	submitterSpin  = 40 * time.Microsecond
	submitterDoze  = 10 * time.Microsecond // how long it looks on then
	submitterDoubt = time.Millisecond      // when it looks a last time
	spinPauses     = 64                    // pauses between looks at the clock
)

// submitter is a thread that makes driver calls in the order in which the worker goroutine put
// them.
type submitter struct {
	s     *session
	index int
	mem   bind.Queue
	put_  uint64 // calls put; the worker goroutine's
	// done, when the worker goroutine last looked: the submitter's core keeps its line
	seen uint64
	done *atomic.Uint64 // calls made; written by the submitter
	// then gets the result of the call in its place of the queue; nil: a failure is deferred.
	// Written before the call is put.
	then [bind.QueueDepth]func(cuda.Result)
	// Orders then for those who do not see the order of sent and done in C memory: the race
	// detector.
	handed atomic.Uint64
	asleep atomic.Bool
	wake   chan struct{}
	quit   chan struct{}
}

func newSubmitter(s *session, index int) *submitter {
	m := s.drv.NewQueue()
	l := &submitter{s: s, index: index, mem: m, done: m.Done(), wake: make(chan struct{}, 1), quit: make(chan struct{})}
	go l.run()
	return l
}

// idle reports whether every call that was put has been made. Worker goroutine.
func (l *submitter) idle() bool { return l.made(l.put_) }

// made reports whether n calls have been made. Worker goroutine.
func (l *submitter) made(n uint64) bool {
	if l.seen < n {
		l.seen = l.done.Load()
	}
	return l.seen >= n
}

// next is the item to fill in for put. It waits for room: a full submitter has work for
// milliseconds, so not for each place that becomes free, which would cost the submitter the peace
// of its core.
func (l *submitter) next() bind.Item {
	if l.put_-l.seen >= bind.QueueDepth && !l.made(l.put_-bind.QueueDepth+1) {
		l.reach(l.put_-bind.QueueDepth/4*3, nil)
		l.seen = l.done.Load()
	}
	return l.mem.Item(l.put_)
}

// notify has then run with the result of the call that is about to be put, on the submitter's
// thread.
func (l *submitter) notify(i bind.Item, then func(cuda.Result)) {
	l.handed.Load()
	l.then[l.put_%bind.QueueDepth] = then
	l.handed.Add(1)
	i.Notify()
}

// put hands over what next returned and returns its number, counted from 1. The submitter sees it a
// little later, perhaps after asleep was read here: it looks again for longer than that takes
// before it sleeps.
func (l *submitter) put() uint64 {
	l.put_++
	sys.StoreRelease(l.mem.Sent(), l.put_)
	if l.asleep.Load() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return l.put_
}

// reach waits until n calls have been made, or stop is closed; it reports which. Any goroutine.
func (l *submitter) reach(n uint64, stop <-chan struct{}) bool {
	for range 4 * spinPauses {
		if l.done.Load() >= n {
			return true
		}
		sys.Pause()
	}
	for begin := time.Now(); l.done.Load() < n; {
		if time.Since(begin) > submitterSpin {
			select {
			case <-stop:
				return false
			default:
			}
			sys.Nap(watchNap)
			continue
		}
		for range spinPauses {
			sys.Pause()
		}
	}
	return true
}

// run is the submitter's thread.
func (l *submitter) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with its context binding
	for {
		why, res := l.mem.Run(submitterSpin)
		if why == bind.QueueIdle {
			l.asleep.Store(true)
			if why, res = l.mem.Run(submitterDoze); why == bind.QueueIdle && !l.sleep() {
				return
			}
			l.asleep.Store(false)
		}
		if why == bind.QueueNotify {
			l.notified(res)
		}
	}
}

// sleep returns when it is woken, or once after a while: a call that was put without its being seen
// must not wait for the next. false: the session ends.
func (l *submitter) sleep() bool {
	t := time.NewTimer(submitterDoubt)
	defer t.Stop()
	select {
	case <-l.wake:
		return true
	case <-l.quit:
		return false
	case <-t.C:
	}
	if why, res := l.mem.Run(0); why == bind.QueueNotify {
		l.notified(res)
		return true
	}
	select {
	case <-l.wake:
		return true
	case <-l.quit:
		return false
	}
}

// notified deals with the result of the call that was made last, and counts it.
func (l *submitter) notified(res cuda.Result) {
	l.handed.Load()
	n := l.done.Load()
	l.mem.Item(n).Release()
	l.s.note(res)
	then := l.then[n%bind.QueueDepth]
	l.then[n%bind.QueueDepth] = nil
	l.handed.Add(1)
	switch {
	case then != nil:
		then(res)
	case res != cuda.Success:
		l.s.host.Deferred(res)
	}
	l.done.Store(n + 1)
}

// stop ends the thread if it waits. Inside the driver it ends with the process.
func (l *submitter) stop() {
	close(l.quit)
}
