package exec

import (
	"math/bits"

	"causeway/host/driver/soft/ptx"
)

// Blocks of a cluster run on one worker, one slice after another, so that they
// need no locks between them. In 32-bit shared addresses the bits from
// clusterShift say whose memory is meant: 0 the block's own, else the rank in
// the cluster plus one.
const (
	clusterShift = 24
	ownShared    = 1 << clusterShift
	maxCluster   = 16 // blocks
)

// clusterRun is the state that the blocks of a cluster share.
type clusterRun struct {
	blocks  []*blockRun
	live    int // blocks that have not ended
	phase   uint64
	arrived int // threads, in this phase
	idle    int // steps of blocks since one of them went on
}

// clusterOf is the cluster's shape, all ones if there is none.
func (l *launch) clusterOf() [3]uint32 {
	if l.cluster == 0 {
		return [3]uint32{1, 1, 1}
	}
	return l.config.Cluster
}

// joinCluster gives a block its place in cluster number n.
func (b *blockRun) joinCluster(c *clusterRun, n uint64, rank uint32) {
	g, shape := &b.launch.config.Grid, b.launch.config.Cluster
	across, down := uint64(g[0]/shape[0]), uint64(g[1]/shape[1])
	b.cluster, b.rank = c, rank
	b.clusterID = [3]uint32{uint32(n % across), uint32(n / across % down), uint32(n / across / down)}
	b.inCluster = [3]uint32{rank % shape[0], rank / shape[0] % shape[1], rank / shape[0] / shape[1]}
	for i := range b.ctaid {
		b.ctaid[i] = b.clusterID[i]*shape[i] + b.inCluster[i]
	}
	b.number = uint64(b.ctaid[0]) + uint64(g[0])*(uint64(b.ctaid[1])+uint64(g[1])*uint64(b.ctaid[2]))
	for _, w := range b.warps {
		w.inPhase = [32]uint64{}
	}
}

// sharedOf is the shared memory that a cluster's address means, and the offset
// in it; nil if there is none.
func (b *blockRun) sharedOf(addr uint64) ([]byte, uint64) {
	who := addr >> clusterShift
	if who == 0 {
		return b.shared, addr
	}
	if b.cluster == nil {
		if who == 1 {
			return b.shared, addr % ownShared
		}
		return nil, 0
	}
	if who > uint64(len(b.cluster.blocks)) {
		return nil, 0
	}
	return b.cluster.blocks[who-1].shared, addr % ownShared
}

// clusterArrive counts the running lanes in.
func (b *blockRun) clusterArrive(w *warp) {
	c := b.cluster
	for _, l := range w.act {
		w.inPhase[l&31] = c.phase + 1
	}
	c.arrived += bits.OnesCount32(w.mask)
	c.tryComplete()
}

// clusterWait parks the lanes whose phase is not over.
func (b *blockRun) clusterWait(w *warp, blk *block) {
	var wait uint32
	for _, l := range w.act {
		if w.inPhase[l&31] == b.cluster.phase+1 {
			wait |= 1 << (l & 31)
		}
	}
	if wait == 0 {
		return
	}
	w.park(split{fr: w.fr, pc: blk.next, mask: wait, state: splitBarrier, bar: clusterBarrier, site: blk.bar})
	if rest := w.mask &^ wait; rest != 0 {
		w.setMask(rest)
		w.unsettle()
		return
	}
	w.mask = 0
}

// tryComplete ends the phase when all threads that live have arrived.
func (c *clusterRun) tryComplete() {
	threads := 0
	for _, b := range c.blocks {
		threads += b.live
	}
	if c.arrived == 0 || c.arrived < threads {
		return
	}
	c.phase++
	c.arrived = 0
	for _, b := range c.blocks {
		for _, w := range b.warps {
			for i := range w.splits {
				if s := &w.splits[i]; s.state == splitBarrier && s.bar == clusterBarrier {
					s.state = splitReady
				}
			}
			w.limit = min(w.limit, w.readyLimit())
		}
	}
}

// leaveCluster is called when lanes m of w have ended.
func (b *blockRun) leaveCluster(w *warp, m uint32) {
	for ; m != 0; m &= m - 1 {
		if w.inPhase[firstLane(m)] == b.cluster.phase+1 {
			b.cluster.arrived--
		}
	}
	b.cluster.tryComplete()
}

// lowerMapa gives the address of a variable in another block's shared memory.
func lowerMapa(l *lowerer) error {
	t := l.typ()
	if l.has("shared::cluster") {
		return l.map2(t, ptx.U32, func(a, rank uint64) uint64 {
			return (rank&0x7f+1)<<clusterShift | a%ownShared
		})
	}
	return l.map2(ptx.U64, ptx.U32, func(a, rank uint64) uint64 {
		return sharedWindow + ((rank&0x7f+1)<<clusterShift | a%ownShared)
	})
}

// lowerGetctarank is the reverse: whose memory an address means.
func lowerGetctarank(l *lowerer) error {
	if err := l.need(2); err != nil {
		return err
	}
	d, err := l.dst(0)
	if err != nil {
		return err
	}
	t := ptx.U64
	if l.has("shared::cluster") {
		t = l.typ()
	}
	a, err := l.src(1, t)
	l.emit(op{fn: opGetctarank, d: d, a: a})
	return err
}

func opGetctarank(w *warp, o *op) {
	for _, l := range w.act {
		who := w.r[o.a][l&31] & fullMask >> clusterShift
		if who == 0 {
			who = uint64(w.blk.rank) + 1
		}
		w.r[o.d][l&31] = who - 1
	}
}
