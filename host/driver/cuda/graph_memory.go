package cuda

import (
	"encoding/binary"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/arena"
	"causeway/host/driver/cuda/bind"
)

/*
A session that may move has the memory of graphs' allocation nodes in its ranges: where a driver
puts that follows from all graphs that there were. The driver's graph has an empty node in the place
of each node that allocates or frees, and what such a node is, is answered here. Memory is there as
long as a graph or what is executable of it allocates it, or a launch has allocated it and nothing
has freed it. Within a capture what a stream has freed that stream allocates again.
*/

// graphMem is memory that nodes allocate.
type graphMem struct {
	ptr, size uint64
	dev       uint32
	live      bool // a launch has allocated it, and nothing has freed it
	lived     bool // a launch ever did so: it has something in it that a move brings along
	nodes     int  // that allocate it
	execs     int  // executable graphs with such nodes
}

// memNode is a node that allocates or frees.
type memNode struct {
	mem    *graphMem
	free   bool
	in     bind.Graph
	of     *graph // the same, unless a capture has made it
	params []byte // of one that allocates, for the guest
}

func (n *memNode) kind() uint32 {
	if n.free {
		return wire.NodeMemFree
	}
	return wire.NodeMemAlloc
}

// freedMem is memory that a stream of a capture has freed in it.
type freedMem struct {
	st  *stream
	mem *graphMem
}

// execMemory is what an executable graph does with memory.
type execMemory struct {
	allocs, frees []*graphMem // what it allocates and does not free, and what it frees
	all           []*graphMem // of its nodes that allocate
	again         bool        // a launch frees before it what the last has left
}

// typeOf is the type of a node.
func (s *session) typeOf(node bind.GraphNode) (uint32, cuda.Result) {
	if n := s.memNodes[node]; n != nil {
		return n.kind(), cuda.Success
	}
	return s.drv.GraphNodeGetType(node)
}

// memParams answers for a node that allocates or frees; false: it is none of ours.
func (s *session) memParams(node bind.GraphNode, r *wire.GraphNodeGetParamsReply) bool {
	n := s.memNodes[node]
	if n == nil {
		return false
	}
	if r.Params = n.params; n.free {
		r.Params = (&wire.FreeNode{Ptr: n.mem.ptr}).Append(nil)
	}
	return true
}

// newGraphMem allocates for a node: anew, or what another node allocates at the place that a
// replayed call had.
func (s *session) newGraphMem(c *wire.Call, dev uint32, size uint64) (*graphMem, cuda.Result) {
	if size == 0 {
		return nil, cuda.ErrorInvalidValue
	}
	if c.Replay && len(c.Placed) > 0 {
		if m := s.graphMems[c.Placed[0]]; m != nil {
			if arena.Footprint(m.size) != arena.Footprint(size) || m.dev != dev {
				return nil, cuda.ErrorInvalidValue
			}
			return m, s.widen(m, size)
		}
	}
	if len(s.graphMems) >= maxObjects {
		return nil, cuda.ErrorOutOfMemory
	}
	if res := s.chargeAs(c, size); res != cuda.Success {
		return nil, res
	}
	at, res := s.obtainOn(c, dev, size)
	if s.note(res) != cuda.Success {
		s.refund(size)
		return nil, res
	}
	m := &graphMem{ptr: at.Value(), size: size, dev: dev}
	if s.graphMems == nil {
		s.graphMems = map[uint64]*graphMem{}
	}
	s.graphMems[m.ptr] = m
	s.allocs[m.ptr] = allocation{at: at, size: size, ctx: c.Ctx, pooled: true, graph: m}
	return m, cuda.Success
}

// widen makes memory of a footprint be for size bytes at least.
func (s *session) widen(m *graphMem, size uint64) cuda.Result {
	if size <= m.size {
		return cuda.Success
	}
	if res := s.charge(size - m.size); res != cuda.Success {
		return res
	}
	m.size = size
	a := s.allocs[m.ptr]
	a.size = size
	s.allocs[m.ptr] = a
	return cuda.Success
}

