package cuda

import (
	"sync/atomic"
	"unsafe"
)

func addressOf(w *atomic.Uint32) uintptr { return uintptr(unsafe.Pointer(w)) }
