package swap

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"causeway/host/api"
)

const second = time.Second

func vgpu(key string, limit, room, used uint64, sessions ...api.RoomSession) VGPU {
	return VGPU{Key: key, RoomStatus: api.RoomStatus{Limit: limit, Room: room, Used: used, Sessions: sessions}}
}

func (v VGPU) needs(n ...api.Need) VGPU { v.Needs = n; return v }

func (v VGPU) fixed() VGPU { v.Fixed = true; return v }

func TestNext(t *testing.T) {
	idle := func(id, bytes uint64, d time.Duration) api.RoomSession {
		return api.RoomSession{ID: id, Bytes: bytes, Idle: d, Here: time.Hour}
	}
	busy := func(id, bytes uint64, here time.Duration) api.RoomSession {
		return api.RoomSession{ID: id, Bytes: bytes, Here: here}
	}
	want := func(id, bytes uint64, waited time.Duration) api.Need {
		return api.Need{Session: id, Bytes: bytes, Waited: waited}
	}
	waits := func(s api.RoomSession) api.RoomSession { s.Waits = true; return s }
	stays := func(s api.RoomSession) api.RoomSession { s.Stays = true; return s }
	for what, c := range map[string]struct {
		vgpus []VGPU
		want  Step
	}{
		"nobody needs":             {[]VGPU{vgpu("a", 80, 10, 5)}, Step{}},
		"free":                     {[]VGPU{vgpu("a", 80, 10, 5).needs(want(1, 20, 0)), vgpu("b", 80, 30, 30)}, Step{Kind: Give, Key: "a", Room: 70}},
		"room that nobody uses":    {[]VGPU{vgpu("a", 80, 10, 10).needs(want(1, 50, 0)), vgpu("b", 80, 60, 30)}, Step{Kind: Give, Key: "b", Room: 30}},
		"no room is not room":      {[]VGPU{vgpu("a", 80, 10, 10).needs(want(1, 50, 0)), vgpu("b", 80, 1, 0), vgpu("c", 80, 60, 30)}, Step{Kind: Give, Key: "c", Room: 30}},
		"first come, first served": {[]VGPU{vgpu("a", 80, 10, 10).needs(want(1, 5, second)), vgpu("b", 80, 10, 10).needs(want(9, 80, 2*second))}, Step{Kind: Give, Key: "b", Room: 90}},
		"the longest idle": {[]VGPU{vgpu("a", 80, 40, 40, idle(1, 20, 9*second), busy(2, 20, time.Hour)).needs(want(2, 60, 0)),
			vgpu("b", 80, 40, 40, idle(3, 20, 5*second), idle(4, 20, 10*second))}, Step{Kind: Suspend, Key: "b", Session: 4}},
		"of its own too": {[]VGPU{vgpu("a", 80, 40, 40, idle(1, 20, 19*second), busy(2, 20, time.Hour)).needs(want(2, 60, 0)),
			vgpu("b", 80, 40, 40, idle(3, 20, 5*second))}, Step{Kind: Suspend, Key: "a", Session: 1}},
		"not itself": {[]VGPU{vgpu("a", 80, 40, 40, waits(idle(1, 40, 19*second))).needs(want(1, 30, 0)),
			vgpu("b", 80, 60, 60, busy(3, 60, second))}, Step{Kind: Wait}},
		"nobody who was just brought back": {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, 5*second)),
			vgpu("b", 80, 60, 60, api.RoomSession{ID: 3, Bytes: 60, Idle: second, Here: second / 2})}, Step{Kind: Wait}},
		"nobody who works, at first": {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, second)), vgpu("b", 80, 60, 60, busy(3, 60, time.Hour))}, Step{Kind: Wait}},
		"its turn":                   {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, 2*second)), vgpu("b", 80, 60, 60, busy(3, 60, time.Hour))}, Step{Kind: Suspend, Key: "b", Session: 3}},
		"who has more than its part": {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, 2*second)), vgpu("b", 80, 30, 30, busy(3, 30, time.Hour)),
			vgpu("c", 80, 60, 60, busy(4, 60, 3*second))}, Step{Kind: Suspend, Key: "c", Session: 4}},
		"of two that wait the later": {[]VGPU{vgpu("a", 90, 50, 50, waits(idle(1, 50, second))).needs(want(1, 30, second)),
			vgpu("b", 90, 50, 50, waits(idle(2, 50, second))).needs(want(2, 30, second/2))}, Step{Kind: Suspend, Key: "b", Session: 2}},
		"one that cannot": {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, 0)), vgpu("b", 80, 60, 60, stays(idle(3, 60, time.Hour)))}, Step{Kind: Wait}},
		"never": {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, Patience+1)), vgpu("b", 80, 60, 60, stays(idle(3, 60, time.Hour)))},
			Step{Kind: Deny, Key: "a", Session: 1, Why: "within 30s nothing"}},
		"more than there is": {[]VGPU{vgpu("a", 200, 0, 0).needs(want(1, 150, 0)), vgpu("b", 80, 30, 30, idle(3, 30, time.Hour))},
			Step{Kind: Deny, Key: "a", Session: 1, Why: "80 more than are free, and all that could be suspended holds 30"}},
		"one that comes back is never denied": {[]VGPU{vgpu("a", 200, 0, 0).needs(api.Need{Session: 1, Bytes: 150, Back: true, Waited: time.Hour})}, Step{Kind: Wait}},
		"one that is not asked": {[]VGPU{vgpu("a", 80, 0, 0).needs(want(1, 50, 0)), vgpu("b", 60, 0, 5, idle(3, 5, time.Hour)).fixed()},
			Step{Kind: Deny, Key: "a", Session: 1, Why: "holds 0"}},
	} {
		got := Next(&GPU{Memory: 100, Overcommit: 2, VGPUs: c.vgpus})
		if !strings.Contains(got.Why, c.want.Why) {
			t.Errorf("%s: %q does not say %q", what, got.Why, c.want.Why)
		}
		if got.Why = c.want.Why; got != c.want {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
}

// TestTakingTurns: vGPUs that together work with far more than there is are simulated, in time that
// the test makes: room is never more than there is, each need is met in bounded time, and nobody is
// sent away before it had time to work.
func TestTakingTurns(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { takeTurns(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// program is one of the simulation, the only one of its vGPU.
type program struct {
	bytes          uint64
	on             bool
	since, asked   time.Duration
	idleUntil      time.Duration
	waits          bool
	longest, times time.Duration
}

func takeTurns(t *testing.T, r *rand.Rand) {
	const memory, tick = 100, 50 * time.Millisecond
	list := make([]program, 3+r.IntN(3))
	for i := range list {
		list[i].bytes = 40 + r.Uint64N(50)
	}
	rooms := make([]uint64, len(list))
	for now := time.Duration(0); now < 5*time.Minute; now += tick {
		for i := range list {
			p := &list[i]
			if p.on && now >= p.idleUntil && r.IntN(40) == 0 { // it pauses now and then
				p.idleUntil = now + time.Duration(r.Int64N(int64(3*time.Second)))
			}
			if !p.on && !p.waits && now >= p.idleUntil {
				p.waits, p.asked = true, now
			}
		}
		for range 20 {
			g := GPU{Memory: memory, Overcommit: 3}
			sum := uint64(0)
			for i := range list {
				p := &list[i]
				v := vgpu(fmt.Sprint(i), memory, rooms[i], 0)
				if p.on {
					v.Used = p.bytes
					s := api.RoomSession{ID: 1, Bytes: p.bytes, Here: now - p.since}
					if now < p.idleUntil {
						s.Idle = Idle
					}
					v.Sessions = append(v.Sessions, s)
				}
				if p.waits {
					v.Needs = append(v.Needs, api.Need{Session: 1, Bytes: p.bytes, Waited: now - p.asked, Back: true})
				}
				g.VGPUs = append(g.VGPUs, v)
				sum += v.held()
			}
			if sum > memory {
				t.Fatalf("room for %d of %d", sum, memory)
			}
			s := Next(&g)
			if s.Kind != Give && s.Kind != Suspend {
				break
			}
			var i int
			if _, err := fmt.Sscan(s.Key, &i); err != nil {
				t.Fatal(err)
			}
			p := &list[i]
			if s.Kind == Suspend {
				if here := now - p.since; here < Stay {
					t.Errorf("sent away after %v", here)
				}
				p.on, p.waits = false, false
				continue
			}
			if rooms[i] = s.Room; p.waits && s.Room >= p.bytes {
				p.longest = max(p.longest, now-p.asked)
				p.on, p.waits, p.since = true, false, now
				p.times++
			}
		}
	}
	for i := range list {
		if p := &list[i]; p.times < 5 || p.longest > time.Duration(len(list))*2*Turn+2*second {
			t.Errorf("program %d of %d bytes was on the GPU %d times, and waited for up to %v", i, p.bytes, p.times, p.longest)
		}
	}
}
