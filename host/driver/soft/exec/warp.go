package exec

import (
	"math"
	"math/bits"
)

// warp is 32 threads in execution. One goroutine owns it: the worker that runs
// its block. The fields up to at describe the running split; the others wait
// in splits.
type warp struct {
	r     []lanes  // registers of the current frame
	p     []uint32 // predicates of the current frame, a bit per lane
	act   []uint8  // active lanes in ascending order
	mask  uint32   // the same as bits; 0 when no split runs
	pc    int32    // block
	limit int32    // reschedule when pc reaches it
	fr    *frame
	at    *op // operation in progress, for faults

	rng      memRange // device memory seen last
	rngs     [4]memRange
	rngNext  int
	blk      *blockRun
	index    int // in the block
	live     uint32
	splits   []split
	decision uint64 // counts scheduling decisions
	rotate   bool   // next decision favours the split that waited longest
	favoured bool   // the running split is such a one
	patience int    // instructions until rotate is set
	fair     int    // what patience starts from
	budget   int    // instructions left in the slice
	yield    bool   // end the slice early

	local    []byte // lane-major local memory
	localCap uint64 // bytes per lane
	pool     map[*code][]*frame

	instrs, laneInstrs uint64
	scratch            [32]uint8 // act of guarded operations
	active             [32]uint8
	fence              uint32
	tiles              *tiles     // room for products of matrices
	deviceError        [32]uint32 // cudaError_t of the device runtime, by lane
	inPhase            [32]uint64 // cluster barrier: 1 + the phase in which a lane arrived last
}

// frame is one activation of a function for some lanes of a warp. Diverged
// lanes may run in one frame at different blocks, or in different frames.
type frame struct {
	code   *code
	r      []lanes
	p      []uint32
	parent *frame
	depth  int32
	ret    int32 // block of the parent to continue at
	site   *callSite
	live   uint32 // lanes that have not returned
	base   uint64 // of the frame's local memory
}

type splitState uint8

const (
	splitReady splitState = iota
	splitSync             // waits for the lanes in need
	splitBarrier
)

// split is a set of lanes that run together.
type split struct {
	fr       *frame
	pc       int32
	mask     uint32
	need     uint32
	state    splitState
	bar      int32
	site     *barrierSite
	decision uint64
}

var identity = [32]uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}

func listLanes(buf *[32]uint8, m uint32) []uint8 {
	n := 0
	for ; m != 0; m &= m - 1 {
		buf[n&31] = uint8(bits.TrailingZeros32(m))
		n++
	}
	return buf[:n]
}

func (w *warp) setMask(m uint32) {
	w.mask = m
	if m == fullMask {
		w.act = identity[:]
		return
	}
	w.act = listLanes(&w.active, m)
}

// setFrame makes f the current frame.
func (w *warp) setFrame(f *frame) {
	w.fr, w.r, w.p = f, f.r, f.p
}

// newFrame returns a frame for c with constants in place, from the pool if
// there is one.
func (w *warp) newFrame(c *code) *frame {
	if list := w.pool[c]; len(list) > 0 {
		f := list[len(list)-1]
		w.pool[c] = list[:len(list)-1]
		return f
	}
	w.charge(uint64(c.slots)*256 + uint64(c.preds)*4)
	f := &frame{code: c, r: make([]lanes, c.slots), p: make([]uint32, c.preds)}
	for i, v := range c.consts {
		r := &f.r[c.slots-len(c.consts)+i]
		for l := range r {
			r[l] = v
		}
	}
	return f
}

func (w *warp) freeFrame(f *frame) {
	f.parent, f.site = nil, nil
	w.pool[f.code] = append(w.pool[f.code], f)
}

// minFrame is what every call costs of a thread's stack, in bytes.
const minFrame = 64

// start prepares the warp to run c from its first block with the given lanes.
func (w *warp) start(c *code, mask uint32) {
	w.live = mask
	w.splits = w.splits[:0]
	w.rotate, w.favoured = false, false
	w.deviceError = [32]uint32{}
	w.patience, w.fair = fairSlice, fairSlice
	w.forgetRanges()
	f := w.newFrame(c)
	f.depth, f.base, f.live = 0, 0, mask
	w.reserveLocal(c.frame)
	w.setFrame(f)
	w.setMask(mask)
	w.pc, w.limit = 0, math.MaxInt32
}

