package soft

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"causeway/cuda"
	"causeway/host/driver"
	"causeway/host/driver/soft/exec"
)

// Device n's addresses are arenaBase + n*arenaStride up to arenaSize. The range lies below every
// place where Linux puts mappings by itself, also with full randomisation, and above brk heaps and
// Go's.
const (
	arenaBase   = 0x7800_0000_0000
	arenaSize   = 1 << 39
	arenaStride = arenaSize

	chunkSize = 2 << 20 // what is committed at a time
	pageSize  = 4096
	allocUnit = 512 // alignment of what guests allocate

	// freeWait is how long an allocation waits for memory that was freed behind running work.
	freeWait = 10 * time.Second
)

// allocation is live memory that the GPU reaches: of an arena, or a pinned region of the guest.
type allocation struct {
	lo, size uint64
	mem      []byte
	device   int // -1: a region
	ctx      *gpuContext
	readOnly bool   // for kernels
	region   uint32 // id of a region
	serial   uint64 // names it for cuPointerGetAttribute
	kind     allocKind
	freed    bool   // released when the work before its end is done; worker only
	pool     *pool  // pooledMemory
	around   []byte // mappedMemory: the reservation that it lies in
	came     bool   // with its bytes, before the operation that made it was replayed
}

type allocKind uint8

const (
	plainMemory  allocKind = iota
	pooledMemory           // cuMemAllocAsync
	variable               // of a module: not the guest's to free
	mappedMemory           // cuMemMap
	ipcMemory              // another session's
	pinnedRegion
	expectedMemory // see expect.go
)

type interval struct {
	lo, hi uint64
	a      *allocation
}

// space is the set of live allocations. Find and bytes may be called from any goroutine, the rest
// by the worker, except release.
type space struct {
	intervals atomic.Pointer[[]interval] // sorted; replaced, never changed

	mu       sync.Mutex // guards replacing intervals, and what follows
	released *sync.Cond
	physical uint64             // bytes that there are
	budget   driver.Budget      // what may be live of them; also holds what others have
	live     uint64             // bytes allocated
	dying    uint64             // bytes freed, but not released
	liveOn   [MaxDevices]uint64 // bytes allocated, of each device
	// bytes that threads of each device's contexts take beyond what they take at first: see
	// locals.go
	locals   [MaxDevices]int64
	serials  uint64
	arenas   []*arena
	closed   bool
	expected map[uint64]*allocation // by address, until Settle; the worker's
}

var _ exec.AddressSpace = (*space)(nil)

// arena is one device's address range.
type arena struct {
	base, limit uint64
	mem         []byte
	file        *memoryFile         // what other processes may map; nil until then
	public      map[uint64]struct{} // offsets of chunks that lie in it
	// Where the search for free addresses goes on: reuse comes late, so that stale pointers are
	// found.
	cursor uint64
}

func newSpace(devices int, physical uint64, budget driver.Budget) (*space, error) {
	s := &space{physical: physical, budget: budget}
	s.released = sync.NewCond(&s.mu)
	s.intervals.Store(&[]interval{})
	for i := range devices {
		base := uint64(arenaBase + i*arenaStride)
		mem, err := reserveAt(base, arenaSize)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.arenas = append(s.arenas, &arena{base: base, limit: base + arenaSize, mem: mem, cursor: base})
	}
	return s, nil
}

// Find implements exec.AddressSpace.
func (s *space) Find(addr uint64) (base, size uint64, writable, ok bool) {
	a := s.lookup(addr)
	if a == nil {
		return 0, 0, false, false
	}
	return a.lo, a.size, !a.readOnly, true
}

// lookup returns the allocation around addr, or nil.
func (s *space) lookup(addr uint64) *allocation {
	list := *s.intervals.Load()
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if list[mid].hi <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(list) && list[lo].lo <= addr {
		return list[lo].a
	}
	return nil
}

// bytes returns size bytes at addr if they lie in one allocation that was not freed. It is for the
// worker.
func (s *space) bytes(addr, size uint64) ([]byte, bool) {
	a := s.lookup(addr)
	if a == nil || a.freed {
		return nil, false
	}
	off := addr - a.lo
	if size > a.size-off {
		return s.across(a, addr, size)
	}
	return a.mem[off : off+size : off+size], true
}

