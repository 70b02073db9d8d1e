package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

/*
A session that may move has the memory of cuMemAlloc, cuMemAllocPitch and pools in ranges of
addresses that this process reserves, one for each device, so that another process can give the same
addresses out again. A range's size is fixed and its base a multiple of that: any address tells
which range it is of, and nothing but the addresses of allocations need travel. Where a range lies
is drawn when a session first allocates.

The driver frees when the context's work is done. Here a large block does too; small ones wait among
the dying until there are many of them, so that a free costs no synchronisation, and are given out
again only behind one.
*/

const (
	rangeSize = 1 << 39 // of addresses: more than a GPU has memory
	// Where ranges may lie: low ones that H200s honour (host programs have nothing there), else
	// those that the software GPU leaves to its guests.
	lowRanges, highRanges = 0x6000_0000_0000, 0x7400_0000_0000
	rangeChoices          = 8

	mostDying = 1 << 20 // bytes of small blocks that wait for a synchronisation
)

// arenas is a session's memory at addresses of its own choice. Worker goroutine.
type arenas struct {
	on     bool // the session may move
	ranges map[uint32]*addressRange
	dying  []uint64
	waits  uint64                     // bytes of dying
	left   map[uint32]bool            // contexts that may have work of streams that are gone
	reach  map[uint32]map[uint32]bool // devices that have memory of a device mapped, beside itself
	peers  map[[2]uint32]bool         // which devices can reach which's memory

	running  running
	lent     bool                // another process takes over what backs the ranges
	borrowed map[uint64]borrowed // by address; of a session that comes
	coming   coming

	variables map[instance][]moduleVar
	forgotten uint32             // how often some were
	names     map[owner][]string // of variables of code
	opaque    map[owner]string   // code whose variables cannot be told, and why
}

// addressRange is a device's. It backs its arena's pages.
type addressRange struct {
	s     *session
	dev   uint32
	all   bind.Mem
	pages map[uint64]backed
	// pages of other sessions': where what was opened of them begins, by where they do
	theirs map[uint64]uint64
	// What backs the next pages that are given out, or nothing does: another session's.
	next *backed
	*arena.Arena
}

type backed struct {
	mem    bind.Mem
	handle bind.MemGenericAllocationHandle
	came   bool // from another process, by file
	file   int
	theirs bool // another session's
}

// rangeOf is the range of a device, which is reserved if there is none: around an address, or
// anywhere for 0.
func (s *session) rangeOf(dev uint32, addr uint64) (*addressRange, cuda.Result) {
	if r := s.arenas.ranges[dev]; r != nil {
		return r, cuda.Success
	}
	places := []uint64{addr &^ (rangeSize - 1)}
	if addr == 0 {
		places = places[:0]
		for _, base := range []uint64{lowRanges, highRanges} {
			for _, i := range rand.Perm(rangeChoices) {
				places = append(places, base+uint64(i)*rangeSize)
			}
		}
	}
	for _, at := range places {
		m, res := s.drv.MemAddressReserve(rangeSize, rangeSize, bind.Hint(at), 0)
		if res != cuda.Success {
			continue
		}
		if m.Address().Value() != at {
			s.drv.MemAddressFree(m)
			continue
		}
		r := &addressRange{s: s, dev: dev, all: m, pages: map[uint64]backed{}}
		r.Arena = arena.New(at, rangeSize, r)
		if s.arenas.ranges == nil {
			s.arenas.ranges = map[uint32]*addressRange{}
		}
		s.arenas.ranges[dev] = r
		s.space.Hold(s.block)
		return r, cuda.Success
	}
	return nil, cuda.ErrorOutOfMemory
}

// Back implements arena.Backing.
func (r *addressRange) Back(at, size uint64) (err error) {
	if r.s.opt.Rehearsal {
		return nil
	}
	if r.next != nil {
		return r.backTheirs(at, size)
	}
	p, ok := r.s.arenas.coming.takePages(r, at, size)
	if !ok {
		p, err = r.put(at, size)
	}
	if err == nil {
		r.pages[at] = p
	}
	return err
}

