package soft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// nodeList encodes nodes for the guest, giving the ids that it offered to those that have none.
type nodeList struct {
	s       *session
	names   []byte
	list    []byte
	unnamed map[*graphNode]bool
	res     cuda.Result
}

func (l *nodeList) node(n *graphNode) (id, kind uint32) {
	if n == nil {
		return 0, 0
	}
	switch {
	case n.id != 0:
	case len(l.names) >= 4:
		l.res = l.s.nameNode(n, binary.LittleEndian.Uint32(l.names))
		l.names = l.names[4:]
	default:
		if l.unnamed == nil {
			l.unnamed = map[*graphNode]bool{}
		}
		l.unnamed[n] = true
	}
	return n.id, n.kind
}

func (l *nodeList) add(from, to *graphNode, data [8]byte) {
	if l.res != cuda.Success {
		return
	}
	var e wire.GraphEdge
	e.From, e.FromType = l.node(from)
	e.To, e.ToType = l.node(to)
	e.Data = data
	l.list = e.Append(l.list)
}

// GraphList lists nodes or edges.
func (s *session) GraphList(c *wire.Call, a *wire.GraphListArgs, r *wire.GraphListReply) cuda.Result {
	l := nodeList{s: s, names: a.Names}
	g, n := s.graphs[a.Graph], s.nodes[a.Node]
	subject := a.What == wire.GraphListBefore || a.What == wire.GraphListAfter
	if subject && n == nil || !subject && g == nil || a.What > wire.GraphListAfter {
		return cuda.ErrorInvalidValue
	}
	if subject {
		g = n.graph
	}
	for _, x := range g.nodes {
		switch a.What {
		case wire.GraphListNodes:
			l.add(x, nil, [8]byte{})
		case wire.GraphListRoots:
			if len(x.before) == 0 {
				l.add(x, nil, [8]byte{})
			}
		case wire.GraphListEdges:
			for _, e := range x.before {
				l.add(e.node, x, e.data)
			}
		case wire.GraphListAfter:
			for _, e := range x.before {
				if e.node == n {
					l.add(x, nil, e.data)
				}
			}
		case wire.GraphListBefore:
			if x == n {
				for _, e := range x.before {
					l.add(e.node, nil, e.data)
				}
			}
		}
	}
	r.Unnamed, r.Nodes = uint32(len(l.unnamed)), l.list
	return l.res
}

// GraphSetEdges adds or removes edges.
func (s *session) GraphSetEdges(c *wire.Call, a *wire.GraphSetEdgesArgs) cuda.Result {
	g := s.graphs[a.Graph]
	n := len(a.Before) / 4
	if g == nil || len(a.Before)%4 != 0 || len(a.After) != len(a.Before) || len(a.Edges) != 0 && len(a.Edges) != 8*n {
		return cuda.ErrorInvalidValue
	}
	for i := range n {
		from := s.nodes[binary.LittleEndian.Uint32(a.Before[4*i:])]
		to := s.nodes[binary.LittleEndian.Uint32(a.After[4*i:])]
		if from == nil || to == nil || from == to || from.graph != g || to.graph != g {
			return cuda.ErrorInvalidValue
		}
		at := slices.IndexFunc(to.before, func(e graphEdge) bool { return e.node == from })
		if (at >= 0) != (a.Remove != 0) {
			return cuda.ErrorInvalidValue
		}
		if at >= 0 {
			to.before = slices.Delete(to.before, at, at+1)
			continue
		}
		e := graphEdge{node: from}
		if len(a.Edges) > 0 {
			copy(e.data[:], a.Edges[8*i:])
		}
		to.before = append(to.before, e)
	}
	return cuda.Success
}

// GraphNodeGetAttribute reads an attribute of a kernel node; those that were not set are zero.
func (s *session) GraphNodeGetAttribute(c *wire.Call, a *wire.GraphNodeGetAttributeArgs, r *wire.GraphNodeGetAttributeReply) cuda.Result {
	n := s.nodes[a.Node]
	if n == nil || n.kind != wire.NodeKernel || a.Attr > cuda.LaunchAttrNvlinkUtilCentricScheduling {
		return cuda.ErrorInvalidValue
	}
	r.Value = make([]byte, attributeSize-8)
	copy(r.Value, n.attrs[a.Attr])
	return cuda.Success
}

