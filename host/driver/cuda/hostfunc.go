package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// LaunchHostFunc puts a function of the guest on a stream: the driver's own host function, which
// blocks the driver's callback thread until the guest has run it.
func (s *session) LaunchHostFunc(c *wire.Call, a *wire.LaunchHostFuncArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	s.openHostFuncs()
	if a.Status != 0 {
		return s.drv.StreamAddCallback(st.handle, hostStreamFuncEntry(), a.ID, 0)
	}
	return s.drv.LaunchHostFunc(st.handle, hostFuncEntry(), a.ID)
}

// openHostFuncs makes hostFuncEntry work; whoever gives it to the driver calls this first.
func (s *session) openHostFuncs() {
	if !s.serving {
		s.serving = true
		serveHostFuncs(func(id uint64, status cuda.Result) { s.host.CallBack(id, status) })
	}
}

// closeHosts ends what the session has of host functions.
func (s *session) closeHosts() {
	if s.serving {
		closeHostFuncs()
	}
}
