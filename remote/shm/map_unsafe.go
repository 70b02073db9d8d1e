package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// span is a range of this process's addresses, reserved by one mapping and filled by others.
type span struct {
	addr uintptr
	size uintptr
}

// Where regions lie for which the guest has chosen no addresses, if there is room: apart from what
// others of this process map, a GPU's driver for one, whose choices are to depend on nothing that
// comes and goes.
const (
	asideFrom = 0x4800_0000_0000
	asideSize = 0x0800_0000_0000
)

var (
	// Of this process.
	asideStart = sync.OnceValue(func() uintptr { return uintptr(rand.Uint64N(asideSize>>21)) << 21 })
	// Offset of the next from there.
	asideNext atomic.Uintptr
)

// reserve takes size bytes of address space with nothing behind them; at exactly the address at
// unless that is 0.
func reserve(at, size uintptr) (span, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	wish := at
	if at != 0 {
		flags |= unix.MAP_FIXED_NOREPLACE
	} else {
		wish = asideFrom + (asideStart()+asideNext.Add(size)-size)%asideSize
	}
	p, err := unix.MmapPtr(-1, 0, pointer(wish), size, unix.PROT_NONE, flags)
	if err != nil {
		if errors.Is(err, unix.EEXIST) {
			return span{}, fmt.Errorf("addresses %#x+%#x are in use in this process: %w", at, size, err)
		}
		return span{}, fmt.Errorf("reserve %#x bytes of address space at %#x: %w", size, at, err)
	}
	return span{uintptr(p), size}, nil
}

// fill maps n bytes of a file over the span at off.
func (s span) fill(off, n uintptr, fd int, fileOff int64) error {
	if off > s.size || n > s.size-off {
		return fmt.Errorf("mapping %#x+%#x leaves its span of %#x bytes", off, n, s.size)
	}
	_, err := unix.MmapPtr(fd, fileOff, pointer(s.addr+off), n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("map %#x bytes of guest memory: %w", n, err)
	}
	return nil
}

// clear takes away what was filled in. Touching the span then faults.
func (s span) clear() error {
	_, err := unix.MmapPtr(-1, 0, pointer(s.addr), s.size, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return err
}

// release gives the addresses back.
func (s span) release() { _ = unix.MunmapPtr(pointer(s.addr), s.size) }

// bytes is the span as memory.
func (s span) bytes() []byte { return unsafe.Slice((*byte)(pointer(s.addr)), s.size) }

// noDump keeps guest memory out of core files and out of children.
func (s span) noDump() {
	_ = unix.Madvise(s.bytes(), unix.MADV_DONTDUMP)
	_ = unix.Madvise(s.bytes(), unix.MADV_DONTFORK)
}

// pointer turns an address outside the Go heap into a pointer.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }
