package worker

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// What a driver maps lies where the kernel finds room first, and with it what it places for a
// guest. A session that may move needs the same in its next worker. Addresses of this process are
// drawn by chance all the same: only where room begins is settled.

// leastSpan is a page: the smallest mapping.
const leastSpan = 4096

// baseSlack is how far above a base the next mapping may come: others of this process are made
// meanwhile.
const baseSlack = 1 << 30

// baseSlots are holes of baseSlot bytes below a base, as far apart: what is mapped meanwhile and is
// smaller, the stacks of threads above all, finds room there, and how much of it there is when does
// not show in where drivers put what they give to guests, which is larger.
const (
	baseSlot  = 16 << 20
	baseSlots = 128
)

// settleBase takes every address below base that the kernel would give to a mapping that wishes
// none, without memory behind them, so that those to come lie from base on, but for small ones. It
// is for processes whose mappings grow upwards, as workers' do (package spawn).
func settleBase(base uintptr) error {
	if limited(unix.RLIMIT_AS) {
		return errors.New("addresses are limited (RLIMIT_AS): none would be left")
	}
	oneArena()
	sys.HoldBelow(base, leastSpan)
	next, err := sys.Reserve(leastSpan)
	if err != nil {
		return fmt.Errorf("settle where mappings begin: %w", err)
	}
	next.Release()
	if next.At < base || next.At-base > baseSlack {
		return fmt.Errorf("mappings begin at %#x, not at %#x", next.At, base)
	}
	held := sys.HoldBelow(base+heapApart, leastSpan)
	heap := moreHeap()
	for i := range uintptr(baseSlots) {
		sys.Span{At: base - 2*(i+1)*baseSlot, Size: baseSlot}.Release()
	}
	runtime.KeepAlive(heap)
	// What is free of it now is what the heap grows into; it counts neither as the heap's size nor
	// for a limit of memory.
	debug.FreeOSMemory()
	for _, h := range held {
		if from := max(h.At, firstOf(base)); from < h.At+h.Size {
			sys.Span{At: from, Size: h.At + h.Size - from}.Release()
		}
	}
	return nil
}

// Go's heap goes on elsewhere. Where it began, at an address drawn by chance, it may find no more
// room now, if that is among what was taken. Its runtime looks 256 GiB further on then, and
// further: in some processes in what the driver has mapped by then, or their predecessors' drivers
// had. So it looks at once, while that is taken.
const (
	heapApart = 64 << 30 // behind a base: more than drivers place there
	// heapMore is as much as an arena of the heap: more than what is left of the one that it has.
	// Where no more memory is promised than there is (vm.overcommit_memory=2) it is charged, as all
	// that a process may write, and in one of three processes what is left of that arena; what is
	// held is not (TestBaseCharge).
	heapMore = 64 << 20
)

// moreHeap is room for it, of which no page is touched. Nothing is collected meanwhile: that starts
// threads, of which the stacks would find no room below the base.
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

// baseUnit is more than what comes in a process before its base is settled, in other places than in
// the next process, and of what drivers align what they reserve to.
const baseUnit = 256 << 20

// firstOf is where the first mapping comes that is not small: on the same side of each boundary in
// all processes of a base.
func firstOf(base uintptr) uintptr { return (base+baseUnit-1)&^(baseUnit-1) + baseUnit }
