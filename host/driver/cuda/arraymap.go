package cuda

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

const arrayMapMaximum = 4096

// MemMapArray puts memory behind the tiles of sparse arrays, or takes it away.
func (s *session) MemMapArray(c *wire.Call, a *wire.MemMapArrayArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	list, ok := s.arrayMaps(a.List, func(id uint64) *physical { return s.mems.m[uint32(id)] })
	if !ok || len(list) == 0 || len(list) > arrayMapMaximum || len(list) != int(a.Count) {
		return cuda.ErrorInvalidValue
	}
	captured := s.capturing() && s.inCapture(st)
	if res := s.note(s.drv.MemMapArrayAsync(list, st.handle)); res != cuda.Success {
		return res
	}
	if captured { // a graph may do it, or not, or again
		s.tilesOfGraph = true
	}
	s.tilesFollow(a.List, func(id uint64) *physical { return s.mems.m[uint32(id)] })
	return cuda.Success
}

// arrayMaps is a guest's list for the driver. mem finds memory.
func (s *session) arrayMaps(b []byte, mem func(id uint64) *physical) ([]bind.ArrayMapInfo, bool) {
	return bind.ArrayMaps(b,
		func(id uint64) (bind.Array, bool) { x, ok := s.arrays.get(uint32(id)); return x.handle, ok },
		func(id uint64) (bind.MipmappedArray, bool) { x, ok := s.mipmaps.get(uint32(id)); return x.handle, ok },
		func(id uint64) (bind.MemGenericAllocationHandle, bool) {
			m := mem(id)
			if m == nil || m.host {
				return bind.MemGenericAllocationHandle{}, false
			}
			return m.handle, true
		})
}

// tilesFollow notes what a list that the driver has taken has changed.
func (s *session) tilesFollow(b []byte, mem func(id uint64) *physical) {
	left := uint64(mostNamed)
	for part := range slices.Chunk(b, arrayMapSize) {
		m := arrayMap(part)
		var of *physical
		if m.maps() {
			of = mem(m.mem())
		}
		s.tilesChanged(&m, of, &left)
	}
}
