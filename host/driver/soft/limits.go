package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// Limits of a fresh context, in bytes.
var defaultLimits = map[uint32]uint64{
	cuda.LimitStackSize:      1 << 10,
	cuda.LimitPrintfFifoSize: 1 << 20,
	cuda.LimitMallocHeapSize: 8 << 20,
}

// maxStackLimit is what a thread's local memory can grow to, in bytes.
const maxStackLimit = 512 << 10

// CtxGetLimit reads a limit.
func (s *session) CtxGetLimit(c *wire.Call, a *wire.CtxGetLimitArgs, r *wire.CtxGetLimitReply) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	def, res := limitDefault(a.Limit)
	if res != cuda.Success {
		return res
	}
	r.Value = def
	if v, ok := g.limits[a.Limit]; ok {
		r.Value = v
	}
	return cuda.Success
}

// CtxSetLimit sets a limit. A set stack size is kept by launches; text and heap are bounded
// elsewhere.
func (s *session) CtxSetLimit(c *wire.Call, a *wire.CtxSetLimitArgs) cuda.Result {
	g, res := s.context(c)
	if res != cuda.Success {
		return res
	}
	if _, res := limitDefault(a.Limit); res != cuda.Success {
		return res
	}
	v := a.Value
	if a.Limit == cuda.LimitStackSize {
		if v > maxStackLimit {
			return cuda.ErrorInvalidValue
		}
		v = (v + 15) &^ 15
		if res := s.setLocal(g, v); res != cuda.Success {
			return res
		}
	}
	g.limits[a.Limit] = v
	return cuda.Success
}

func limitDefault(limit uint32) (uint64, cuda.Result) {
	if v, ok := defaultLimits[limit]; ok {
		return v, cuda.Success
	}
	if limit >= cuda.LimitMax {
		return 0, cuda.ErrorInvalidValue
	}
	return 0, cuda.ErrorUnsupportedLimit
}

// CtxSetCacheConfig accepts a preference between caches that this GPU does not have apart.
func (s *session) CtxSetCacheConfig(c *wire.Call, a *wire.CtxSetCacheConfigArgs) cuda.Result {
	if _, res := s.context(c); res != cuda.Success {
		return res
	}
	if a.Config > cuda.FuncCachePreferEqual {
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// CtxResetPersistingL2Cache has no persisting lines to reset.
func (s *session) CtxResetPersistingL2Cache(c *wire.Call) cuda.Result {
	_, res := s.context(c)
	return res
}
