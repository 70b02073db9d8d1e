package cuda

import (
	"runtime"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/host/spin"
)

const (
	laneDepth = 512 // calls that a lane holds
	laneBytes = 256 // of a launch's parameters that need no allocation

	laneSpin  = 50 * time.Microsecond // how long a lane looks for its next call before it sleeps
	spinTurns = 64                    // pauses between looks at the clock
)

// work is a driver call that a lane makes. It holds driver handles and addresses, nothing that tables may change meanwhile.
type work struct {
	kind workKind
	fn   entry
	ctx  uint64 // current during the call

	args [6]uint64 // workCall

	dims   launchDims // launches
	fun    uint64
	stream uint64
	params []byte // C memory: the slot's own, or big
	big    buffer
	attrs  buffer
	nattrs int

	after   *lane // what must be issued first: call number afterAt-1 of another lane
	afterAt uint64
	then    func(cuda.Result) // gets the result; nil: a failure is deferred
}

type workKind uint8

const (
	workCall workKind = iota
	workLaunch
	workLaunchEx
)

// lane is a thread that makes driver calls in the order in which the worker goroutine put them.
type lane struct {
	s     *session
	index int
	queue [laneDepth]work
	bytes buffer // laneDepth pieces of laneBytes

	ctx uint64 // current on the thread; the lane's while it has work, else the worker's

	_      [64]byte
	sent   atomic.Uint64 // calls put; written by the worker goroutine
	_      [56]byte
	done   atomic.Uint64 // calls made; written by the lane
	_      [56]byte
	asleep atomic.Bool
	wake   chan struct{}
	quit   chan struct{}
}

func newLane(s *session, index int) *lane {
	l := &lane{s: s, index: index, bytes: newBuffer(laneDepth * laneBytes), wake: make(chan struct{}, 1), quit: make(chan struct{})}
	go l.run()
	return l
}

// idle reports whether every call that was put has been made.
func (l *lane) idle() bool { return l.done.Load() == l.sent.Load() }

// next is the work to fill in for put. It waits for room.
func (l *lane) next() *work {
	at := l.sent.Load()
	if at-l.done.Load() >= laneDepth {
		l.reach(at-laneDepth+1, nil)
	}
	w := &l.queue[at%laneDepth]
	*w = work{}
	return w
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

// setParams keeps a launch's parameters, which lie in memory that is about to be used again.
func (l *lane) setParams(w *work, p []byte) {
	if len(p) > laneBytes {
		w.big = bufferOf(p)
		w.params = w.big.bytes()
		return
	}
	at := int(l.sent.Load()%laneDepth) * laneBytes
	w.params = l.bytes.bytes()[at : at+len(p)]
	copy(w.params, p)
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
		n := l.done.Load()
		if l.sent.Load() == n && !l.await(n) {
			return
		}
		l.execute(&l.queue[n%laneDepth])
		l.done.Store(n + 1)
	}
}

// await returns when call number n is there; false when the session ends.
func (l *lane) await(n uint64) bool {
	for begin := time.Now(); time.Since(begin) < laneSpin; {
		for range spinTurns {
			if l.sent.Load() != n {
				return true
			}
			spin.Pause()
		}
	}
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	for l.sent.Load() == n {
		select {
		case <-l.wake:
		case <-l.quit:
			return false
		}
	}
	return true
}

func (l *lane) execute(w *work) {
	if w.after != nil && !w.after.reach(w.afterAt, l.quit) {
		return
	}
	res := cuda.Success
	if l.ctx != w.ctx {
		if res = l.s.fn.cuCtxSetCurrent.call(w.ctx); res == cuda.Success {
			l.ctx = w.ctx
		}
	}
	if res == cuda.Success {
		switch w.kind {
		case workCall:
			res = w.fn.call(w.args[:]...)
		case workLaunch:
			res = w.fn.launch(w.fun, &w.dims, w.stream, w.params)
		case workLaunchEx:
			res = w.fn.launchEx(w.fun, &w.dims, w.stream, w.attrs, w.nattrs, w.params)
		}
	}
	if w.big.p != nil {
		w.big.free()
	}
	if w.attrs.p != nil {
		w.attrs.free()
	}
	l.s.note(res)
	switch {
	case w.then != nil:
		w.then(res)
		w.then = nil
	case res != cuda.Success:
		l.s.host.Deferred(res)
	}
}
