package fs_test

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"causeway/virtio"
)

// pagesOf cuts segments into 4 KiB pages.
func pagesOf(segs []virtio.Segment) (out [][]byte) {
	for _, s := range segs {
		for b := s.Data; len(b) > 0; b = b[min(4096, len(b)):] {
			out = append(out, b[:min(4096, len(b))])
		}
	}
	return out
}

func wordOf(p []byte, i int) *uint32 { return (*uint32)(unsafe.Pointer(&p[4*i])) }

func storeWord(p []byte, i int, v uint32) { atomic.StoreUint32(wordOf(p, i), v) }

// awaitWord polls a word of shared memory for up to a minute.
func awaitWord(p []byte, i int, v uint32) bool {
	deadline := time.Now().Add(time.Minute)
	for n := 0; atomic.LoadUint32(wordOf(p, i)) != v; n++ {
		if n%4096 == 4095 {
			runtime.Gosched()
			if time.Now().After(deadline) {
				return false
			}
		}
	}
	return true
}
