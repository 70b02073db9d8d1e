package exec

import "time"

// specialKind is a special register. Those after perLane differ by lane.
type specialKind uint8

const (
	srZero specialKind = iota
	srOne
	srNtidX
	srNtidY
	srNtidZ
	srCtaidX
	srCtaidY
	srCtaidZ
	srNctaidX
	srNctaidY
	srNctaidZ
	srWarpid
	srNwarpid
	srSmid
	srNsmid
	srGridid
	srClock
	srClockHi
	srGlobaltimer
	srGlobaltimerHi
	srDynSmem
	srTotalSmem
	srReserved
	srReservedEnd
	srGridHi // address of the cooperative grid's barrier
	srGridLo
	srClusterX
	srClusterY
	srClusterZ
	srNclusterX
	srNclusterY
	srNclusterZ
	srInClusterX
	srInClusterY
	srInClusterZ
	srClusterNX
	srClusterNY
	srClusterNZ
	srClusterRank
	srClusterSize
	srIsCluster
	perLane
	srTidX
	srTidY
	srTidZ
	srLaneid
	srMaskEq
	srMaskLt
	srMaskLe
	srMaskGt
	srMaskGe
)

// specials names the special registers. A launch without clusters consists of
// clusters of one block.
var specials = map[string]specialKind{
	"%tid.x": srTidX, "%tid.y": srTidY, "%tid.z": srTidZ, "%tid": srTidX, "%tid.w": srZero,
	"%ntid.x": srNtidX, "%ntid.y": srNtidY, "%ntid.z": srNtidZ, "%ntid": srNtidX,
	"%ctaid.x": srCtaidX, "%ctaid.y": srCtaidY, "%ctaid.z": srCtaidZ, "%ctaid": srCtaidX,
	"%nctaid.x": srNctaidX, "%nctaid.y": srNctaidY, "%nctaid.z": srNctaidZ, "%nctaid": srNctaidX,
	"%laneid": srLaneid, "%warpid": srWarpid, "%nwarpid": srNwarpid, "%smid": srSmid, "%nsmid": srNsmid,
	"%gridid": srGridid, "%clock": srClock, "%clock_hi": srClockHi, "%clock64": srClock,
	"%globaltimer": srGlobaltimer, "%globaltimer_lo": srGlobaltimer, "%globaltimer_hi": srGlobaltimerHi,
	"%lanemask_eq": srMaskEq, "%lanemask_lt": srMaskLt, "%lanemask_le": srMaskLe,
	"%lanemask_gt": srMaskGt, "%lanemask_ge": srMaskGe,
	"%dynamic_smem_size": srDynSmem, "%total_smem_size": srTotalSmem, "%aggr_smem_size": srTotalSmem,
	"%reserved_smem_offset_begin": srReserved, "%reserved_smem_offset_end": srReservedEnd, "%reserved_smem_offset_cap": srReservedEnd,
	"%reserved_smem_offset_0": srReserved, "%reserved_smem_offset_1": srReserved,
	"%clusterid.x": srClusterX, "%clusterid.y": srClusterY, "%clusterid.z": srClusterZ, "%clusterid": srClusterX,
	"%nclusterid.x": srNclusterX, "%nclusterid.y": srNclusterY, "%nclusterid.z": srNclusterZ, "%nclusterid": srNclusterX,
	"%cluster_ctaid.x": srInClusterX, "%cluster_ctaid.y": srInClusterY, "%cluster_ctaid.z": srInClusterZ, "%cluster_ctaid": srInClusterX,
	"%cluster_nctaid.x": srClusterNX, "%cluster_nctaid.y": srClusterNY, "%cluster_nctaid.z": srClusterNZ, "%cluster_nctaid": srClusterNX,
	"%cluster_ctarank": srClusterRank, "%cluster_nctarank": srClusterSize, "%is_explicit_cluster": srIsCluster,
	"%envreg0": srZero, "%envreg1": srGridHi, "%envreg2": srGridLo, "%envreg3": srZero,
	"%pm0": srZero, "%pm1": srZero, "%pm2": srZero, "%pm3": srZero,
}

// specialUniform reads a register that is the same in all lanes. The clock
// counts nanoseconds of the launch.
func (w *warp) specialUniform(k specialKind) uint64 {
	l := w.blk.launch
	c := l.config
	switch k {
	case srOne:
		return 1
	case srNtidX, srNtidY, srNtidZ:
		return uint64(c.Block[k-srNtidX])
	case srCtaidX, srCtaidY, srCtaidZ:
		return uint64(w.blk.ctaid[k-srCtaidX])
	case srNctaidX, srNctaidY, srNctaidZ:
		return uint64(c.Grid[k-srNctaidX])
	case srWarpid:
		return uint64(w.index)
	case srNwarpid:
		return uint64(len(w.blk.warps))
	case srSmid:
		return uint64(w.blk.worker)
	case srNsmid:
		if c.SMs != 0 {
			return uint64(c.SMs)
		}
		return uint64(l.cores)
	case srGridid:
		return c.GridID
	case srClock:
		w.mayspin()
		return uint64(time.Since(l.began))
	case srClockHi:
		return uint64(time.Since(l.began)) >> 32
	case srGlobaltimer:
		w.mayspin()
		return uint64(time.Now().UnixNano())
	case srGlobaltimerHi:
		return uint64(time.Now().UnixNano()) >> 32
	case srDynSmem:
		return uint64(c.DynShared)
	case srTotalSmem:
		return l.shared
	case srReserved:
		return l.shared - reservedShared
	case srReservedEnd:
		return l.shared
	case srClusterX, srClusterY, srClusterZ:
		if w.blk.cluster == nil {
			return uint64(w.blk.ctaid[k-srClusterX])
		}
		return uint64(w.blk.clusterID[k-srClusterX])
	case srNclusterX, srNclusterY, srNclusterZ:
		return uint64(c.Grid[k-srNclusterX] / l.clusterOf()[k-srNclusterX])
	case srInClusterX, srInClusterY, srInClusterZ:
		return uint64(w.blk.inCluster[k-srInClusterX])
	case srClusterNX, srClusterNY, srClusterNZ:
		return uint64(l.clusterOf()[k-srClusterNX])
	case srClusterRank:
		return uint64(w.blk.rank)
	case srClusterSize:
		return uint64(max(l.cluster, 1))
	case srIsCluster:
		return uint64(min(l.cluster, 1))
	case srGridHi:
		if l.grid != nil {
			return gridWindow >> 32
		}
	case srGridLo:
		return gridWindow & fullMask
	}
	return 0
}
