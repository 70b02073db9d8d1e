package soft

import (
	"sync/atomic"

	"causeway/cuda"
	"causeway/host/driver"
)

var _ driver.Gauge = (*session)(nil)

// gauge is the state of fences: one behind the other, so that they pass in order.
type gauge struct {
	fence  *task // the last
	passed atomic.Uint64
	tell   func() // nil: nobody asked
}

// Metering implements driver.Gauge. Queues know at any time what is in them.
func (s *session) Metering(bool) {}

// Fence implements driver.Gauge: a task of no stream, behind the last tasks of all.
func (s *session) Fence(n uint64) {
	var deps []*task
	for _, g := range s.ctxs {
		deps = s.lastOf(g, deps)
	}
	for _, g := range s.orphans {
		deps = s.lastOf(g, deps)
	}
	if !s.gauge.fence.finished() {
		deps = append(deps, s.gauge.fence)
	}
	t := &task{always: true, run: func() cuda.Result {
		s.gauge.passed.Store(n)
		if s.gauge.tell != nil {
			s.gauge.tell()
		}
		return cuda.Success
	}}
	s.gauge.fence = t
	s.queue.submit(t, deps)
}

// Passed implements driver.Gauge.
func (s *session) Passed() uint64 { return s.gauge.passed.Load() }

// OnPass implements driver.Gauge.
func (s *session) OnPass(f func()) bool {
	s.gauge.tell = f
	return true
}
