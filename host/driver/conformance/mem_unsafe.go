package conformance

import (
	"sync/atomic"
	"unsafe"
)

func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&mem[0]))) }

func loadWord(mem []byte, off int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&mem[off])))
}

func storeWord(mem []byte, off int, value uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&mem[off])), value)
}
