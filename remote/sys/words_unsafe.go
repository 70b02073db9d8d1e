package sys

import "unsafe"

// Words is mapped memory as 64-bit words, which have to be read and written with sync/atomic where
// others do. Mappings are aligned.
func Words(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}
