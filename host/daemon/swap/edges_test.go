package swap

import (
	"testing"
	"time"

	"causeway/host/api"
)

// on is a vGPU with sessions.
func on(key string, sessions ...api.RoomSession) VGPU {
	return VGPU{Key: key, RoomStatus: api.RoomStatus{Limit: 1 << 30, Sessions: sessions}}
}

// TestWhoMakesRoom: which session is suspended first: one that is idle, one that waits itself, one
// that works and has had its turn, of a vGPU with more than its part and then of any; of several
// the one that is so for longest. Others stay.
func TestWhoMakesRoom(t *testing.T) {
	idle := func(id uint64, since time.Duration) api.RoomSession {
		return api.RoomSession{ID: id, Bytes: 9, Idle: since, Here: Stay}
	}
	waits := func(id uint64, here time.Duration) api.RoomSession {
		return api.RoomSession{ID: id, Bytes: 9, Waits: true, Here: here}
	}
	works := func(id uint64, here time.Duration) api.RoomSession {
		return api.RoomSession{ID: id, Bytes: 9, Here: here}
	}
	with := func(s api.RoomSession, change func(*api.RoomSession)) api.RoomSession {
		change(&s)
		return s
	}
	more := func(v VGPU) VGPU {
		v.Used = v.Limit
		return v
	}
	fixed := func(v VGPU) VGPU {
		v.Fixed = true
		return v
	}
	for what, c := range map[string]struct {
		list   []VGPU // the first wants room, for its session 1
		waited time.Duration
		key    string // empty: nobody
		id     uint64
	}{
		"nobody is there":               {[]VGPU{on("a")}, Turn, "", 0},
		"one that is idle":              {[]VGPU{on("a"), on("b", idle(1, Idle))}, 0, "b", 1},
		"not idle for long":             {[]VGPU{on("a"), on("b", idle(1, Idle-1))}, 0, "", 0},
		"not here for long":             {[]VGPU{on("a"), on("b", with(idle(1, Idle), func(s *api.RoomSession) { s.Here-- }))}, 0, "", 0},
		"that stays":                    {[]VGPU{on("a"), on("b", with(idle(1, Idle), func(s *api.RoomSession) { s.Stays = true }))}, 0, "", 0},
		"that has nothing":              {[]VGPU{on("a"), on("b", with(idle(1, Idle), func(s *api.RoomSession) { s.Bytes = 0 }))}, 0, "", 0},
		"that has a byte":               {[]VGPU{on("a"), on("b", with(idle(1, Idle), func(s *api.RoomSession) { s.Bytes = 1 }))}, 0, "b", 1},
		"of one that is fixed":          {[]VGPU{on("a"), fixed(on("b", idle(1, Idle)))}, 0, "", 0},
		"itself":                        {[]VGPU{on("a", idle(1, Idle))}, 0, "", 0},
		"another of its own":            {[]VGPU{on("a", idle(1, 2*Idle), idle(2, Idle))}, 0, "a", 2},
		"one that waits":                {[]VGPU{on("a"), on("b", waits(1, 0))}, 0, "b", 1},
		"the one that is here longest":  {[]VGPU{on("a"), on("b", waits(1, 1)), on("c", waits(1, 2))}, 0, "c", 1},
		"idle ones before":              {[]VGPU{on("a"), on("b", waits(1, time.Hour)), on("c", idle(1, Idle))}, 0, "c", 1},
		"the one that is idle longest":  {[]VGPU{on("a"), on("b", idle(1, Idle)), on("c", idle(1, 2*Idle))}, 0, "c", 1},
		"both as long: by name":         {[]VGPU{on("a"), on("c", idle(1, Idle)), on("b", idle(2, Idle))}, 0, "b", 2},
		"and by number":                 {[]VGPU{on("a"), on("b", idle(3, Idle), idle(2, Idle))}, 0, "b", 2},
		"one that works":                {[]VGPU{on("a"), on("b", works(1, Turn))}, Turn, "b", 1},
		"that has had no turn":          {[]VGPU{on("a"), on("b", works(1, Turn-1))}, Turn, "", 0},
		"for one that has not waited":   {[]VGPU{on("a"), on("b", works(1, Turn))}, Turn - 1, "", 0},
		"of one that has more":          {[]VGPU{on("a"), on("b", works(1, 9*Turn)), more(on("c", works(1, Turn)))}, Turn, "c", 1},
		"that has had no turn, of more": {[]VGPU{on("a"), more(on("c", works(1, Turn-1)))}, Turn, "", 0},
		"longest of those":              {[]VGPU{on("a"), more(on("b", works(1, Turn))), more(on("c", works(1, Turn+1)))}, Turn, "c", 1},
		"longest of any":                {[]VGPU{on("a"), on("b", works(1, Turn)), on("c", works(1, Turn+1))}, Turn, "c", 1},
		"who waits, before them":        {[]VGPU{on("a"), on("b", waits(1, 0)), more(on("c", works(1, 9*Turn)))}, Turn, "b", 1},
	} {
		g := &GPU{Memory: 1 << 30, Overcommit: 2, VGPUs: c.list}
		v, s := victim(g, wanted{api.Need{Session: 1, Waited: c.waited}, &g.VGPUs[0]})
		if (s != nil) != (c.key != "") || s != nil && (v.Key != c.key || s.ID != c.id) {
			t.Errorf("%s: %+v of %+v", what, s, v)
		}
	}
}

