package cuda

import (
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
	list, ok := bind.ArrayMaps(a.List,
		func(id uint64) (bind.Array, bool) { x, ok := s.arrays.get(uint32(id)); return x.handle, ok },
		func(id uint64) (bind.MipmappedArray, bool) { x, ok := s.mipmaps.get(uint32(id)); return x.handle, ok },
		func(id uint64) (bind.MemGenericAllocationHandle, bool) {
			m, ok := s.mems.get(uint32(id))
			if !ok || m.host {
				return bind.MemGenericAllocationHandle{}, false
			}
			return m.handle, true
		})
	if !ok || len(list) == 0 || len(list) > arrayMapMaximum || len(list) != int(a.Count) {
		return cuda.ErrorInvalidValue
	}
	s.sparse = true
	return s.note(s.drv.MemMapArrayAsync(list, st.handle))
}
