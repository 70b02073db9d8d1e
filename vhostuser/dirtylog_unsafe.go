package vhostuser

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const logPageShift = 12 // one bit per 4 KiB, whatever the guest's page size

// dirtyLog is the bitmap that the front end shares for a migration: bit gpa/4096 of a little-endian
// array. The front end clears bits while they are set here, so bits change by atomic operations
// only.
type dirtyLog struct {
	whole []byte // the mapping
	words []uint32
	bits  uint64
}

func mapDirtyLog(fd int, size, offset uint64) (*dirtyLog, error) {
	const maxLog = 1 << 36 // 2 PiB of guest memory
	if size == 0 || size > maxLog || offset > 1<<62 {
		return nil, fmt.Errorf("dirty log of %#x bytes at %#x: %w", size, offset, ErrBadRegion)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("dirty log: fstat: %w", err)
	}
	if uint64(st.Size) < offset+size {
		return nil, fmt.Errorf("dirty log: file has only %#x bytes: %w", st.Size, ErrBadRegion)
	}
	start := offset &^ uint64(unix.Getpagesize()-1)
	if (offset-start)%4 != 0 {
		return nil, fmt.Errorf("dirty log: offset %#x is not a multiple of 4: %w", offset, ErrBadRegion)
	}
	whole, err := unix.Mmap(fd, int64(start), int(offset+size-start), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("dirty log: mmap: %w", err)
	}
	// The last word may reach past size, never past the mapping: pages are multiples of four.
	first := unsafe.Pointer(&whole[offset-start])
	return &dirtyLog{whole: whole, words: unsafe.Slice((*uint32)(first), (size+3)/4), bits: size * 8}, nil
}

func (l *dirtyLog) unmap() { _ = unix.Munmap(l.whole) }

// mark sets the bits of all pages that [gpa, gpa+size) touches. Pages beyond the log are ignored:
// the front end sized it for all guest memory.
func (l *dirtyLog) mark(gpa, size uint64) {
	if size == 0 {
		return
	}
	last := gpa + size - 1
	if last < gpa {
		last = ^uint64(0)
	}
	for page, end := gpa>>logPageShift, last>>logPageShift; page <= end && page < l.bits; page++ {
		word, bit := &l.words[page/32], uint32(1)<<(page%32)
		if atomic.LoadUint32(word)&bit == 0 {
			atomic.OrUint32(word, bit)
		}
	}
}
