package cuda

import (
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

var _ driver.Gauge = (*session)(nil)

// A fence of the gauge is a word for each stream that got work since the last one, written by the
// GPU behind that work. The words lie in memory of this process, which stays when a context and its
// registrations go.
//
// What a fence must not do, and how it does not:
//
//   - Be captured, or end a capture. A stream that captures, and the legacy stream while a blocking one does, is left alone: it
//     stays among those that are due. What it had before got its word before the capture began (early).
//   - Order what was not ordered. A write to the legacy stream would hold later work of blocking streams back until earlier
//     work of all of them is done. Nothing changes if the legacy stream's own work came after all of theirs; otherwise a
//     blocking stream has later work, which waits for the legacy stream's, and that stream's word stands for both.
//   - Overtake submitters. The write goes where the stream's calls go.
const (
	gaugeWords = 4096
	// gaugeDoubt is how long a fence may take before the driver is asked whether the context still
	// lives, and how often.
	gaugeDoubt = 20 * time.Millisecond
	// gaugeStall is how long words are waited for whose context may be gone while a capture forbids
	// to ask: a capture in a context that is gone has no end.
	gaugeStall = 10 * time.Second
	gaugeNap   = 20 * time.Microsecond
	gaugeEarly = 32 // words for the next fence that are kept without a look
)

// gauge is a session's state of fences.
type gauge struct {
	gated bool // somebody may ask for fences
	// The worker goroutine's.
	on    bool
	order uint64    // operations submitted, over all streams
	dirty []*stream // got work since their last fence

	faults atomic.Uint32 // errors after which nothing of a context comes any more

	mu     sync.Mutex
	mem    []byte
	dev    bind.Registered // mem, none: not registered
	ctx    uint32          // the guest's context that registered it
	free   []int
	values [gaugeWords]uint32
	points []point // in order
	passed uint64
	seen   uint32 // faults when the driver was last asked about all contexts
	since  time.Time
	asking bool // the driver is being asked about contexts
	// Words for the next fence of streams that nothing can be put on then: they were destroyed, or
	// began to capture. While nobody asks for fences too, for they may come.
	early []due
	lost  []due // were given up, and may be written yet
}

// point is what one fence waits for.
type point struct {
	n    uint64
	dues []due
}

// due is a word that the GPU will write.
type due struct {
	index  int
	value  uint32
	ctx    uint32
	handle bind.Context
}

// touch notes that a stream has got work.
func (g *gauge) touch(st *stream) {
	g.order++
	st.latest = g.order
	if g.on && !st.dirty {
		st.dirty = true
		g.dirty = append(g.dirty, st)
	}
}

// Metering implements driver.Gauge.
func (s *session) Metering(on bool) {
	g := &s.gauge
	if g.on == on {
		return
	}
	g.on = on
	for _, st := range g.dirty {
		st.dirty = false
	}
	clear(g.dirty)
	g.dirty = g.dirty[:0]
	if !on {
		return
	}
	for st := range s.everyStream() {
		if st.busy() {
			st.dirty = true
			g.dirty = append(g.dirty, st)
		}
	}
}

// Fence implements driver.Gauge.
func (s *session) Fence(n uint64) {
	g := &s.gauge
	p := point{n: n}
	g.mu.Lock()
	p.dues, g.early = g.early, nil
	g.mu.Unlock()
	var keep []*stream
	for _, st := range g.dirty {
		d, how := s.fenceStream(st)
		for how == fenceFull && s.awaitWord(&p) {
			d, how = s.fenceStream(st)
		}
		switch how {
		case fenceSet:
			p.dues = append(p.dues, d)
			st.dirty = false
		case fenceLater, fenceFull:
			keep = append(keep, st)
		case fenceNever:
			st.dirty = false
		}
	}
	g.dirty = append(g.dirty[:0], keep...)
	g.mu.Lock()
	g.putLocked(p)
	g.mu.Unlock()
}

func (g *gauge) putLocked(p point) {
	if len(g.points) == 0 {
		g.since = time.Now()
	}
	g.points = append(g.points, p)
}

// How fenceStream ends.
const (
	fenceSet   = iota
	fenceLater // the stream must not be touched now
	fenceNever // its context is gone, or another stream's word stands for it
	fenceFull  // all words are in use
)

// fenceStream has the GPU write a word behind a stream's work, unless nothing may be put there.
func (s *session) fenceStream(st *stream) (due, int) {
	g := &s.gauge
	handle := s.handleOf(st.ctx)
	switch {
	case handle.IsZero() || s.useContext(st.ctx) != cuda.Success:
		return due{}, fenceNever
	case s.inCapture(st):
		return due{}, fenceLater
	case st.handle == bind.StreamLegacy && s.outrun(st):
		return due{}, fenceNever
	case !g.ready(s):
		return due{}, fenceLater
	}
	g.mu.Lock()
	last := len(g.free) - 1
	if last < 0 {
		g.mu.Unlock()
		return due{}, fenceFull
	}
	d := due{index: g.free[last], ctx: st.ctx, handle: handle}
	g.free = g.free[:last]
	g.values[d.index]++
	d.value = g.values[d.index]
	g.mu.Unlock()
	word, _ := g.dev.Mem().Slice(uint64(4*d.index), 4)
	write := s.drv.StreamWriteValue32(st.handle, word, d.value, 0)
	if l := s.submitterFor(&wire.Call{}, st); l != nil {
		i := l.next()
		i.SetCall(&write)
		l.notify(i, func(res cuda.Result) { // a failure is no operation's of the guest's
			if res != cuda.Success {
				g.word(d).store(d.value)
			}
		})
		s.send(l, st, i)
		return d, fenceSet
	}
	if s.note(write.Do()) != cuda.Success {
		g.word(d).store(d.value)
	}
	return d, fenceSet
}

// outrun reports whether a blocking stream got work after the legacy stream of its context did.
func (s *session) outrun(legacy *stream) bool {
	later := func(o *stream) bool { return o.ctx == legacy.ctx && !o.nonBlocking && o.latest > legacy.latest }
	for _, o := range s.streams.m {
		if later(o) {
			return true
		}
	}
	for _, o := range s.threads {
		if later(o) {
			return true
		}
	}
	return false
}

func (g *gauge) word(d due) word { return wordIn(g.mem[4*d.index:]) }

// ready makes the words, and has the driver reach them. A context is current.
func (g *gauge) ready(s *session) bool {
	if !g.dev.IsZero() {
		return true
	}
	if g.mem == nil {
		mem, err := unix.Mmap(-1, 0, 4*gaugeWords, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
		if err != nil {
			return false
		}
		g.mu.Lock()
		g.mem = mem
		g.mu.Unlock()
	}
	all, _ := bind.Mapped(g.mem, 0, 4*gaugeWords)
	dev, res := s.drv.Register(all)
	if res != cuda.Success {
		return false
	}
	g.dev, g.ctx = dev, s.current
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = g.free[:0]
	for i := range gaugeWords {
		g.free = append(g.free, i)
	}
	return true
}

// Passed implements driver.Gauge.
func (s *session) Passed() uint64 {
	g := &s.gauge
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.faults.Load(); f != g.seen && g.faultLocked(s) {
		g.seen = f
	}
	for len(g.points) > 0 {
		p := &g.points[0]
		for len(p.dues) > 0 {
			d := p.dues[0]
			if int32(g.word(d).load()-d.value) < 0 {
				g.doubtLocked(s, d)
				return g.passed
			}
			g.free = append(g.free, d.index)
			p.dues = p.dues[1:]
		}
		g.passed, g.since = p.n, time.Now()
		g.points = g.points[1:]
	}
	return g.passed
}

// OnPass implements driver.Gauge: the GPU writes words and wakes nobody.
func (s *session) OnPass(func()) bool {
	s.gauge.gated = true
	return false
}

// doubtLocked has the driver asked, now and then, about the context of a word that takes long to
// come.
func (g *gauge) doubtLocked(s *session, d due) {
	if g.asking || time.Since(g.since) < gaugeDoubt || s.capturing() {
		return // while a stream captures, the question would end that
	}
	g.askLocked(s, []due{d})
}

// faultLocked follows an error after which nothing of a context comes any more: of which, nobody
// says, and those of contexts that live are waited for as before. false: it is not over.
func (g *gauge) faultLocked(s *session) bool {
	var list []due
	for _, p := range g.points {
		for _, d := range p.dues {
			if !slices.ContainsFunc(list, func(o due) bool { return o.handle == d.handle }) {
				list = append(list, d)
			}
		}
	}
	switch {
	case len(list) == 0:
		return true
	case s.capturing():
		if time.Since(g.since) < gaugeStall {
			return false
		}
		g.dropLocked(func(due) bool { return true })
		return true
	case g.asking:
		return false
	}
	g.askLocked(s, list)
	return true
}

// askLocked has the driver asked about the contexts of some words, and gives up the words of those
// that are gone.
func (g *gauge) askLocked(s *session, list []due) {
	g.asking = true
	var things []any
	for _, d := range list {
		things = append(things, d.handle)
	}
	leave := s.users.enter(things...)
	s.watch.group.Go(func() {
		runtime.LockOSThread() // the thread ends with its context and mode
		s.relaxThread()
		var gone []bind.Context
		for _, d := range list {
			res := cuda.ErrorNotReady
			if !s.capturing() {
				if res = s.drv.CtxSetCurrent(d.handle); res == cuda.Success {
					res = s.drv.StreamQuery(bind.StreamLegacy)
				}
			}
			if res.Sticky() || res == cuda.ErrorInvalidContext || res == cuda.ErrorContextIsDestroyed {
				gone = append(gone, d.handle)
			}
			s.note(res)
		}
		leave()
		g.mu.Lock()
		g.dropLocked(func(d due) bool { return slices.Contains(gone, d.handle) })
		g.asking, g.since = false, time.Now()
		g.mu.Unlock()
	})
}

// dropLocked takes words that will not come from the fences that wait for them.
func (g *gauge) dropLocked(gone func(due) bool) {
	for i := range g.points {
		g.points[i].dues = g.loseLocked(g.points[i].dues, gone)
	}
}

// loseLocked takes words from a list. One may come after all, and overwrite what it is used for
// next: it is free when it has, or its context is no more.
func (g *gauge) loseLocked(list []due, gone func(due) bool) []due {
	return slices.DeleteFunc(list, func(d due) bool {
		if !gone(d) {
			return false
		}
		g.lost = append(g.lost, d)
		return true
	})
}

// reapLocked frees the words of a list that have come, and returns the others.
func (g *gauge) reapLocked(list []due) []due {
	return slices.DeleteFunc(list, func(d due) bool {
		if int32(g.word(d).load()-d.value) < 0 {
			return false
		}
		g.free = append(g.free, d.index)
		return true
	})
}

// awaitWord waits until a word is free, while some may become so: p gives those that it has to the
// fences before it. Worker goroutine.
func (s *session) awaitWord(p *point) bool {
	g := &s.gauge
	for begin := time.Now(); ; time.Sleep(gaugeNap) {
		s.Passed()
		g.mu.Lock()
		if len(p.dues) > 0 {
			g.putLocked(point{n: p.n - 1, dues: p.dues})
			p.dues = nil
		}
		g.early, g.lost = g.reapLocked(g.early), g.reapLocked(g.lost)
		free, waits := len(g.free) > 0, len(g.points) > 0 || len(g.early) > 0
		g.mu.Unlock()
		if free || !waits || time.Since(begin) > gaugeStall {
			return free
		}
	}
}

// behind has the GPU write a word behind what a stream has so far, for the next fence: nothing can
// be put there afterwards. It reports whether a submitter may have the write yet. Worker goroutine.
func (s *session) behind(st *stream) bool {
	g := &s.gauge
	if !g.gated || g.on && !st.dirty || !g.on && !st.busy() {
		return false
	}
	d, how := s.fenceStream(st)
	for how == fenceFull && s.awaitWord(&point{}) {
		d, how = s.fenceStream(st)
	}
	if how == fenceSet {
		g.mu.Lock()
		if len(g.early) >= gaugeEarly { // while nobody asks for fences
			g.early = g.reapLocked(g.early)
		}
		g.early = append(g.early, d)
		g.mu.Unlock()
	}
	if how != fenceLater {
		g.clean(st)
	}
	return how == fenceSet
}

// clean has a stream wait for no fence. Worker goroutine.
func (g *gauge) clean(st *stream) {
	if st.dirty {
		g.dirty = slices.DeleteFunc(g.dirty, func(o *stream) bool { return o == st })
		st.dirty = false
	}
}

// leaveGauge fences a stream that is about to be destroyed: its work goes on. Worker goroutine.
func (s *session) leaveGauge(st *stream) {
	s.behind(st)
	s.gauge.clean(st)
}

// captureGauge fences streams of which a capture is about to take some. Worker goroutine.
func (s *session) captureGauge(streams iter.Seq[*stream]) {
	written := false
	for st := range streams {
		written = s.behind(st) || written
	}
	if written {
		s.submitters.drain(nil) // else it would be captured
	}
}

// forgetGauge gives up what was due in a context that is about to go. Worker goroutine.
func (s *session) forgetGauge(id uint32, handle bind.Context) {
	g := &s.gauge
	gone := func(d due) bool { return d.ctx == id && d.handle == handle }
	g.mu.Lock()
	defer g.mu.Unlock()
	g.early = g.loseLocked(g.early, gone)
	g.dropLocked(gone)
}

// outliveGauge frees the words of a context that has gone. Worker goroutine.
func (s *session) outliveGauge(id uint32, handle bind.Context) {
	s.forgetGauge(id, handle)
	g := &s.gauge
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost = slices.DeleteFunc(g.lost, func(d due) bool {
		over := d.ctx == id && d.handle == handle
		if over {
			g.free = append(g.free, d.index)
		}
		return over
	})
}

// leaveStreams forgets the streams of a context that the guest has ended. Worker goroutine.
func (g *gauge) leaveStreams(ctx uint32) {
	g.dirty = slices.DeleteFunc(g.dirty, func(st *stream) bool { return st.ctx == ctx })
}

// dropGauge takes all words from the driver: the last context is about to go.
func (s *session) dropGauge() {
	g := &s.gauge
	if g.dev.IsZero() {
		return
	}
	s.drv.Unregister(g.dev) // refused by a poisoned context: it goes with that
	g.dev = bind.Registered{}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(func(due) bool { return true })
	g.early, g.lost = nil, nil // ready begins anew
}
