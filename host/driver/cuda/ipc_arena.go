package cuda

import (
	"encoding/binary"
	"log/slog"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

// Memory of a session's ranges has no IPC handles of the driver's. What backs it is exported instead, a page or a large block, and what tells a handle
// of the one kind from the other is that a descriptor goes with it.

// pageOffer is what a handle says in that case: the allocation's place in the memory, its size, and that of the memory.
type pageOffer struct{ Offset, Size, All uint64 }

// sharePage is the handle of an allocation of a range.
func (s *session) sharePage(r *addressRange, ptr, size uint64) (blob []byte, file int, res cuda.Result) {
	at := ptr
	p, ok := r.pages[at]
	if !ok {
		at = ptr &^ (arena.Page - 1)
		p, ok = r.pages[at]
	}
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

// sharedPage is memory of another session's ranges.
type sharedPage struct {
	token  string
	mem    bind.Mem
	handle bind.MemGenericAllocationHandle
}

// openPage maps it. The descriptor stays the caller's.
func (s *session) openPage(token string, fd int, blob []byte, r *wire.IpcOpenMemHandleReply) cuda.Result {
	for ptr, o := range s.opened {
		if o.page != nil && o.page.token == token { // the driver counts, too
			o.n++
			s.opened[ptr] = o
			r.Ptr, r.Size, r.Dev = ptr, o.size, o.dev
			return cuda.Success
		}
	}
	var v pageOffer
	if _, err := binary.Decode(blob, binary.LittleEndian, &v); err != nil || v.All == 0 || v.All%arena.Page != 0 || v.All > rangeSize ||
		v.Offset > v.All || v.Size == 0 || v.Size > v.All-v.Offset || len(s.opened) >= maxObjects {
		return cuda.ErrorInvalidValue
	}
	d := s.drv
	h, res := d.MemImportFromShareableHandle(fd, posixFD)
	if res != cuda.Success {
		return s.note(res)
	}
	var p bind.MemAllocationProp
	m := bind.Mem{}
	if res = d.MemGetAllocationPropertiesFromHandle(&p, h); res == cuda.Success {
		m, res = d.MemAddressReserve(v.All, arena.Page, 0, 0)
	}
	if res == cuda.Success {
		if res = d.MemMap(m, 0, h, 0); res == cuda.Success {
			if res = d.MemSetAccess(m, accessDesc(uint32(p.Location.Id), accessReadWrite)); res != cuda.Success {
				d.MemUnmap(m)
			}
		}
		if res != cuda.Success {
			d.MemAddressFree(m)
		}
	}
	if res != cuda.Success {
		d.MemRelease(h)
		return s.note(res)
	}
	at, _ := m.From(m.Address().Value()+v.Offset, v.Size)
	r.Ptr, r.Size, r.Dev = at.Address().Value(), v.Size, uint32(p.Location.Id)
	if s.opened == nil {
		s.opened = map[uint64]opened{}
	}
	s.opened[r.Ptr] = opened{at: at.Address(), n: 1, size: r.Size, dev: r.Dev, page: &sharedPage{token, m, h}}
	return cuda.Success
}

// closePage unmaps it.
func (s *session) closePage(p *sharedPage) cuda.Result {
	res := s.note(s.drv.MemUnmap(p.mem))
	s.note(s.drv.MemAddressFree(p.mem))
	s.note(s.drv.MemRelease(p.handle))
	return res
}
