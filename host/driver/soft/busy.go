package soft

import (
	"sync"

	"causeway/host/driver"
)

// clock tells a driver.Clock when the first kernel of several begins to run, and when the last has
// ended. Copies and waits of streams are no work of the GPU's.
type clock struct {
	to driver.Clock // nil: nobody asks

	mu      sync.Mutex // a leaf lock
	running int
}

// run runs f as a kernel. What f leaves by, also a panic, ends it.
func (c *clock) run(f func() error) error {
	if c.to == nil {
		return f()
	}
	c.mu.Lock()
	if c.running++; c.running == 1 {
		c.to.Begin()
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		if c.running--; c.running == 0 {
			c.to.End()
		}
		c.mu.Unlock()
	}()
	return f()
}
