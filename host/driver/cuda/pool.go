package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// PoolCreate makes a pool of the guest's own.
func (s *session) PoolCreate(c *wire.Call, a *wire.PoolCreateArgs) cuda.Result {
	h, res := s.drv.MemPoolCreate(&bind.MemPoolProps{
		AllocType: memPinned, HandleTypes: a.Handles, Location: onDevice(a.Dev), MaxSize: a.Max, Usage: uint16(a.Usage),
	})
	if s.note(res) != cuda.Success {
		return res
	}
	if res = s.keepPool(a.Pool, h, a.Dev); res == cuda.Success && s.arenas.on {
		s.nameOwn(a.Pool, s.newOwn(&ownPool{dev: a.Dev, most: a.Max, shareable: a.Handles&posixFD != 0}))
	}
	return res
}

func (s *session) keepPool(id uint32, handle bind.MemoryPool, dev uint32) cuda.Result {
	if !s.pools.put(id, handle) {
		s.drv.MemPoolDestroy(handle)
		return cuda.ErrorInvalidHandle
	}
	if s.poolDev == nil {
		s.poolDev = map[uint32]uint32{}
	}
	s.poolDev[id] = dev
	return cuda.Success
}

// PoolDestroy ends a pool; its memory stays until it is freed.
func (s *session) PoolDestroy(c *wire.Call, a *wire.PoolDestroyArgs) cuda.Result {
	_, res := end(s, &s.pools, a.Pool, func(p bind.MemoryPool) cuda.Result {
		if p.IsZero() { // another session's, which the driver does not know
			return cuda.Success
		}
		return s.endPool(p, s.pooling.imported[a.Pool])
	})
	if res == cuda.Success {
		s.endOwn(a.Pool)
		delete(s.poolDev, a.Pool)
		delete(s.pooling.imported, a.Pool)
		s.unshare(sharePool, uint64(a.Pool))
	}
	return res
}

// endPool destroys a pool. One of the session's own gives back what it holds beside its allocations
// first, and keeps nothing back from then on: the driver has that for as long as one allocation is
// left, and nobody can ask how much it is.
func (s *session) endPool(p bind.MemoryPool, imported bool) cuda.Result {
	if imported {
		return s.drv.MemPoolDestroy(p)
	}
	kept, res := s.drv.MemPoolGetAttribute(p, cuda.PoolAttrReleaseThreshold)
	if res == cuda.Success && kept != 0 {
		s.drv.MemPoolSetAttribute(p, cuda.PoolAttrReleaseThreshold, 0)
	}
	s.drv.MemPoolTrimTo(p, 0)
	if res := s.drv.MemPoolDestroy(p); res != cuda.Success {
		if kept != 0 { // it stays, as a device's own does
			s.drv.MemPoolSetAttribute(p, cuda.PoolAttrReleaseThreshold, kept)
		}
		return res
	}
	return cuda.Success
}

// PoolSetAccess lets a device reach a pool's memory, or not.
func (s *session) PoolSetAccess(c *wire.Call, a *wire.PoolSetAccessArgs) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	own := s.pooling.own[a.Pool]
	if !ok || own != nil && int(a.Dev) >= len(s.devices) {
		return cuda.ErrorInvalidValue
	}
	if own == nil || !own.foreign {
		if res := s.note(s.drv.MemPoolSetAccess(p, accessDesc(a.Dev, a.Flags))); res != cuda.Success {
			return res
		}
	}
	if own != nil && a.Flags == accessReadWrite {
		return s.note(s.allow(a.Dev, own.dev))
	}
	return cuda.Success
}

// PoolGetAccess says what a device may do with a pool's memory.
func (s *session) PoolGetAccess(c *wire.Call, a *wire.PoolGetAccessArgs, r *wire.PoolGetAccessReply) (res cuda.Result) {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if own := s.pooling.own[a.Pool]; own != nil && own.foreign {
		if a.Dev == own.dev || s.arenas.reach[own.dev][a.Dev] {
			r.Flags = accessReadWrite
		}
		return cuda.Success
	}
	loc := onDevice(a.Dev)
	r.Flags, res = s.drv.MemPoolGetAccess(p, &loc)
	return res
}

// MemAllocFromPool allocates from a pool in stream order.
func (s *session) MemAllocFromPool(c *wire.Call, a *wire.MemAllocFromPoolArgs, r *wire.MemAllocFromPoolReply) cuda.Result {
	if s.arenas.on {
		return s.allocOrdered(c, s.pooling.own[a.Pool], a.Stream, a.Size, &r.Ptr)
	}
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	return s.pooled(c, st, a.Size, &r.Ptr, func(size uint64) (bind.Address, cuda.Result) { return s.drv.MemAllocFromPoolAsync(size, p, st.handle) })
}

// owesPools reports, once for all frees so far, whether a synchronisation must go through the
// driver: that is when its pools give memory back. A program that has pools keep it trims them
// itself.
func (s *session) owesPools() bool {
	owed := s.freedAsync && !s.poolsKeep
	s.freedAsync = false
	return owed
}