// put has memory behind addresses.
func (r *addressRange) put(at, size uint64) (backed, error) {
	p, res := r.physical(at, size)
	if res != cuda.Success {
		return p, res
	}
	return r.mapAt(at, size, p)
}

// mapAt is put with memory that is there, which is given back if that fails.
func (r *addressRange) mapAt(at, size uint64, p backed) (backed, error) {
	m, ok := r.all.From(at, size)
	if !ok {
		r.free(p)
		return backed{}, arena.ErrNoAddresses
	}
	d := r.s.drv
	res := d.MemMap(m, 0, p.handle, 0)
	if res != cuda.Success {
		r.free(p)
		return p, res
	}
	if res = d.MemSetAccess(m, r.access()); res != cuda.Success {
		d.MemUnmap(m)
		r.free(p)
		return p, res
	}
	p.mem = m
	return p, nil
}

// Unback implements arena.Backing.
func (r *addressRange) Unback(at, _ uint64) {
	p, ok := r.pages[at]
	if !ok {
		return
	}
	delete(r.pages, at)
	r.drop(p)
}

// drop undoes put.
func (r *addressRange) drop(p backed) {
	r.s.note(r.s.drv.MemUnmap(p.mem))
	r.s.note(r.free(p))
}

// arenaOf is the range that an address is of, nil if none.
func (s *session) arenaOf(addr uint64) *addressRange {
	for _, r := range s.arenas.ranges {
		if r.Contains(addr) {
			return r
		}
	}
	return nil
}

// block implements what bind.Space asks of addresses that this session gives out by itself: what of
// the ranges is not the guest's is nobody's.
func (s *session) block(addr uint64) (m bind.Mem, ours bool) {
	r := s.arenaOf(addr)
	if r == nil {
		return bind.Mem{}, false
	}
	if at, ok := r.Block(addr); ok {
		if a, ok := s.allocs[at]; ok && addr-at < a.size {
			m, _ = r.all.From(at, a.size)
		} else if ptr, ok := r.theirs[at]; ok && addr-ptr < s.opened[ptr].size {
			m, _ = r.all.From(ptr, s.opened[ptr].size)
		}
	}
	return m, true
}

// obtain allocates size bytes, which are charged, on the device of the call's context: for a call
// that is made again where it did then.
func (s *session) obtain(c *wire.Call, size uint64) (bind.Address, cuda.Result) {
	ctx, ok := s.ctxs.get(c.Ctx)
	if !ok {
		return bind.Address{}, cuda.ErrorInvalidContext
	}
	if size == 0 {
		return bind.Address{}, cuda.ErrorInvalidValue
	}
	if s.capturing() {
		// What a capture forbids the driver forbids: it is asked for memory that is given back.
		if res := s.CaptureUnsafe(c); res != cuda.Success {
			return bind.Address{}, res
		}
	}
	return s.obtainOn(c, ctx.dev, size)
}

// obtainOn does so on a device.
func (s *session) obtainOn(c *wire.Call, dev uint32, size uint64) (bind.Address, cuda.Result) {
	addr, again := c.Place()
	r, res := s.rangeOf(dev, addr)
	if res != cuda.Success {
		if again {
			c.Because("%d GiB of addresses around %#x are not free", rangeSize>>30, addr)
		}
		return bind.Address{}, res
	}
	alloc := func() (err error) {
		if again {
			return r.AllocAt(addr, size)
		}
		addr, err = r.Alloc(size)
		return err
	}
	err := alloc()
	if res := resultOf(err); res == cuda.ErrorOutOfMemory && (s.surrender() || s.reclaim() == cuda.Success) {
		r.Trim()
		err = alloc()
	}
	if err != nil {
		if again {
			c.Because("%d bytes at %#x: %v", size, addr, err)
		}
		return bind.Address{}, resultOf(err)
	}
	m, _ := r.all.From(addr, size)
	return m.Address(), cuda.Success
}

