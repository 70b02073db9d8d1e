package meter

import "unsafe"

// words is a page. Indices are constants: nothing is checked while a program runs.
type words [pageBytes / 8]uint64

// wordsOf is a page of at least pageBytes as 64-bit words. Pages are aligned.
func wordsOf(mem []byte) *words {
	_ = mem[pageBytes-1]
	return (*words)(unsafe.Pointer(unsafe.SliceData(mem)))
}
