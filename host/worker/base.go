package worker

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// What a driver maps lies where the kernel finds room first, and with it what it places for a guest. A session that may move needs the same in its
// next worker. Addresses of this process are drawn by chance all the same: only where room begins is settled.

// baseSlack is how far above a base the next mapping may come: others of this process are made meanwhile.
const baseSlack = 1 << 30

// baseSlots are holes of baseSlot bytes below a base, as far apart: what is mapped meanwhile and is smaller, the stacks of threads above all, finds room
// there, and how much of it there is when does not show in where drivers put what they give to guests, which is larger.
const (
	baseSlot  = 16 << 20
	baseSlots = 128
)

// settleBase takes every address below base that the kernel would give to a mapping that wishes none, without memory behind them, so that those to
// come lie from base on, but for small ones. It is for processes whose mappings grow upwards, as workers' do (package spawn).
func settleBase(base uintptr) error {
	if limited(unix.RLIMIT_AS) {
		return errors.New("addresses are limited (RLIMIT_AS): none would be left")
	}
	oneArena()
	hold(base)
	at, err := reserve(leastSpan)
	if err != nil {
		return fmt.Errorf("settle where mappings begin: %w", err)
	}
	release(at, leastSpan)
	if at < base || at-base > baseSlack {
		return fmt.Errorf("mappings begin at %#x, not at %#x", at, base)
	}
	held := hold(base + heapApart)
	heap := moreHeap()
	for i := range uintptr(baseSlots) {
		release(base-2*(i+1)*baseSlot, baseSlot)
	}
	runtime.KeepAlive(heap)
	debug.FreeOSMemory() // what is free of it now is what the heap grows into; it counts neither as the heap's size nor for a limit of memory
	for _, h := range held {
		if from := max(h.at, firstOf(base)); from < h.at+h.size {
			release(from, h.at+h.size-from)
		}
	}
	return nil
}

// Go's heap goes on elsewhere. Where it began, at an address drawn by chance, it may find no more room now, if that is among what was taken. Its runtime looks 256 GiB further on then, and
// further: in some processes in what the driver has mapped by then, or their predecessors' drivers had. So it looks at once, while that is taken.
const (
	heapApart = 64 << 30  // behind a base: more than drivers place there
	heapMore  = 128 << 20 // more than what is left of the arena that the heap has
)

// moreHeap is room for it, of which no page is touched. Nothing is collected meanwhile: that starts threads, of which the stacks would find no room below the base.
func moreHeap() []byte {
	if limited(unix.RLIMIT_DATA) {
		return nil // the runtime ends a process that may not have as much
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	return make([]byte, heapMore)
}

// limited reports whether this process may have only so much of something.
func limited(resource int) bool {
	var l unix.Rlimit
	return unix.Getrlimit(resource, &l) == nil && l.Cur != unix.RLIM_INFINITY
}

// baseUnit is more than what comes in a process before its base is settled, in other places than in the next process, and of what drivers align what they reserve to.
const baseUnit = 256 << 20

// firstOf is where the first mapping comes that is not small: on the same side of each boundary in all processes of a base.
func firstOf(base uintptr) uintptr { return (base+baseUnit-1)&^(baseUnit-1) + baseUnit }

type heldSpan struct{ at, size uintptr }

const mostSpan, leastSpan = 1 << 40, 4096 // bytes that are asked for at once

// hold takes every address below end that the kernel would give to a mapping that wishes none.
func hold(end uintptr) (held []heldSpan) {
	for size := uintptr(mostSpan); size >= leastSpan; size /= 2 {
		for {
			at, err := reserve(size)
			if err != nil {
				break // there is no room of this size at all
			}
			if at+size > end {
				release(at, size)
				break
			}
			held = append(held, heldSpan{at, size})
		}
	}
	return held
}

func reserve(size uintptr) (uintptr, error) {
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, ^uintptr(0), 0)
	if errno != 0 {
		return 0, errno
	}
	return at, nil
}

func release(at, size uintptr) { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, size, 0) }
