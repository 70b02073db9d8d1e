package soft

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const reserveFlags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE

// reserveAt takes an address range of this process without memory behind it.
func reserveAt(addr, size uint64) ([]byte, error) {
	p, err := unix.MmapPtr(-1, 0, unsafe.Add(nil, addr), uintptr(size), unix.PROT_NONE, reserveFlags|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes at %#x: %w", size, addr, err)
	}
	mem := unsafe.Slice((*byte)(p), size)
	if addressOf(mem) != addr { // kernels before 4.17 take the address for a hint
		_ = releaseAll(mem)
		return nil, fmt.Errorf("reserve %d bytes at %#x: the kernel gave %p", size, addr, p)
	}
	return mem, nil
}

// decommit gives memory back and keeps the addresses.
func decommit(mem []byte) error {
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&mem[0]), uintptr(len(mem)), unix.PROT_NONE, reserveFlags|unix.MAP_FIXED)
	return err
}

func releaseAll(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(&mem[0]), uintptr(len(mem)))
}

// addressOf is where mem lies in this process.
func addressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
