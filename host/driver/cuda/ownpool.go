package cuda

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

/*
A session that may move has the memory of its pools in its ranges as well, in stream order of its
own making: where a driver's pool puts memory follows from all that the pool has given out before,
and what it takes for that decides where the driver puts the variables of code that is loaded later.

Memory is there as soon as it is allocated, which is within stream order. What is freed on a stream
is kept back with its addresses: work of that stream may have it at once, others when the stream's
work so far is known to be done. It is taken away at a synchronisation, down to the pool's
threshold, when it is found to be free there, when there is no room, and when somebody trims. The
driver's pool of the same guest's pool stays empty, for captures and to judge what a call may ask.
*/

// ownPool is a pool whose memory lies in the session's ranges. Worker goroutine.
type ownPool struct {
	dev       uint32
	most      uint64 // bytes; 0: no limit
	threshold uint64 // bytes that are held at least, once they are
	shareable bool
	alone     bool // what is freed on a stream is not for others, but by synchronisation
	foreign   bool // another session's: nothing is allocated from it
	ended     bool // the guest has destroyed it: it goes with its last memory

	used, usedMost uint64 // bytes that are allocated
	// Bytes of addresses that have memory behind them: what is kept back is among them.
	held, heldMost uint64
	kept           map[uint64][]keptBlock
	idle           uint64 // bytes of addresses that are kept back
}

// keptBlock is memory that was freed: for all when the first n operations of a stream are done. Its
// footprint is the key of its list.
type keptBlock struct {
	ptr    uint64
	booked uint64
	st     *stream // nil: for all
	n      uint64
}

const (
	keptSeen = 16 // blocks of a size that are looked at for one that is free
	// Bytes that are kept back beside as much as is allocated, before older ones are looked
	// through.
	keptMost = 256 << 20
)

// ownDefault is a device's own pool.
func (s *session) ownDefault(dev uint32) *ownPool {
	p := s.pooling.devices[dev]
	if p == nil {
		p = s.newOwn(&ownPool{dev: dev})
		if s.pooling.devices == nil {
			s.pooling.devices = map[uint32]*ownPool{}
		}
		s.pooling.devices[dev] = p
	}
	return p
}

func (s *session) newOwn(p *ownPool) *ownPool {
	s.pooling.all = append(s.pooling.all, p)
	return p
}

// nameOwn has a pool go by the guest's name, under which the driver's pool is known already.
func (s *session) nameOwn(id uint32, p *ownPool) {
	if s.pooling.own == nil {
		s.pooling.own = map[uint32]*ownPool{}
	}
	s.pooling.own[id] = p
}

// endOwn forgets a pool that the guest has destroyed. What is allocated stays.
func (s *session) endOwn(id uint32) {
	p := s.pooling.own[id]
	if p == nil {
		return
	}
	delete(s.pooling.own, id)
	p.ended, p.threshold = true, 0
	s.takeAway(p, 0, true)
	s.dropEnded()
}

func (s *session) dropEnded() {
	s.pooling.all = slices.DeleteFunc(s.pooling.all, func(p *ownPool) bool { return p.ended && p.used == 0 && p.idle == 0 })
}

// allocOrdered allocates in the order of a stream, or in a capture of its.
func (s *session) allocOrdered(c *wire.Call, p *ownPool, on uint32, size uint64, ptr *uint64) cuda.Result {
	st, res := s.stream(c, on)
	if res != cuda.Success {
		return res
	}
	if s.inCapture(st) {
		return s.captureAlloc(c, p, st, size, ptr)
	}
	return s.allocOwn(c, p, st, size, ptr)
}

// allocOwn allocates on a stream that captures nothing.
func (s *session) allocOwn(c *wire.Call, p *ownPool, st *stream, size uint64, ptr *uint64) cuda.Result {
	switch {
	case p == nil || p.foreign || size == 0:
		return cuda.ErrorInvalidValue
	case p.most != 0 && (size > p.most || p.used > p.most-size):
		return cuda.ErrorOutOfMemory
	}
	at, res := s.reuse(c, p, st, size)
	if res == cuda.Success && at.Value() == 0 {
		at, res = s.allocFresh(c, p, size)
	}
	if s.note(res) != cuda.Success {
		return res
	}
	*ptr = s.booked(c, allocation{at: at, size: size, ctx: c.Ctx, pooled: true, pool: p})
	s.pooling.live += size
	p.used += size
	p.usedMost, p.heldMost = max(p.usedMost, p.used), max(p.heldMost, p.held)
	return cuda.Success
}

