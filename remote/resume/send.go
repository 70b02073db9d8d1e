package resume

import "causeway/remote/frame"

// sendFew sends what is not much here and now.
func (c *Conn) sendFew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept.end-c.sent < bulk {
		c.sendLocked(c.kept.end)
	}
}

// poke has routineSend look.
func (c *Conn) poke() {
	select {
	case c.due <- struct{}{}:
		c.rung.Ring()
	default:
	}
}

// Awake implements frame.Awaker.
func (c *Conn) Awake() bool { return c.rung.Used() }

// routineSend sends what nobody takes along.
func (c *Conn) routineSend() {
	for {
		c.rung.Await(c.ctx, func() bool { return len(c.due) > 0 })
		select {
		case <-c.due:
			c.mu.Lock()
			c.sendLocked(^uint64(0))
			c.mu.Unlock()
		case <-c.ctx.Done():
			return
		}
	}
}

// sendLocked sends what is kept and was not sent, up to a position, and says what was received. Who
// finds another at it leaves it to that one.
func (c *Conn) sendLocked(to uint64) {
	if c.sending {
		return
	}
	c.sending = true
	var some [batch/keptChunk + 2][]byte
	for up, list := c.nextLocked(some[:0]); up != nil; up, list = c.nextLocked(some[:0]) {
		c.mu.Unlock()
		c.wire.Lock()
		err := up.WriteAll(list)
		c.wire.Unlock()
		if err != nil {
			c.unwritable(up, err) // what is kept goes on the next
		}
		c.mu.Lock()
		c.kept.pin, c.leaving = noPin, 0
		if err != nil || c.kept.end-c.sent < ahead/4 {
			c.changed.Broadcast() // for whoever waits for room
		}
		if c.sent >= to {
			if c.sent < c.kept.end || c.got-c.told >= ackEach || c.hold.tells {
				c.poke() // what came meanwhile
			}
			break
		}
	}
	if c.sending = false; c.hold.on {
		c.changed.Broadcast() // for Hold
	}
}

// nextLocked is what is to be sent next, and over what; nil: nothing, or nowhere. An
// acknowledgement goes between two frames: what precedes it ends with one.
func (c *Conn) nextLocked(list [][]byte) (Way, [][]byte) {
	up := c.writableLocked()
	if up == nil {
		return nil, nil
	}
	most := min(c.kept.end-c.sent, batch)
	if c.hold.tells && c.sent == c.reached {
		if c.out.whole() {
			c.hold.tells, c.hold.told = false, true
			return up, append(list, frame.Header{Kind: frame.Hold}.Append(nil))
		}
		most = min(most, c.out.rest())
	}
	if c.got-c.told >= ackEach && c.sent == c.reached { // else the boundary is further on
		if c.out.whole() {
			c.told = c.got
			return up, append(list, frame.Header{Kind: frame.Ack, Arg: c.got}.Append(nil))
		}
		most = min(most, c.out.rest())
	}
	if most == 0 {
		return nil, nil
	}
	list, n := c.kept.take(list, c.sent, most)
	for at, i := c.sent, 0; i < len(list); i++ {
		next := at + uint64(len(list[i]))
		if next > c.reached {
			c.out.pass(list[i][max(at, c.reached)-at:])
			c.reached = next
		}
		at = next
	}
	c.sent, c.leaving = c.sent+n, n
	return up, list
}
