package worker

import (
	"maps"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// graphs is what a worker knows of a session's graphs beyond what their driver tells when it is
// asked. Graphs are described when the session moves: nodes that capture made have no record, and
// those that the guest made may have changed. An executable graph cannot be described, so what it
// was made of is kept, as it was then: its template. The consumer's, but for objects.
type graphs struct {
	w       *Worker
	keeper  driver.GraphKeeper // nil: the driver's graphs cannot be made again
	live    map[wire.ID]*liveGraph
	execs   map[wire.ID]*execGraph
	objects userObjects
	modes   map[uint32]uint32 // capture modes of guest threads; absent: global
	// What is booked for nodes of captures, by the driver's numbers of these.
	taken map[uint64]uint64
	last  wire.ID // that the worker has given to a graph or node
	// Of a parked session that came here: they are made when its pages are there; nil: they were.
	late *graphsState
}

// Ids that guests never use: of graphs and nodes that the guest has no more, and for a moment of
// those that it has not named.
const (
	hiddenIDs = wire.ID(0xc000_0000)
	momentIDs = wire.ID(0xf000_0000)
)

// What the worker keeps of a graph, and of an executable one with its template.
const (
	graphBytes = 256
	execBytes  = 768
	partBytes  = 128 // of a condition, or a change of an executable graph
)

// liveGraph is a graph of the guest's own: no node owns it.
type liveGraph struct {
	id     wire.ID
	ctx    wire.ID // of the call that made it
	made   *template
	past   map[*template]struct{} // of what it was before it changed
	users  map[wire.ID]uint32     // references to user objects
	nested bool                   // graphs inside it may have such references
	conds  []graphCondition
	cost   uint64
	// Of it, for what is in the graph: a copy takes as much.
	nodes uint64
	// Of that, for nodes that take more than one does, by their serials.
	beside map[uint64]nodeExtra
}

// graphCondition is the handle of a conditional node, which kernels know by its value.
type graphCondition struct {
	graph, ctx   wire.ID
	value, flags uint32
	handle       uint64
}

func (g *graphs) init(w *Worker) {
	g.w = w
	g.keeper, _ = w.session.(driver.GraphKeeper)
	g.live, g.execs, g.modes = map[wire.ID]*liveGraph{}, map[wire.ID]*execGraph{}, map[uint32]uint32{}
	g.taken = map[uint64]uint64{}
	g.last = hiddenIDs
}

// fresh is an id that no guest uses.
func (g *graphs) fresh() wire.ID {
	if g.last++; g.last >= momentIDs {
		g.last = hiddenIDs
	}
	return g.last
}

func (g *graphs) call(op wire.Op, ctx wire.ID) *wire.Call {
	return &wire.Call{Op: op, Ctx: ctx, Replay: true}
}

// add learns of a graph, for which cost is booked.
func (g *graphs) add(id, ctx wire.ID, cost uint64) *liveGraph {
	l := &liveGraph{id: id, ctx: ctx, cost: cost}
	g.live[id] = l
	return l
}

// remove forgets a graph that is gone, or part of another.
func (g *graphs) remove(l *liveGraph) {
	delete(g.live, l.id)
	g.w.host.release(l.cost)
	for t := range l.past {
		t.of, t.alias = nil, nil
		g.dropOrigin(t)
	}
}

// root is the guest's graph that id is, or is inside of; nil: there is none.
func (g *graphs) root(id wire.ID) *liveGraph {
	if l := g.live[id]; l != nil {
		return l
	}
	return g.live[g.keeper.GraphRoot(id)]
}

// making has an operation make a graph, if what is kept of it has room: itself, and so much that is
// in it.
func (f *front) making(id, ctx wire.ID, nodes uint64, do func() cuda.Result) cuda.Result {
	g := &f.w.graphs
	if g.keeper == nil {
		return do()
	}
	res := f.within(graphBytes+nodes, do)
	if res == cuda.Success {
		g.add(id, ctx, graphBytes+nodes).nodes = nodes
	}
	return res
}

// changes is called ahead of an operation that changes a graph: what is executable of it is not
// changed by that.
func (g *graphs) changes(graph wire.ID) {
	if len(g.execs) > 0 {
		g.freeze(g.root(graph))
	}
}

func (g *graphs) changesNode(node wire.ID) {
	if len(g.execs) > 0 {
		g.freeze(g.live[g.keeper.NodeRoot(node)])
	}
}

// GraphCreate implements wire.Driver.
func (f *front) GraphCreate(c *wire.Call, a *wire.GraphCreateArgs) cuda.Result {
	return f.making(a.Graph, c.Ctx, 0, func() cuda.Result { return f.Session.GraphCreate(c, a) })
}

// GraphClone implements wire.Driver: references to user objects are cloned, too.
func (f *front) GraphClone(c *wire.Call, a *wire.GraphCloneArgs) cuda.Result {
	g := &f.w.graphs
	nodes := g.nodesOf(a.Original)
	res := f.making(a.Graph, c.Ctx, nodes, func() cuda.Result { return f.Session.GraphClone(c, a) })
	if res == cuda.Success && g.keeper != nil {
		if from, l := g.root(a.Original), g.live[a.Graph]; from != nil {
			l.nodes = from.nodes
			l.nested = from.nested || from.id != a.Original && len(from.users) > 0
			if from.id == a.Original {
				l.users = maps.Clone(from.users)
			}
		}
	}
	return res
}

// GraphDestroy implements wire.Driver. A graph that is a template still goes with what is
// executable of it.
func (f *front) GraphDestroy(c *wire.Call, a *wire.GraphDestroyArgs) cuda.Result {
	g := &f.w.graphs
	l := g.live[a.Graph]
	if l != nil && l.made != nil && g.hide(l) {
		return cuda.Success
	}
	res := f.Session.GraphDestroy(c, a)
	if l != nil && res == cuda.Success {
		g.remove(l)
	}
	return res
}

// GraphAddNode implements wire.Driver.
func (f *front) GraphAddNode(c *wire.Call, a *wire.GraphAddNodeArgs, r *wire.GraphAddNodeReply) cuda.Result {
	g := &f.w.graphs
	if g.keeper == nil {
		return f.Session.GraphAddNode(c, a, r)
	}
	g.changes(a.Graph)
	var child wire.ChildNode
	x, moved := nodeExtra{longBytes(a.Params), edgeBytes * uint64(len(a.Deps)/4)}, uint64(0)
	if a.Type == wire.NodeGraph && child.Decode(a.Params) == nil {
		if child.Ownership != wire.ChildMoved {
			x.rest += g.nodesOf(child.Graph)
		} else if from := g.live[child.Graph]; from != nil {
			g.freeze(from)
			moved = from.nodes
		}
	}
	fee := nodeBytes + x.params + x.rest
	res := f.within(fee, func() cuda.Result { return f.Session.GraphAddNode(c, a, r) })
	if res != cuda.Success {
		return res
	}
	l := g.root(a.Graph)
	g.takes(l, fee)
	if a.Type == wire.NodeGraph {
		g.nest(l, &child)
		x.rest += moved
	}
	l.note(g.keeper.NodeSerial(a.Node), x)
	return res
}

// nest follows a graph into a node of another, or its copy.
func (g *graphs) nest(l *liveGraph, child *wire.ChildNode) {
	from := g.live[child.Graph]
	if l == nil || from == nil {
		if l != nil && l.id != g.keeper.GraphRoot(child.Graph) {
			l.nested = true // a copy of what is inside another
		}
		return
	}
	l.nested = l.nested || from.nested || len(from.users) > 0
	if child.Ownership != wire.ChildMoved {
		return
	}
	l.conds = append(l.conds, from.conds...)
	l.cost, from.cost = l.cost+from.cost-graphBytes, graphBytes
	l.nodes += from.nodes
	for t := range from.past {
		t.of = l
		l.keepPast(t)
	}
	from.past = nil
	g.remove(from)
}

func (l *liveGraph) keepPast(t *template) {
	if l.past == nil {
		l.past = map[*template]struct{}{}
	}
	l.past[t] = struct{}{}
}

// GraphDestroyNode implements wire.Driver. Executable graphs know the node no more by that id.
func (f *front) GraphDestroyNode(c *wire.Call, a *wire.GraphDestroyNodeArgs) cuda.Result {
	g := &f.w.graphs
	if g.keeper == nil {
		return f.Session.GraphDestroyNode(c, a)
	}
	l, serial := g.live[g.keeper.NodeRoot(a.Node)], g.keeper.NodeSerial(a.Node)
	g.changesNode(a.Node)
	res := f.Session.GraphDestroyNode(c, a)
	if l != nil && res == cuda.Success {
		g.gives(l, nodeBytes+l.beside[serial].params+l.beside[serial].rest)
		l.note(serial, nodeExtra{})
		for t := range l.past { // another node may be told apart by that serial from now on
			delete(t.alias, serial)
			t.plan.disown(serial, false)
		}
	}
	return res
}

// GraphNodeSetParams implements wire.Driver.
func (f *front) GraphNodeSetParams(c *wire.Call, a *wire.GraphNodeSetParamsArgs) cuda.Result {
	g := &f.w.graphs
	g.changesNode(a.Node)
	if g.keeper == nil {
		return f.Session.GraphNodeSetParams(c, a)
	}
	n, l, serial := longBytes(a.Params), g.live[g.keeper.NodeRoot(a.Node)], g.keeper.NodeSerial(a.Node)
	res := f.within(n, func() cuda.Result { return f.Session.GraphNodeSetParams(c, a) })
	if res != cuda.Success {
		return res
	}
	g.takes(l, n)
	if l != nil {
		x := l.beside[serial]
		g.gives(l, x.params)
		x.params = n
		l.note(serial, x)
	}
	return res
}

// GraphSetEdges implements wire.Driver.
func (f *front) GraphSetEdges(c *wire.Call, a *wire.GraphSetEdgesArgs) cuda.Result {
	g := &f.w.graphs
	g.changes(a.Graph)
	if g.keeper == nil {
		return f.Session.GraphSetEdges(c, a)
	}
	n, fee := edgeBytes*uint64(len(a.Before)/4), uint64(0)
	if a.Remove == 0 {
		fee = n
	}
	res := f.within(fee, func() cuda.Result { return f.Session.GraphSetEdges(c, a) })
	if l := g.root(a.Graph); res == cuda.Success && a.Remove == 0 {
		g.takes(l, n)
	} else if res == cuda.Success && l != nil {
		g.gives(l, n)
	}
	return res
}

// GraphNodeSetAttribute implements wire.Driver.
func (f *front) GraphNodeSetAttribute(c *wire.Call, a *wire.GraphNodeSetAttributeArgs) cuda.Result {
	f.w.graphs.changesNode(a.Node)
	return f.Session.GraphNodeSetAttribute(c, a)
}

// GraphNodeCopyAttributes implements wire.Driver.
func (f *front) GraphNodeCopyAttributes(c *wire.Call, a *wire.GraphNodeCopyAttributesArgs) cuda.Result {
	f.w.graphs.changesNode(a.Dst)
	return f.Session.GraphNodeCopyAttributes(c, a)
}

// GraphConditionalCreate implements wire.Driver.
func (f *front) GraphConditionalCreate(c *wire.Call, a *wire.GraphConditionalCreateArgs, r *wire.GraphConditionalCreateReply) cuda.Result {
	g := &f.w.graphs
	if g.keeper == nil {
		return f.Session.GraphConditionalCreate(c, a, r)
	}
	if !f.w.host.reserve(partBytes) {
		return cuda.ErrorOutOfMemory
	}
	res := f.Session.GraphConditionalCreate(c, a, r)
	l := g.root(a.Graph)
	if res != cuda.Success || l == nil {
		f.w.host.release(partBytes)
		return res
	}
	l.conds = append(l.conds, graphCondition{a.Graph, c.Ctx, a.Value, a.Flags, r.Handle})
	if a.Ctx != 0 {
		l.conds[len(l.conds)-1].ctx = a.Ctx
	}
	l.cost += partBytes
	return res
}

// --- capture
// ---------------------------------------------------------------------------------------------------------

// ThreadCaptureMode implements wire.Driver.
func (f *front) ThreadCaptureMode(c *wire.Call, a *wire.ThreadCaptureModeArgs) cuda.Result {
	res := f.Session.ThreadCaptureMode(c, a)
	if modes := f.w.graphs.modes; res == cuda.Success && len(modes) < mostThreads {
		if a.Mode == uint32(cuda.CaptureModeGlobal) {
			delete(modes, c.Thread)
		} else {
			modes[c.Thread] = a.Mode
		}
	}
	return res
}

// mostThreads bounds the guest threads whose capture mode is kept.
const mostThreads = 1 << 16

// StreamBeginCapture implements wire.Driver.
func (f *front) StreamBeginCapture(c *wire.Call, a *wire.StreamBeginCaptureArgs) cuda.Result {
	if a.Graph != 0 {
		f.w.graphs.changes(a.Graph)
	}
	return f.Session.StreamBeginCapture(c, a)
}

// StreamEndCapture implements wire.Driver.
func (f *front) StreamEndCapture(c *wire.Call, a *wire.StreamEndCaptureArgs, r *wire.StreamEndCaptureReply) cuda.Result {
	g := &f.w.graphs
	id, _ := g.captureOn(c, a.Stream)
	res := f.Session.StreamEndCapture(c, a, r)
	switch l := g.live[r.Graph]; {
	case g.keeper == nil || r.Graph == 0:
	case res == cuda.Success:
		g.captured(c, r.Graph, id)
	case l != nil && r.Ended != 0: // gone
		g.remove(l)
	}
	if r.Ended != 0 {
		g.forgetCapture(id)
	}
	return res
}

// StreamCaptureInfo implements wire.Driver: the guest may see a graph before its capture ends.
func (f *front) StreamCaptureInfo(c *wire.Call, a *wire.StreamCaptureInfoArgs, r *wire.StreamCaptureInfoReply) cuda.Result {
	res := f.Session.StreamCaptureInfo(c, a, r)
	if g := &f.w.graphs; g.keeper != nil && res == cuda.Success && r.Graph != 0 {
		g.captured(c, r.Graph, r.ID)
	}
	return res
}

// captured learns of a graph that a capture made, or goes into, and whose is what is booked for it.
func (g *graphs) captured(c *wire.Call, id wire.ID, capture uint64) {
	l := g.root(id)
	if l == nil {
		g.w.host.book(graphBytes) // it is there already
		l = g.add(id, c.Ctx, graphBytes)
	}
	g.takes(l, g.taken[capture])
	delete(g.taken, capture)
}

// becameNode reports whether an operation was captured: what it would have made is the graph's, and
// recorded nowhere else.
func (g *graphs) becameNode(c *wire.Call, info *wire.OpInfo, a wire.Args) bool {
	if info.Capture != wire.CaptureNode || g.keeper == nil || !g.keeper.Capturing() {
		return false
	}
	on, ok := a.(wire.Streamed)
	if !ok {
		return false
	}
	_, captures := g.captureOn(c, on.OnStream())
	return captures
}

// captureOn is the driver's number of a stream's capture, and whether there is one.
func (g *graphs) captureOn(c *wire.Call, st wire.Stream) (id uint64, captures bool) {
	if g.keeper == nil || !g.keeper.Capturing() {
		return 0, false
	}
	var r wire.StreamCaptureInfoReply
	call := wire.Call{Op: wire.OpStreamCaptureInfo, Ctx: c.Ctx, Thread: c.Thread}
	res := g.w.session.StreamCaptureInfo(&call, &wire.StreamCaptureInfoArgs{Stream: st}, &r)
	return r.ID, res == cuda.Success && r.Status != uint32(cuda.CaptureStatusNone)
}

// sortedLive is the guest's graphs in the order of their ids.
func (g *graphs) sortedLive() []*liveGraph {
	var list []*liveGraph
	for _, id := range slices.Sorted(maps.Keys(g.live)) {
		list = append(list, g.live[id])
	}
	return list
}