// reserveLocal makes the warp's local memory hold size bytes per lane.
func (w *warp) reserveLocal(size uint64) {
	if size <= w.localCap {
		return
	}
	if size > w.blk.launch.stack {
		w.fault(StackOverflow, "")
	}
	grown := min(max(size, 2*w.localCap, 1024), w.blk.launch.stack)
	grown = (grown + 15) &^ 15
	w.charge(32 * grown)
	mem := make([]byte, 32*grown)
	for l := uint64(0); l < 32 && w.localCap > 0; l++ {
		copy(mem[l*grown:], w.local[l*w.localCap:(l+1)*w.localCap])
	}
	w.local, w.localCap = mem, grown
}

// run executes until every split waits or ended, or about budget instructions
// were issued. It reports whether a split is ready to continue.
func (w *warp) run(budget int) bool {
	if w.mask == 0 && !w.reschedule() {
		return false
	}
	w.yield = false
	w.budget = budget
	for w.budget > 0 {
		b := &w.fr.code.blocks[w.pc]
		ops := b.ops
		for i := range ops {
			o := &ops[i]
			w.at = o
			o.fn(w, o)
		}
		n := len(ops) + 1
		w.budget -= n
		w.instrs += uint64(n)
		w.laneInstrs += uint64(n) * uint64(len(w.act))
		switch b.term {
		case termJump:
			w.pc = b.next
		case termBranch:
			taken := w.p[b.pred]
			if b.not {
				taken = ^taken
			}
			taken &= w.mask
			switch taken {
			case w.mask:
				w.pc = b.taken
			case 0:
				w.pc = b.next
			default:
				w.diverge(b, taken)
			}
		default:
			w.terminate(b)
		}
		if len(w.splits) > 0 {
			w.patience -= n
			if w.patience < 0 {
				w.losePatience()
			}
		}
		if w.pc >= w.limit || w.mask == 0 {
			if !w.reschedule() {
				return false
			}
		}
		if w.yield {
			break
		}
	}
	return true
}

// diverge splits the running lanes at a branch.
func (w *warp) diverge(b *block, taken uint32) {
	w.park(split{fr: w.fr, pc: b.taken, mask: taken})
	w.setMask(w.mask &^ taken)
	w.pc = b.next
	w.unsettle()
}

func (w *warp) park(s split) {
	s.decision = w.decision
	w.splits = append(w.splits, s)
}

// terminate handles the rarer ways to end a block.
func (w *warp) terminate(b *block) {
	switch b.term {
	case termIndexed:
		w.branchIndexed(b)
	case termCall:
		w.call(b)
	case termRet:
		w.ret()
	case termExit:
		w.exit(w.mask)
	case termSync:
		w.sync(b)
	case termBarrier:
		w.blk.barrier(w, b)
	}
}

func (w *warp) branchIndexed(b *block) {
	idx := &w.r[b.reg]
	for rest := w.mask; rest != 0; {
		v := uint32(idx[bits.TrailingZeros32(rest)&31])
		if uint64(v) >= uint64(len(b.targets)) {
			w.faultLine(b.line, InvalidPC, "brx.idx index out of range")
		}
		var m uint32
		for l := rest; l != 0; l &= l - 1 {
			if i := bits.TrailingZeros32(l); uint32(idx[i&31]) == v {
				m |= 1 << i
			}
		}
		rest &^= m
		w.park(split{fr: w.fr, pc: b.targets[v], mask: m})
	}
	w.mask = 0
}

// exit ends lanes.
func (w *warp) exit(m uint32) {
	w.live &^= m
	w.blk.live -= bits.OnesCount32(m)
	for f := w.fr; f != nil; {
		next := f.parent
		f.live &^= m
		if f.live == 0 {
			w.freeFrame(f)
		}
		f = next
	}
	w.mask = 0
	w.recheckSync()
	if w.blk.cluster != nil {
		w.blk.leaveCluster(w, m)
	}
	w.blk.threadsExited()
}
