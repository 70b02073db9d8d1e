package soft

import (
	"sync/atomic"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// countersSize is a page.
const countersSize = pageSize

// sharedEvent is what sessions with the same event share: how often it was recorded, and the latest
// record that is done. A record of one session is, for the others, a task that waits for the count.
type sharedEvent struct {
	file *memoryFile
	*counters
	opened bool
	seen   uint64       // record that mark stands for
	users  atomic.Int64 // the event, and tasks
}

func newSharedEvent() (*sharedEvent, error) {
	f, err := newMemoryFile(countersSize)
	if err != nil {
		return nil, err
	}
	return openSharedEvent(f)
}

func openSharedEvent(f *memoryFile) (*sharedEvent, error) {
	c, err := f.counters()
	if err != nil {
		_ = f.close()
		return nil, err
	}
	e := &sharedEvent{file: f, counters: c}
	e.users.Store(1)
	return e, nil
}

// reached notes that a record is done.
func (e *sharedEvent) reached(n uint64) {
	for {
		was := e.done.Load()
		if was >= n || e.done.CompareAndSwap(was, n) {
			return
		}
	}
}

// release ends one use; the last gives everything back. Any goroutine.
func (e *sharedEvent) release() {
	if e.users.Add(-1) == 0 {
		e.counters.close()
		_ = e.file.close()
	}
}

// close ends the event's own use of what it shares.
func (e *event) close() {
	if e.shared != nil {
		e.shared.release()
	}
}

// latest brings an event's mark up to date with what other sessions recorded.
func (s *session) latest(e *event) {
	sh := e.shared
	if sh == nil {
		return
	}
	n := sh.recorded.Load()
	if n == sh.seen {
		return
	}
	sh.seen = n
	e.mark = &mark{}
	if sh.done.Load() >= n {
		return
	}
	sh.users.Add(1)
	e.mark.task = &task{always: true, run: func() cuda.Result {
		s.await(func() bool { return sh.done.Load() >= n })
		sh.release()
		return cuda.Success
	}}
	s.queue.submit(e.mark.task, nil)
}

// IpcGetEventHandle shares an event.
func (s *session) IpcGetEventHandle(c *wire.Call, a *wire.IpcGetEventHandleArgs, r *wire.IpcGetEventHandleReply) (res cuda.Result) {
	e, ok := s.events[a.Event]
	if !ok || e.shared == nil || e.shared.opened {
		return cuda.ErrorInvalidHandle
	}
	r.Token, res = s.offer(c, shareEvent, uint64(a.Event), driver.SharedMemory{}, func() ([]byte, int, cuda.Result) {
		return s.part(e.ctx.device, 0, countersSize).encode(), int(e.shared.file.f.Fd()), cuda.Success
	})
	return res
}

// IpcOpenEventHandle makes another session's event one of this session's.
func (s *session) IpcOpenEventHandle(c *wire.Call, a *wire.IpcOpenEventHandleArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if c.Replay {
		token, ok := tokenOf(a.Token)
		if !ok {
			return cuda.ErrorMapFailed
		}
		return s.events.put(a.Event, &event{ctx: g, flags: cuda.EventDisableTiming, token: token})
	}
	sh, res := s.redeemEvent(a.Token)
	if res != cuda.Success {
		return res
	}
	return s.events.put(a.Event, &event{ctx: g, flags: cuda.EventDisableTiming, shared: sh, token: driver.ShareToken(a.Token)})
}

// redeemEvent opens another session's event.
func (s *session) redeemEvent(token []byte) (*sharedEvent, cuda.Result) {
	p, f, _, res := s.redeem(shareEvent, token, cuda.ErrorMapFailed)
	if res != cuda.Success {
		return nil, res
	}
	if f == nil || f.size != countersSize {
		_ = f.close()
		return nil, cuda.ErrorMapFailed
	}
	if p.Session == s.name {
		_ = f.close()
		return nil, cuda.ErrorInvalidContext
	}
	sh, err := openSharedEvent(f)
	if err != nil {
		return nil, cuda.ErrorMapFailed
	}
	sh.opened = true
	return sh, cuda.Success
}
