package device

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"causeway/host/api"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/virtio/fs"
)

// asker is a worker that keeps what it is told of room.
type asker struct {
	workerProcess
	told []link.Room
}

func (a *asker) Send(m link.ToWorker) error {
	a.told = append(a.told, m.(link.Room))
	return nil
}

// needsModel is what a device should make of its sessions' needs.
type needsModel struct {
	t      *testing.T
	d      *Device
	all    []*session
	worker []*asker
	used   []uint64 // by each session, of the GPU

	room   uint64
	needs  []modelNeed
	told   [][]link.Room
	back   []int // how often each session was to come back
	counts api.Swaps
	asked  time.Time
	number uint64
}

type modelNeed struct {
	of     int
	bytes  uint64
	since  time.Time
	back   bool
	number uint64
}

func newNeedsModel(t *testing.T, swaps bool) *needsModel {
	const sessions = 4
	budget, err := memory.New(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(budget.Close)
	budget.SetRoom(noRoom)
	m := &needsModel{t: t, room: noRoom, told: make([][]link.Room, sessions), back: make([]int, sessions), used: make([]uint64, sessions)}
	m.d = &Device{budget: budget, log: slog.New(slog.NewTextHandler(io.Discard, nil)), opts: Options{Swap: swaps}, sessions: map[*session]struct{}{}}
	for i := range sessions {
		if _, err := budget.Take(); err != nil {
			t.Fatal(err)
		}
		m.all = append(m.all, newSession(m.d, uint64(i)+1, fs.Caller{}))
		m.worker = append(m.worker, &asker{})
	}
	return m
}

func (m *needsModel) usedByAll() (n uint64) {
	for _, u := range m.used {
		n += u
	}
	return n
}

// add puts a need in its place: that of the session's earlier one, or the last.
func (m *needsModel) add(n modelNeed) {
	n.since = time.Now()
	i := slices.IndexFunc(m.needs, func(o modelNeed) bool { return o.of == n.of })
	if i >= 0 {
		n.since = m.needs[i].since
		m.needs[i] = n
	} else {
		m.needs = append(m.needs, n)
	}
	m.meet()
}

// meet has the first go on as long as there is room for all that were told so at once.
func (m *needsModel) meet() {
	for spoken := m.usedByAll(); len(m.needs) > 0 && spoken+m.needs[0].bytes <= m.room; {
		n := m.needs[0]
		spoken += n.bytes
		m.needs = m.needs[1:]
		m.counts.WaitNS += uint64(time.Since(n.since))
		if n.back {
			m.back[n.of]++
		} else {
			m.told[n.of] = append(m.told[n.of], link.Room{Number: n.number, Granted: true})
		}
	}
}

// deny refuses the i-th need.
func (m *needsModel) deny(i int) {
	n := m.needs[i]
	m.needs = slices.Delete(slices.Clone(m.needs), i, i+1)
	m.counts.Denied++
	m.told[n.of] = append(m.told[n.of], link.Room{Number: n.number})
}

// step does one thing by chance.
func (m *needsModel) step(rng *rand.Rand) {
	i, bytes := rng.IntN(len(m.all)), 1+rng.Uint64N(100)
	switch rng.IntN(9) {
	case 0, 1: // an allocation
		m.number++
		m.all[i].lacksRoom(m.worker[i], link.Want{Number: m.number, Bytes: bytes})
		m.add(modelNeed{of: i, bytes: bytes, number: m.number})
	case 2: // a return
		m.d.addNeed(&need{s: m.all[i], bytes: bytes})
		m.add(modelNeed{of: i, bytes: bytes, back: true})
	case 3: // the end of a session
		m.d.dropNeed(m.all[i])
		m.needs = slices.DeleteFunc(slices.Clone(m.needs), func(n modelNeed) bool { return n.of == i })
	case 4: // use, of which nobody hears at once
		m.used[i] = rng.Uint64N(40)
		m.d.budget.SetBeside(i, m.used[i])
	case 5:
		m.room = rng.Uint64N(200)
		m.d.SetRoom(api.RoomChange{Room: &m.room})
		m.room = max(m.room, noRoom)
		m.asked = time.Now()
		m.meet()
	case 6:
		id := uint64(rng.IntN(len(m.all) + 2)) // of nobody, too
		m.d.SetRoom(api.RoomChange{Deny: []uint64{id}, Why: "chance"})
		m.asked = time.Now()
		if at := slices.IndexFunc(m.needs, func(n modelNeed) bool { return n.of == int(id)-1 && !n.back }); at >= 0 {
			m.deny(at)
		}
		m.meet()
	case 7:
		time.Sleep(time.Duration(rng.IntN(int(unattended))))
	default:
		now := time.Now()
		m.d.unattendedNeeds(now)
		late := []int{}
		for i, n := range m.needs {
			if !n.back && now.Sub(n.since) > unattended && now.Sub(m.asked) > unattended {
				late = append(late, i)
			}
		}
		for k, i := range late {
			m.deny(i - k)
		}
		m.meet()
	}
}

// check compares everything that can be seen. It is also who asks for needs, now and then.
func (m *needsModel) check(step int, ask bool) {
	m.t.Helper()
	for i := range m.all {
		if !slices.Equal(m.worker[i].told, m.told[i]) {
			m.t.Fatalf("step %d: session %d was told %v, not %v", step, i+1, m.worker[i].told, m.told[i])
		}
		if len(m.all[i].jobs) != m.back[i] {
			m.t.Fatalf("step %d: session %d is to come back %d times, not %d", step, i+1, len(m.all[i].jobs), m.back[i])
		}
	}
	if m.d.rooms.counts != m.counts {
		m.t.Fatalf("step %d: %+v, not %+v", step, m.d.rooms.counts, m.counts)
	}
	if !ask {
		return
	}
	now := time.Now()
	m.asked = now
	want := []api.Need{}
	for _, n := range m.needs {
		want = append(want, api.Need{Session: uint64(n.of) + 1, Bytes: n.bytes, Waited: now.Sub(n.since), Back: n.back})
	}
	if st := m.d.RoomStatus(); !slices.Equal(st.Needs, want) || st.Room != m.room || st.Used != m.usedByAll() {
		m.t.Fatalf("step %d: %+v, not %+v in room for %d", step, st, want, m.room)
	}
	begin, ctx := now, context.Background()
	if len(m.needs) == 0 { // who asks is told of the next one when it comes
		var next sync.WaitGroup
		next.Go(func() {
			time.Sleep(time.Second)
			m.number++
			m.all[0].lacksRoom(m.worker[0], link.Want{Number: m.number, Bytes: 1 << 40})
		})
		m.d.AwaitNeed(ctx)
		next.Wait()
		if took := time.Since(begin); took != time.Second {
			m.t.Fatalf("step %d: told after %v", step, took)
		}
		m.needs = append(m.needs, modelNeed{of: 0, bytes: 1 << 40, since: time.Now(), number: m.number})
	} else if m.d.AwaitNeed(ctx); time.Since(begin) != 0 {
		m.t.Fatalf("step %d: %d needs are told after %v", step, len(m.needs), time.Since(begin))
	}
}

// TestNeedsByChance: needs are met in the order in which their sessions began to wait, as far as
// there is room, each once; allocations are refused when somebody says so, or nobody asks any more,
// returns never; and all of it is counted.
func TestNeedsByChance(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			m := newNeedsModel(t, true)
			for step := range 250 {
				m.step(rng)
				m.check(step, rng.IntN(12) == 0)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestWhoAsksIsThere: a need is denied when nobody has asked for any since long, and whoever waits
// for one has asked.
func TestWhoAsksIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newNeedsModel(t, true)
		m.all[1].lacksRoom(m.worker[1], link.Want{Number: 7, Bytes: 1 << 20})
		time.Sleep(unattended + 1)
		m.d.AwaitNeed(t.Context()) // there is one: at once
		if m.d.unattendedNeeds(time.Now()); len(m.worker[1].told) != 0 || len(m.d.rooms.needs) != 1 {
			t.Errorf("told %v, %d needs", m.worker[1].told, len(m.d.rooms.needs))
		}
		time.Sleep(unattended)
		if m.d.unattendedNeeds(time.Now()); len(m.worker[1].told) != 0 {
			t.Errorf("told %v a moment too early", m.worker[1].told)
		}
		time.Sleep(time.Nanosecond)
		if m.d.unattendedNeeds(time.Now()); len(m.worker[1].told) != 1 || m.worker[1].told[0] != (link.Room{Number: 7}) {
			t.Errorf("told %v", m.worker[1].told)
		}
	})
}

