package cuda

import "sync/atomic"

// graphState is what a session keeps for graphs and stream capture. Its zero value is ready. Worker goroutine, but for active.
type graphState struct {
	graphs  table[*graph]
	nodes   table[*graphNode]
	execs   table[*graphExec]
	objects table[uint64] // user objects

	graphOf map[uint64]*graph     // by the driver's handle, also those that the guest never named
	nodeOf  map[uint64]*graphNode // by the driver's handle: those with an id

	captures []*streamCapture
	modes    map[uint32]uint32 // capture modes of guest threads; absent: global
	active   atomic.Int32      // len(captures), for other goroutines
	modeWord buffer            // in and out parameter of cuThreadExchangeStreamCaptureMode on the worker's thread

	graphAllocs map[uint64]uint64 // memory of allocation nodes: address to size
}

// graph is a CUgraph: made by the guest, being captured, or part of a node (a child graph, the body of a conditional).
type graph struct {
	id     uint32
	handle uint64
	inner  bool // belongs to a node, with which it goes
	nodes  map[uint64]*graphNode
}

// graphNode is a CUgraphNode that has an id.
type graphNode struct {
	id     uint32
	handle uint64
	graph  *graph
	inner  []*graph
}

type graphExec struct{ handle uint64 }

// streamCapture is a capture that began on stream and has not been ended.
type streamCapture struct {
	stream *stream
	thread uint32 // guest thread that began it
	mode   uint32
	id     uint64 // as the driver numbers captures
	seen   *graph // the graph, if the guest has asked for it
	into   bool   // the graph was there before
}
