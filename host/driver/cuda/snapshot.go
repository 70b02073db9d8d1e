package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

var _ driver.Movable = (*session)(nil)

// What a session exports is named by its address, or, where it has none, by one of these and the
// number of the object.
const (
	ofArray    = 1 << 63           // and a level behind the number
	ofPhysical = 1<<63 | 1<<62     // memory of cuMemCreate
	ofEvents   = 1<<63 | 1<<62 | 1 // times: see eventtimes.go
	ofDevices  = 1<<63 | 1<<62 | 2 // parts of them: see greenorigin.go
	ofGraphs   = 1<<63 | 1<<62 | 3 // memory that launches have left: see graph_memory_exec.go
	ofTiles    = 1<<63 | 1<<62 | 4 // memory behind tiles: see tiles.go
	// And a number of such memory as that has it: the guest has released it.
	ofReleased = 1<<63 | 1<<62 | 5
	levelBits  = 8                     // numbers have 32
	pieceSize  = 4 << 20               // bytes that are copied at once
	numberMask = 1<<(32+levelBits) - 1 // of an object, and its level
)

// errImmovable says why a session stays where it is.
type errImmovable struct{ why string }

func (e errImmovable) Error() string { return "the session cannot move: " + e.why }

func immovable(format string, args ...any) error { return errImmovable{fmt.Sprintf(format, args...)} }

// Movable implements driver.Movable.
func (s *session) Movable() error {
	if len(s.lingering) > 0 {
		s.endLingeringIfQuiet()
	}
	if !s.arenas.on {
		return immovable("it was not started as one that may (--migratable)")
	}
	switch {
	case s.capturing():
		return immovable("a stream captures")
	case len(s.lingering) > 0:
		return immovable("context %d was ended and its work goes on", s.lingering[0].id)
	case s.tilesOfGraph:
		return immovable("memory was mapped into sparse arrays while a stream captured")
	}
	for id, d := range s.descs.m {
		if d.loose {
			return immovable("description %d is of resources that a green context gave", id)
		}
	}
	if at, ok := s.strayGraphMemory(); ok {
		return immovable("memory at %#x belongs to an allocation node of a graph that is gone", at)
	}
	if err := s.immovableTiles(); err != nil {
		return err
	}
	return s.immovableCode()
}

// ExportMemory implements driver.Snapshotter. The session must be quiescent.
func (s *session) ExportMemory(fn func(addr, size uint64, r io.Reader) error) error {
	if err := s.Movable(); err != nil {
		return err
	}
	times, err := s.eventTimes()
	if err != nil {
		return err
	}
	if len(times) > 0 {
		if err := fn(ofEvents, uint64(len(times)), bytes.NewReader(times)); err != nil {
			return err
		}
	}
	if table := s.resourceTable(); len(table) > 0 {
		if err := fn(ofDevices, uint64(len(table)), bytes.NewReader(table)); err != nil {
			return err
		}
	}
	if live := s.liveGraphMemory(); len(live) > 0 {
		if err := fn(ofGraphs, uint64(len(live)), bytes.NewReader(live)); err != nil {
			return err
		}
	}
	if table := s.tileTable(); len(table) > 0 {
		if err := fn(ofTiles, uint64(len(table)), bytes.NewReader(table)); err != nil {
			return err
		}
	}
	if len(s.allocs)+len(s.arenas.variables)+len(s.mems.m)+len(s.released)+len(s.arrays.m)+len(s.mipmaps.m) == 0 {
		return nil
	}
	m, err := s.moverOf(pieceSize)
	if err != nil {
		return err
	}
	defer m.close()
	for ptr, a := range s.allocs {
		if s.arenas.lent && s.arenaOf(ptr) != nil || a.graph != nil && !a.graph.lived {
			continue
		}
		if err := m.export(fn, "allocation", ptr, ptr, a.size, a.ctx); err != nil {
			return err
		}
	}
	for key, list := range s.arenas.variables {
		for _, v := range list {
			if err := m.export(fn, "variable "+v.name, v.at, v.at, v.size, key.ctx); err != nil {
				return err
			}
		}
	}
	for id, p := range s.mems.m {
		if p.foreign { // its owner has it
			continue
		}
		if err := m.exportPhysical(fn, ofPhysical|uint64(id)<<levelBits, p); err != nil {
			return fmt.Errorf("memory %d of cuMemCreate: %w", id, err)
		}
	}
	for i, p := range s.released {
		if err := m.exportPhysical(fn, ofReleased|uint64(i)<<levelBits, p); err != nil {
			return fmt.Errorf("memory behind tiles that was released: %w", err)
		}
	}
	return m.exportArrays(fn)
}

