package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Fields of CUarrayMapInfo (cuda.h), 96 bytes. The guest's ids stand where handles go.
const (
	arrayMapSize      = 96
	arrayMapType      = 0
	arrayMapResource  = 8
	arrayMapOperation = 56
	arrayMapHandle    = 64
	arrayMapMaximum   = 4096
	memoryMap         = 1 // CU_MEM_OPERATION_TYPE_MAP
)

// MemMapArray puts memory behind the tiles of sparse arrays, or takes it away.
func (s *session) MemMapArray(c *wire.Call, a *wire.MemMapArrayArgs) cuda.Result {
	st, res := s.submit(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	if a.Count == 0 || a.Count > arrayMapMaximum || len(a.List) != arrayMapSize*int(a.Count) {
		return cuda.ErrorInvalidValue
	}
	list := bufferOf(a.List)
	defer list.free()
	le := binary.LittleEndian
	for m := list.bytes(); len(m) > 0; m = m[arrayMapSize:] {
		var handle uint64
		id := uint32(le.Uint64(m[arrayMapResource:]))
		switch le.Uint32(m[arrayMapType:]) {
		case 0:
			x, _ := s.arrays.get(id)
			handle = x.handle
		case 1:
			x, _ := s.mipmaps.get(id)
			handle = x.handle
		}
		if handle == 0 {
			return cuda.ErrorInvalidValue
		}
		le.PutUint64(m[arrayMapResource:], handle)
		if le.Uint32(m[arrayMapOperation:]) != memoryMap {
			le.PutUint64(m[arrayMapHandle:], 0)
			continue
		}
		mem, ok := s.mems.get(uint32(le.Uint64(m[arrayMapHandle:])))
		if !ok {
			return cuda.ErrorInvalidValue
		}
		le.PutUint64(m[arrayMapHandle:], mem.handle)
	}
	return s.note(s.fn.cuMemMapArrayAsync.call(list.addr(), uint64(a.Count), st.handle))
}
