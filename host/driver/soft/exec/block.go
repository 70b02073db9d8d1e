package exec

import "math/bits"

// barriers is the number of named barriers of a block.
const barriers = 16

// clusterBarrier is the number of the barrier behind barrier.cluster, which
// programs cannot name.
const clusterBarrier = barriers

// blockRun is one block in execution. A worker owns it; it is reused for the
// blocks that the worker runs one after another.
type blockRun struct {
	launch *launch
	ctaid  [3]uint32
	number uint64
	worker int
	warps  []*warp
	live   int // threads that have not ended
	shared []byte
	bars   [barriers + 1]barrierState

	cluster   *clusterRun // nil: the block is alone
	rank      uint32      // in the cluster
	clusterID [3]uint32
	inCluster [3]uint32

	ranges    [8]memRange // device memory that the block's warps have touched
	rangeNext int
}

// barrierState is one named barrier in the current phase.
type barrierState struct {
	arrived int
	need    int // 0: all live threads
	accum   uint64
	or, and bool
}

// barrierSite is a barrier instruction.
type barrierSite struct {
	id, count int32 // slots; count -1: all threads
	wait      bool  // false for arrive
	red       barRed
	dst       int32 // slot, or predicate for and/or
	pred      int32
	not       bool
	cluster   bool
}

type barRed uint8

const (
	redNone barRed = iota
	redPopc
	redAnd
	redOr
)

// start prepares block number n of the launch.
func (b *blockRun) start(n uint64) {
	g := &b.launch.config.Grid
	b.number = n
	b.ctaid = [3]uint32{uint32(n % uint64(g[0])), uint32(n / uint64(g[0]) % uint64(g[1])), uint32(n / uint64(g[0]) / uint64(g[1]))}
	b.bars = [barriers + 1]barrierState{}
	b.live = b.launch.threads
	b.ranges = [8]memRange{}
	for i, w := range b.warps {
		mask := uint32(fullMask)
		if rest := b.launch.threads - i*32; rest < 32 {
			mask = 1<<rest - 1
		}
		w.start(b.launch.kernel.code, mask)
	}
}

// step lets every warp that can run have a slice. It reports whether all
// threads have ended.
func (b *blockRun) step() bool {
	progress := false
	for _, w := range b.warps {
		if w.live == 0 || w.mask == 0 && !w.anyReady() {
			continue
		}
		progress = true
		w.run(slice)
	}
	if b.live == 0 {
		return true
	}
	if c := b.cluster; c != nil {
		if progress {
			c.idle = 0
		} else if c.idle++; c.idle <= 2*len(c.blocks) {
			return false // another block may let this one go on
		}
	}
	if !progress {
		for _, w := range b.warps {
			progress = w.forceSync() || progress
		}
		if !progress {
			b.deadlock()
		}
	}
	return false
}

// slice is the number of instructions that a warp issues before the next warp
// runs and cancellation is looked at: a fraction of a millisecond.
const slice = 5_000

func (w *warp) anyReady() bool {
	for i := range w.splits {
		if w.splits[i].state == splitReady {
			return true
		}
	}
	return false
}

func (b *blockRun) deadlock() {
	for _, w := range b.warps {
		for i := range w.splits {
			s := &w.splits[i]
			w.setFrame(s.fr)
			w.setMask(s.mask)
			w.at = nil
			w.faultLine(0, Deadlock, "threads wait at a barrier that the others have not reached")
		}
	}
	panic(&Fault{Kind: Deadlock})
}

// barrier makes the running lanes of w arrive at a barrier.
func (b *blockRun) barrier(w *warp, blk *block) {
	s := blk.bar
	w.pc = blk.next
	if s.cluster {
		switch {
		case b.cluster != nil && s.wait:
			b.clusterWait(w, blk)
			return
		case b.cluster != nil:
			b.clusterArrive(w)
			return
		case !s.wait: // alone: waiting is a barrier of the block
			return
		}
	}
	first := bits.TrailingZeros32(w.mask) & 31
	id := uint32(w.r[s.id][first])
	if id >= barriers && !s.cluster {
		w.faultLine(blk.line, IllegalInstruction, "barrier number out of range")
	}
	bar := &b.bars[id]
	if s.count >= 0 {
		bar.need = int(min(uint32(w.r[s.count][first]), 1024))
	}
	if bar.arrived == 0 {
		bar.accum, bar.or, bar.and = 0, false, true
	}
	bar.arrived += bits.OnesCount32(w.mask)
	if s.red != redNone {
		p := w.p[s.pred]
		if s.not {
			p = ^p
		}
		p &= w.mask
		bar.accum += uint64(bits.OnesCount32(p))
		bar.or = bar.or || p != 0
		bar.and = bar.and && p == w.mask
	}
	if s.wait {
		w.park(split{fr: w.fr, pc: blk.next, mask: w.mask, state: splitBarrier, bar: int32(id), site: s})
		w.mask = 0
	}
	b.tryRelease(int32(id))
}

// tryRelease lets the threads of a complete barrier go.
func (b *blockRun) tryRelease(id int32) {
	bar := &b.bars[id]
	need := bar.need
	if need == 0 {
		need = b.live
	}
	if bar.arrived == 0 || bar.arrived < need {
		return
	}
	for _, w := range b.warps {
		for i := range w.splits {
			s := &w.splits[i]
			if s.state != splitBarrier || s.bar != id {
				continue
			}
			s.state = splitReady
			deliver(s, bar)
		}
		w.limit = min(w.limit, w.readyLimit())
	}
	*bar = barrierState{}
}

// readyLimit returns -1 when w must look at its splits again.
func (w *warp) readyLimit() int32 {
	if len(w.splits) > 0 {
		return -1
	}
	return w.limit
}

// deliver writes a barrier reduction's result.
func deliver(s *split, bar *barrierState) {
	switch s.site.red {
	case redPopc:
		for m := s.mask; m != 0; m &= m - 1 {
			s.fr.r[s.site.dst][bits.TrailingZeros32(m)&31] = bar.accum
		}
	case redAnd, redOr:
		v := s.site.red == redAnd && bar.and || s.site.red == redOr && bar.or
		p := &s.fr.p[s.site.dst]
		*p &^= s.mask
		if v {
			*p |= s.mask
		}
	}
}

// threadsExited completes barriers that waited for threads which ended.
func (b *blockRun) threadsExited() {
	if b.live == 0 {
		return
	}
	for id := range b.bars {
		if b.bars[id].arrived > 0 && b.bars[id].need == 0 {
			b.tryRelease(int32(id))
		}
	}
}
