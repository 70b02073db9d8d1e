package gate

import (
	"runtime"
	"time"

	"causeway/remote/sys"

	"causeway/host/schedule/page"
)

// routineListen wakes the monitor when the grant changes.
func (g *Gate) routineListen() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for last := page.Word(0); !g.stopped.Load(); { // no grant is 0
		if w := g.Grant.Word(); w != last {
			last = w
			g.wakeMonitor()
			continue
		}
		g.Grant.Await(last, 0)
	}
}

func (g *Gate) wakeMonitor() {
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// routineMonitor follows what is on the GPU.
func (g *Gate) routineMonitor() {
	for {
		select {
		case <-g.kick:
		case <-g.quit:
			return
		}
		if !g.follow() {
			return
		}
	}
}

// follow looks at the fences until there is nothing left to see; false: the gate is closed for
// good.
func (g *Gate) follow() bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.Sharpen()
	for !g.stopped.Load() {
		w := g.Grant.Word()
		if w.Free() { // nothing is measured, and nobody asks
			g.mu.Lock()
			g.blind = true
			g.mu.Unlock()
			return true
		}
		g.settle()
		g.mu.Lock()
		now := time.Now()
		g.lookLocked(now)
		rest, d := g.reportLocked(w, now)
		g.mu.Unlock()
		switch {
		case rest:
			return true
		case !g.tells || d <= grace: // the runtime's timers are too coarse for that
			sys.Nap(d)
		case !g.await(d):
			return false
		}
	}
	return false
}

// await sleeps until something is new, or for d; false: the gate is closed for good.
func (g *Gate) await(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-g.kick:
	case <-t.C:
	case <-g.quit:
		return false
	}
	return true
}

// settle has the consumer fence what it submitted while the session was free.
func (g *Gate) settle() {
	if !g.loose.Load() {
		return
	}
	g.mu.Lock()
	ask := !g.asking
	g.asking = true
	g.mu.Unlock()
	if !ask {
		return
	}
	g.group.Go(func() {
		_ = g.OnConsumer(func() error { // an error: the session has ended
			if !g.Grant.Word().Free() {
				g.become(0)
			}
			return nil
		})
		g.mu.Lock()
		g.asking = false
		g.mu.Unlock()
		g.wakeMonitor()
	})
}

// reportLocked tells the scheduler what is new. It reports whether there is nothing more to see, or
// else when to look again.
func (g *Gate) reportLocked(w page.Word, now time.Time) (rest bool, again time.Duration) {
	if g.loose.Load() {
		return true, 0 // whoever fences it wakes the monitor
	}
	switch {
	case g.idle.Load():
	case g.tells:
		return false, napTold
	default:
		return false, min(max(now.Sub(g.moved)/32, napLeast), napMost)
	}
	if w&page.Open == 0 && page.Word(g.Usage.Drained.Load()) != w {
		g.Usage.Drained.Store(uint32(w))
		g.ring()
	}
	if !g.active || g.Usage.Waiting.Load() != 0 {
		return true, 0
	}
	if g.quietAt.IsZero() {
		g.quietAt = now
	}
	if left := grace - now.Sub(g.quietAt); left > 0 {
		return false, left
	}
	g.active = false
	g.Usage.Active.Store(0)
	g.ring()
	return true, 0
}
