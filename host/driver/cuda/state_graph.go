package cuda

import (
	"sync/atomic"

	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// graphState is what a session keeps for graphs and stream capture. Its zero value is ready. Worker
// goroutine, but for active.
type graphState struct {
	graphs  table[*graph]
	nodes   table[*graphNode]
	execs   table[*graphExec]
	objects table[bind.UserObject]

	// By the driver's handle, also those that the guest never named.
	graphOf map[bind.Graph]*graph
	nodeOf  map[bind.GraphNode]*graphNode // by the driver's handle: those with an id

	captures []*streamCapture
	modes    map[uint32]uint32 // capture modes of guest threads; absent: global
	active   atomic.Int32      // len(captures), for other goroutines

	conditions map[uint64]condition // by what kernels know them by

	lost lost
	kept []*event // that the guest has ended, and a graph needs
	// Of a session that may move (graph_memory.go).
	memNodes  map[bind.GraphNode]*memNode // by the driver's handle of what stands for them
	graphMems map[uint64]*graphMem        // by address
	graphMost map[uint32]uint64           // the most that graphs of a device had
}

// graph is a CUgraph: made by the guest, being captured, or part of a node (a child graph, the body
// of a conditional).
type graph struct {
	id     uint32
	handle bind.Graph
	allocs []uint64   // memory that its capture allocated
	parent *graphNode // to which it belongs, and with which it goes
	nodes  map[bind.GraphNode]*graphNode
	clone  clone
	clones []*graph // that are clones of it, as far as is noted
	needs  needs    // of nodes that have no id, as far as is noted
}

// graphNode is a CUgraphNode that has an id.
type graphNode struct {
	id     uint32
	handle bind.GraphNode
	graph  *graph
	inner  []*graph
	cond   *wire.ConditionalNode // of a conditional node
	alloc  uint64                // address of an allocation node's memory
	needs  needs
}

// condition is what a conditional node asks, of a graph.
type condition struct {
	handle bind.GraphConditionalHandle
	graph  *graph
}

// streamCapture is a capture that began on stream and has not been ended.
type streamCapture struct {
	stream *stream
	thread uint32 // guest thread that began it
	mode   uint32
	id     uint64   // as the driver numbers captures
	seen   *graph   // the graph, if the guest has asked for it
	into   *graph   // that was there before, nil: its own
	needs  needs    // of its own graph
	allocs []uint64 // memory that it allocates
	// Of which it is, if it allocates from the session's ranges, and what was freed in it.
	graph bind.Graph
	freed []freedMem
}
