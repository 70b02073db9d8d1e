package cuda

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

/*
Memory that pools hold is the session's, used or not: it is booked as what its allocations take
(pooling.live, part of session.used) and what is held besides (pooling.spare): freed behind work
that still runs, kept back, or rounded up. The driver tells the sum, but is not asked at each call:
spare follows frees at once, and what the driver tells when room is short, when somebody asks for
free memory, and now and then.
*/

// pooling is what a session's pools hold. Worker goroutine.
type pooling struct {
	live  uint64 // bytes of live allocations
	spare uint64 // bytes held besides, booked
	// Bytes booked for graphs' allocation nodes, part of session.used.
	graphs   uint64
	changes  uint                           // since the driver was asked
	imported map[uint32]bool                // pools whose memory another session is charged for
	theirs   map[uint64][]driver.ShareToken // memory of other sessions' pools, by its address
	// Default pools of devices that were used without being asked for.
	defaults map[uint32]bind.MemoryPool
	// Of a session that may move (ownpool.go): those that the guest has names for.
	own     map[uint32]*ownPool
	devices map[uint32]*ownPool // its devices' own
	all     []*ownPool
}

// settleEvery is after how many operations the driver is asked anyway.
const settleEvery = 64

// pooled allocates from a pool of the driver's in stream order.
func (s *session) pooled(c *wire.Call, st *stream, size uint64, ptr *uint64, alloc func(size uint64) (bind.Address, cuda.Result)) cuda.Result {
	if res := s.chargeBeside(size, size); res != cuda.Success {
		return res
	}
	at, res := alloc(size)
	if s.note(res) != cuda.Success {
		s.refund(size)
		return res
	}
	*ptr = s.booked(c, allocation{at: at, size: size, ctx: c.Ctx, pooled: true})
	s.pooling.live += size
	s.poolChanged()
	s.claimCaptured(st, *ptr)
	return cuda.Success
}

// freed ends an allocation. What came from a pool stays booked as spare: the pool holds it until
// the stream gets there, or longer.
func (s *session) freed(ptr uint64, m allocation) {
	delete(s.allocs, ptr)
	s.unshareMemory(ptr)
	for _, t := range s.pooling.theirs[ptr] {
		s.giveUp(t)
	}
	delete(s.pooling.theirs, ptr)
	if m.pool != nil {
		s.forgetOwn(m)
		return
	}
	if !m.pooled {
		s.refund(m.size)
		return
	}
	m.size = min(m.size, s.used, s.pooling.live)
	s.used -= m.size
	s.pooling.live -= m.size
	s.pooling.spare += m.size
	s.poolChanged()
}

func (s *session) poolChanged() {
	if s.pooling.changes++; s.pooling.changes >= settleEvery {
		s.settlePools()
	}
}

// settlePools books what the pools hold by the driver's account.
func (s *session) settlePools() {
	p := &s.pooling
	if p.changes == 0 && p.spare == 0 || s.arenas.on { // then it is known
		p.changes = 0
		return
	}
	p.changes = 0
	seen := map[bind.MemoryPool]struct{}{}
	var held uint64
	for _, h := range s.ownPools() {
		if _, again := seen[h]; again {
			continue
		}
		seen[h] = struct{}{}
		if n, res := s.drv.MemPoolGetAttribute(h, cuda.PoolAttrReservedMemCurrent); res == cuda.Success {
			held += n
		}
	}
	spare := held - min(held, p.live)
	if spare > p.spare {
		s.budget.Book(spare - p.spare)
	} else {
		s.budget.Release(p.spare - spare)
	}
	p.spare = spare
}

// ownPools are the pools that the session's allocations come from; one may be there twice.
func (s *session) ownPools() []bind.MemoryPool {
	var list []bind.MemoryPool
	for id, h := range s.pools.m {
		if !s.pooling.imported[id] {
			list = append(list, h)
		}
	}
	for _, ctx := range s.ctxs.m {
		s.makeDefault(ctx.dev)
	}
	for _, h := range s.pooling.defaults {
		if !h.IsZero() {
			list = append(list, h)
		}
	}
	return list
}

// makeDefault has a device's default pool made, which it is when somebody first asks for it. Where
// the memory of pools lies follows from the order in which they were made: a session that may move
// has those of all devices made with its first context, whatever asks for them later.
func (s *session) makeDefault(dev uint32) {
	if _, known := s.pooling.defaults[dev]; known {
		return
	}
	if s.pooling.defaults == nil {
		s.pooling.defaults = map[uint32]bind.MemoryPool{}
	}
	// A device that has none has none anywhere.
	s.pooling.defaults[dev], _ = s.drv.DeviceGetDefaultMemPool(dev)
}

// settleGraphs books what graphs hold by the driver's account: nodes are booked when they are
// added, and nobody tells when the last executable graph that has one is gone.
func (s *session) settleGraphs() {
	const reserved = 2 // CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
	p := &s.pooling
	if p.graphs == 0 {
		return
	}
	var held uint64
	seen := map[uint32]struct{}{}
	for _, ctx := range s.ctxs.m {
		if _, again := seen[ctx.dev]; again {
			continue
		}
		seen[ctx.dev] = struct{}{}
		n, res := s.drv.DeviceGetGraphMemAttribute(ctx.dev, reserved)
		if res != cuda.Success {
			return
		}
		held += n
	}
	if held < p.graphs {
		s.refund(p.graphs - held)
		p.graphs = held
	}
}

// trim gives back what nothing uses.
func (s *session) trim() {
	s.settleGraphs()
	if s.arenas.on {
		s.takeAwayAll(false, true)
		return
	}
	if s.pooling.spare == 0 && s.pooling.changes == 0 {
		return
	}
	s.syncPools()
	for _, h := range s.ownPools() {
		s.drv.MemPoolTrimTo(h, 0)
	}
	s.pooling.changes++ // the driver is asked
	s.settlePools()
}