// addMemNode has a node of the driver's stand for one that allocates or frees.
func (s *session) addMemNode(handle bind.GraphNode, n *memNode) {
	if s.memNodes == nil {
		s.memNodes = map[bind.GraphNode]*memNode{}
	}
	s.memNodes[handle] = n
	if !n.free {
		n.mem.nodes++
	}
}

// dropMemNodes forgets the nodes of a graph that is gone.
func (s *session) dropMemNodes(gone func(*memNode) bool) {
	for h, n := range s.memNodes {
		if gone(n) {
			delete(s.memNodes, h)
			if !n.free {
				n.mem.nodes--
				s.endUnused(n.mem)
			}
		}
	}
}

// endUnused gives memory back that nothing will allocate any more, when the session's work is done.
func (s *session) endUnused(m *graphMem) {
	if m.nodes > 0 || m.execs > 0 || m.live || s.graphMems[m.ptr] != m {
		return
	}
	delete(s.graphMems, m.ptr)
	delete(s.allocs, m.ptr)
	s.refund(m.size)
	s.arenas.running.ends(m.ptr)
	s.arenas.dying = append(s.arenas.dying, m.ptr)
	if s.arenas.waits += m.size; s.arenas.waits >= mostDying {
		s.reclaim()
	}
}

// setLive follows what launches and frees do, in the order in which they are submitted.
func (s *session) setLive(m *graphMem, live bool) {
	if r := s.arenas.ranges[m.dev]; live && !m.lived && r != nil {
		m.lived = true
		s.arenas.running.lives(m.ptr, block{m.size, r.all, r.dev})
	}
	m.live = live
}

// freeGraphMem is a free of such memory outside of a graph. It comes again with the next launch, if
// there is one.
func (s *session) freeGraphMem(m *graphMem) cuda.Result {
	if !m.live {
		return cuda.ErrorInvalidValue
	}
	s.setLive(m, false)
	s.endUnused(m)
	return cuda.Success
}

// addMemoryNode is GraphAddNode for nodes that allocate and free.
func (s *session) addMemoryNode(c *wire.Call, g *graph, a *wire.GraphAddNodeArgs, deps dependencies, r *wire.GraphAddNodeReply) cuda.Result {
	if g.parent != nil && g.parent.cond != nil {
		return cuda.ErrorNotSupported
	}
	n := &memNode{free: a.Type == wire.NodeMemFree, in: g.handle, of: g}
	if n.free {
		var v wire.FreeNode
		if v.Decode(a.Params) != nil || s.graphMems[v.Ptr] == nil {
			return cuda.ErrorInvalidValue
		}
		n.mem = s.graphMems[v.Ptr]
	} else {
		p, res := s.nodeParams(c, a.Type, a.Params) // which judges them
		if res != cuda.Success {
			return res
		}
		p.Free()
		dev, ok := allocDevice(a.Params)
		if !ok || int(dev) >= len(s.devices) {
			return cuda.ErrorInvalidValue
		}
		if n.mem, res = s.newGraphMem(c, dev, p.alloc); res != cuda.Success {
			return res
		}
		for at := wire.AllocNodeSize + bind.PoolPropsSize; at+bind.AccessDescSize <= len(a.Params); at += bind.AccessDescSize {
			if peer := binary.LittleEndian.Uint32(a.Params[at+4:]); int(peer) < len(s.devices) {
				s.note(s.allow(peer, dev))
			}
		}
		n.params = slices.Clone(a.Params)
		binary.LittleEndian.PutUint64(n.params[8:], n.mem.ptr)
		r.Value = n.mem.ptr
	}
	handle, res := s.emptyNode(g.handle, deps.nodes, deps.edges)
	if res != cuda.Success {
		s.endUnused(n.mem)
		return res
	}
	s.addMemNode(handle, n)
	_, res = s.adoptNode(g, handle, a.Node)
	return res
}

// allocDevice is the device that the parameters of an allocation node name.
func allocDevice(params []byte) (uint32, bool) {
	// Behind the types of allocation and of handles, the location's type and id.
	const location = wire.AllocNodeSize + 8
	if len(params) < location+8 || binary.LittleEndian.Uint32(params[location:]) != deviceLocation {
		return 0, false
	}
	return binary.LittleEndian.Uint32(params[location+4:]), true
}

