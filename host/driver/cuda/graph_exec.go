package cuda

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// GraphInstantiate makes a graph executable.
func (s *session) GraphInstantiate(c *wire.Call, a *wire.GraphInstantiateArgs, r *wire.GraphInstantiateReply) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	var res cuda.Result
	if a.Form == wire.GraphFormFlags {
		res = s.fn.cuGraphInstantiateWithFlags.call(s.out.addr(), g.handle, a.Flags)
	} else {
		res = s.instantiateWithParams(c, g, a, r)
	}
	if res != cuda.Success {
		return s.note(res)
	}
	handle := *s.out.u64(0)
	if !s.execs.put(a.Exec, &graphExec{handle}) {
		s.fn.cuGraphExecDestroy.call(handle)
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// instantiateWithParams uses CUDA_GRAPH_INSTANTIATE_PARAMS: flags, upload stream, error node out, result out.
func (s *session) instantiateWithParams(c *wire.Call, g *graph, a *wire.GraphInstantiateArgs, r *wire.GraphInstantiateReply) cuda.Result {
	p := newBuffer(32)
	defer p.free()
	*p.u64(0) = a.Flags
	if a.Upload != 0 {
		st, res := s.submit(c, a.Upload)
		if res != cuda.Success {
			return res
		}
		*p.u64(1) = st.handle
	}
	res := s.fn.cuGraphInstantiateWithParams.call(s.out.addr(), g.handle, p.addr())
	r.Result = uint32(*p.i32(6))
	if n := s.nodeOf[*p.u64(2)]; n != nil {
		r.Node = n.id
	}
	return res
}

// GraphExecDestroy gives an executable graph back; launches of it go on.
func (s *session) GraphExecDestroy(c *wire.Call, a *wire.GraphExecDestroyArgs) cuda.Result {
	x, ok := s.execs.remove(a.Exec)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	return s.note(s.fn.cuGraphExecDestroy.call(x.handle))
}

// GraphLaunch puts a whole graph on a stream.
func (s *session) GraphLaunch(c *wire.Call, a *wire.GraphLaunchArgs) cuda.Result {
	return s.execOn(c, a.Exec, a.Stream, s.fn.cuGraphLaunch)
}

// GraphUpload brings a graph to the device ahead of its first launch.
func (s *session) GraphUpload(c *wire.Call, a *wire.GraphUploadArgs) cuda.Result {
	return s.execOn(c, a.Exec, a.Stream, s.fn.cuGraphUpload)
}

func (s *session) execOn(c *wire.Call, exec wire.ID, on wire.Stream, f entry) cuda.Result {
	x, ok := s.execs.get(exec)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	st, res := s.submit(c, on)
	if res != cuda.Success {
		return res
	}
	return s.note(f.call(x.handle, st.handle))
}

// GraphExecUpdate makes an executable graph do what a graph of the same shape says.
func (s *session) GraphExecUpdate(c *wire.Call, a *wire.GraphExecUpdateArgs, r *wire.GraphExecUpdateReply) cuda.Result {
	x, ok1 := s.execs.get(a.Exec)
	g, ok2 := s.graphs.get(a.Graph)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	// CUgraphExecUpdateResultInfo: result, error node, node before it
	info := newBuffer(24)
	defer info.free()
	res := s.fn.cuGraphExecUpdate_v2.call(x.handle, g.handle, info.addr())
	r.Result = uint32(*info.i32(0))
	if n := s.nodeOf[*info.u64(1)]; n != nil {
		r.Node = n.id
	}
	if n := s.nodeOf[*info.u64(2)]; n != nil {
		r.From = n.id
	}
	return s.note(res)
}

// execNode finds the two that several operations name.
func (s *session) execNode(exec, node uint32) (x *graphExec, n *graphNode, ok bool) {
	x, ok1 := s.execs.get(exec)
	n, ok2 := s.nodes.get(node)
	return x, n, ok1 && ok2
}

// GraphNodeSetEnabled lets a node of an executable graph do its work or nothing.
func (s *session) GraphNodeSetEnabled(c *wire.Call, a *wire.GraphNodeSetEnabledArgs) cuda.Result {
	x, n, ok := s.execNode(a.Exec, a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	return s.fn.cuGraphNodeSetEnabled.call(x.handle, n.handle, uint64(a.Enabled))
}

// GraphNodeGetEnabled tells whether a node works.
func (s *session) GraphNodeGetEnabled(c *wire.Call, a *wire.GraphNodeGetEnabledArgs, r *wire.GraphNodeGetEnabledReply) cuda.Result {
	x, n, ok := s.execNode(a.Exec, a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	res := s.fn.cuGraphNodeGetEnabled.call(x.handle, n.handle, s.out.addr())
	r.Enabled = uint32(*s.out.i32(0))
	return res
}

// attributeValue is the size of a CUlaunchAttributeValue.
const attributeValue = 64

// GraphNodeGetAttribute reads an attribute of a kernel node.
func (s *session) GraphNodeGetAttribute(c *wire.Call, a *wire.GraphNodeGetAttributeArgs, r *wire.GraphNodeGetAttributeReply) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	v := newBuffer(attributeValue)
	defer v.free()
	res := s.fn.cuGraphKernelNodeGetAttribute.call(n.handle, uint64(a.Attr), v.addr())
	if res == cuda.Success {
		if a.Attr == attrProgrammaticEvent || a.Attr == attrLaunchCompletionEvent {
			binary.LittleEndian.PutUint64(v.bytes(), uint64(s.eventID(*v.u64(0))))
		}
		r.Value = append([]byte(nil), v.bytes()...)
	}
	return res
}

// GraphNodeSetAttribute sets an attribute of a kernel node.
func (s *session) GraphNodeSetAttribute(c *wire.Call, a *wire.GraphNodeSetAttributeArgs) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok || len(a.Value) != attributeValue {
		return cuda.ErrorInvalidValue
	}
	v := bufferOf(a.Value)
	defer v.free()
	switch a.Attr {
	case attrProgrammaticEvent, attrLaunchCompletionEvent:
		e, ok := s.events.get(uint32(*v.u64(0)))
		if !ok {
			return cuda.ErrorInvalidHandle
		}
		*v.u64(0) = e.handle
	case attrDeviceUpdatableNode:
		return cuda.ErrorNotSupported
	}
	return s.fn.cuGraphKernelNodeSetAttribute.call(n.handle, uint64(a.Attr), v.addr())
}

// GraphNodeCopyAttributes copies all attributes of a kernel node.
func (s *session) GraphNodeCopyAttributes(c *wire.Call, a *wire.GraphNodeCopyAttributesArgs) cuda.Result {
	dst, ok1 := s.nodes.get(a.Dst)
	src, ok2 := s.nodes.get(a.Src)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	return s.fn.cuGraphKernelNodeCopyAttributes.call(dst.handle, src.handle)
}

// maxDot bounds the text of a printed graph.
const maxDot = 256 << 20

// GraphDebugDot prints a graph as DOT text, through a file in memory.
func (s *session) GraphDebugDot(c *wire.Call, a *wire.GraphDebugDotArgs, r *wire.GraphDebugDotReply) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	fd, err := unix.MemfdCreate("causeway-graph", unix.MFD_CLOEXEC)
	if err != nil {
		return cuda.ErrorOperatingSystem
	}
	f := os.NewFile(uintptr(fd), "graph")
	defer f.Close()
	path := cString(fmt.Appendf(nil, "/proc/self/fd/%d", fd))
	defer path.free()
	if res := s.fn.cuGraphDebugDotPrint.call(g.handle, path.addr(), uint64(a.Flags)); res != cuda.Success {
		return res
	}
	st, err := f.Stat()
	if err != nil || st.Size() > maxDot {
		return cuda.ErrorOperatingSystem
	}
	r.Text = make([]byte, st.Size())
	if _, err := f.ReadAt(r.Text, 0); err != nil && len(r.Text) > 0 {
		return cuda.ErrorOperatingSystem
	}
	return cuda.Success
}

