package cuda

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// importOwn takes over a pool that another session shares: that it exists. Its memory comes pointer
// by pointer.
func (s *session) importOwn(c *wire.Call, a *wire.PoolImportArgs, r *wire.PoolImportReply) cuda.Result {
	var dev uint64
	if c.Replay {
		at, placed := c.Place()
		if _, ok := tokenOf(a.Token); !ok || !placed {
			return cuda.ErrorInvalidValue
		}
		dev = at
	} else {
		blob, fd, ok := s.redeem(sharePool, a.Token, len(driver.DeviceUse{}.UUID))
		closeFile(fd)
		if !ok {
			return cuda.ErrorUnknown
		}
		dev = uint64(slices.IndexFunc(s.devices, func(d deviceInfo) bool { return d.Uuid == [16]byte(blob) }))
		c.Placed = append(c.Placed, dev)
	}
	if dev >= uint64(len(s.devices)) {
		return cuda.ErrorInvalidDevice
	}
	r.Dev = uint32(dev)
	if !s.pools.put(a.Pool, bind.MemoryPool{}) {
		return cuda.ErrorInvalidHandle
	}
	s.nameOwn(a.Pool, s.newOwn(&ownPool{dev: r.Dev, foreign: true}))
	return cuda.Success
}

// sharesPools reports whether the session has a pool of another's.
func (s *session) sharesPools() bool {
	return len(s.pooling.imported) > 0 || slices.ContainsFunc(s.pooling.all, func(p *ownPool) bool { return p.foreign && !p.ended })
}

// openPointer maps memory of another session's pool, which is freed as memory of pools is.
func (s *session) openPointer(c *wire.Call, a *wire.PoolImportPointerArgs, r *wire.PoolImportPointerReply) (res cuda.Result) {
	p := s.pooling.own[a.Pool]
	if p == nil || !p.foreign {
		return cuda.ErrorInvalidValue
	}
	var o *opened
	if c.Replay {
		if o, res = s.awaitPage(c, a.Token, sharePointer); res != cuda.Success {
			return res
		}
	} else {
		blob, fd, ok := s.redeem(sharePointer, a.Token, opaqueSize)
		defer closeFile(fd)
		if !ok {
			return cuda.ErrorInvalidValue
		}
		defer func() { s.giveUpUnless(&res, a.Token) }()
		if fd < 0 {
			return cuda.ErrorInvalidValue
		}
		if o, res = s.mapPage(c, fd, blob); res != cuda.Success {
			return res
		}
		o.page.token, o.page.kind = driver.ShareToken(a.Token), sharePointer
	}
	kept := s.opened[o.at.Value()]
	kept.ctx = 0 // it outlives every context
	s.opened[o.at.Value()] = kept
	r.Ptr, r.Size = o.at.Value(), o.size
	return cuda.Success
}

// closePointer ends what openPointer has mapped, when the session's work is done; false: it is
// nothing of that kind.
func (s *session) closePointer(ptr uint64) bool {
	o, ok := s.opened[ptr]
	if !ok || o.page == nil || o.page.kind != sharePointer {
		return false
	}
	delete(s.opened, ptr)
	delete(o.page.in.theirs, o.page.at)
	s.arenas.dying = append(s.arenas.dying, o.page.at)
	s.arenas.waits += o.page.all
	s.giveUpOpened(o)
	return true
}
