package cuda

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// Lanes issue the calls of different streams from different threads: the bare driver takes 2.5 us for a launch from one thread,
// and one each 1.2 us from four. The worker goroutine decodes, resolves handles and keeps all tables; a lane gets a driver call
// with its arguments. What keeps the order of the ring where it matters:
//
//   - a stream's calls go to one lane, and to another only after the first has made them;
//   - an event's record, and the waits of streams for it, go to one lane, or to another when they have been made;
//   - operations on the legacy stream, and all whose order is not less (cuda/api/ops.idl), wait until the lanes are empty.
//
// Handing over costs latency and a spinning thread, so the worker goroutine issues everything itself until it is what
// holds the guest up. While a stream captures, and after a fault, it always does.
type lanes struct {
	all   []*lane
	most  int // lanes that may be
	turn  int // next lane for a stream without
	score int // how much the worker has been behind of late
	hot   bool
	ended atomic.Bool // a fault: any goroutine
}

const (
	maxLanes    = 8
	scoreMost   = 64
	scoreHot    = 48 // so far behind, lanes are worth it
	scoreCold   = 8
	scoreRelief = 4 // what an operation that came in time takes off
)

// lanesEnv sets how many lanes there may be, for measurements; 0: none.
const lanesEnv = "CAUSEWAY_LANES"

// init decides how many lanes there may be: half of the CPUs, the others being the guest's; none where they are few.
func (ls *lanes) init() {
	if n := runtime.NumCPU() / 2; n >= 2 {
		ls.most = min(n, maxLanes)
	}
	if n, err := strconv.Atoi(os.Getenv(lanesEnv)); err == nil && n >= 0 {
		ls.most = min(n, maxLanes)
	}
}

// Before implements driver.Ordered.
func (s *session) Before(op wire.Op, behind bool) {
	ls := &s.lanes
	info := op.Info()
	own := info != nil && info.Order != wire.OrderAll // it orders itself among those in lanes, or no lane sees it
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

// drain waits until every call in every lane has been made, or stop is closed.
func (ls *lanes) drain(stop <-chan struct{}) bool {
	for _, l := range ls.all {
		if !l.idle() && !l.reach(l.put_, stop) {
			return false
		}
	}
	return true
}

// at is lane k, nil if there is none.
func (ls *lanes) at(k int) *lane {
	if k < len(ls.all) {
		return ls.all[k]
	}
	return nil
}

// forget has the lanes bind their threads anew: a context ended, and another may get its handle. The lanes are empty.
func (ls *lanes) forget() {
	for _, l := range ls.all {
		l.mem.Unbind()
	}
}

// stop ends the threads of lanes that wait. One inside the driver ends with the process.
func (ls *lanes) stop() {
	for _, l := range ls.all {
		l.stop()
	}
}

// waiting is the lane in which calls of the stream wait to be made, nil if none do.
func (st *stream) waiting() *lane {
	if st.lane != nil && !st.lane.made(st.laneAt) {
		return st.lane
	}
	return nil
}

// settleStream waits until a stream's calls have been made: the worker goroutine may issue the next itself.
func (s *session) settleStream(st *stream) {
	switch l := st.waiting(); {
	case st.handle == bind.StreamLegacy:
		s.lanes.drain(nil) // its work is ordered with every stream's
	case l != nil:
		l.reach(st.laneAt, nil)
	}
}

// laneFor picks the lane for the next call on a stream; nil: the worker goroutine issues it now, everything before it having been
// issued.
func (s *session) laneFor(c *wire.Call, st *stream) *lane {
	ls := &s.lanes
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
	if l := st.lane; l != nil && ls.hot && l.seen < st.laneAt {
		return l // as far as is known: to look again would take longer than to stay
	}
	if l := st.waiting(); l != nil || !ls.hot {
		return l
	}
	return s.pick(st)
}

func (ls *lanes) empty() bool {
	for _, l := range ls.all {
		if !l.idle() {
			return false
		}
	}
	return true
}

// pick gives a stream none of whose calls wait a lane: its last if that is free, another that is free, a new one.
func (s *session) pick(st *stream) *lane {
	ls := &s.lanes
	if st.lane != nil && st.lane.idle() {
		return st.lane
	}
	for _, l := range ls.all {
		if l.idle() {
			return l
		}
	}
	if len(ls.all) < ls.most {
		ls.all = append(ls.all, newLane(s, len(ls.all)))
		return ls.all[len(ls.all)-1]
	}
	if st.lane != nil {
		return st.lane
	}
	ls.turn++
	return ls.all[ls.turn%len(ls.all)]
}

// send puts the item that l.next returned, a call on st.
func (s *session) send(l *lane, st *stream, i bind.Item) uint64 {
	i.SetContext(s.handleOf(st.ctx))
	n := l.put()
	st.lane, st.laneAt = l, n
	return n
}

// issue makes an asynchronous driver call on a stream, here or in a lane. In a lane its failure is deferred.
func (s *session) issue(c *wire.Call, st *stream, call bind.Call) cuda.Result {
	l := s.laneFor(c, st)
	if l == nil || !call.Possible() {
		return s.note(call.Do())
	}
	i := l.next()
	i.SetCall(&call)
	s.send(l, st, i)
	return cuda.Success
}

// issueEvent is issue for a call that records e or waits for it: it is made after all earlier ones that do.
func (s *session) issueEvent(c *wire.Call, st *stream, e *event, call bind.Call) cuda.Result {
	l := s.laneFor(c, st)
	if l == nil || !call.Possible() {
		s.settleEvent(e)
		return s.note(call.Do())
	}
	// Calls that depend on each other share a lane: with every step of one thread waiting for another's, both are slower than
	// one. What the stream has in its own lane, and the event in third ones, is waited for once.
	for k, at := range e.lanes {
		if o := s.lanes.at(k); at != 0 && !o.made(at) {
			l = o
		}
	}
	if o := st.waiting(); o != nil && o != l {
		o.reach(st.laneAt, nil)
	}
	for k, at := range e.lanes {
		if o := s.lanes.at(k); at != 0 && o != l {
			o.reach(at, nil)
			e.lanes[k] = 0
		}
	}
	i := l.next()
	i.SetCall(&call)
	e.lanes[l.index] = s.send(l, st, i)
	return cuda.Success
}

// settleEvent waits until all calls that record e or wait for it have been made.
func (s *session) settleEvent(e *event) {
	for i, at := range e.lanes {
		if at != 0 {
			s.lanes.all[i].reach(at, nil)
			e.lanes[i] = 0
		}
	}
}

// settleAll is drain for Quiesce.
func (s *session) settleAll(ctx context.Context) bool { return s.lanes.drain(ctx.Done()) }
