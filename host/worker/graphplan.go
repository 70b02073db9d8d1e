package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// graphPlan is a graph as its driver describes it, by operations that guests have, too.
type graphPlan struct {
	id    wire.ID // by which the guest knows it; 0: it does not
	nodes []planNode
	edges []planEdge
}

type planNode struct {
	id     wire.ID // 0: the guest has not asked for one
	kind   uint32
	params []byte
	plain  uint64 // kernels: the attributes that are zero, by bits
	attrs  []planAttr
	inner  []*graphPlan
	serial uint64 // as GraphKeeper.NodeSerial, in this process
	clone  uint64 // the serial of the node of which it is a clone
	gone   bool   // the guest has destroyed it since
}

type planAttr struct {
	id    uint32
	value []byte // without zeros behind
}

// planEdge joins two nodes by their places.
type planEdge struct {
	from, to uint32
	data     [8]byte
}

const (
	attrBytes = 64 // of a launch attribute's value
	mostAttrs = 32
)

// size is what a plan takes in memory, about.
func (p *graphPlan) size() uint64 {
	n := uint64(96 + 32*len(p.edges))
	for i := range p.nodes {
		x := &p.nodes[i]
		n += 128 + uint64(len(x.params))
		for _, a := range x.attrs {
			n += 48 + uint64(len(a.value))
		}
		for _, g := range x.inner {
			n += g.size()
		}
	}
	return n
}

// walk calls f with each node, also those of graphs inside, always in the same order: a node's
// place is its number.
func (p *graphPlan) walk(f func(place uint32, n *planNode)) {
	var at uint32
	var visit func(p *graphPlan)
	visit = func(p *graphPlan) {
		for i := range p.nodes {
			f(at, &p.nodes[i])
			at++
			for _, g := range p.nodes[i].inner {
				visit(g)
			}
		}
	}
	visit(p)
}

// places are the places of nodes by their serials.
func (p *graphPlan) places() map[uint64]uint32 {
	m := map[uint64]uint32{}
	p.walk(func(place uint32, n *planNode) {
		m[n.serial] = place
	})
	return m
}

// disown forgets that a node, with all inside it, is one that the guest has.
func (p *graphPlan) disown(serial uint64, all bool) {
	if p == nil {
		return
	}
	for i := range p.nodes {
		n := &p.nodes[i]
		gone := all || n.serial == serial && !n.gone
		if gone {
			n.gone = true
		}
		for _, g := range n.inner {
			g.disown(serial, gone)
		}
	}
}

// memory calls alloc with each address that nodes allocate, free with each that they free.
func (p *graphPlan) memory(alloc, free func(uint64)) {
	p.walk(func(_ uint32, x *planNode) {
		var a wire.AllocNode
		var f wire.FreeNode
		switch {
		case x.kind == wire.NodeMemAlloc && a.Decode(x.params) == nil:
			alloc(a.Ptr)
		case x.kind == wire.NodeMemFree && f.Decode(x.params) == nil:
			free(f.Ptr)
		}
	})
}

// describer names what has no name for as long as it asks.
type describer struct {
	g    *graphs
	next wire.ID
	temp []wire.ID
}

// describe asks the driver what a graph is.
func (g *graphs) describe(id wire.ID) (*graphPlan, error) {
	d := describer{g: g, next: momentIDs}
	p, err := d.graph(id)
	g.keeper.Unname(d.temp)
	if p != nil {
		p.id = id
	}
	return p, err
}

func (d *describer) name() wire.ID {
	d.next++
	d.temp = append(d.temp, d.next)
	return d.next
}

// known is the guest's id of what the driver calls id.
func known(id wire.ID) wire.ID {
	if id >= momentIDs {
		return 0
	}
	return id
}

func (d *describer) graph(id wire.ID) (*graphPlan, error) {
	list, err := d.list(wire.GraphListNodes, id)
	if err != nil {
		return nil, err
	}
	p := &graphPlan{id: known(id)}
	place := make(map[wire.ID]uint32, len(list))
	for i, e := range list {
		place[e.From] = uint32(i)
		n, err := d.node(e.From)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", i, err)
		}
		p.nodes = append(p.nodes, *n)
	}
	edges, err := d.list(wire.GraphListEdges, id)
	if err != nil {
		return nil, err
	}
	for _, e := range edges {
		p.edges = append(p.edges, planEdge{place[e.From], place[e.To], e.Data})
	}
	return p, nil
}

