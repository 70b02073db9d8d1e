package bind

// TileMap has memory lie behind a tile of a sparse array, which begins at x and y.
func TileMap(a Array, x, y, width, height uint32, mem MemGenericAllocationHandle, offset uint64, dev uint32) ArrayMapInfo {
	const generic = 0 // CU_MEM_HANDLE_TYPE_GENERIC
	return ArrayMapInfo{
		type_: resourceArray, resource: a.v,
		subresource: [4]uint64{0, uint64(x) | uint64(y)<<32, uint64(width) << 32, uint64(height) | 1<<32},
		operation:   memoryMap, handleType: generic, handle: mem.v, offset: offset, devices: 1 << dev,
	}
}

// Unmapped has none lie there.
func (m ArrayMapInfo) Unmapped() ArrayMapInfo {
	m.operation, m.handle, m.offset = memoryUnmap, 0, 0
	return m
}

// CUmemOperationType.
const (
	memoryMap   = 1
	memoryUnmap = 2
)