// GraphMemGetAttribute reads what a device's graph memory takes.
func (s *session) GraphMemGetAttribute(c *wire.Call, a *wire.GraphMemGetAttributeArgs, r *wire.GraphMemGetAttributeReply) cuda.Result {
	*s.out.u64(0) = 0
	res := s.fn.cuDeviceGetGraphMemAttribute.call(uint64(a.Dev), uint64(a.Attr), s.out.addr())
	r.Value = *s.out.u64(0)
	return res
}

// GraphMemSetAttribute resets a high-water mark.
func (s *session) GraphMemSetAttribute(c *wire.Call, a *wire.GraphMemSetAttributeArgs) cuda.Result {
	*s.out.u64(0) = a.Value
	return s.fn.cuDeviceSetGraphMemAttribute.call(uint64(a.Dev), uint64(a.Attr), s.out.addr())
}

// GraphMemTrim gives unused graph memory back.
func (s *session) GraphMemTrim(c *wire.Call, a *wire.GraphMemTrimArgs) cuda.Result {
	return s.note(s.fn.cuDeviceGraphMemTrim.call(uint64(a.Dev)))
}

// UserObjectCreate makes a counted object whose destructor is a function of the guest.
func (s *session) UserObjectCreate(c *wire.Call, a *wire.UserObjectCreateArgs) cuda.Result {
	s.openHostFuncs()
	if res := s.fn.cuUserObjectCreate.call(s.out.addr(), a.ID, hostFuncEntry(), uint64(a.Count), uint64(a.Flags)); res != cuda.Success {
		return res
	}
	s.objects.remove(a.Object) // a destroyed object's handle may come again
	if !s.objects.put(a.Object, *s.out.u64(0)) {
		return cuda.ErrorOutOfMemory
	}
	return cuda.Success
}

// UserObjectCount changes the caller's references.
func (s *session) UserObjectCount(c *wire.Call, a *wire.UserObjectCountArgs) cuda.Result {
	o, ok := s.objects.get(a.Object)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	if a.Release != 0 {
		return s.fn.cuUserObjectRelease.call(o, uint64(a.Count))
	}
	return s.fn.cuUserObjectRetain.call(o, uint64(a.Count))
}

// GraphUserObject changes a graph's references.
func (s *session) GraphUserObject(c *wire.Call, a *wire.GraphUserObjectArgs) cuda.Result {
	g, ok1 := s.graphs.get(a.Graph)
	o, ok2 := s.objects.get(a.Object)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	if a.Release != 0 {
		return s.fn.cuGraphReleaseUserObject.call(g.handle, o, uint64(a.Count))
	}
	return s.fn.cuGraphRetainUserObject.call(g.handle, o, uint64(a.Count), uint64(a.Flags))
}
