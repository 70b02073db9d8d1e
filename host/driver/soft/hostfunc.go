package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// LaunchHostFunc queues a function of the guest. The task waits for the guest; other streams go on
// meanwhile.
func (s *session) LaunchHostFunc(c *wire.Call, a *wire.LaunchHostFuncArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	t := &task{run: s.hostFunc(a.ID)}
	if a.Status != 0 {
		id, g := a.ID, st.ctx // a is the next operation's when this runs
		t.always = true       // it is told of errors
		t.run = func() cuda.Result {
			s.host.CallBack(id, s.outcome(g))
			return cuda.Success
		}
	}
	s.enqueue(st, t, s.before(st))
	return cuda.Success
}

// hostFunc is the work of a host function or a graph's host node.
func (s *session) hostFunc(id uint64) func() cuda.Result {
	return func() cuda.Result {
		s.host.CallBack(id, cuda.Success)
		return cuda.Success
	}
}
