package worker

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

/*
What a driver keeps of graphs is the session's to have room for, as objects and images are: a node
is a record of the guest's in the driver's memory, there is another in each copy of its graph and in
what is executable of it, and one request makes a copy of them all. So what is in a graph is counted
by the graph, and a copy takes as much as what it is a copy of.
*/

// What is booked for a node, parameters of usual length and the worker's bookkeeping included; for
// an edge; for a user object, and for a graph's reference to one. A driver (580, on an H200) has
// 1.9 KB for a node, and for one of something executable execTimes as much; of 20,000 nodes that
// wait for none 21 KB.
const (
	nodeBytes = 2048
	execTimes = 3
	edgeBytes = 64
	userBytes = 384
	refBytes  = 64

	usualParams = 256
)

// longBytes is what is booked besides for a node with long parameters: the worker and the driver
// have them.
func longBytes(params []byte) uint64 {
	if len(params) <= usualParams {
		return 0
	}
	return 2 * uint64(len(params))
}

// within has an operation make something, if so many bytes of host memory are to be had. They stay
// booked if it does.
func (f *front) within(n uint64, do func() cuda.Result) cuda.Result {
	if !f.w.host.reserve(n) {
		return cuda.ErrorOutOfMemory
	}
	res := do()
	if res != cuda.Success {
		f.w.host.release(n)
	}
	return res
}

// nodesOf is what a copy of a graph takes: of one inside another no more is known than what that
// one takes.
func (g *graphs) nodesOf(id wire.ID) uint64 {
	if g.keeper == nil {
		return 0
	}
	l := g.root(id)
	if l == nil {
		return 0
	}
	return l.nodes + refBytes*uint64(len(l.users))
}

// execOf is what something executable of a graph takes.
func (g *graphs) execOf(id wire.ID) uint64 { return execTimes * g.nodesOf(id) }

// takes notes what was booked for something in a graph. Without a graph it is given back.
func (g *graphs) takes(l *liveGraph, n uint64) {
	if l == nil {
		g.w.host.release(n)
		return
	}
	l.cost, l.nodes = l.cost+n, l.nodes+n
}

// gives gives it back.
func (g *graphs) gives(l *liveGraph, n uint64) {
	n = min(n, l.nodes)
	l.cost, l.nodes = l.cost-n, l.nodes-n
	g.w.host.release(n)
}

// nodeExtra is what is booked for a node besides: for long parameters; for the edges that it was
// made with, and for the graph inside it.
type nodeExtra struct{ params, rest uint64 }

// note remembers that, for when the node ends.
func (l *liveGraph) note(serial uint64, x nodeExtra) {
	switch {
	case l == nil:
	case x == nodeExtra{}:
		delete(l.beside, serial)
	default:
		if l.beside == nil {
			l.beside = map[uint64]nodeExtra{}
		}
		l.beside[serial] = x
	}
}

// mayCapture reserves what an operation takes if it becomes a node: 0 for one that cannot. False:
// there is no room.
func (g *graphs) mayCapture(info *wire.OpInfo, length int) (fee uint64, ok bool) {
	if info.Capture != wire.CaptureNode || g.keeper == nil || !g.keeper.Capturing() {
		return 0, true
	}
	fee = nodeBytes + 2*uint64(length)
	return fee, g.w.host.reserve(fee)
}

// settleCapture keeps that for the graph of the capture, if it did.
func (g *graphs) settleCapture(c *wire.Call, a wire.Args, fee uint64, did bool) {
	if on, ok := a.(wire.Streamed); ok && did {
		if id, captures := g.captureOn(c, on.OnStream()); captures {
			g.taken[id] += fee
			return
		}
	}
	g.w.host.release(fee)
}

// forgetCapture gives back what nothing came of.
func (g *graphs) forgetCapture(id uint64) {
	g.w.host.release(g.taken[id])
	delete(g.taken, id)
}

// settleCaptures does so where nothing captures: captures end with their streams and contexts, too.
func (g *graphs) settleCaptures() {
	if g.keeper.Capturing() {
		return
	}
	for id := range g.taken {
		g.forgetCapture(id)
	}
}

// GraphLaunch implements wire.Driver. On a stream that captures it is a node with a copy of the
// graph in it.
func (f *front) GraphLaunch(c *wire.Call, a *wire.GraphLaunchArgs) cuda.Result {
	g := &f.w.graphs
	id, captures := g.captureOn(c, a.Stream)
	x := g.execs[a.Exec]
	if !captures || x == nil {
		return f.Session.GraphLaunch(c, a)
	}
	res := f.within(x.nodes, func() cuda.Result { return f.Session.GraphLaunch(c, a) })
	if res == cuda.Success {
		g.taken[id] += x.nodes
	}
	return res
}

// GraphDebugDot implements wire.Driver. The driver writes the text into memory before anybody knows
// how long it is: about as much as the graph takes.
func (f *front) GraphDebugDot(c *wire.Call, a *wire.GraphDebugDotArgs, r *wire.GraphDebugDotReply) cuda.Result {
	n := f.w.graphs.nodesOf(a.Graph)
	if !f.w.host.reserve(n) {
		return cuda.ErrorOutOfMemory
	}
	defer f.w.host.release(n)
	return f.Session.GraphDebugDot(c, a, r)
}

// nodesBytes is what is booked for what is in a graph like the plan.
func (p *graphPlan) nodesBytes() uint64 {
	n := edgeBytes * uint64(len(p.edges))
	for i := range p.nodes {
		n += nodeBytes + longBytes(p.nodes[i].params)
		for _, in := range p.nodes[i].inner {
			n += in.nodesBytes()
		}
	}
	return n
}
