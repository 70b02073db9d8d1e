package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/ptx"
)

// firstManaged is where the first managed variable lies in its region: no variable's address is that of the whole.
const firstManaged = 256

// managedVars are a library's managed variables in a pinned region of the guest.
type managedVars struct {
	mem    []byte
	base   uint64
	offset map[string]uint64
	size   map[string]uint64
	filled bool // they have had their first values
}

// layout places managed variables behind each other and returns the bytes that they take, 0 if there is none.
func layout(source *ptx.Module) (m *managedVars, total uint64) {
	m, total = &managedVars{offset: map[string]uint64{}, size: map[string]uint64{}}, firstManaged
	for _, v := range source.Vars {
		if !v.Managed || v.Size == 0 || v.Linkage == ptx.Extern {
			continue
		}
		align := max(v.Align, 1)
		total = (total + align - 1) &^ (align - 1)
		m.offset[v.Name], m.size[v.Name] = total, v.Size
		total += v.Size
	}
	if len(m.offset) == 0 {
		total = 0
	}
	return m, total
}

// place is where a variable lies. Once they have values, initialising them again is for a scratch copy.
func (m *managedVars) place(name string) (addr uint64, mem []byte, ok bool) {
	if m == nil {
		return 0, nil, false
	}
	off, ok := m.offset[name]
	if !ok {
		return 0, nil, false
	}
	size := m.size[name]
	if m.filled {
		return m.base + off, make([]byte, size), true
	}
	return m.base + off, m.mem[off : off+size : off+size], true
}

// LibraryManage moves a library's managed variables into a pinned region.
func (s *session) LibraryManage(c *wire.Call, a *wire.LibraryManageArgs, r *wire.LibraryManageReply) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	m, total := layout(l.source)
	r.Size = total
	if a.Region == 0 || total == 0 {
		return cuda.Success
	}
	reg, ok := s.host.Region(a.Region)
	if !ok || reg.Kind != wire.RegionPinned || uint64(len(reg.Mem)) < total || l.managed != nil {
		return cuda.ErrorInvalidValue
	}
	g, old := s.ctxs[c.Ctx], l.spare
	if old == nil {
		old = l.instances[g]
	}
	for _, f := range s.funcs {
		if f.mod == old {
			old = nil
			break
		}
	}
	if old == nil || len(l.instances) > 1 {
		return cuda.ErrorNotSupported // code that may run already knows them elsewhere
	}
	m.mem, m.base, m.filled = reg.Mem, reg.VA, c.Replay
	fresh, res := s.instantiate(c, &build{managed: m}, l.source, old.ctx, old.device)
	if res != cuda.Success {
		return res
	}
	m.filled = true
	fresh.library = l
	l.managed, l.shape = m, fresh
	if old == l.spare {
		l.spare = fresh
	} else {
		l.instances[g] = fresh
	}
	for id, x := range s.modules {
		if x == old {
			s.modules[id] = fresh
		}
	}
	s.unload(old)
	return cuda.Success
}