// TestNoNeeds: without anybody who gives room there is none to be had, at once.
func TestNoNeeds(t *testing.T) {
	m := newNeedsModel(t, false)
	m.all[1].lacksRoom(m.worker[1], link.Want{Number: 7, Bytes: 1})
	m.told[1] = []link.Room{{Number: 7}}
	room := uint64(99)
	m.d.SetRoom(api.RoomChange{Room: &room})
	m.check(0, false)
	if got := m.d.RoomStatus(); got.Room != noRoom || len(got.Needs) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestSwapsAreCounted: what leaves the GPU for others counts as away until it is back.
func TestSwapsAreCounted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := newNeedsModel(t, true)
	away, c := uint64(0), &m.counts
	var gone []*stored
	for range 300 {
		if i := rng.IntN(len(gone) + 2); i < len(gone) {
			m.d.away(gone[i], false)
			m.d.swapped(gone[i], false)
			c.In, c.InBytes, away = c.In+1, c.InBytes+gone[i].gpu, away-gone[i].gpu
			gone = slices.Delete(gone, i, i+1)
		} else {
			kept := &stored{gpu: rng.Uint64N(1000)}
			m.d.away(kept, true)
			m.d.swapped(kept, true)
			c.Out, c.OutBytes, away = c.Out+1, c.OutBytes+kept.gpu, away+kept.gpu
			gone = append(gone, kept)
		}
		if st := m.d.RoomStatus(); st.Away != away || m.d.rooms.counts != *c {
			t.Fatalf("%d away, not %d; %+v, not %+v", st.Away, away, m.d.rooms.counts, *c)
		}
	}
}