// syncPools has the driver see that streams are idle, so that what was freed on them can go.
func (s *session) syncPools() {
	for _, st := range s.streams.m {
		if !st.busy() {
			s.drv.StreamSynchronize(st.handle)
		}
	}
	for _, st := range s.threads {
		if !st.busy() {
			s.drv.StreamSynchronize(st.handle)
		}
	}
	for _, st := range s.legacy {
		if s.useContext(st.ctx) == cuda.Success && !s.busy(st) {
			s.drv.StreamSynchronize(st.handle)
		}
	}
}

// PoolExport shares a pool.
func (s *session) PoolExport(c *wire.Call, a *wire.PoolExportArgs, r *wire.PoolExportReply) cuda.Result {
	p, ok := s.pools.get(a.Pool)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	dev := s.poolDev[a.Pool]
	if int(dev) >= len(s.devices) {
		return cuda.ErrorInvalidValue
	}
	var res cuda.Result
	r.Token, res = s.offer(c, sharePool, uint64(a.Pool), driver.SharedMemory{}, func() ([]byte, int, cuda.Result) {
		fd, res := s.drv.MemPoolExportToShareableHandle(p, posixFD, 0)
		if res != cuda.Success {
			return nil, -1, res
		}
		return s.devices[dev].Uuid[:], int(int32(fd)), cuda.Success
	})
	return res
}

// PoolImport takes over a pool that another session shares.
func (s *session) PoolImport(c *wire.Call, a *wire.PoolImportArgs, r *wire.PoolImportReply) cuda.Result {
	if s.arenas.on {
		return s.importOwn(c, a, r)
	}
	blob, fd, ok := s.redeem(sharePool, a.Token, 16)
	defer closeFile(fd)
	if !ok || fd < 0 {
		return cuda.ErrorUnknown
	}
	dev := -1
	for i := range s.devices {
		if s.devices[i].Uuid == [16]byte(blob) {
			dev = i
		}
	}
	if dev < 0 {
		return cuda.ErrorInvalidDevice
	}
	h, res := s.drv.MemPoolImportFromShareableHandle(fd, posixFD, 0)
	if res != cuda.Success {
		return res
	}
	r.Dev = uint32(dev)
	if res := s.keepPool(a.Pool, h, r.Dev); res != cuda.Success {
		return res // the pool that is called so is charged here as before
	}
	if s.pooling.imported == nil {
		s.pooling.imported = map[uint32]bool{}
	}
	s.pooling.imported[a.Pool] = true
	return cuda.Success
}

// PoolExportPointer shares an allocation of a shared pool.
func (s *session) PoolExportPointer(c *wire.Call, a *wire.PoolExportPointerArgs, r *wire.PoolExportPointerReply) cuda.Result {
	m, ok := s.allocs[a.Ptr]
	if !ok {
		return cuda.ErrorInvalidValue
	}
	var res cuda.Result
	if m.pool != nil && !m.pool.shareable {
		return cuda.ErrorInvalidValue
	}
	r.Token, res = s.offer(c, sharePointer, a.Ptr, s.sharedAs(a.Ptr, m), func() ([]byte, int, cuda.Result) {
		if x := s.arenaOf(a.Ptr); x != nil {
			return s.sharePage(x, a.Ptr, m.size)
		}
		var d bind.MemPoolPtrExportData
		res := s.note(s.drv.MemPoolExportPointer(&d, m.at))
		return append(binary.LittleEndian.AppendUint64(nil, m.size), d.Reserved[:]...), -1, res
	})
	return res
}

// PoolImportPointer maps an allocation of another session's pool. Its bytes are charged there.
func (s *session) PoolImportPointer(c *wire.Call, a *wire.PoolImportPointerArgs, r *wire.PoolImportPointerReply) cuda.Result {
	if s.arenas.on {
		return s.openPointer(c, a, r)
	}
	p, known := s.pools.get(a.Pool)
	blob, fd, ok := s.redeem(sharePointer, a.Token, 8+opaqueSize)
	closeFile(fd)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	token := driver.ShareToken(a.Token)
	if !known {
		s.giveUp(token)
		return cuda.ErrorInvalidValue
	}
	at, res := s.drv.MemPoolImportPointer(p, &bind.MemPoolPtrExportData{Reserved: [opaqueSize]byte(blob[8:])})
	if s.note(res) != cuda.Success {
		s.giveUp(token)
		return res
	}
	if s.pooling.theirs == nil {
		s.pooling.theirs = map[uint64][]driver.ShareToken{}
	}
	s.pooling.theirs[at.Value()] = append(s.pooling.theirs[at.Value()], token)
	r.Ptr, r.Size = s.booked(c, allocation{at: at, pooled: true}), binary.LittleEndian.Uint64(blob)
	return cuda.Success
}
