package meter

import "unsafe"

// wordsOf is a page as 64-bit words. Pages are aligned.
func wordsOf(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}
