package cuda

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/remote/sys"
)

const (
	watchSpin  = 500 * time.Microsecond // a wait younger than this is polled without sleeping
	watchEager = 30 * time.Microsecond  // how long it polls on after the last wait
	// The same where the guest is across a link: its next wait comes a round trip later, and would
	// find the watcher in a nap.
	watchFar = 200 * time.Microsecond
	// How long the watcher stays half awake after the last wait.
	watchLinger  = 5 * time.Millisecond
	watchNap     = 20 * time.Microsecond
	watchMaxNap  = 500 * time.Microsecond
	watchPauses  = 64               // pauses between looks at waits that the GPU answers
	watchQueries = time.Millisecond // between questions to the driver about one wait
)

// wait is a guest thread waiting for the GPU, or a copy's word.
type wait struct {
	pending *wire.Pending
	ended   func(res cuda.Result) // in the place of pending: nobody's slot is answered
	word    word
	seq     uint32
	direct  bool // the GPU writes the guest's slot itself; only sleepers need us
	far     bool // no GPU of this machine reaches the guest's slots
	finish  func() wire.Reply
	fence   fence
	ctx     bind.Context // none: it is gone. Guarded by asking of the watcher, as stream is
	stream  bind.Stream

	since, queried time.Time
	dropped        bool // by abandon; guarded by fences of the watcher
}

// watcher finishes waits: wakes guest threads that went to sleep before the GPU answered, sends
// replies that carry bytes, and asks the driver now and then whether the context still lives.
type watcher struct {
	s      *session
	mu     sync.Mutex
	waits  []*wait
	fences sync.Mutex // held to look at a wait with a fence, before mu
	// Held while the driver is asked about a wait, or a stream begins to capture; before mu.
	asking sync.Mutex
	asleep atomic.Bool
	// Waits that have threads of their own.
	blocked atomic.Int32
	wake    chan struct{}
	quit    chan struct{}
	group   sync.WaitGroup
	once    sync.Once
}

func newWatcher(s *session) *watcher {
	return &watcher{s: s, wake: make(chan struct{}, 1), quit: make(chan struct{})}
}

// add hands a wait over. Worker goroutine.
func (w *watcher) add(x *wait) {
	x.since = time.Now()
	x.queried = x.since
	w.once.Do(func() { w.group.Go(w.run) })
	w.mu.Lock()
	w.waits = append(w.waits, x)
	w.mu.Unlock()
	if w.asleep.Load() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// settle returns when the watcher has finished every wait that the GPU has answered. The GPU is
// idle.
func (w *watcher) settle() {
	for end := time.Now().Add(time.Second); time.Now().Before(end); sys.Nap(watchNap) {
		w.mu.Lock()
		n := len(w.waits)
		w.mu.Unlock()
		if n == 0 {
			return
		}
	}
}

func (w *watcher) stop() {
	close(w.quit)
	// Goroutines inside a blocking driver call end with the process; they hold nothing of ours.
}

func (w *watcher) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.Sharpen()
	w.s.relaxThread()
	last, eager := time.Now(), watchEager
	var batch []*wait
	for {
		select {
		case <-w.quit:
			return
		default:
		}
		w.mu.Lock()
		batch = append(batch[:0], w.waits...)
		w.mu.Unlock()
		now := time.Now()
		if len(batch) > 0 {
			eager = eagerness(batch)
		}
		youngest, left := w.poll(batch, now)
		switch {
		case left > 0:
			last = now
			switch {
			case youngest > watchSpin:
				sys.Nap(min(max(youngest/128, watchNap), watchMaxNap))
			case !needed(batch):
				for range watchPauses { // and leaves the words to the threads that spin on them
					sys.Pause()
				}
			}
		case len(batch) > 0:
			last = now
		case now.Sub(last) < eager: // the next wait often follows at once
		case now.Sub(last) < watchLinger:
			sys.Nap(watchNap)
		default:
			if !w.sleep() {
				return
			}
			last = time.Now()
		}
	}
}

// eagerness is how long the watcher polls on after such waits.
func eagerness(batch []*wait) time.Duration {
	if runtime.NumCPU() >= plentyCores && slices.ContainsFunc(batch, func(x *wait) bool { return x.far }) {
		return watchFar
	}
	return watchEager
}

// plentyCores is how many there are where another that polls takes none from whoever is waited for.
const plentyCores = 4

