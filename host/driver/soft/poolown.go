package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// PoolCreate makes a pool of the guest's own.
func (s *session) PoolCreate(c *wire.Call, a *wire.PoolCreateArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) || a.Handles&(handleWin32|handleWin32Kmt) != 0 {
		return cuda.ErrorInvalidValue
	}
	return s.pools.put(a.Pool, &pool{device: int(a.Dev), attrs: map[int32]uint64{}, max: a.Max, shareable: a.Handles&handleFile != 0})
}

// PoolDestroy forgets a pool; its memory stays until it is freed.
func (s *session) PoolDestroy(c *wire.Call, a *wire.PoolDestroyArgs) cuda.Result {
	p, ok := s.pools[a.Pool]
	if !ok || p == s.devPools[p.device] {
		return cuda.ErrorInvalidValue
	}
	delete(s.pools, a.Pool)
	s.unshare(sharePool, uint64(a.Pool))
	return cuda.Success
}

// PoolSetAccess keeps what a device may do with a pool's memory. The devices of a session share
// their memory; what is taken from a device it can still reach.
func (s *session) PoolSetAccess(c *wire.Call, a *wire.PoolSetAccessArgs) cuda.Result {
	p, ok := s.pools[a.Pool]
	switch {
	case !ok || a.Flags != 0 && a.Flags != accessRead && a.Flags != accessReadWrite:
		return cuda.ErrorInvalidValue
	case int(a.Dev) >= len(s.gpus), int(a.Dev) == p.device && a.Flags == 0:
		return cuda.ErrorInvalidDevice
	case a.Flags == accessRead:
		return cuda.ErrorNotSupported
	}
	if p.access == nil {
		p.access = map[uint32]uint32{}
	}
	p.access[a.Dev] = a.Flags
	return cuda.Success
}

// PoolGetAccess says what a device may do with a pool's memory.
func (s *session) PoolGetAccess(c *wire.Call, a *wire.PoolGetAccessArgs, r *wire.PoolGetAccessReply) cuda.Result {
	p, ok := s.pools[a.Pool]
	if !ok || int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidValue
	}
	r.Flags = p.access[a.Dev]
	if int(a.Dev) == p.device {
		r.Flags = accessReadWrite
	}
	return cuda.Success
}

// MemAllocFromPool allocates from a pool.
func (s *session) MemAllocFromPool(c *wire.Call, a *wire.MemAllocFromPoolArgs, r *wire.MemAllocFromPoolReply) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	p, ok := s.pools[a.Pool]
	if !ok || p.imported {
		return cuda.ErrorInvalidValue
	}
	r.Ptr, res = s.allocPooled(c, p, a.Size, st.ctx)
	return res
}

// allocPooled allocates from a pool. The memory is there at once, which is within stream order.
func (s *session) allocPooled(c *wire.Call, p *pool, size uint64, g *gpuContext) (uint64, cuda.Result) {
	if p.max != 0 && (size > p.max || p.current > p.max-size) {
		return 0, cuda.ErrorOutOfMemory
	}
	m, res := s.obtain(c, request{device: p.device, size: size, align: allocUnit, ctx: g, kind: pooledMemory})
	if res != cuda.Success {
		return 0, res
	}
	m.pool = p
	p.used(int64(m.size))
	return m.lo, cuda.Success
}

// PoolExport shares a pool: that it exists. Its allocations are shared one by one.
func (s *session) PoolExport(c *wire.Call, a *wire.PoolExportArgs, r *wire.PoolExportReply) (res cuda.Result) {
	p, ok := s.pools[a.Pool]
	if !ok || !p.shareable {
		return cuda.ErrorInvalidValue
	}
	r.Token, res = s.offer(c, sharePool, uint64(a.Pool), driver.SharedMemory{}, func() ([]byte, int, cuda.Result) {
		return s.part(p.device, 0, 0).encode(), -1, cuda.Success
	})
	return res
}

// PoolImport takes over a pool that another session shares.
func (s *session) PoolImport(c *wire.Call, a *wire.PoolImportArgs, r *wire.PoolImportReply) cuda.Result {
	if c.Replay {
		token, ok := tokenOf(a.Token)
		dev, placed := c.Place()
		if !ok || !placed || dev >= uint64(len(s.gpus)) {
			return cuda.ErrorInvalidValue
		}
		return s.pools.put(a.Pool, &pool{device: int(dev), attrs: map[int32]uint64{}, imported: true, token: token})
	}
	p, f, dev, res := s.redeem(sharePool, a.Token, cuda.ErrorUnknown)
	if res != cuda.Success {
		return res
	}
	_ = f.close()
	r.Dev = uint32(dev)
	c.Placed = append(c.Placed, uint64(dev))
	return s.pools.put(a.Pool, &pool{device: dev, attrs: map[int32]uint64{}, imported: true, owner: p.Session, token: driver.ShareToken(a.Token)})
}

// PoolExportPointer shares an allocation of a shareable pool.
func (s *session) PoolExportPointer(c *wire.Call, a *wire.PoolExportPointerArgs, r *wire.PoolExportPointerReply) cuda.Result {
	m, res := s.owned(a.Ptr)
	if res != cuda.Success || m.pool == nil || !m.pool.shareable {
		return cuda.ErrorInvalidValue
	}
	r.Token, res = s.shareArena(c, sharePointer, m)
	return res
}

// PoolImportPointer maps an allocation of another session's pool.
func (s *session) PoolImportPointer(c *wire.Call, a *wire.PoolImportPointerArgs, r *wire.PoolImportPointerReply) cuda.Result {
	in, ok := s.pools[a.Pool]
	if !ok || !in.imported {
		return cuda.ErrorInvalidValue
	}
	if c.Replay {
		o, res := s.awaitOpened(c, nil, a.Token)
		if res == cuda.Success {
			o.of = in
			r.Ptr, r.Size = o.a.lo, o.a.size
		}
		return res
	}
	p, f, dev, res := s.redeem(sharePointer, a.Token, cuda.ErrorInvalidValue)
	if res != cuda.Success {
		return res
	}
	if f == nil || p.Session != in.owner {
		_ = f.close()
		s.letGo(a.Token)
		return cuda.ErrorInvalidValue
	}
	o, res := s.open(p, f, dev, nil, a.Token, c)
	if res != cuda.Success {
		_ = f.close()
		s.letGo(a.Token)
		return res
	}
	o.of = in
	s.keepOpened(o)
	r.Ptr, r.Size = o.a.lo, o.a.size
	return cuda.Success
}
