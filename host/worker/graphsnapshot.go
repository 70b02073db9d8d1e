package worker

import (
	"encoding/binary"

	"causeway/host/worker/state"
)

// Bounds of graphs in a snapshot.
const (
	mostGraphs     = 2 << 20
	mostGraphNodes = 1 << 22
	mostEdges      = 1 << 26
	mostNesting    = 64
	mostParams     = 1 << 20 // bytes of a node's parameters
	mostReferences = 1 << 32 // to a user object: drivers count in 32 bits, and take 30 at a time
)

func (s *graphsState) write(w *state.Writer) {
	w.U32(s.last)
	writeCounts(w, s.modes)
	w.U32(uint32(len(s.objects)))
	for _, o := range s.objects {
		w.U32(o.id)
		w.U64(o.destructor)
		w.U32(o.flags)
		w.U64(o.guest)
	}
	w.U32(uint32(len(s.graphs)))
	for i := range s.graphs {
		v := &s.graphs[i]
		w.U32(v.kind)
		w.U32(v.id)
		w.U32(v.ctx)
		w.Bool(v.nested)
		v.plan.write(w)
		w.U32(uint32(len(v.conds)))
		for _, c := range v.conds {
			for _, n := range []uint32{c.graph, c.ctx, c.value, c.flags} {
				w.U32(n)
			}
			w.U64(c.handle)
		}
		writeCounts(w, v.users)
		w.U32(uint32(len(v.twins)))
		for _, t := range v.twins {
			for _, n := range []uint32{t.place, t.graph, t.live} {
				w.U32(n)
			}
		}
	}
	w.U32(uint32(len(s.execs)))
	for i := range s.execs {
		s.execs[i].write(w)
	}
	w.U32(uint32(len(s.clones)))
	for _, c := range s.clones {
		for _, n := range []uint32{c.node.graph, c.node.place, c.original.graph, c.original.place} {
			w.U32(n)
		}
	}
}

func readGraphs(r *state.Reader) graphsState {
	s := graphsState{last: r.U32(), modes: readCounts(r)}
	for range r.Count(mostGraphs, itemBytes) {
		o := objectState{r.U32(), r.U64(), r.U32(), r.U64()}
		if o.guest > mostReferences {
			r.Refuse("a user object with %d references", o.guest)
		}
		s.objects = append(s.objects, o)
	}
	for range r.Count(mostGraphs, itemBytes) {
		v := graphState{kind: r.U32(), id: r.U32(), ctx: r.U32(), nested: r.Bool(), plan: readPlan(r, mostNesting)}
		if v.kind > graphPast {
			r.Refuse("a graph of kind %d", v.kind)
		}
		for range r.Count(mostGraphs, itemBytes) {
			v.conds = append(v.conds, graphCondition{graph: r.U32(), ctx: r.U32(), value: r.U32(), flags: r.U32(), handle: r.U64()})
		}
		v.users = readCounts(r)
		for range r.Count(mostGraphNodes, 16) {
			v.twins = append(v.twins, graphTwin{r.U32(), r.U32(), r.U32()})
		}
		s.graphs = append(s.graphs, v)
	}
	for range r.Count(mostGraphs, itemBytes) {
		s.execs = append(s.execs, readExec(r))
	}
	for range r.Count(mostGraphNodes, 16) {
		s.clones = append(s.clones, graphClone{graphPlace{r.U32(), r.U32()}, graphPlace{r.U32(), r.U32()}})
	}
	return s
}

// writeCounts writes numbers by numbers.
func writeCounts(w *state.Writer, m map[uint32]uint32) {
	w.U32(uint32(len(m)))
	for k, v := range m {
		w.U32(k)
		w.U32(v)
	}
}

func readCounts(r *state.Reader) map[uint32]uint32 {
	var m map[uint32]uint32
	for range r.Count(mostGraphNodes, 32) {
		if m == nil {
			m = map[uint32]uint32{}
		}
		k := r.U32()
		m[k] = r.U32()
	}
	return m
}

func (p *graphPlan) write(w *state.Writer) {
	w.U32(p.id)
	w.U32(uint32(len(p.nodes)))
	for i := range p.nodes {
		n := &p.nodes[i]
		w.U32(n.id)
		w.U32(n.kind)
		w.Bytes(n.params)
		w.U64(n.plain)
		w.U32(uint32(len(n.attrs)))
		for _, a := range n.attrs {
			w.U32(a.id)
			w.Bytes(a.value)
		}
		w.U32(uint32(len(n.inner)))
		for _, g := range n.inner {
			g.write(w)
		}
	}
	w.U32(uint32(len(p.edges)))
	for _, e := range p.edges {
		w.U32(e.from)
		w.U32(e.to)
		w.U64(binary.LittleEndian.Uint64(e.data[:]))
	}
}

// readPlan reads a plan with as many graphs inside one another.
func readPlan(r *state.Reader, depth int) *graphPlan {
	p := &graphPlan{id: r.U32()}
	if depth == 0 {
		r.Refuse("graphs too deep inside one another")
		return p
	}
	for range r.Count(mostGraphNodes, itemBytes) {
		n := planNode{id: r.U32(), kind: r.U32(), params: r.Bytes(mostParams), plain: r.U64()}
		for range r.Count(mostAttrs, itemBytes) {
			n.attrs = append(n.attrs, planAttr{r.U32(), r.Bytes(attrBytes)})
		}
		for range r.Count(mostGraphNodes, itemBytes) {
			n.inner = append(n.inner, readPlan(r, depth-1))
		}
		if p.nodes = append(p.nodes, n); r.Err() != nil {
			return p
		}
	}
	for range r.Count(mostEdges, 16) {
		e := planEdge{from: r.U32(), to: r.U32()}
		binary.LittleEndian.PutUint64(e.data[:], r.U64())
		if p.edges = append(p.edges, e); r.Err() != nil {
			return p
		}
	}
	return p
}

func (v *execState) write(w *state.Writer) {
	for _, n := range []uint32{v.id, v.ctx, v.origin, v.last} {
		w.U32(n)
	}
	w.U64(v.flags)
	w.Bool(v.nameless)
	writeCounts(w, v.users)
	w.U32(uint32(len(v.params)))
	for _, p := range v.params {
		for _, n := range []uint32{p.place, p.ctx, p.kind} {
			w.U32(n)
		}
		w.Bytes(p.params)
	}
	w.U32(uint32(len(v.off)))
	for _, n := range v.off {
		w.U32(n)
	}
}

func readExec(r *state.Reader) execState {
	v := execState{id: r.U32(), ctx: r.U32(), origin: r.U32(), last: r.U32(), flags: r.U64(), nameless: r.Bool(), users: readCounts(r)}
	for range r.Count(mostGraphNodes, itemBytes) {
		p := paramsState{place: r.U32(), ctx: r.U32(), kind: r.U32(), params: r.Bytes(mostParams)}
		if v.params = append(v.params, p); r.Err() != nil {
			return v
		}
	}
	for range r.Count(mostGraphNodes, 32) {
		v.off = append(v.off, r.U32())
	}
	return v
}
