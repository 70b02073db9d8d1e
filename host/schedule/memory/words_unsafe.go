package memory

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// wordsOf is a page as 64-bit words. Pages are aligned.
func wordsOf(mem []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}

func closeFile(fd int) { _ = unix.Close(fd) }