const deviceLocation = 1 // CU_MEM_LOCATION_TYPE_DEVICE

func (s *session) emptyNode(g bind.Graph, deps []bind.GraphNode, edges []bind.GraphEdgeData) (bind.GraphNode, cuda.Result) {
	n := bind.NewNode(wire.NodeEmpty)
	defer n.Free()
	h, res := s.drv.AddNode(g, deps, edges, n)
	return h, s.note(res)
}

// captureNode puts a node of ours where a stream's capture is.
func (s *session) captureNode(st *stream, mem func(x *streamCapture) (*memNode, cuda.Result)) cuda.Result {
	const set = 1 // CU_STREAM_SET_CAPTURE_DEPENDENCIES
	status, id, g, deps, edges, res := s.drv.StreamGetCaptureInfo(st.handle)
	if res != cuda.Success {
		return s.note(res)
	}
	i := slices.IndexFunc(s.captures, func(x *streamCapture) bool { return x.id == id })
	if status != cuda.CaptureStatusActive || i < 0 {
		return cuda.ErrorStreamCaptureInvalidated
	}
	n, res := mem(s.captures[i])
	if res != cuda.Success {
		return res
	}
	s.captured(st)
	plain := !slices.ContainsFunc(edges, func(e bind.GraphEdgeData) bool { return e != bind.GraphEdgeData{} })
	if plain {
		edges = nil
	}
	handle, res := s.emptyNode(g, deps, edges)
	if res == cuda.Success {
		n.in, s.captures[i].graph = g, g
		s.addMemNode(handle, n)
		res = s.note(s.drv.StreamUpdateCaptureDependencies(st.handle, []bind.GraphNode{handle}, nil, set))
	} else {
		s.endUnused(n.mem)
	}
	return res
}

// captureAlloc allocates on a stream that captures.
func (s *session) captureAlloc(c *wire.Call, p *ownPool, st *stream, size uint64, ptr *uint64) cuda.Result {
	if p == nil || p.foreign || size == 0 {
		return cuda.ErrorInvalidValue
	}
	return s.captureNode(st, func(x *streamCapture) (*memNode, cuda.Result) {
		m, res := x.again(st, p.dev, size), cuda.Success
		if m == nil {
			m, res = s.newGraphMem(c, p.dev, size)
		}
		if res != cuda.Success {
			return nil, res
		}
		*ptr = m.ptr
		v := wire.AllocNode{Size: size, Ptr: m.ptr}
		b := append(v.Append(nil), make([]byte, bind.PoolPropsSize)...)
		binary.LittleEndian.PutUint32(b[wire.AllocNodeSize:], memPinned)
		binary.LittleEndian.PutUint32(b[wire.AllocNodeSize+8:], deviceLocation)
		binary.LittleEndian.PutUint32(b[wire.AllocNodeSize+12:], p.dev)
		return &memNode{mem: m, params: b}, cuda.Success
	})
}

// again is memory that the stream has freed in this capture.
func (x *streamCapture) again(st *stream, dev uint32, size uint64) *graphMem {
	i := slices.IndexFunc(x.freed, func(f freedMem) bool {
		return f.st == st && f.mem.dev == dev && size <= f.mem.size && arena.Footprint(f.mem.size) == arena.Footprint(size)
	})
	if i < 0 {
		return nil
	}
	m := x.freed[i].mem
	x.freed = slices.Delete(x.freed, i, i+1)
	return m
}

// captureFree frees on a stream that captures.
func (s *session) captureFree(m *graphMem, st *stream) cuda.Result {
	return s.captureNode(st, func(x *streamCapture) (*memNode, cuda.Result) {
		for _, o := range s.memNodes {
			if !o.free && o.mem == m && o.in == x.graph {
				x.freed = append(x.freed, freedMem{st, m})
				break
			}
		}
		return &memNode{mem: m, free: true}, cuda.Success
	})
}
