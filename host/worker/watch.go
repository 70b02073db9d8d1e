package worker

import (
	"sync"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/worker/meter"
)

// watch tells a guest that asked for it when more is allocated than its virtual GPU may have
// (cuda/api/ops_watch.idl): when the limit falls below that, or falls again. It looks when the
// parent says that something has changed, and never by itself.
type watch struct {
	budget driver.Budget // nil: its limit never changes

	mu     sync.Mutex
	wanted bool
	over   bool   // what was allocated was beyond limit, when it looked last
	limit  uint64 // then

	event   uint32 // to be posted, 0: none
	number  uint64 // of bytes
	posting bool   // routineWatch runs
}

// watchState is what another process needs to go on, when nothing is to be posted.
type watchState struct {
	Wanted, Over bool
	Limit        uint64
}

func (t *watch) state() watchState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return watchState{t.wanted, t.over, t.limit}
}

func (t *watch) restore(s watchState) { t.wanted, t.over, t.limit = s.Wanted, s.Over, s.Limit }

// busy reports whether the guest has not taken all events.
func (t *watch) busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.posting
}

// WatchBudget implements wire.Driver.
func (f *front) WatchBudget(_ *wire.Call, a *wire.WatchBudgetArgs) cuda.Result {
	w := f.w
	t := &w.watch
	if a.Wanted > 1 || !w.calls.opened() {
		return cuda.ErrorInvalidValue
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.Wanted == 0 || !t.wanted {
		t.wanted, t.over, t.event = a.Wanted == 1, false, 0
	}
	if t.wanted && t.budget != nil && w.lookLocked(t.budget.Limit()) == 0 && t.over {
		w.postEventLocked(wire.CallbackStillOver)
	}
	return cuda.Success
}

// ManagedPlaces implements wire.Driver: for the eyes of people.
func (f *front) ManagedPlaces(_ *wire.Call, a *wire.ManagedPlacesArgs) cuda.Result {
	if m := f.w.count.to; m != nil {
		m.Managed(meter.Managed{AtGPU: a.AtGpu, Here: a.Here, In: a.ToGpu, Out: a.ToGuest, Evicted: a.Evicted, Returned: a.Returned})
	}
	return cuda.Success
}

// limitIs follows a change of the limit, or of what counts as used. It waits for nobody.
func (w *Worker) limitIs(limit uint64) {
	t := &w.watch
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted && t.budget != nil {
		w.lookLocked(limit)
	}
}

// lookLocked compares, and returns the event that it posts; 0: none. watch.mu is held.
func (w *Worker) lookLocked(limit uint64) uint32 {
	t := &w.watch
	used := t.budget.Used()
	over := limit != 0 && used > limit
	worse := over && (!t.over || limit < t.limit)
	t.over, t.limit = over, limit
	if over {
		t.number = used - limit
	}
	if !worse {
		return 0
	}
	w.postEventLocked(wire.CallbackOverBudget)
	return wire.CallbackOverBudget
}

// postEventLocked has routineWatch post the event. One that waits gives way, unless it is for more
// of the guest. watch.mu is held.
func (w *Worker) postEventLocked(event uint32) {
	t := &w.watch
	if t.event != wire.CallbackOverBudget {
		t.event = event
	}
	if !t.posting {
		t.posting = true
		go w.routineWatch()
	}
}

// routineWatch posts events, one after the other, until there is none. A guest that does not take
// one is told no other.
func (w *Worker) routineWatch() {
	t := &w.watch
	for {
		t.mu.Lock()
		event, number := t.event, t.number
		t.event = 0
		t.posting = event != 0
		t.mu.Unlock()
		if event == 0 {
			return
		}
		w.CallBack(number, cuda.Result(event))
	}
}
