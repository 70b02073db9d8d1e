package soft

import (
	"sync/atomic"
	"unsafe"
)

// Stream memory operations access aligned words that kernels and the guest access too. mem has 4 or
// 8 bytes.

func loadWord(mem []byte) uint64 {
	if len(mem) == 8 {
		return atomic.LoadUint64((*uint64)(unsafe.Pointer(&mem[0])))
	}
	return uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&mem[0]))))
}

func storeWord(mem []byte, v uint64) {
	if len(mem) == 8 {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[0])), v)
		return
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&mem[0])), uint32(v))
}
