package cuda

import (
	"sync/atomic"
	"unsafe"
)

// word is a 32-bit word that the GPU writes and this process reads: not of Go's memory.
type word uintptr

func wordOf(p *uint32) word { return word(unsafe.Pointer(p)) }

// wordIn is the word at the start of memory that is not Go's.
func wordIn(b []byte) word { return word(unsafe.Pointer(&b[0])) }

func (w word) load() uint32   { return atomic.LoadUint32((*uint32)(w.pointer())) }
func (w word) store(v uint32) { atomic.StoreUint32((*uint32)(w.pointer()), v) }

func (w word) pointer() unsafe.Pointer { return pointerTo(uint64(w)) }

// pointerTo makes a pointer to foreign memory (C's, the driver's, a mapping) at addr: never to
// Go's.
func pointerTo(addr uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
