package soft

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// Attributes of graph memory (CUDA Driver API, CUgraphMem_attribute).
const (
	graphMemUsed         = 0
	graphMemUsedHigh     = 1
	graphMemReserved     = 2
	graphMemReservedHigh = 3
)

func (s *session) prepareAlloc(c *wire.Call, n *graphNode, p []byte) cuda.Result {
	var v wire.AllocNode
	if v.Decode(p) != nil || v.Size == 0 {
		return cuda.ErrorInvalidValue
	}
	g := n.work.ctx
	if len(s.graphMem) >= 2*s.graphMemLeft+graphMemFew {
		s.endUnusedGraphMem()
	}
	want := request{device: g.device, size: v.Size, align: allocUnit, ctx: g}
	m, res := s.obtain(c, want)
	if res == cuda.ErrorOutOfMemory && s.endUnusedGraphMem() {
		m, res = s.obtain(c, want)
	}
	if res != cuda.Success {
		return res
	}
	if s.graphMem == nil {
		s.graphMem = map[uint64]*graphAlloc{}
	}
	ga := &graphAlloc{mem: m}
	s.graphMem[m.lo] = ga
	n.work.alloc = ga
	n.work.steps = []func() cuda.Result{func() cuda.Result {
		ga.live.Store(true)
		return cuda.Success
	}}
	v.Ptr = m.lo
	copy(n.params, v.Append(nil))
	return cuda.Success
}

// release is what a free node does.
func (g *graphAlloc) release() cuda.Result {
	g.live.Store(false)
	return cuda.Success
}

