package verbs

import (
	"errors"
	"net"
)

// errAborted is the error of a connection that this end has given up.
var errAborted = errors.New("given up")

// Alone reports whether the other end is a guest's own (Pass), which goes on by its adapter or not
// at all.
func (c *Conn) Alone() bool { return c.peer.offer.Alone }

// Adapter is this end's port.
func (c *Conn) Adapter() Adapter { return c.adapter }

// WriteAll writes one after the other.
func (c *Conn) WriteAll(list [][]byte) error {
	for _, p := range list {
		if _, err := c.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// Ended reports whether the other end has said that it has written all.
func (c *Conn) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ends
}

// Abort ends the connection without a word, and waits for nothing of the other end's. When it
// returns the queue pair is gone: what may still be on its way arrives nowhere.
func (c *Conn) Abort() {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed, c.cut = true, true
		c.failLocked(errAborted)
		c.mu.Unlock()
		abort(c.base)
		c.writeMu.Lock()
		defer c.writeMu.Unlock()
		_ = c.release() // nobody is there to be told
	})
}

// abort ends a connection without a word, if it knows how.
func abort(base net.Conn) {
	if a, ok := base.(interface{ Abort() }); ok {
		a.Abort()
	} else {
		_ = base.Close()
	}
}

// release gives back what the connection has, when nobody uses it any more. It is closed.
func (c *Conn) release() error {
	c.wg.Wait()
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.mu.Lock()
	for c.polling || c.reach.users > 0 {
		c.cond.Wait()
	}
	c.failLocked(net.ErrClosed)
	stopTimer(&c.readEnd)
	stopTimer(&c.writeEnd)
	c.mu.Unlock()
	return errors.Join(closeRails(&c.mu, c.reach.rails), c.queue.Close(), c.window.close(), c.out.close(), c.reach.land.close())
}
