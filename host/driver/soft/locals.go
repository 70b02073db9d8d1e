package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

/*
Local memory of threads is the interpreter's. But drivers take memory for all threads that a GPU can
run at once: as much for each as the stack's limit says, or a kernel needed that was launched, and
from then on put variables of code elsewhere. So do contexts here: what they would take moves where
variables are put that are loaded later.
*/

// mostLocal bounds what contexts of a device take, in bytes: half of the addresses that variables
// have.
const mostLocal = arenaSize / 8

// takeLocal has a context take local memory for work that needs so many bytes for each thread.
func (s *session) takeLocal(g *gpuContext, bytes uint64) cuda.Result {
	if bytes <= g.local {
		return cuda.Success
	}
	return s.setLocal(g, bytes)
}

// setLocal has a context take so much, or give back what is more.
func (s *session) setLocal(g *gpuContext, bytes uint64) cuda.Result {
	threads := int64(s.gpus[g.device].cores) * threadsPerSM
	if !s.space.moveVariables(g.device, (int64(bytes)-int64(g.local))*threads) {
		return cuda.ErrorOutOfMemory
	}
	g.local = bytes
	return cuda.Success
}

// moveVariables has variables of a device that are to come lie as far behind where they begin as
// contexts take memory for their threads, which is so much more now. False: it is too much.
func (s *space) moveVariables(device int, more int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.locals[device] + more
	if more > 0 && n > mostLocal {
		return false
	}
	s.locals[device] = n
	return true
}

// takeLocalOf does so for the kernels of a graph.
func (s *session) takeLocalOf(p *plan) cuda.Result {
	for i := range p.nodes {
		n := &p.nodes[i]
		if e := n.work.entry; e != nil {
			if res := s.takeLocal(n.work.ctx, e.code.Attributes().LocalBytes); res != cuda.Success {
				return res
			}
		}
		for _, body := range n.bodies {
			if res := s.takeLocalOf(body); res != cuda.Success {
				return res
			}
		}
	}
	return cuda.Success
}

// LocalMemory has a context take again what a driver took elsewhere.
func (s *session) LocalMemory(c *wire.Call, a *wire.LocalMemoryArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if !c.Replay || a.Bytes == 0 || a.Bytes > maxStackLimit {
		return cuda.ErrorInvalidValue
	}
	return s.takeLocal(g, uint64(a.Bytes))
}
