package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// pool is a memory pool: a device's default one, the guest's own, or another session's. It keeps
// nothing back: freed memory returns to the device.
type pool struct {
	device       int
	attrs        map[int32]uint64
	current, top uint64 // bytes in use, and their maximum
	max          uint64 // bytes; 0: no limit
	shareable    bool
	imported     bool              // another session's: nothing is allocated from it
	owner        [16]byte          // that session
	token        driver.ShareToken // imported
	access       map[uint32]uint32
}

// used counts bytes taken (or, negative, given back).
func (p *pool) used(n int64) {
	p.current += uint64(n)
	p.top = max(p.top, p.current)
}

// PoolGetDefault names a device's pool.
func (s *session) PoolGetDefault(c *wire.Call, a *wire.PoolGetDefaultArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	return s.pools.put(a.Pool, s.devPools[a.Dev])
}

// PoolGetAttribute reads an attribute.
func (s *session) PoolGetAttribute(c *wire.Call, a *wire.PoolGetAttributeArgs, r *wire.PoolGetAttributeReply) cuda.Result {
	p, ok := s.pools[a.Pool]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	switch a.Attr {
	case cuda.PoolAttrReuseFollowEventDependencies, cuda.PoolAttrReuseAllowOpportunistic,
		cuda.PoolAttrReuseAllowInternalDependencies:
		v, set := p.attrs[a.Attr]
		if !set {
			v = 1
		}
		r.Value = v
	case cuda.PoolAttrReleaseThreshold:
		r.Value = p.attrs[a.Attr]
	case cuda.PoolAttrReservedMemCurrent, cuda.PoolAttrUsedMemCurrent:
		r.Value = p.current
	case cuda.PoolAttrReservedMemHigh, cuda.PoolAttrUsedMemHigh:
		r.Value = p.top
	default:
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// PoolSetAttribute sets an attribute. Reuse policies and the threshold are kept, and allow what
// this pool does anyway.
func (s *session) PoolSetAttribute(c *wire.Call, a *wire.PoolSetAttributeArgs) cuda.Result {
	p, ok := s.pools[a.Pool]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	switch a.Attr {
	case cuda.PoolAttrReuseFollowEventDependencies, cuda.PoolAttrReuseAllowOpportunistic,
		cuda.PoolAttrReuseAllowInternalDependencies:
		if a.Value > 1 {
			return cuda.ErrorInvalidValue
		}
		p.attrs[a.Attr] = a.Value
	case cuda.PoolAttrReleaseThreshold:
		p.attrs[a.Attr] = a.Value
	case cuda.PoolAttrReservedMemHigh, cuda.PoolAttrUsedMemHigh:
		if a.Value != 0 {
			return cuda.ErrorInvalidValue
		}
		p.top = p.current
	default:
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// PoolTrimTo has nothing to give back.
func (s *session) PoolTrimTo(c *wire.Call, a *wire.PoolTrimToArgs) cuda.Result {
	if _, ok := s.pools[a.Pool]; !ok {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}