func resultOf(err error) cuda.Result {
	if err == nil {
		return cuda.Success
	}
	if res := cuda.Result(0); errors.As(err, &res) {
		return res
	}
	return cuda.ErrorOutOfMemory
}

// giveBack frees memory of a range: at once if it is large and no capture forbids to wait, else
// behind the next synchronisation.
func (s *session) giveBack(r *addressRange, m allocation) cuda.Result {
	addr := m.at.Value()
	s.arenas.running.ends(addr)
	s.arenas.dying = append(s.arenas.dying, addr)
	s.arenas.waits += m.size
	if m.size < arena.Large && s.arenas.waits < mostDying {
		return cuda.Success
	}
	return s.reclaim()
}

// reclaim waits for the session's work and ends what was freed before. While a stream captures, or
// a context lingers whose work would hold up the requests that it waits for, nothing is done.
func (s *session) reclaim() cuda.Result {
	a := &s.arenas
	if len(a.dying) == 0 || s.capturing() || len(s.lingering) > 0 {
		return cuda.Success
	}
	was, res := s.current, cuda.Success
	for id, ctx := range s.ctxs.m {
		if ctx.handle.IsZero() || !s.working(id) {
			continue
		}
		if r := s.useContext(id); r != cuda.Success {
			continue
		}
		delete(a.left, id)
		if r := s.note(s.drv.CtxSynchronize()); r != cuda.Success && res == cuda.Success {
			res = r // of a context that died: nothing of it runs any more
		}
	}
	if was != s.current && was != 0 {
		s.useContext(was)
	}
	dying := a.dying
	a.dying, a.waits = nil, 0
	for _, addr := range dying {
		if r := s.arenaOf(addr); r != nil {
			r.Free(addr)
		}
	}
	return res
}

// working reports whether streams of a context may have work.
func (s *session) working(ctx uint32) bool {
	if s.arenas.left[ctx] {
		return true
	}
	for st := range s.everyStream() {
		if (st.ctx == ctx || st.green != 0) && st.busy() {
			return true
		}
	}
	return false
}

// endArenas frees what contexts that are gone had, when the driver frees its own.
func (s *session) endArenas(list []allocation) {
	for _, m := range list {
		if s.arenaOf(m.at.Value()) != nil {
			s.arenas.dying = append(s.arenas.dying, m.at.Value())
			s.arenas.waits += m.size
		}
	}
	s.reclaim()
}

// pitchOf is the distance of rows in an allocation of cuMemAllocPitch.
func pitchOf(width, height uint64, element uint32) (pitch, size uint64, res cuda.Result) {
	// As the driver does, with CU_DEVICE_ATTRIBUTE_MAX_PITCH of every GPU.
	const unit, most = 512, 1<<31 - 1
	if width == 0 || height == 0 || width > most || !slices.Contains([]uint32{4, 8, 16}, element) {
		return 0, 0, cuda.ErrorInvalidValue
	}
	pitch = (width + unit - 1) &^ (unit - 1)
	size, ok := bind.Bytes(height, pitch)
	if !ok {
		return 0, 0, cuda.ErrorOutOfMemory
	}
	return pitch, size, cuda.Success
}

// asPlaced compares what the driver has chosen with what it chose when a call was made first, which
// the guest and its kernels know.
func (s *session) asPlaced(c *wire.Call, what string, got uint64) cuda.Result {
	if !c.Replay {
		if s.arenas.on {
			c.Placed = append(c.Placed, got)
		}
		return cuda.Success
	}
	if want, ok := c.Place(); ok && want != got {
		c.Because("%s comes out at %#x, and was at %#x", what, got, want)
		return cuda.ErrorNotSupported
	}
	return cuda.Success
}
