package worker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// builder makes graphs of plans.
type builder struct {
	g     *graphs
	ctx   wire.ID
	conds []graphCondition
	past  bool            // ids are not those of the plan, which name something else now
	keep  map[uint32]bool // of a past one: the places of nodes that keep an id
	next  wire.ID
	temp  []wire.ID

	graphs  map[wire.ID]wire.ID // ids of graphs inside, by those of the plan
	names   []wire.ID           // ids of nodes by place
	serials []uint64            // and what else tells them apart
}

// build makes a graph of a plan, under an id. Its nodes keep ids where the plan says so; from
// others the ids in temp have to be taken.
func (b *builder) build(p *graphPlan, id wire.ID) error {
	b.graphs = map[wire.ID]wire.ID{}
	err := b.make(p, id)
	for _, n := range b.names {
		b.serials = append(b.serials, b.g.keeper.NodeSerial(n))
	}
	return err
}

// moment is an id for as long as the graph is made.
func (b *builder) moment() wire.ID {
	b.next++
	b.temp = append(b.temp, b.next)
	return b.next
}

// graph is the id of a graph inside, which the plan calls id.
func (b *builder) graph(id wire.ID) wire.ID {
	switch {
	case id == 0:
		return b.moment()
	case b.past:
		b.graphs[id] = b.g.fresh()
	default:
		b.graphs[id] = id
	}
	return b.graphs[id]
}

// name is the id of the next node, which the plan calls id.
func (b *builder) name(id wire.ID) wire.ID {
	place := uint32(len(b.names))
	switch {
	case b.past && b.keep[place]:
		id = b.g.fresh()
	case b.past, id == 0:
		id = b.moment()
	}
	b.names = append(b.names, id)
	return id
}

func (b *builder) make(p *graphPlan, id wire.ID) error {
	if res := b.g.w.session.GraphCreate(b.g.call(wire.OpGraphCreate, b.ctx), &wire.GraphCreateArgs{Graph: id}); res != cuda.Success {
		return res
	}
	return b.fill(p, id)
}

// fill adds what is in a graph to one that is empty. Edges come last: a node may depend on one that
// was made after it.
func (b *builder) fill(p *graphPlan, id wire.ID) error {
	for i := range b.conds {
		if c := &b.conds[i]; p.id != 0 && c.graph == p.id {
			if err := b.condition(c, id); err != nil {
				return err
			}
		}
	}
	ids := make([]wire.ID, len(p.nodes))
	for i := range p.nodes {
		n := &p.nodes[i]
		ids[i] = b.name(n.id)
		if err := b.node(n, ids[i], id); err != nil {
			return fmt.Errorf("node %d, %s: %w", i, nodeKind(n.kind), err)
		}
	}
	return b.edges(p, ids, id)
}

func (b *builder) edges(p *graphPlan, ids []wire.ID, id wire.ID) error {
	if len(p.edges) == 0 {
		return nil
	}
	a := wire.GraphSetEdgesArgs{Graph: id}
	for _, e := range p.edges {
		if uint64(e.from) >= uint64(len(ids)) || uint64(e.to) >= uint64(len(ids)) {
			return errors.New("an edge of a node that is not there")
		}
		a.Before = binary.LittleEndian.AppendUint32(a.Before, ids[e.from])
		a.After = binary.LittleEndian.AppendUint32(a.After, ids[e.to])
		a.Edges = append(a.Edges, e.data[:]...)
	}
	if res := b.g.w.session.GraphSetEdges(b.g.call(wire.OpGraphSetEdges, b.ctx), &a); res != cuda.Success {
		return fmt.Errorf("edges: %w", res)
	}
	return nil
}

// condition makes a condition, which has to have the handle that kernels know.
func (b *builder) condition(c *graphCondition, graph wire.ID) error {
	var r wire.GraphConditionalCreateReply
	call := b.g.call(wire.OpGraphConditionalCreate, c.ctx)
	call.Placed = []uint64{c.handle}
	a := wire.GraphConditionalCreateArgs{Graph: graph, Ctx: c.ctx, Value: c.value, Flags: c.flags}
	if res := b.g.w.session.GraphConditionalCreate(call, &a, &r); res != cuda.Success {
		return fmt.Errorf("conditional handle: %w", res)
	}
	if r.Handle != c.handle {
		return fmt.Errorf("conditional handle %#x would be %#x", c.handle, r.Handle)
	}
	return nil
}

