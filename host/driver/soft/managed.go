package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/soft/ptx"
)

// firstManaged is where the first managed variable lies in its region: no variable's address is
// that of the whole.
const firstManaged = 256

// managedVars are the managed variables of a library or module in a pinned region of the guest, or
// in device memory.
type managedVars struct {
	mem    []byte
	base   uint64
	offset map[string]uint64
	size   map[string]uint64
	filled bool // they have had their first values
}

// layout places managed variables behind each other and returns the bytes that they take, 0 if
// there is none.
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

// place is where a variable lies. Once they have values, initialising them again is for a scratch
// copy.
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

// find is where a variable lies for the guest.
func (m *managedVars) find(name string) (addr, size uint64, ok bool) {
	if m == nil {
		return 0, 0, false
	}
	off, ok := m.offset[name]
	return m.base + off, m.size[name], ok
}

// moving prepares to move the managed variables of source into a region, or to device memory at an
// address; nil if there is nothing to be done but to return.
func (s *session) moving(c *wire.Call, source *ptx.Module, region uint32, at uint64, before *managedVars, size *uint64) (*managedVars, cuda.Result) {
	m, total := layout(source)
	*size = total
	if region == 0 && at == 0 || total == 0 {
		return nil, cuda.Success
	}
	if at != 0 {
		mem, ok := s.space.bytes(at, total)
		if !ok || before != nil {
			return nil, cuda.ErrorInvalidValue
		}
		m.mem, m.base, m.filled = mem, at, c.Replay
		return m, cuda.Success
	}
	reg, ok := s.host.Region(region)
	if !ok || reg.Kind != wire.RegionPinned || uint64(len(reg.Mem)) < total || before != nil {
		return nil, cuda.ErrorInvalidValue
	}
	m.mem, m.base, m.filled = reg.Mem, reg.VA, c.Replay
	return m, cuda.Success
}

// known reports whether the guest has functions of a module.
func (s *session) known(m *module) bool {
	for _, f := range s.funcs {
		if f.mod == m {
			return true
		}
	}
	return false
}

// LibraryManage moves a library's managed variables into a pinned region or device memory.
func (s *session) LibraryManage(c *wire.Call, a *wire.LibraryManageArgs, r *wire.LibraryManageReply) cuda.Result {
	l, ok := s.libraries[a.Library]
	if !ok {
		return cuda.ErrorInvalidHandle
	}
	m, res := s.moving(c, l.source, a.Region, a.At, l.managed, &r.Size)
	if m == nil {
		return res
	}
	g, old := s.ctxs[c.Ctx], l.spare
	if old == nil {
		old = l.instances[g]
	}
	if c.Replay && (old == nil || old == l.spare && vacated(c)) {
		return s.remanage(c, l, m)
	}
	if old == nil || s.known(old) || len(l.instances) > 1 {
		return cuda.ErrorNotSupported // code that may run already knows them elsewhere
	}
	fresh, res := s.reload(c, old, l.source, m)
	if res != cuda.Success {
		return res
	}
	l.owns(fresh)
	l.retired, fresh.retired = append(l.retired, fresh.retired...), nil
	l.managed, l.shape = m, fresh
	if old == l.spare {
		l.spare = fresh
	} else {
		l.instances[g] = fresh
	}
	return cuda.Success
}

// remanage is LibraryManage made again of a library whose module was a context's that has ended
// since.
func (s *session) remanage(c *wire.Call, l *library, m *managedVars) cuda.Result {
	fresh, res := s.instantiate(c, &build{managed: m, shape: true}, l.source, nil, 0)
	if res != cuda.Success {
		return res
	}
	if old := l.spare; old != nil {
		l.retired, old.vars = append(l.retired, old.vars...), nil
		s.unload(old)
	}
	l.managed = m
	l.begins(fresh)
	return cuda.Success
}

// ModuleManage moves a module's managed variables into a pinned region or device memory.
func (s *session) ModuleManage(c *wire.Call, a *wire.ModuleManageArgs, r *wire.ModuleManageReply) cuda.Result {
	old, ok := s.modules[a.Module]
	if !ok || old.library != nil {
		return cuda.ErrorInvalidHandle
	}
	m, res := s.moving(c, old.source, a.Region, a.At, old.managed, &r.Size)
	if m == nil {
		return res
	}
	if s.known(old) {
		return cuda.ErrorNotSupported
	}
	fresh, res := s.reload(c, old, old.source, m)
	if res == cuda.Success {
		fresh.source, fresh.managed = old.source, m
	}
	return res
}

// reload puts a module whose managed variables have moved in the place of old, whose variables
// stay: this is done again where the session moves to, and what came to lie there meanwhile would
// be in the way of the load.
func (s *session) reload(c *wire.Call, old *module, source *ptx.Module, m *managedVars) (*module, cuda.Result) {
	fresh, res := s.instantiate(c, &build{managed: m}, source, old.ctx, old.device)
	if res != cuda.Success {
		return nil, res
	}
	m.filled = true
	for id, x := range s.modules {
		if x == old {
			s.modules[id] = fresh
		}
	}
	fresh.retired, old.vars, old.retired = append(old.retired, old.vars...), nil, nil
	s.unload(old)
	return fresh, cuda.Success
}
