package worker

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// pageKeeper holds pages, or not, and keeps no graph.
type pageKeeper struct {
	driver.GraphKeeper
	holds bool
}

func (k pageKeeper) HoldsPages() bool { return k.holds }

func (pageKeeper) Unname(ids []wire.ID) {}

// joinedGPU has memory that others share with it.
type joinedGPU struct {
	*plainGPU
	foreign []driver.ShareToken
}

func (g *joinedGPU) Shared() error                { return nil }
func (g *joinedGPU) Foreign() []driver.ShareToken { return g.foreign }
func (g *joinedGPU) Rejoin() error                { return nil }

func (g *joinedGPU) ThreadCaptureMode(*wire.Call, *wire.ThreadCaptureModeArgs) cuda.Result {
	return cuda.Success
}

// TestGraphsThatComeLate: graphs of a session that comes without its pages are made when those are
// there, where the driver's refer to them and they need what others share; all others are made at
// once. Meanwhile the session can be described.
func TestGraphsThatComeLate(t *testing.T) {
	const last = hiddenIDs + 44
	others := []driver.ShareToken{{}}
	for what, c := range map[string]struct {
		keeps, holds, away bool
		foreign            []driver.ShareToken
		late               bool
	}{
		"late":                        {true, true, true, others, true},
		"of a driver that keeps none": {false, true, true, others, false},
		"that refer to no pages":      {true, false, true, others, false},
		"whose pages are there":       {true, true, false, others, false},
		"that need no others":         {true, true, true, nil, false},
	} {
		s := newRecorded(t)
		w := s.w
		w.session = &joinedGPU{s.gpu, c.foreign}
		w.front.Session = w.session
		if w.graphs.keeper = nil; c.keeps {
			w.graphs.keeper = pageKeeper{holds: c.holds}
		}
		w.away.Store(c.away)
		err := w.restore(&snapshot{Graphs: graphsState{last: last, modes: map[uint32]uint32{7: 2}}})
		if (err == nil) != c.keeps {
			t.Errorf("%s: %v", what, err)
		}
		if (w.graphs.late != nil) != c.late || (w.graphs.last == last) != (c.keeps && !c.late) {
			t.Errorf("%s: %+v wait, the last is %d", what, w.graphs.late, w.graphs.last)
		}
		if !c.late {
			continue
		}
		if st, err := w.graphs.state(); err != nil || st.last != last {
			t.Errorf("%s: described as %+v, %v", what, st, err)
		}
		if w.graphs.renew(); w.graphs.late != nil || w.graphs.last != last || w.sticky.Load() != 0 {
			t.Errorf("%s: when its pages are there, %+v wait, the last is %d", what, w.graphs.late, w.graphs.last)
		}
	}
}