// GraphMemGetAttribute tells what graphs hold on a device.
func (s *session) GraphMemGetAttribute(c *wire.Call, a *wire.GraphMemGetAttributeArgs, r *wire.GraphMemGetAttributeReply) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	var used, reserved uint64
	for _, g := range s.graphMem {
		if g.mem.device != int(a.Dev) {
			continue
		}
		reserved += g.mem.size
		if g.live.Load() {
			used += g.mem.size
		}
	}
	s.memHigh = max(s.memHigh, reserved)
	switch a.Attr {
	case graphMemUsed:
		r.Value = used
	case graphMemReserved:
		r.Value = reserved
	case graphMemUsedHigh, graphMemReservedHigh:
		r.Value = s.memHigh
	default:
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// GraphMemSetAttribute resets a high-water mark.
func (s *session) GraphMemSetAttribute(c *wire.Call, a *wire.GraphMemSetAttributeArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	if a.Attr != graphMemUsedHigh && a.Attr != graphMemReservedHigh || a.Value != 0 {
		return cuda.ErrorInvalidValue
	}
	s.memHigh = 0
	return cuda.Success
}

// GraphMemTrim gives back the memory of graphs that nothing can launch any more.
func (s *session) GraphMemTrim(c *wire.Call, a *wire.GraphMemTrimArgs) cuda.Result {
	if int(a.Dev) >= len(s.gpus) {
		return cuda.ErrorInvalidDevice
	}
	s.trimGraphMem(func(g *graphAlloc) bool { return g.mem.device == int(a.Dev) })
	return cuda.Success
}

// trimGraphMem ends what is no graph's and no executable graph's any more, and reports whether
// there was any.
func (s *session) trimGraphMem(which func(*graphAlloc) bool) bool {
	used := s.allocNodes()
	var look func(p *plan)
	look = func(p *plan) {
		for i := range p.nodes {
			used[p.nodes[i].work.alloc] = true
			for _, body := range p.nodes[i].bodies {
				look(body)
			}
		}
	}
	for _, x := range s.execs {
		look(x.plan)
	}
	s.pruneEnding()
	for _, x := range s.ending {
		look(x.plan)
	}
	var gone []*allocation
	for at, g := range s.graphMem {
		if which(g) && !used[g] && !g.live.Load() {
			gone = append(gone, g.mem)
			delete(s.graphMem, at)
		}
	}
	s.free(gone)
	return len(gone) > 0
}

// graphMemFew is how much memory of graphs is not worth a look at what of it can go.
const graphMemFew = 16

// endUnusedGraphMem does so on all devices, as a driver has graphs take the memory of those that
// are gone: a program that captures all day would keep it all otherwise.
func (s *session) endUnusedGraphMem() bool {
	ended := s.trimGraphMem(func(*graphAlloc) bool { return true })
	s.graphMemLeft = len(s.graphMem)
	return ended
}

// pruneEnding forgets executable graphs that were destroyed and whose launches have run.
func (s *session) pruneEnding() {
	s.ending = slices.DeleteFunc(s.ending, func(x *graphExec) bool { return x.last.finished() })
}

// allocNodes is the memory of nodes of graphs.
func (s *session) allocNodes() map[*graphAlloc]bool {
	used := map[*graphAlloc]bool{}
	var look func(g *graph)
	look = func(g *graph) {
		for _, n := range g.nodes {
			used[n.work.alloc] = true
			for _, in := range n.inner {
				look(in)
			}
		}
	}
	for _, g := range s.graphs {
		look(g)
	}
	for _, x := range s.captures {
		look(x.graph)
	}
	return used
}

// strayGraphMemory finds memory that holds something and that no node of a graph would make again.
func (s *session) strayGraphMemory() (uint64, bool) {
	used := s.allocNodes()
	for at, g := range s.graphMem {
		if g.live.Load() && !used[g] {
			return at, true
		}
	}
	return 0, false
}

// userObject is counted by the guest's and by graphs' references; with the last its destructor runs
// in the guest.
type userObject struct {
	id    uint64
	count uint64
}

// UserObjectCreate makes a counted object.
func (s *session) UserObjectCreate(c *wire.Call, a *wire.UserObjectCreateArgs) cuda.Result {
	const noDestructorSync = 1
	if a.Flags != noDestructorSync || a.Count == 0 {
		return cuda.ErrorInvalidValue
	}
	if s.objects == nil {
		s.objects = map[wire.ID]*userObject{}
	}
	if len(s.objects) >= maxObjects {
		return cuda.ErrorOutOfMemory
	}
	s.objects[a.Object] = &userObject{id: a.ID, count: uint64(a.Count)}
	return cuda.Success
}

// releaseObject drops references; the destructor runs behind everything that is queued.
func (s *session) releaseObject(o *userObject, n uint32) {
	if o.count -= min(uint64(n), o.count); o.count > 0 {
		return
	}
	id := o.id
	s.queue.submit(&task{always: true, run: func() cuda.Result {
		s.host.CallBack(id, cuda.Success)
		return cuda.Success
	}}, s.everything())
}

func (s *session) retainObject(g *graph, o *userObject, n uint32) {
	if g.users == nil {
		g.users = map[*userObject]uint32{}
	}
	g.users[o] += n
	o.count += uint64(n)
}

// UserObjectCount retains or releases references of the guest's.
func (s *session) UserObjectCount(c *wire.Call, a *wire.UserObjectCountArgs) cuda.Result {
	o := s.objects[a.Object]
	switch {
	case o == nil || a.Count == 0 || o.count == 0:
		return cuda.ErrorInvalidValue
	case a.Release == 0:
		o.count += uint64(a.Count)
	default:
		s.releaseObject(o, a.Count)
	}
	return cuda.Success
}

// GraphUserObject changes a graph's references.
func (s *session) GraphUserObject(c *wire.Call, a *wire.GraphUserObjectArgs) cuda.Result {
	const move = 1
	g, o := s.graphs[a.Graph], s.objects[a.Object]
	if g == nil || o == nil || a.Count == 0 || a.Flags&^move != 0 || o.count == 0 {
		return cuda.ErrorInvalidValue
	}
	if a.Release != 0 {
		if g.users[o] < a.Count {
			return cuda.ErrorInvalidValue
		}
		g.users[o] -= a.Count
		s.releaseObject(o, a.Count)
		return cuda.Success
	}
	s.retainObject(g, o, a.Count)
	if a.Flags&move != 0 {
		s.releaseObject(o, a.Count)
	}
	return cuda.Success
}