// list asks for nodes or edges, all of them with an id.
func (d *describer) list(what uint32, id wire.ID) ([]wire.GraphEdge, error) {
	a := wire.GraphListArgs{What: what, Graph: id}
	var r wire.GraphListReply
	for {
		if res := d.g.w.session.GraphList(d.g.call(wire.OpGraphList, 0), &a, &r); res != cuda.Success {
			return nil, fmt.Errorf("list: %w", res)
		}
		if r.Unnamed == 0 {
			break
		}
		if a.Names != nil {
			return nil, errors.New("nodes take no names")
		}
		for range r.Unnamed {
			a.Names = binary.LittleEndian.AppendUint32(a.Names, d.name())
		}
		r = wire.GraphListReply{}
	}
	var list []wire.GraphEdge
	for b := r.Nodes; len(b) >= wire.GraphEdgeSize; b = b[wire.GraphEdgeSize:] {
		var e wire.GraphEdge
		if err := e.Decode(b); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

func (d *describer) node(id wire.ID) (*planNode, error) {
	a := wire.GraphNodeGetParamsArgs{Node: id, Fresh: d.next + 1}
	var r wire.GraphNodeGetParamsReply
	if res := d.g.w.session.GraphNodeGetParams(d.g.call(wire.OpGraphNodeGetParams, 0), &a, &r); res != cuda.Success {
		return nil, fmt.Errorf("parameters: %w", res)
	}
	n := &planNode{id: known(id), kind: r.Type, params: bytes.Clone(r.Params), serial: d.g.keeper.NodeSerial(id)}
	n.clone = d.g.keeper.CloneOf(id)
	var inner []wire.ID
	switch r.Type {
	case wire.NodeKernel:
		d.attributes(id, n)
	case wire.NodeGraph:
		var v wire.ChildNode
		if err := v.Decode(r.Params); err != nil {
			return nil, err
		}
		if v.Graph == a.Fresh {
			d.name()
		}
		inner, n.params = []wire.ID{v.Graph}, nil
	case wire.NodeConditional:
		for b := n.params[min(len(n.params), wire.ConditionalNodeSize):]; len(b) >= 4; b = b[4:] {
			inner = append(inner, binary.LittleEndian.Uint32(b))
		}
	}
	for _, g := range inner {
		p, err := d.graph(g)
		if err != nil {
			return nil, err
		}
		n.inner = append(n.inner, p)
	}
	return n, nil
}

// attributes asks for a kernel's attributes. Those that the driver does not tell it has not.
func (d *describer) attributes(id wire.ID, n *planNode) {
	for attr := uint32(1); attr < mostAttrs; attr++ {
		var r wire.GraphNodeGetAttributeReply
		a := wire.GraphNodeGetAttributeArgs{Node: id, Attr: attr}
		if d.g.w.session.GraphNodeGetAttribute(d.g.call(wire.OpGraphNodeGetAttribute, 0), &a, &r) != cuda.Success {
			continue
		}
		if v := bytes.TrimRight(r.Value, "\x00"); len(v) == 0 {
			n.plain |= 1 << attr
		} else {
			n.attrs = append(n.attrs, planAttr{attr, bytes.Clone(v)})
		}
	}
}

// nodeContext is the context that a node's parameters name, or other.
func nodeContext(kind uint32, p []byte, other wire.ID) wire.ID {
	var id wire.ID
	switch kind {
	case wire.NodeKernel:
		var v wire.KernelNode
		_ = v.Decode(p)
		id = v.Ctx
	case wire.NodeMemcpy:
		var v wire.MemcpyNode
		_ = v.Decode(p[min(len(p), 2*wire.MemcpyOperandSize):])
		id = v.Ctx
	case wire.NodeMemset:
		var v wire.MemsetNode
		_ = v.Decode(p)
		id = v.Ctx
	case wire.NodeBatchMemOp:
		var v wire.BatchNode
		_ = v.Decode(p)
		id = v.Ctx
	case wire.NodeConditional:
		var v wire.ConditionalNode
		_ = v.Decode(p)
		id = v.Ctx
	}
	if id == 0 {
		return other
	}
	return id
}