func (b *builder) node(n *planNode, id, graph wire.ID) error {
	a := wire.GraphAddNodeArgs{Graph: graph, Node: id, Type: n.kind, Params: bytes.Clone(n.params)}
	call := b.g.call(wire.OpGraphAddNode, nodeContext(n.kind, n.params, b.ctx))
	var mem wire.AllocNode
	var bodies []wire.ID
	switch n.kind {
	case wire.NodeGraph:
		if len(n.inner) != 1 {
			return errors.New("its graph is missing")
		}
		child := b.graph(n.inner[0].id)
		if err := b.make(n.inner[0], child); err != nil {
			return err
		}
		a.Params = (&wire.ChildNode{Graph: child, Ownership: wire.ChildMoved}).Append(nil)
	case wire.NodeConditional:
		if len(n.params) < wire.ConditionalNodeSize {
			return errors.New("it is cut short")
		}
		a.Params = a.Params[:wire.ConditionalNodeSize]
		for _, p := range n.inner {
			bodies = append(bodies, b.graph(p.id))
			a.Params = binary.LittleEndian.AppendUint32(a.Params, bodies[len(bodies)-1])
		}
	case wire.NodeMemAlloc:
		if err := mem.Decode(n.params); err != nil {
			return err
		}
		call.Placed = []uint64{mem.Ptr}
	}
	var r wire.GraphAddNodeReply
	if res := b.g.w.session.GraphAddNode(call, &a, &r); res != cuda.Success {
		return res
	}
	if n.kind == wire.NodeMemAlloc && r.Value != mem.Ptr {
		return fmt.Errorf("memory at %#x would be at %#x", mem.Ptr, r.Value)
	}
	for i, p := range n.inner {
		if n.kind != wire.NodeConditional {
			break
		}
		if err := b.fill(p, bodies[i]); err != nil {
			return err
		}
	}
	return b.attributes(n, id)
}

// attributes sets those attributes of a kernel that are not by themselves what they were.
func (b *builder) attributes(n *planNode, id wire.ID) error {
	set := func(attr uint32, want []byte) error {
		var r wire.GraphNodeGetAttributeReply
		ask := wire.GraphNodeGetAttributeArgs{Node: id, Attr: attr}
		res := b.g.w.session.GraphNodeGetAttribute(b.g.call(wire.OpGraphNodeGetAttribute, b.ctx), &ask, &r)
		if res == cuda.Success && bytes.Equal(bytes.TrimRight(r.Value, "\x00"), want) {
			return nil
		}
		v := make([]byte, attrBytes)
		copy(v, want)
		a := wire.GraphNodeSetAttributeArgs{Node: id, Attr: attr, Value: v}
		if res := b.g.w.session.GraphNodeSetAttribute(b.g.call(wire.OpGraphNodeSetAttribute, b.ctx), &a); res != cuda.Success {
			return fmt.Errorf("attribute %d: %w", attr, res)
		}
		return nil
	}
	for attr := uint32(1); attr < mostAttrs && n.plain != 0; attr++ {
		if n.plain&(1<<attr) != 0 {
			if err := set(attr, nil); err != nil {
				return err
			}
		}
	}
	for _, x := range n.attrs {
		if err := set(x.id, x.value); err != nil {
			return err
		}
	}
	return nil
}

// nodeKind is what people call nodes of a type.
func nodeKind(kind uint32) string {
	names := []string{"kernel", "copy", "fill", "host function", "child graph", "empty", "event wait", "event record", "semaphore signal", "semaphore wait",
		"allocation", "free", "memory operations", "conditional"}
	if uint64(kind) < uint64(len(names)) {
		return names[kind]
	}
	return fmt.Sprintf("of type %d", kind)
}
