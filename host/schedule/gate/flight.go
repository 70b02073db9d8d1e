package gate

import (
	"time"

	"causeway/remote/sys"
)

// submit counts an operation.
func (g *Gate) submit() {
	g.submitted.Add(1)
	g.sinceFence++
	if g.idle.Load() {
		g.begin()
	}
}

// begin starts the clock: something is on the GPU.
func (g *Gate) begin() {
	g.mu.Lock()
	if g.idle.Load() {
		g.idle.Store(false)
		g.counted, g.blind = time.Now(), false
		g.moved = g.counted
	}
	g.mu.Unlock()
	g.announce()
	g.wakeMonitor()
}

// After follows an operation that Before let through.
func (g *Gate) After() {
	if g.free != 0 {
		return
	}
	if g.sinceFence >= g.segment() {
		g.fence()
	}
}

// Rest says that no operation follows for now.
func (g *Gate) Rest() {
	if g.free != 0 {
		return
	}
	if g.sinceFence > 0 {
		g.fence()
	}
}

// limit is how many operations may be in flight.
func (g *Gate) limit() uint64 {
	g.mu.Lock()
	est := g.est
	g.mu.Unlock()
	if est <= 0 {
		return firstOps
	}
	return uint64(min(max(float64(g.Grant.Budget())/est, leastOps), maxFlight))
}

// segment is how many operations go between two fences.
func (g *Gate) segment() uint64 { return min(max(g.limit()/4, 1), maxFlight/8) }

// room reports whether one more operation may be in flight.
func (g *Gate) room() bool {
	if g.idle.Load() {
		return true
	}
	limit := g.limit()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.submitted.Load()-g.done < limit && g.fenced-g.passed < depth {
		return true
	}
	g.lookLocked(time.Now())
	return g.submitted.Load()-g.done < limit && g.fenced-g.passed < depth
}

// lack sleeps until a fence may have passed.
func (g *Gate) lack() {
	if !g.tells {
		if !g.sharp {
			g.sharp = true
			sys.Sharpen()
		}
		sys.Nap(napLeast)
		return
	}
	n := g.passes.Load()
	g.lacking.Store(true)
	if !g.room() {
		sys.FutexWait(&g.passes, n, stand)
	}
	g.lacking.Store(false)
}

// pass hears from the gauge that marks have passed.
func (g *Gate) pass() {
	g.passes.Add(1)
	if g.lacking.Load() {
		sys.FutexWake(&g.passes)
	}
	g.wakeMonitor()
}

// fence puts a mark behind everything so far.
func (g *Gate) fence() {
	g.sinceFence = 0
	if g.Gauge == nil {
		return
	}
	g.mu.Lock()
	for g.fenced-g.passed >= depth { // at most what Rest adds to room's bound
		g.lookLocked(time.Now())
		if g.fenced-g.passed < depth {
			break
		}
		g.mu.Unlock()
		sys.Nap(napLeast)
		g.mu.Lock()
	}
	n := g.fenced + 1
	g.marks[n%depth] = mark{g.submitted.Load()}
	if g.idle.Load() { // work of the free time
		g.idle.Store(false)
		g.counted, g.blind = time.Now(), false
		g.moved = g.counted
	}
	g.fenced = n
	g.mu.Unlock()
	g.Gauge.Fence(n)
	g.wakeMonitor()
}

// lookLocked learns which fences have passed, and accounts for the time until now.
func (g *Gate) lookLocked(now time.Time) {
	if g.idle.Load() {
		if g.submitted.Load() == g.done && g.fenced == g.passed {
			return
		}
		g.idle.Store(false) // submitted while this side found it idle
		g.counted, g.moved = now, now
	}
	blind := g.blind
	if g.blind = false; blind {
		g.counted, g.moved = now, now
	}
	if g.Gauge == nil {
		g.passed, g.done = g.fenced, g.submitted.Load()
	} else if p := min(g.Gauge.Passed(), g.fenced); p > g.passed {
		ops := g.marks[p%depth].ops
		if n := ops - g.done; n > 0 && !blind {
			took := float64(now.Sub(g.moved)) / float64(n)
			if g.est == 0 {
				g.est = took
			}
			g.est += (took - g.est) / 4
		}
		g.passed, g.done, g.moved = p, ops, now
	} else if n := g.submitted.Load() - g.done; n > 0 && g.est > 0 {
		// What takes longer than was thought is known before it ends. Before the first end it means
		// nothing.
		g.est = max(g.est, float64(now.Sub(g.moved))/float64(n))
	}
	if d := now.Sub(g.counted); d > 0 {
		g.Usage.Busy.Add(uint64(d))
		g.counted = now
	}
	if g.submitted.Load() == g.done && g.fenced == g.passed {
		g.idle.Store(true)
		g.quietAt = now
	}
}
