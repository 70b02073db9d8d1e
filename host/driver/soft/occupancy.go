package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// active is how many blocks a core holds at once, by threads, shared memory and number of blocks.
// Registers are no limit.
func (e *entry) active(threads int32, dynamic uint64) int32 {
	attrs := e.code.Attributes()
	if threads > int32(attrs.MaxThreadsPerBlock) || dynamic > uint64(e.dynamic()) {
		return 0
	}
	rounded := (threads + warpSize - 1) &^ (warpSize - 1)
	blocks := min(blocksPerSM, threadsPerSM/rounded)
	if shared := uint64(attrs.SharedBytes) + dynamic; shared > 0 {
		blocks = min(blocks, int32(min(sharedPerSM/shared, blocksPerSM)))
	}
	return blocks
}

// OccupancyMaxActiveBlocks is how many blocks of a kernel a core holds at once.
func (s *session) OccupancyMaxActiveBlocks(c *wire.Call, a *wire.OccupancyMaxActiveBlocksArgs, r *wire.OccupancyMaxActiveBlocksReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if a.Block <= 0 || a.Flags&^cuda.OccupancyDisableCachingOverride != 0 {
		return cuda.ErrorInvalidValue
	}
	r.Blocks = f.entry.active(a.Block, a.Dynamic)
	return cuda.Success
}

// OccupancyAvailableDynamicSMem is the dynamic shared memory with which a core still holds a number
// of blocks.
func (s *session) OccupancyAvailableDynamicSMem(c *wire.Call, a *wire.OccupancyAvailableDynamicSMemArgs, r *wire.OccupancyAvailableDynamicSMemReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	if a.Block <= 0 || a.Blocks <= 0 || a.Blocks > f.entry.active(a.Block, 0) {
		return cuda.ErrorInvalidValue
	}
	static := uint64(f.entry.code.Attributes().SharedBytes)
	share := uint64(sharedPerSM) / uint64(a.Blocks)
	r.Bytes = min(share, sharedOptIn) - min(static, share)
	return cuda.Success
}

// OccupancyMaxActiveClusters is how many clusters of a launch the device holds at once. The blocks
// of one share a core.
func (s *session) OccupancyMaxActiveClusters(c *wire.Call, a *wire.OccupancyMaxActiveClustersArgs, r *wire.OccupancyMaxActiveClustersReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res != cuda.Success {
		return res
	}
	l := launch{grid: [3]uint32{a.Gx, a.Gy, a.Gz}, block: [3]uint32{a.Bx, a.By, a.Bz}, dynamic: a.Shared, params: make([]byte, f.entry.code.ParamBytes())}
	if res := s.attributes(&l, a.Attrs); res != cuda.Success {
		return res
	}
	if res := l.check(f.entry); res != cuda.Success {
		return res
	}
	r.Clusters = max(f.entry.active(int32(l.threads()), uint64(a.Shared))/int32(l.blocks()), 1) * int32(s.gpus[f.mod.device].cores)
	return cuda.Success
}

// OccupancyMaxPotentialClusterSize is the largest cluster that a kernel can have.
func (s *session) OccupancyMaxPotentialClusterSize(c *wire.Call, a *wire.OccupancyMaxPotentialClusterSizeArgs, r *wire.OccupancyMaxPotentialClusterSizeReply) cuda.Result {
	f, res := s.function(c, a.Func)
	if res == cuda.Success {
		r.Size = int32(f.entry.largest())
	}
	return res
}
