package cuda

import (
	"encoding/binary"
	"log/slog"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

// Memory of a session's ranges has no IPC handles of the driver's. What backs it is exported
// instead, a page or a large block, and what tells a handle of the one kind from the other is that
// a descriptor goes with it. Who opens it has it in a range of its own, so that another process can
// have it there again.

// pageOffer is what a handle says in that case: the allocation's place in the memory, its size, and
// that of the memory.
type pageOffer struct{ Offset, Size, All uint64 }

// sharePage is the handle of an allocation of a range.
func (s *session) sharePage(r *addressRange, ptr, size uint64) (blob []byte, file int, res cuda.Result) {
	at, p, ok := r.page(ptr)
	if !ok {
		return nil, -1, cuda.ErrorInvalidValue
	}
	fd, err := s.export(p)
	if err != nil {
		slog.Info("memory of a session that may move is not given to other processes", "error", err)
		return nil, -1, cuda.ErrorNotSupported
	}
	blob, _ = binary.Append(make([]byte, 0, opaqueSize), binary.LittleEndian, pageOffer{ptr - at, size, p.mem.Size()})
	return blob[:opaqueSize], fd, cuda.Success
}

// page is the memory that an allocation of a range lies in, and where that begins.
func (r *addressRange) page(ptr uint64) (at uint64, p backed, ok bool) {
	if p, ok = r.pages[ptr]; ok {
		return ptr, p, true
	}
	at = ptr &^ (arena.Page - 1)
	p, ok = r.pages[at]
	return at, p, ok
}

// sharedPage is memory of another session's ranges.
type sharedPage struct {
	token   driver.ShareToken
	kind    byte // shareMemory, sharePointer
	in      *addressRange
	at, all uint64 // where the memory lies, and all of it
	awaited bool   // it is not here yet (rejoin.go)
}

// places is where it lies, for the record.
func (o *opened) places() []uint64 {
	return []uint64{o.page.at, o.page.all, o.at.Value() - o.page.at, o.size, uint64(o.dev)}
}

// decodePage reads a pageOffer.
func decodePage(blob []byte) (v pageOffer, ok bool) {
	_, err := binary.Decode(blob, binary.LittleEndian, &v)
	return v, err == nil && v.possible()
}

// possible reports whether there can be such a place in such memory.
func (v *pageOffer) possible() bool {
	return v.All != 0 && v.All%arena.Page == 0 && v.All <= rangeSize && v.Offset <= v.All && v.Size != 0 && v.Size <= v.All-v.Offset
}

// openPage maps it. The descriptor stays the caller's.
func (s *session) openPage(c *wire.Call, a *wire.IpcOpenMemHandleArgs, fd int, blob []byte, r *wire.IpcOpenMemHandleReply) cuda.Result {
	token := driver.ShareToken(a.Token)
	for ptr, o := range s.opened {
		if o.page != nil && o.page.token == token { // the driver counts, too
			o.n++
			s.opened[ptr] = o
			r.Ptr, r.Size, r.Dev = ptr, o.size, o.dev
			c.Placed = o.places()
			return cuda.Success
		}
	}
	o, res := s.mapPage(c, fd, blob)
	if res == cuda.Success {
		o.page.token, o.page.kind = token, shareMemory
		r.Ptr, r.Size, r.Dev = o.at.Value(), o.size, o.dev
	}
	return res
}

// mapPage puts what a descriptor stands for behind addresses of the session's own.
func (s *session) mapPage(c *wire.Call, fd int, blob []byte) (*opened, cuda.Result) {
	v, ok := decodePage(blob)
	if !ok || len(s.opened) >= maxObjects {
		return nil, cuda.ErrorInvalidValue
	}
	p, dev, res := s.importPage(fd)
	if res != cuda.Success {
		return nil, s.note(res)
	}
	in, res := s.rangeOf(dev, 0)
	if res != cuda.Success {
		s.drv.MemRelease(p.handle)
		return nil, res
	}
	in.next = &p
	at, err := in.Alloc(v.All)
	in.next = nil
	if err != nil { // what is backed gives it back
		return nil, s.note(resultOf(err))
	}
	o := s.keepPage(c, in, at, v)
	c.Placed = o.places()
	return o, cuda.Success
}

// importPage is memory by a descriptor, which stays the caller's, and its device.
func (s *session) importPage(fd int) (backed, uint32, cuda.Result) {
	h, res := s.drv.MemImportFromShareableHandle(fd, posixFD)
	if res != cuda.Success {
		return backed{}, 0, res
	}
	var p bind.MemAllocationProp
	if res = s.drv.MemGetAllocationPropertiesFromHandle(&p, h); res == cuda.Success && (p.Location.Id < 0 || int(p.Location.Id) >= len(s.devices)) {
		res = cuda.ErrorInvalidDevice
	}
	if res != cuda.Success {
		s.drv.MemRelease(h)
	}
	return backed{handle: h, theirs: true}, uint32(p.Location.Id), res
}

// keepPage notes that memory of another session lies in a range.
func (s *session) keepPage(c *wire.Call, in *addressRange, at uint64, v pageOffer) *opened {
	m, _ := in.all.From(at+v.Offset, v.Size)
	o := opened{at: m.Address(), n: 1, ctx: c.Ctx, size: v.Size, dev: in.dev, page: &sharedPage{in: in, at: at, all: v.All}}
	if s.opened == nil {
		s.opened = map[uint64]opened{}
	}
	if in.theirs == nil {
		in.theirs = map[uint64]uint64{}
	}
	s.opened[o.at.Value()] = o
	in.theirs[at] = o.at.Value()
	return &o
}

// backTheirs is Back for memory of another session: what there is of it, or nothing yet.
func (r *addressRange) backTheirs(at, size uint64) error {
	r.s.arenas.coming.give(at, size)
	if r.next.handle.IsZero() {
		return nil
	}
	p, err := r.mapAt(at, size, *r.next)
	if err == nil {
		r.pages[at] = p
	}
	return err
}

// closePage unmaps it, behind the session's work.
func (s *session) closePage(p *sharedPage) cuda.Result {
	delete(p.in.theirs, p.at)
	s.arenas.dying = append(s.arenas.dying, p.at)
	return s.reclaim()
}

// forgetOpened ends what was opened in a context that is gone. The driver has unmapped its own.
func (s *session) forgetOpened(ctx uint32) {
	for ptr, o := range s.opened {
		if o.ctx == ctx {
			delete(s.opened, ptr)
			if o.page != nil {
				s.closePage(o.page)
			}
			s.giveUpOpened(o)
		}
	}
}