// reuse gives out what is kept back, address 0: nothing is.
func (s *session) reuse(c *wire.Call, p *ownPool, st *stream, size uint64) (bind.Address, cuda.Result) {
	all := arena.Footprint(size)
	list := p.kept[all]
	r := s.arenas.ranges[p.dev]
	if c.Replay || r == nil || len(list) == 0 {
		return bind.Address{}, cuda.Success
	}
	found := -1
	for i := len(list) - 1; i >= max(0, len(list)-keptSeen); i-- {
		if list[i].st == st {
			found = i
			break
		}
		if found < 0 && (list[i].st == nil || !p.alone && s.passed(&list[i], nil)) {
			found = i
		}
	}
	if found < 0 {
		return bind.Address{}, cuda.Success
	}
	b := list[found]
	if size > b.booked && !s.budget.Reserve(size-b.booked) {
		return bind.Address{}, cuda.ErrorOutOfMemory
	}
	if size < b.booked {
		s.budget.Release(b.booked - size)
	}
	s.used += size
	s.pooling.spare -= b.booked
	p.kept[all] = slices.Delete(list, found, found+1)
	p.idle -= all
	m, _ := r.all.From(b.ptr, size)
	return m.Address(), cuda.Success
}

// allocFresh has new memory put behind addresses, or those where a replayed call had it.
func (s *session) allocFresh(c *wire.Call, p *ownPool, size uint64) (at bind.Address, res cuda.Result) {
	if s.pooling.spare > s.pooling.live+keptMost {
		s.takeAwayAll(false, true)
	}
	for surrendered := false; ; surrendered = true {
		if res = s.chargeAs(c, size); res == cuda.Success {
			if at, res = s.obtainOn(c, p.dev, size); res == cuda.Success {
				p.held += arena.Footprint(size)
				return at, res
			}
			s.refund(size)
		}
		if res != cuda.ErrorOutOfMemory || surrendered || !s.surrender() {
			return at, res
		}
	}
}

// freeOwn frees in the order of a stream, which captures nothing.
func (s *session) freeOwn(ptr uint64, m allocation, st *stream) {
	p := m.pool
	s.arenas.running.ends(ptr)
	delete(s.allocs, ptr)
	s.unshareMemory(ptr)
	s.used -= m.size
	s.pooling.live -= m.size
	s.pooling.spare += m.size
	p.used -= m.size
	all := arena.Footprint(m.size)
	p.idle += all
	if p.kept == nil {
		p.kept = map[uint64][]keptBlock{}
	}
	p.kept[all] = append(p.kept[all], keptBlock{ptr: ptr, booked: m.size, st: st, n: st.submitted})
}

// forgetOwn is what becomes of the account when memory of a pool ends otherwise: what is behind its
// addresses is no matter of the pool any more.
func (s *session) forgetOwn(m allocation) {
	s.refund(m.size)
	s.pooling.live -= m.size
	m.pool.used -= m.size
	m.pool.held -= arena.Footprint(m.size)
	if m.pool.ended {
		s.dropEnded()
	}
}

// ownAttribute is an attribute of a pool that is not the driver's to know; false: it is.
func (p *ownPool) ownAttribute(attr int32) (uint64, bool) {
	switch attr {
	case cuda.PoolAttrReservedMemCurrent:
		return p.held, true
	case cuda.PoolAttrReservedMemHigh:
		return p.heldMost, true
	case cuda.PoolAttrUsedMemCurrent:
		return p.used, true
	case cuda.PoolAttrUsedMemHigh:
		return p.usedMost, true
	case cuda.PoolAttrReleaseThreshold:
		return p.threshold, true
	case cuda.PoolAttrReuseAllowOpportunistic, cuda.PoolAttrReuseFollowEventDependencies, cuda.PoolAttrReuseAllowInternalDependencies:
		return 1, p.foreign
	}
	return 0, false
}

// knownAttribute answers for a pool that the driver does not know.
func knownAttribute(known bool) cuda.Result {
	if known {
		return cuda.Success
	}
	return cuda.ErrorInvalidValue
}

// setOwn follows an attribute that the driver has taken.
func (p *ownPool) setOwn(attr int32, value uint64) {
	switch attr {
	case cuda.PoolAttrReleaseThreshold:
		p.threshold = value
	case cuda.PoolAttrReservedMemHigh:
		p.heldMost = p.held
	case cuda.PoolAttrUsedMemHigh:
		p.usedMost = p.used
	case cuda.PoolAttrReuseAllowOpportunistic:
		p.alone = value == 0
	}
}