// across is bytes for memory that runs over several mappings side by side.
func (s *space) across(a *allocation, addr, size uint64) ([]byte, bool) {
	if a.kind != mappedMemory || addr+size < addr {
		return nil, false
	}
	for end := a.lo + a.size; end < addr+size; {
		b := s.lookup(end)
		if b == nil || b.kind != mappedMemory || &b.around[0] != &a.around[0] {
			return nil, false
		}
		end = b.lo + b.size
	}
	off := addr - addressOf(a.around)
	return a.around[off : off+size : off+size], true
}

// deviceAt is the device of which an address is. What lies below or above all arenas is none's.
func deviceAt(addr uint64) int { return int((addr - arenaBase) / arenaStride) }

// request says what memory is wanted.
type request struct {
	device   int
	size     uint64
	align    uint64 // power of two
	ctx      *gpuContext
	kind     allocKind
	readOnly bool
	at       uint64 // wanted address, 0: any
	far      bool   // not where addresses are usually found
}

// alloc makes memory live. Its bytes are undefined.
func (s *space) alloc(r request) (*allocation, cuda.Result) {
	if r.size == 0 || r.device >= len(s.arenas) {
		return nil, cuda.ErrorInvalidValue
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ar := s.arenas[r.device]
	if a := s.takeExpectedLocked(&r); a != nil {
		ar.movesOn(&r, a.lo)
		return a, cuda.Success
	}
	if !s.bookLocked(r.device, r.size) {
		return nil, cuda.ErrorOutOfMemory
	}
	lo, ok := s.gapLocked(ar, &r)
	if !ok || ar.commit(lo, r.size) != nil {
		s.unbookLocked(r.device, r.size)
		return nil, cuda.ErrorOutOfMemory
	}
	ar.movesOn(&r, lo)
	s.serials++
	off := lo - ar.base
	a := &allocation{
		lo: lo, size: r.size, mem: ar.mem[off : off+r.size : off+r.size], device: r.device, ctx: r.ctx,
		readOnly: r.readOnly, serial: s.serials, kind: r.kind,
	}
	s.insertLocked(a)
	return a, cuda.Success
}

// movesOn notes where the next search for addresses begins.
func (ar *arena) movesOn(r *request, lo uint64) {
	if !r.far && r.kind != variable && r.kind != expectedMemory {
		ar.cursor = lo + r.size
	}
}

// bookLocked counts size more bytes as live, if there is room.
func (s *space) bookLocked(device int, size uint64) bool {
	if !s.roomLocked(size) || !s.budget.Reserve(size) {
		return false
	}
	s.live += size
	s.liveOn[device] += size
	return true
}

func (s *space) unbookLocked(device int, size uint64) {
	s.live -= size
	s.liveOn[device] -= size
	s.budget.Release(size)
}

// bound is what may be live at most.
func (s *space) bound() uint64 {
	if l := s.budget.Limit(); l != 0 {
		return min(l, s.physical)
	}
	return s.physical
}

// roomLocked decides whether there are size more bytes. Memory whose release waits for running work
// may be there once more beside it; for more than that it waits, as freeing does on a GPU.
func (s *space) roomLocked(size uint64) bool {
	bound := s.bound()
	if size > s.physical || s.live > s.physical-size {
		return false
	}
	if s.dying <= bound {
		return true
	}
	late := false
	timer := time.AfterFunc(freeWait, func() {
		s.mu.Lock()
		late = true
		s.mu.Unlock()
		s.released.Broadcast()
	})
	defer timer.Stop()
	for s.dying > bound && !late && !s.closed {
		s.released.Wait()
	}
	return s.dying <= bound
}

// gapLocked finds addresses: the wanted ones, or the first free ones from the cursor on, then from
// the start.
func (s *space) gapLocked(ar *arena, r *request) (uint64, bool) {
	if r.at != 0 {
		ok := r.at >= ar.base && r.at < ar.limit && r.size <= ar.limit-r.at && s.freeLocked(r.at, r.size)
		return r.at, ok
	}
	align := max(r.align, 1)
	if r.size >= chunkSize {
		align = max(align, chunkSize)
	}
	if r.size > arenaSize || align > arenaSize {
		return 0, false
	}
	if r.kind == variable {
		// Where they lie depends on nothing but the modules that are there, and what threads take,
		// as on real GPUs.
		return s.scanLocked(ar.base+arenaSize/4*3+uint64(max(s.locals[r.device], 0)), ar.limit, r.size, align)
	}
	if r.far {
		return s.scanLocked(ar.base+arenaSize/2, ar.limit, r.size, align)
	}
	if lo, ok := s.scanLocked(ar.cursor, ar.limit, r.size, align); ok {
		return lo, true
	}
	return s.scanLocked(ar.base, ar.limit, r.size, align)
}

// scanLocked looks for size free bytes within from and to.
func (s *space) scanLocked(from, to, size, align uint64) (uint64, bool) {
	list := *s.intervals.Load()
	at := (from + align - 1) &^ (align - 1)
	for i := s.firstEndingAfter(at); i < len(list) && list[i].lo < to; i++ {
		if list[i].lo >= at && list[i].lo-at >= size {
			break
		}
		at = (list[i].hi + align - 1) &^ (align - 1)
	}
	return at, at <= to && size <= to-at
}

func (s *space) firstEndingAfter(addr uint64) int {
	i, _ := slices.BinarySearchFunc(*s.intervals.Load(), addr, func(e interval, addr uint64) int {
		if e.hi <= addr {
			return -1
		}
		return 1
	})
	return i
}

func (s *space) freeLocked(lo, size uint64) bool {
	list := *s.intervals.Load()
	i := s.firstEndingAfter(lo)
	return i == len(list) || list[i].lo >= lo+size
}

func (s *space) insertLocked(a *allocation) {
	old := *s.intervals.Load()
	i := s.firstEndingAfter(a.lo)
	list := make([]interval, 0, len(old)+1)
	list = append(list, old[:i]...)
	list = append(list, interval{a.lo, a.lo + a.size, a})
	list = append(list, old[i:]...)
	s.intervals.Store(&list)
}

// addRegion makes guest memory, mapped at its guest address, reachable.
func (s *space) addRegion(id uint32, mem []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lo, size := addressOf(mem), uint64(len(mem))
	if !s.freeLocked(lo, size) {
		return fmt.Errorf("region %d overlaps other memory", id)
	}
	s.serials++
	s.insertLocked(&allocation{lo: lo, size: size, mem: mem, device: -1, region: id, serial: s.serials, kind: pinnedRegion})
	return nil
}

// retire moves an allocation's bytes from live to dying: the guest has freed it.
func (s *space) retire(a *allocation) {
	a.freed = true
	s.mu.Lock()
	s.unbookLocked(a.device, a.size)
	s.dying += a.size
	s.mu.Unlock()
}

// release ends retired allocations. Any goroutine.
func (s *space) release(gone ...*allocation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range gone {
		s.dying -= a.size
	}
	s.removeLocked(func(a *allocation) bool { return slices.Contains(gone, a) })
	for _, a := range gone {
		s.decommitLocked(a)
	}
	s.released.Broadcast()
}

// dropRegion ends a region's reachability.
func (s *space) dropRegion(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(func(a *allocation) bool { return a.kind == pinnedRegion && a.region == id })
}

func (s *space) removeLocked(gone func(*allocation) bool) {
	old := *s.intervals.Load()
	list := make([]interval, 0, len(old))
	for _, e := range old {
		if !gone(e.a) {
			list = append(list, e)
		}
	}
	s.intervals.Store(&list)
}

// usage is what is in use, others' included, and the limit, in bytes.
func (s *space) usage() (used, limit uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.live, s.budget.Used()) + s.dying, s.bound()
}

// usageOf is what is in use of one device, or may still be.
func (s *space) usageOf(device int) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.liveOn[device] + s.dying
}

// close gives the arenas back. Nothing may run.
func (s *space) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.budget.Release(s.live)
	s.live = 0
	s.intervals.Store(&[]interval{})
	var err error
	for _, ar := range s.arenas {
		err = errors.Join(err, releaseAll(ar.mem), ar.file.close())
	}
	s.arenas = nil
	s.released.Broadcast()
	return err
}