// needed reports whether the watcher answers one of the waits. Those that the GPU answers only want
// it for threads that sleep, which is a matter of more time.
func needed(batch []*wait) bool {
	return slices.ContainsFunc(batch, func(x *wait) bool { return !x.direct })
}

// sleep blocks until a wait is added; false when the session ends.
func (w *watcher) sleep() bool {
	w.asleep.Store(true)
	defer w.asleep.Store(false)
	w.mu.Lock()
	n := len(w.waits)
	w.mu.Unlock()
	if n > 0 {
		return true
	}
	select {
	case <-w.wake:
		return true
	case <-w.quit:
		return false
	}
}

// poll looks at each wait once and returns how many go on and the age of the youngest of them.
func (w *watcher) poll(batch []*wait, now time.Time) (youngest time.Duration, left int) {
	youngest = 1<<63 - 1
	for _, x := range batch {
		if w.look(x, now) {
			continue
		}
		youngest = min(youngest, now.Sub(x.since))
		left++
	}
	return youngest, left
}

// look finishes a wait that is over.
func (w *watcher) look(x *wait, now time.Time) (over bool) {
	if x.fence.word != 0 {
		w.fences.Lock()
		defer w.fences.Unlock()
		if x.dropped {
			return true
		}
	}
	over, res := w.check(x, now)
	if over {
		w.remove(x)
		w.finish(x, res)
	}
	return over
}

// abandon ends the waits with fences, whose memory goes with the context that is destroyed next.
// Worker goroutine.
func (w *watcher) abandon() {
	w.fences.Lock()
	defer w.fences.Unlock()
	w.mu.Lock()
	list := slices.Clone(w.waits)
	w.mu.Unlock()
	for _, x := range list {
		if x.fence.word == 0 {
			continue
		}
		x.dropped = true
		w.remove(x)
		w.finish(x, cuda.ErrorContextIsDestroyed)
	}
}

// check reports whether a wait is over and how.
func (w *watcher) check(x *wait, now time.Time) (bool, cuda.Result) {
	if int32(x.word.load()-x.seq) >= 0 {
		return true, cuda.Success
	}
	if now.Sub(x.queried) < watchQueries {
		return false, cuda.Success
	}
	x.queried = now
	w.asking.Lock()
	defer w.asking.Unlock()
	if x.ctx.IsZero() {
		return true, cuda.ErrorContextIsDestroyed
	}
	if x.stream == bind.StreamLegacy && w.s.capturing() {
		return false, cuda.Success // the question would end the capture of a blocking stream
	}
	res := w.s.drv.CtxSetCurrent(x.ctx)
	if res == cuda.Success && w.s.capturing() {
		// A stream may capture behind what is waited for: likewise, and the answer is about that.
		if status, res := w.s.drv.StreamIsCapturing(x.stream); res == cuda.Success && status != cuda.CaptureStatusNone {
			return false, cuda.Success
		}
	}
	if res == cuda.Success {
		res = w.s.drv.StreamQuery(x.stream)
	}
	if res == cuda.Success || res == cuda.ErrorNotReady {
		return false, cuda.Success // the word arrives with the next look
	}
	return true, w.s.note(res)
}

// leaveContext has the driver asked no more about waits in a context that is about to end,
// leaveStream none about a stream: its context is asked about then. Worker goroutine.
func (w *watcher) leaveContext(ctx bind.Context) {
	w.leave(func(x *wait) {
		if x.ctx == ctx {
			x.ctx = bind.Context{}
		}
	})
}

func (w *watcher) leaveStream(st bind.Stream) {
	w.leave(func(x *wait) {
		if x.stream == st {
			x.stream = bind.StreamLegacy
		}
	})
}

func (w *watcher) leave(change func(x *wait)) {
	w.asking.Lock()
	defer w.asking.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.waits {
		change(x)
	}
}

func (w *watcher) finish(x *wait, res cuda.Result) {
	if x.direct && res == cuda.Success {
		x.pending.Wake()
		return
	}
	var reply wire.Reply
	if res == cuda.Success && x.finish != nil {
		reply = x.finish()
	}
	if x.ended != nil {
		x.ended(res)
	} else {
		x.pending.Done(res, reply)
	}
	if x.fence.word != 0 {
		w.s.fences.put(x.fence) // after the reply was copied out of the fence's bytes
	}
}

func (w *watcher) remove(x *wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, y := range w.waits {
		if x == y {
			last := len(w.waits) - 1
			w.waits[i] = w.waits[last]
			w.waits[last] = nil
			w.waits = w.waits[:last]
			return
		}
	}
}
