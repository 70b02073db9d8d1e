package cuda

import (
	"context"
	"math/bits"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// Submitters issue the calls of different streams from different threads: the bare driver takes 2.5
// us for a launch from one thread, and one each 1.2 us from four. The worker goroutine decodes,
// resolves handles and keeps all tables; a submitter gets a driver call with its arguments. What
// keeps the order of the ring where it matters:
//
//   - a stream's calls go to one submitter, and to another only after the first has made them;
//   - an event's record, and the waits of streams for it, go to one submitter, or to another when they have been made;
//   - operations on the legacy stream, and all whose order is not less (cuda/api/ops.idl), wait until the submitters are empty.
//
// Handing over costs latency and a spinning thread, so the worker goroutine issues everything
// itself until it is what holds the guest up. While a stream captures, and after a fault, it always
// does.
type submitters struct {
	all   []*submitter
	most  int // submitters that may be
	next  int // next submitter for a stream without
	score int // how much the worker has been behind of late
	hot   bool
	ended atomic.Bool // a fault: any goroutine
}

const (
	maxSubmitters = 8
	scoreMost     = 64
	scoreHot      = 48 // so far behind, submitters are worth it
	scoreCold     = 8
	scoreRelief   = 4 // what an operation that came in time takes off
)

// submittersEnv sets how many submitters there may be, for measurements; 0: none.
const submittersEnv = "CAUSEWAY_SUBMITTERS"

// init decides how many submitters there may be: half of the CPUs, the others being the guest's;
// none where they are few.
func (ls *submitters) init() {
	if n := runtime.NumCPU() / 2; n >= 2 {
		ls.most = min(n, maxSubmitters)
	}
	if n, err := strconv.Atoi(os.Getenv(submittersEnv)); err == nil && n >= 0 {
		ls.most = min(n, maxSubmitters)
	}
}

// Before implements driver.Ordered.
func (s *session) Before(op wire.Op, behind bool) {
	ls := &s.submitters
	info := op.Info()
	// It orders itself among those in submitters, or no submitter sees it.
	own := info != nil && info.Order != wire.OrderAll
	if !own {
		s.epoch++
	}
	if len(s.lingering) > 0 {
		s.lookAtLingering()
	}
	if ls.most == 0 {
		return
	}
	switch {
	case behind:
		ls.score = min(ls.score+1, scoreMost)
	default:
		ls.score = max(ls.score-scoreRelief, 0)
	}
	if len(ls.all) > 0 && !own {
		ls.drain(nil)
	}
}

// drain waits until every call in every submitter has been made, or stop is closed.
func (ls *submitters) drain(stop <-chan struct{}) bool {
	for _, l := range ls.all {
		if !l.idle() && !l.reach(l.put_, stop) {
			return false
		}
	}
	return true
}

// forget has the submitters bind their threads anew: a context ended, and another may get its
// handle. The submitters are empty.
func (ls *submitters) forget() {
	for _, l := range ls.all {
		l.mem.Unbind()
	}
}

// stop ends the threads of submitters that wait. One inside the driver ends with the process.
func (ls *submitters) stop() {
	for _, l := range ls.all {
		l.stop()
	}
}

// waiting is the submitter in which calls of the stream wait to be made, nil if none do.
func (st *stream) waiting() *submitter {
	if st.submitter != nil && !st.submitter.made(st.submittedAt) {
		return st.submitter
	}
	return nil
}

// settleStream waits until a stream's calls have been made: the worker goroutine may issue the next
// itself.
func (s *session) settleStream(st *stream) {
	switch l := st.waiting(); {
	case st.handle == bind.StreamLegacy:
		s.submitters.drain(nil) // its work is ordered with every stream's
	case l != nil:
		l.reach(st.submittedAt, nil)
	}
}

// submitterFor picks the submitter for the next call on a stream; nil: the worker goroutine issues
// it now, everything before it having been issued.
func (s *session) submitterFor(c *wire.Call, st *stream) *submitter {
	ls := &s.submitters
	if ls.most == 0 {
		return nil
	}
	if st.handle == bind.StreamLegacy || st.ctx != s.current || c.Replier != nil || s.capturing() || ls.ended.Load() {
		ls.drain(nil)
		return nil
	}
	if ls.hot {
		ls.hot = ls.score >= scoreCold || !ls.empty()
	} else {
		ls.hot = ls.score >= scoreHot
	}
	if l := st.submitter; l != nil && ls.hot && l.seen < st.submittedAt {
		return l // as far as is known: to look again would take longer than to stay
	}
	if l := st.waiting(); l != nil || !ls.hot {
		return l
	}
	return s.pick(st)
}

func (ls *submitters) empty() bool {
	for _, l := range ls.all {
		if !l.idle() {
			return false
		}
	}
	return true
}

// pick gives a stream none of whose calls wait a submitter: its last if that is free, another that
// is free, a new one.
func (s *session) pick(st *stream) *submitter {
	ls := &s.submitters
	if st.submitter != nil && st.submitter.idle() {
		return st.submitter
	}
	for _, l := range ls.all {
		if l.idle() {
			return l
		}
	}
	if len(ls.all) < ls.most {
		ls.all = append(ls.all, newSubmitter(s, len(ls.all)))
		return ls.all[len(ls.all)-1]
	}
	if st.submitter != nil {
		return st.submitter
	}
	ls.next++
	return ls.all[ls.next%len(ls.all)]
}

// send puts the item that l.next returned, a call on st.
func (s *session) send(l *submitter, st *stream, i bind.Item) uint64 {
	i.SetContext(s.handleOf(st.ctx))
	n := l.put()
	st.submitter, st.submittedAt = l, n
	return n
}

// issue makes an asynchronous driver call on a stream, here or in a submitter. In a submitter its
// failure is deferred.
func (s *session) issue(c *wire.Call, st *stream, call *bind.Call) cuda.Result {
	l := s.submitterFor(c, st)
	if l == nil || !call.Possible() {
		return s.note(call.Do())
	}
	i := l.next()
	i.SetCall(call)
	s.send(l, st, i)
	return cuda.Success
}

// issueEvent is issue for a call that records e or waits for it: it is made after all earlier ones
// that do.
func (s *session) issueEvent(c *wire.Call, st *stream, e *event, call *bind.Call) cuda.Result {
	l := s.submitterFor(c, st)
	if l == nil || !call.Possible() {
		s.settleEvent(e)
		if s.capturing() { // which a wait for an event may have the stream do too
			s.watch.asking.Lock()
			defer s.watch.asking.Unlock()
		}
		return s.note(call.Do())
	}
	// Calls that depend on each other share a submitter: with every step of one thread waiting for
	// another's, both are slower than one. What the stream has in its own submitter, and the event
	// in third ones, is waited for once.
	for in := e.within; in != 0; in &= in - 1 {
		k := bits.TrailingZeros8(in)
		if o := s.submitters.all[k]; !o.made(e.submitters[k]) {
			l = o
		}
	}
	if o := st.waiting(); o != nil && o != l {
		o.reach(st.submittedAt, nil)
	}
	s.settleIn(e, e.within&^(1<<l.index))
	i := l.next()
	i.SetCall(call)
	e.submitters[l.index] = s.send(l, st, i)
	e.within |= 1 << l.index
	return cuda.Success
}

// settleEvent waits until all calls that record e or wait for it have been made.
func (s *session) settleEvent(e *event) {
	if e.within != 0 {
		s.settleIn(e, e.within)
	}
}

// settleIn is settleEvent for some submitters.
func (s *session) settleIn(e *event, which uint8) {
	e.within &^= which
	for ; which != 0; which &= which - 1 {
		k := bits.TrailingZeros8(which)
		s.submitters.all[k].reach(e.submitters[k], nil)
	}
}

// settleAll is drain for Quiesce.
func (s *session) settleAll(ctx context.Context) bool { return s.submitters.drain(ctx.Done()) }
