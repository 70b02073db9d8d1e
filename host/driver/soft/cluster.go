package soft

import "causeway/cuda"

// Blocks of a cluster: what every GPU of the architecture takes, and what this one does.
const (
	portableCluster = 8
	largestCluster  = 16
)

// largest is how many blocks a cluster of the kernel may have.
func (e *entry) largest() uint64 {
	if e.setting(nonPortable) != 0 {
		return largestCluster
	}
	return portableCluster
}

// checkCluster judges the clusters of a launch, by attribute or by the kernel.
func (l *launch) checkCluster(e *entry) cuda.Result {
	want := e.code.Attributes().RequiredCluster
	if want != [3]uint32{} && l.cluster != [3]uint32{} && l.cluster != want {
		return cuda.ErrorInvalidClusterSize
	}
	if l.cluster == [3]uint32{} {
		l.cluster = want
	}
	if l.cluster == [3]uint32{} {
		if e.code.Attributes().ExplicitCluster {
			return cuda.ErrorInvalidClusterSize
		}
		return cuda.Success
	}
	for i, n := range l.cluster {
		if n == 0 || n > largestCluster || l.grid[i]%n != 0 {
			return cuda.ErrorInvalidClusterSize
		}
	}
	if l.blocks() > e.largest() {
		return cuda.ErrorInvalidClusterSize
	}
	return cuda.Success
}

// blocks is the size of a cluster of the launch, 1 if there are none.
func (l *launch) blocks() uint64 {
	if l.cluster == [3]uint32{} {
		return 1
	}
	return uint64(l.cluster[0]) * uint64(l.cluster[1]) * uint64(l.cluster[2])
}