// exportPhysical is of memory without an address.
func (m *mover) exportPhysical(fn func(addr, size uint64, r io.Reader) error, name uint64, p *physical) error {
	if p.forTiles() {
		return m.throughTiles(p, func(w *tileWindow) error { return fn(name, p.size, w) })
	}
	return m.reached(p, func(mem bind.Mem) error { return fn(name, p.size, &memReader{m: m, mem: mem}) })
}

// importPhysical fills it.
func (m *mover) importPhysical(p *physical, size uint64, r io.Reader) error {
	switch {
	case p == nil || p.size != size || p.foreign:
		return fmt.Errorf("import: no such memory of %d bytes", size)
	case p.forTiles():
		return m.throughTiles(p, func(w *tileWindow) error { return w.fill(r) })
	}
	return m.reached(p, func(mem bind.Mem) error { return m.fill(mem, r) })
}

func (m *mover) export(fn func(addr, size uint64, r io.Reader) error, what string, name, at, size uint64, ctx uint32) error {
	mem, res := m.s.space.Mem(at, size)
	if res == cuda.Success {
		res = m.s.anyContext(ctx)
	}
	var err error = res
	if res == cuda.Success {
		var r io.Reader = &memReader{m: m, mem: mem}
		if a := m.s.arenaOf(at); a != nil && m.s.summable(a.dev, size) {
			r = &settledBlock{memReader: memReader{m: m, mem: mem}, ctx: ctx}
		}
		err = fn(name, size, r)
	}
	if err != nil {
		return fmt.Errorf("%s of %d bytes at %#x: %w", what, size, at, err)
	}
	return nil
}

// ImportMemory implements driver.Snapshotter.
func (s *session) ImportMemory(addr, size uint64, r io.Reader) error {
	if addr == ofEvents {
		return s.setEventTimes(size, r)
	}
	if addr == ofDevices {
		return s.setResources(io.LimitReader(r, int64(size)))
	}
	if addr == ofGraphs {
		return s.setLiveGraphMemory(size, r)
	}
	if addr == ofTiles {
		return s.setTiles(size, r)
	}
	most := size
	if addr&ofArray != 0 {
		most = pieceSize // an array's pieces have rows, memory's behind tiles have tiles
	}
	m, err := s.moverOf(most)
	if err != nil {
		return err
	}
	defer m.close()
	switch {
	case addr&ofPhysical == ofPhysical:
		id := uint32(addr & numberMask >> levelBits)
		p := s.mems.m[id]
		if addr&(1<<levelBits-1) == ofReleased&(1<<levelBits-1) {
			if p = nil; int64(id) < int64(len(s.released)) {
				p = s.released[id]
			}
		}
		if err := m.importPhysical(p, size, r); err != nil {
			return fmt.Errorf("memory %d of cuMemCreate: %w", id, err)
		}
		return nil
	case addr&ofArray != 0:
		return m.importArray(addr, size, r)
	}
	if a, ok := s.allocs[addr]; !ok || a.size != size {
		if !s.hasVariable(addr, size) {
			return fmt.Errorf("import: neither an allocation nor a variable of %d bytes at %#x", size, addr)
		}
	}
	mem, res := s.space.Mem(addr, size)
	if res != cuda.Success {
		return fmt.Errorf("import %d bytes at %#x: %w", size, addr, res)
	}
	return m.fill(mem, r)
}

// reached has the GPU reach memory of cuMemCreate meanwhile, whatever mappings it has.
func (m *mover) reached(p *physical, f func(bind.Mem) error) (err error) {
	d := m.s.drv
	dev, res := p.reachedBy(d)
	if res == cuda.Success {
		res = m.s.contextOn(dev)
	}
	if res != cuda.Success {
		return res
	}
	// Which copies, and is another if the session has no context there.
	dev = m.s.ctxs.m[m.s.current].dev
	at, res := d.MemAddressReserve(p.size, 0, 0, 0)
	if res != cuda.Success {
		return res
	}
	defer func() { err = errors.Join(err, errorOf(d.MemAddressFree(at))) }()
	if res := d.MemMap(at, 0, p.handle, 0); res != cuda.Success {
		return res
	}
	defer func() { err = errors.Join(err, errorOf(d.MemUnmap(at))) }()
	if res := d.MemSetAccess(at, accessDesc(dev, accessReadWrite)); res != cuda.Success {
		return res
	}
	return f(at)
}

// reachedBy is the device that it is on, or next to.
func (p *physical) reachedBy(d *bind.Driver) (uint32, cuda.Result) {
	if p.host {
		return p.dev, cuda.Success
	}
	var prop bind.MemAllocationProp
	res := d.MemGetAllocationPropertiesFromHandle(&prop, p.handle)
	return uint32(prop.Location.Id), res
}

func errorOf(res cuda.Result) error {
	if res == cuda.Success {
		return nil
	}
	return res
}
