package cuda

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

/*
Times of events across a move. The driver tells times between events of one process. So a session
that moves takes along when its events were recorded, in milliseconds before an event that is
recorded last of all, and the successor records one first of all, for each context: elapsed times
are the sums, with what hosts' clocks say of the time in between: to the program it has passed.
*/

// carried is when an event was recorded that has not been recorded since the session moved.
type carried struct {
	before float64 // milliseconds before the first event since the move
}

// timeEntry is an event's in the table of a move.
const timeEntry = 4 + 8

// clock is the host's: nanoseconds since 1970.
const clock = 8

// eventTimes is the table of when events were recorded: the clock, then {u32 id, f64 milliseconds
// before that} each. Nothing if none has a time.
func (s *session) eventTimes() ([]byte, error) {
	type timed struct {
		id     uint32
		handle bind.Event
		before float64
	}
	var table []byte
	then := time.Now()
	for ctx, c := range s.ctxs.m {
		if c.handle.IsZero() {
			continue
		}
		var list []timed
		for id, e := range s.events.m {
			if e.ctx == ctx && e.taken && e.timed {
				list = append(list, timed{id: id, handle: e.handle})
			}
		}
		if len(list) == 0 {
			continue
		}
		passed := float64(time.Since(then)) / float64(time.Millisecond)
		now, res := s.recordNow(ctx)
		if res != cuda.Success {
			return nil, fmt.Errorf("times of events: %w", res)
		}
		elapsed := func(from, to bind.Event) float64 {
			ms, r := s.drv.EventElapsedTime(from, to)
			if r != cuda.Success && res == cuda.Success {
				res = r
			}
			return float64(ms)
		}
		later := map[uint32]float64{} // of those that a move has brought: what came since
		for id, e := range s.events.m {
			if e.carried != nil && e.ctx == ctx {
				later[id] = e.carried.before + elapsed(s.origins[ctx], now)
			}
		}
		list = slices.DeleteFunc(list, func(t timed) bool {
			_, r := s.drv.EventElapsedTime(t.handle, now)
			return r != cuda.Success // it was never recorded after all
		})
		for i := range list {
			list[i].before = elapsed(list[i].handle, now)
		}
		// A float has 24 bits: the longer ago, the coarser. Neighbours are told apart by what lies
		// between them.
		slices.SortFunc(list, func(a, b timed) int { return cmp.Compare(a.before, b.before) })
		for i := 1; i < len(list); i++ {
			list[i].before = list[i-1].before + elapsed(list[i].handle, list[i-1].handle)
		}
		s.drv.EventDestroy(now)
		if res != cuda.Success {
			return nil, fmt.Errorf("times of events: %w", res)
		}
		for _, t := range list {
			if ms, ok := later[t.id]; ok {
				t.before = ms
			}
			if table == nil {
				table = binary.LittleEndian.AppendUint64(nil, uint64(then.UnixNano()))
			}
			table = binary.LittleEndian.AppendUint32(table, t.id)
			table = binary.LittleEndian.AppendUint64(table, math.Float64bits(t.before-passed))
		}
	}
	return table, nil
}

// recordNow is an event behind all work of a context, which has happened.
func (s *session) recordNow(ctx uint32) (bind.Event, cuda.Result) {
	if res := s.useContext(ctx); res != cuda.Success {
		return bind.Event{}, res
	}
	e, res := s.drv.EventCreate(0)
	if res != cuda.Success {
		return e, res
	}
	record := s.drv.EventRecord(e, bind.StreamLegacy)
	if res = record.Do(); res == cuda.Success {
		res = s.drv.EventSynchronize(e)
	}
	if res != cuda.Success {
		s.drv.EventDestroy(e)
	}
	return e, res
}

// setEventTimes takes over the table of eventTimes. The events are there, recorded again.
func (s *session) setEventTimes(size uint64, r io.Reader) error {
	if size < clock || (size-clock)%timeEntry != 0 || size > clock+maxObjects*timeEntry {
		return fmt.Errorf("times of events: %d bytes", size)
	}
	table := make([]byte, size)
	if _, err := io.ReadFull(r, table); err != nil {
		return fmt.Errorf("times of events: %w", err)
	}
	then := time.Unix(0, int64(binary.LittleEndian.Uint64(table)))
	between := map[uint32]float64{}
	for table = table[clock:]; len(table) > 0; table = table[timeEntry:] {
		id := binary.LittleEndian.Uint32(table)
		e, ok := s.events.get(id)
		if !ok {
			return fmt.Errorf("times of events: there is no event %d", id)
		}
		if _, ok := s.origins[e.ctx]; !ok {
			o, res := s.recordNow(e.ctx)
			if res != cuda.Success {
				return fmt.Errorf("times of events: %w", res)
			}
			if s.origins == nil {
				s.origins = map[uint32]bind.Event{}
			}
			s.origins[e.ctx] = o
			// hosts' clocks may differ
			between[e.ctx] = max(float64(time.Since(then))/float64(time.Millisecond), 0)
		}
		e.carried = &carried{between[e.ctx] + math.Float64frombits(binary.LittleEndian.Uint64(table[4:]))}
	}
	return nil
}

// elapsed is the time between two events of which a move has brought at least one.
func (s *session) elapsed(start, end *event) (float32, cuda.Result) {
	since := func(e *event) (float64, cuda.Result) { // the move
		if e.carried != nil {
			return -e.carried.before, cuda.Success
		}
		o := start
		if o == e {
			o = end
		}
		ms, res := s.drv.EventElapsedTime(s.origins[o.ctx], e.handle)
		return float64(ms), res
	}
	from, res := since(start)
	if res != cuda.Success {
		return 0, res
	}
	to, res := since(end)
	return float32(to - from), res
}
