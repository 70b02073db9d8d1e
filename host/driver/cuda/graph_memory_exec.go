package cuda

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// memoryOf is what a graph does with memory, and the graphs inside it.
func (s *session) memoryOf(g *graph) *execMemory {
	var x *execMemory
	count := map[*graphMem]int{}
	for _, n := range s.memNodes {
		in := n.of
		if in == nil {
			in = s.graphOf[n.in]
		}
		if in == nil || in.root() != g {
			continue
		}
		if x == nil {
			x = &execMemory{}
		}
		if n.free {
			count[n.mem]--
			x.frees = append(x.frees, n.mem)
		} else {
			if count[n.mem]++; !slices.Contains(x.all, n.mem) {
				x.all = append(x.all, n.mem)
			}
		}
	}
	if x == nil {
		return nil
	}
	for _, m := range x.all {
		if count[m] > 0 {
			x.allocs = append(x.allocs, m)
		}
	}
	return x
}

// updateNotSupported is CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED.
const updateNotSupported = 6

// instantiated reports whether the graph is executable already: twice at once it may not be.
func (x *execMemory) instantiated() bool {
	return slices.ContainsFunc(x.all, func(m *graphMem) bool { return m.execs > 0 })
}

// begin notes that it is.
func (x *execMemory) begin(flags uint64) {
	const autoFreeOnLaunch = 1 // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
	x.again = flags&autoFreeOnLaunch != 0
	for _, m := range x.all {
		m.execs++
	}
}

// mayLaunch refuses a launch that would allocate what the last one has left.
func (x *execMemory) mayLaunch() bool {
	return x == nil || x.again || !slices.ContainsFunc(x.allocs, func(m *graphMem) bool { return m.live })
}

// launched follows a launch.
func (s *session) launched(x *execMemory) {
	if x == nil {
		return
	}
	for _, m := range x.frees {
		s.setLive(m, false)
		s.endUnused(m)
	}
	for _, m := range x.allocs {
		s.setLive(m, true)
	}
}

// endExecMemory lets go of an executable graph's memory.
func (s *session) endExecMemory(x *execMemory) {
	if x == nil {
		return
	}
	for _, m := range x.all {
		m.execs--
		s.endUnused(m)
	}
}

// strayGraphMemory is the address of memory that a launch has left and whose graph is gone: no node
// would make it again.
func (s *session) strayGraphMemory() (uint64, bool) {
	for at, m := range s.graphMems {
		if m.live && m.nodes == 0 {
			return at, true
		}
	}
	return 0, false
}

// graphMemAttribute is an attribute of a device's graph memory.
func (s *session) graphMemAttribute(a *wire.GraphMemGetAttributeArgs, r *wire.GraphMemGetAttributeReply) cuda.Result {
	const used, usedHigh, reserved, reservedHigh = 0, 1, 2, 3 // CUgraphMem_attribute
	if int(a.Dev) >= len(s.devices) {
		return cuda.ErrorInvalidDevice
	}
	var live, all uint64
	for _, m := range s.graphMems {
		if m.dev == a.Dev {
			if all += m.size; m.live {
				live += m.size
			}
		}
	}
	if s.graphMost == nil {
		s.graphMost = map[uint32]uint64{}
	}
	s.graphMost[a.Dev] = max(s.graphMost[a.Dev], all)
	switch a.Attr {
	case used:
		r.Value = live
	case reserved:
		r.Value = all
	case usedHigh, reservedHigh:
		r.Value = s.graphMost[a.Dev]
	default:
		return cuda.ErrorInvalidValue
	}
	return cuda.Success
}

// liveMem is how memory that a launch has left travels.
type liveMem struct{ Ptr, Live uint64 }

// liveGraphMemory says which memory launches have left, and which of it is free again.
func (s *session) liveGraphMemory() (b []byte) {
	for _, m := range s.graphMems {
		if m.lived {
			v := liveMem{Ptr: m.ptr}
			if m.live {
				v.Live = 1
			}
			b, _ = binary.Append(b, binary.LittleEndian, v)
		}
	}
	return b
}

// setLiveGraphMemory takes that over. Graphs that cannot be made before the program's own memory is
// there have none yet.
func (s *session) setLiveGraphMemory(size uint64, r io.Reader) error {
	for range size / uint64(binary.Size(liveMem{})) {
		var v liveMem
		if err := binary.Read(r, binary.LittleEndian, &v); err != nil {
			return fmt.Errorf("memory of graphs: %w", err)
		}
		m := s.graphMems[v.Ptr]
		if m == nil {
			return fmt.Errorf("memory at %#x that a graph's launch has left is of a graph that copies the program's own memory, and cannot be there before that", v.Ptr)
		}
		s.setLive(m, true)
		s.setLive(m, v.Live != 0)
	}
	return nil
}
