package worker

import (
	"runtime"
	"sync"
	"testing"
)

// TestNoTaskIsLost: of what several goroutines want of the consumer at the same time everything is
// done, however their steps and the consumer's fall. What was announced and neither ran nor is
// announced any more would wait for the next who wants something.
func TestNoTaskIsLost(t *testing.T) {
	w, c := newFake(t, nil)
	const callers, each = 2, 100000
	ran := 0
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				if err := w.onLoop(func() error { ran++; return nil }); err != nil {
					return
				}
			}
		})
	}
	rung := func() int {
		c.fakeBell.mu.Lock()
		defer c.fakeBell.mu.Unlock()
		return c.rings
	}
	for ran < callers*each {
		if !w.pending.Load() {
			// Each rings once, behind its announcement, which nobody but this goroutine takes back.
			if n := rung(); n > ran && !w.pending.Load() {
				t.Errorf("%d have rung, %d tasks ran, and the consumer would sleep", n, ran)
				break
			}
			runtime.Gosched()
			continue
		}
		if err := w.runTask(); err != nil {
			t.Fatal(err)
		}
	}
	close(w.ended)
	all.Wait()
}