// GraphNodeSetAttribute sets an attribute of a kernel node.
func (s *session) GraphNodeSetAttribute(c *wire.Call, a *wire.GraphNodeSetAttributeArgs) cuda.Result {
	n := s.nodes[a.Node]
	if n == nil || n.kind != wire.NodeKernel || len(a.Value) != attributeSize-8 || a.Attr > cuda.LaunchAttrNvlinkUtilCentricScheduling {
		return cuda.ErrorInvalidValue
	}
	switch a.Attr {
	case cuda.LaunchAttrProgrammaticEvent, cuda.LaunchAttrLaunchCompletionEvent, cuda.LaunchAttrDeviceUpdatableKernelNode:
		return cuda.ErrorNotSupported
	}
	if n.attrs == nil {
		n.attrs = map[uint32][]byte{}
	}
	n.attrs[a.Attr] = bytes.Clone(a.Value)
	return s.prepare(c, n, wire.NodeKernel, n.params)
}

// GraphNodeCopyAttributes gives dst the attributes of src.
func (s *session) GraphNodeCopyAttributes(c *wire.Call, a *wire.GraphNodeCopyAttributesArgs) cuda.Result {
	dst, src := s.nodes[a.Dst], s.nodes[a.Src]
	if dst == nil || src == nil || dst.kind != wire.NodeKernel || src.kind != wire.NodeKernel {
		return cuda.ErrorInvalidValue
	}
	dst.attrs = map[uint32][]byte{}
	for id, v := range src.attrs {
		dst.attrs[id] = v
	}
	return s.prepare(c, dst, wire.NodeKernel, dst.params)
}

var kindNames = map[uint32]string{
	wire.NodeKernel: "KERNEL", wire.NodeMemcpy: "MEMCPY", wire.NodeMemset: "MEMSET", wire.NodeHost: "HOST", wire.NodeGraph: "GRAPH", wire.NodeEmpty: "EMPTY",
	wire.NodeWaitEvent: "EVENT_WAIT", wire.NodeEventRecord: "EVENT_RECORD", wire.NodeMemAlloc: "MEM_ALLOC", wire.NodeMemFree: "MEM_FREE",
	wire.NodeBatchMemOp: "BATCH_MEM_OP", wire.NodeConditional: "CONDITIONAL",
}

// GraphDebugDot prints a graph as DOT text.
func (s *session) GraphDebugDot(c *wire.Call, a *wire.GraphDebugDotArgs, r *wire.GraphDebugDotReply) cuda.Result {
	g := s.graphs[a.Graph]
	if g == nil {
		return cuda.ErrorInvalidValue
	}
	at := map[*graphNode]int{}
	b := []byte("digraph dot {\n")
	for i, n := range g.nodes {
		at[n] = i
		b = fmt.Appendf(b, "\"node_%d\" [label=\"%d\\n%s\"];\n", i, i, kindNames[n.kind])
	}
	for i, n := range g.nodes {
		for _, e := range n.before {
			b = fmt.Appendf(b, "\"node_%d\" -> \"node_%d\";\n", at[e.node], i)
		}
	}
	r.Text = append(b, "}\n"...)
	return cuda.Success
}

// GraphExecUpdate makes an executable graph do what a graph of the same shape says.
func (s *session) GraphExecUpdate(c *wire.Call, a *wire.GraphExecUpdateArgs, r *wire.GraphExecUpdateReply) cuda.Result {
	const errTopology, errType = 2, 3
	x, g := s.execs[a.Exec], s.graphs[a.Graph]
	if x == nil || g == nil || s.beingCaptured(g) {
		return cuda.ErrorInvalidValue
	}
	p, res := newPlan(g)
	if res != cuda.Success {
		return res
	}
	if len(p.nodes) != len(x.plan.nodes) {
		r.Result = errTopology
		return cuda.ErrorGraphExecUpdateFailure
	}
	for i := range p.nodes {
		n, o := &p.nodes[i], &x.plan.nodes[i]
		if !slices.Equal(n.before, o.before) {
			r.Result, r.Node = errTopology, n.node.id
			return cuda.ErrorGraphExecUpdateFailure
		}
		if n.node.kind != o.node.kind {
			r.Result, r.Node = errType, n.node.id
			return cuda.ErrorGraphExecUpdateFailure
		}
		n.off = o.off
	}
	// nodes of the graph that was instantiated name the nodes, as CUDA documents
	p.places = x.plan.places
	x.plan = p
	gone := x.users // the references of the graph replace them, as CUDA documents
	x.retain(g)
	for o, n := range gone {
		s.releaseObject(o, n)
	}
	return cuda.Success
}
