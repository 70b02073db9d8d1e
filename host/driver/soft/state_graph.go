package soft

import (
	"causeway/cuda/wire"
)

// graphState is what a session keeps for graphs and stream capture. Its zero value is ready. The
// worker owns it, but for the values of conditions.
type graphState struct {
	graphs     map[wire.ID]*graph
	nodes      map[wire.ID]*graphNode
	execs      map[wire.ID]*graphExec
	objects    map[wire.ID]*userObject
	nodeCount  int
	lastSerial uint64

	captures    []*streamCapture
	lastCapture uint64
	marks       map[*event]*captureMark // events last recorded in a capture
	modes       map[uint32]uint32       // capture modes of guest threads; absent: global
	recording   *recording

	conditions conditionTable
	graphMem   map[uint64]*graphAlloc // by address
	memHigh    uint64

	ending       []*graphExec // that were destroyed with launches queued
	graphMemLeft int          // how many of them were in use when that was looked at
}