// TestParts: what a vGPU holds, whether that is more than its part, and what all of them could
// give.
func TestParts(t *testing.T) {
	for _, c := range []struct {
		fixed             bool
		limit, room, used uint64
		held              uint64
	}{{false, 9, 5, 3, 5}, {false, 9, 5, 7, 7}, {true, 9, 5, 3, 9}, {true, 9, 5, 11, 11}, {true, 0, 5, 3, 5}, {true, 0, 5, 7, 7}, {true, 1, 5, 0, 1}} {
		v := VGPU{Fixed: c.fixed, RoomStatus: api.RoomStatus{Limit: c.limit, Room: c.room, Used: c.used}}
		if got := v.held(); got != c.held {
			t.Errorf("%+v: %d", c, got)
		}
	}
	for _, c := range []struct {
		limit, used uint64
		overcommit  float64
		above       bool
	}{{100, 50, 2, false}, {100, 51, 2, true}, {100, 100, 0.5, false}, {100, 101, 0.5, true}, {0, 0, 1, true}, {1, 0, 1, false}} {
		v := VGPU{RoomStatus: api.RoomStatus{Limit: c.limit, Used: c.used}}
		if got := v.above(c.overcommit); got != c.above {
			t.Errorf("%+v: %v", c, got)
		}
	}
	s := func(id, bytes uint64) api.RoomSession { return api.RoomSession{ID: id, Bytes: bytes} }
	stays := on("c", s(1, 1000))
	stays.Fixed = true
	g := &GPU{VGPUs: []VGPU{on("a", s(1, 1), s(2, 10)), on("b", s(1, 100)), stays}}
	w := wanted{api.Need{Session: 1}, &g.VGPUs[0]}
	if got := w.others(g); got != 110 {
		t.Errorf("others could give %d", got)
	}
}

// TestRoomIsGivenInGrains: where there is that much; what somebody has room for and does not use is
// taken first, but of one that is fixed; patience ends behind its end.
func TestRoomIsGivenInGrains(t *testing.T) {
	need := func(key string, used, bytes uint64, waited time.Duration) VGPU {
		return VGPU{Key: key, RoomStatus: api.RoomStatus{Limit: 1 << 40, Used: used, Needs: []api.Need{{Session: 1, Bytes: bytes, Waited: waited}}}}
	}
	for _, c := range []struct{ memory, used, bytes, room uint64 }{
		{10 * grain, 0, 1, grain}, {10 * grain, 0, grain, grain}, {10 * grain, 0, grain + 1, 2 * grain}, {10 * grain, grain, grain, 2 * grain}, {grain + 5, 0, 1, grain}, {grain + 5, 0, grain + 1, grain + 5},
		{grain + 5, 0, grain + 5, grain + 5}, {5, 0, 5, 5},
	} {
		g := &GPU{Memory: c.memory, VGPUs: []VGPU{need("a", c.used, c.bytes, 0)}}
		if got := Next(g); got != (Step{Kind: Give, Key: "a", Room: c.room}) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	other := func(change func(*VGPU)) []VGPU {
		v := VGPU{Key: "b", RoomStatus: api.RoomStatus{Limit: 10, Room: 8, Used: 3, Sessions: []api.RoomSession{{ID: 7, Bytes: 3}}}}
		change(&v)
		return []VGPU{need("a", 0, 9, 0), v}
	}
	for what, c := range map[string]struct {
		change func(*VGPU)
		memory uint64
		want   Step
	}{
		"unused":        {func(*VGPU) {}, 10, Step{Kind: Give, Key: "b", Room: 3}},
		"all is used":   {func(v *VGPU) { v.Used = 8 }, 10, Step{Kind: Deny}},
		"fixed":         {func(v *VGPU) { v.Fixed = true }, 10, Step{Kind: Deny}},
		"no room":       {func(v *VGPU) { v.Room, v.Used, v.Sessions = 1, 0, nil }, 9, Step{Kind: Deny}},
		"could be less": {func(v *VGPU) { v.Room, v.Sessions[0].Bytes = 3, 2 }, 10, Step{Kind: Wait}},
	} {
		got := Next(&GPU{Memory: c.memory, VGPUs: other(c.change)})
		if got.Kind != c.want.Kind || c.want.Kind == Give && got != c.want {
			t.Errorf("%s: %+v", what, got)
		}
	}
	own := need("a", 3, 9, 0) // has room that it does not use, itself
	own.Room = 8
	own.Sessions = []api.RoomSession{{ID: 2, Bytes: 3}}
	if got := Next(&GPU{Memory: 10, VGPUs: []VGPU{own}}); got.Kind != Wait {
		t.Errorf("of its own room: %+v", got)
	}
	for waited, kind := range map[time.Duration]Kind{Patience: Wait, Patience + 1: Deny} {
		g := &GPU{Memory: 10, VGPUs: []VGPU{need("a", 0, 9, waited), {Key: "b", RoomStatus: api.RoomStatus{Room: 3, Used: 3, Sessions: []api.RoomSession{{ID: 7, Bytes: 3, Stays: true}}}}}}
		if got := Next(g); got.Kind != kind {
			t.Errorf("after %v: %+v", waited, got)
		}
	}
	g := &GPU{Memory: 10 * grain, VGPUs: []VGPU{need("a", 0, 1, 5), need("b", 0, 1, 5), need("c", 0, 1, 4)}}
	if got := Next(g); got.Key != "a" {
		t.Errorf("of two that have waited as long: %+v", got)
	}
	g.VGPUs[1].Needs[0].Waited++
	if got := Next(g); got.Key != "b" {
		t.Errorf("of one that has waited for longer: %+v", got)
	}
}
