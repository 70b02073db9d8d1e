package cuda

import (
	"causeway/cuda"
	"causeway/host/driver"
)

type threadKey struct{ ctx, thread uint32 }

// threadStream finds the default stream of a guest's thread in the current context. It is a stream
// of ours.
func (s *session) threadStream(key threadKey) (*stream, cuda.Result) {
	st := s.threads[key]
	if st == nil {
		var res cuda.Result
		if st, res = s.newThreadStream(key); res != cuda.Success {
			return nil, res
		}
		s.threads[key] = st
	}
	st.used = true
	return st, cuda.Success
}

func (s *session) newThreadStream(key threadKey) (*stream, cuda.Result) {
	if len(s.threads) >= driver.EnoughThreads {
		if st := s.spareStream(key, false); st != nil {
			return st, cuda.Success
		}
	}
	if len(s.threads) >= maxObjects || !driver.ReserveStream(s.host) {
		if st := s.spareStream(key, true); st != nil {
			return st, cuda.Success
		}
		return nil, cuda.ErrorOutOfMemory
	}
	h, res := s.drv.StreamCreateWithPriority(0, 0)
	if res != cuda.Success {
		driver.ReleaseStreams(s.host, 1)
		return nil, res
	}
	s.ofThreads.Add(key)
	return &stream{handle: h, ctx: key.ctx}, cuda.Success
}

// spareStream takes a stream from a thread that has no work on it, nil: there is none. all: however
// long that takes.
func (s *session) spareStream(key threadKey, all bool) *stream {
	if s.capturing() { // a question about a stream may end a capture, and some take part in it
		return nil
	}
	st, _ := s.ofThreads.Take(s.threads, key, all, func(k threadKey, st *stream) driver.Look {
		switch {
		case k.ctx != key.ctx || st.own:
		case st.used:
			st.used = false
			return driver.Recent
		case st.waiting() == nil && !s.users.has(st.handle) && s.finished(st):
			return driver.Spare
		}
		return driver.Kept
	})
	return st
}

// forgetThreads forgets the streams of threads in a context that is gone.
func (s *session) forgetThreads(ctx uint32) {
	n := 0
	for k := range s.threads {
		if k.ctx == ctx {
			delete(s.threads, k)
			n++
		}
	}
	if n > 0 {
		s.ofThreads.Forget(func(k threadKey) bool { return k.ctx == ctx })
		driver.ReleaseStreams(s.host, n)
	}
}

// shaped notes that a stream has attributes of the guest's: no other thread gets it.
func (st *stream) shaped(res cuda.Result) cuda.Result {
	st.own = st.own || res == cuda.Success
	return res
}
