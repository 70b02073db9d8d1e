package cuda

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
)

// GraphInstantiate makes a graph executable.
func (s *session) GraphInstantiate(c *wire.Call, a *wire.GraphInstantiateArgs, r *wire.GraphInstantiateReply) cuda.Result {
	g, ok := s.graphs.get(a.Graph)
	if !ok {
		return s.noGraph(a.Graph)
	}
	if res := s.useAny(c); res != cuda.Success {
		return res
	}
	memory := s.memoryOf(g)
	if memory != nil && memory.instantiated() {
		return cuda.ErrorNotSupported
	}
	grow, res := s.growing(c, g.allNeeds())
	if res != cuda.Success {
		return res
	}
	var handle bind.GraphExec
	if a.Form == wire.GraphFormFlags {
		handle, res = s.drv.GraphInstantiateWithFlags(g.handle, a.Flags)
	} else {
		handle, res = s.instantiateWithParams(c, g, a, r)
	}
	if res = s.grown(c, grow, res); res != cuda.Success {
		return s.note(res)
	}
	x := &graphExec{handle: handle, memory: memory}
	x.takes(g)
	delete(s.lost.execs, a.Exec)
	res = keep(&s.execs, a.Exec, x, handle, s.drv.GraphExecDestroy)
	if memory != nil && res == cuda.Success {
		memory.begin(a.Flags)
	}
	return res
}

// instantiateWithParams is the form that tells what is wrong.
func (s *session) instantiateWithParams(c *wire.Call, g *graph, a *wire.GraphInstantiateArgs, r *wire.GraphInstantiateReply) (bind.GraphExec, cuda.Result) {
	p := bind.GraphInstantiateParams{Flags: a.Flags}
	if a.Upload != 0 {
		st, res := s.submit(c, a.Upload)
		if res != cuda.Success {
			return bind.GraphExec{}, res
		}
		p.Upload = st.handle
	}
	x, res := s.drv.GraphInstantiateWithParams(g.handle, &p)
	r.Result = uint32(p.Result)
	if n := s.nodeOf[p.ErrorNode]; n != nil {
		r.Node = n.id
	}
	return x, res
}

// GraphExecDestroy gives an executable graph back; launches of it go on.
func (s *session) GraphExecDestroy(c *wire.Call, a *wire.GraphExecDestroyArgs) cuda.Result {
	x, ok := s.execs.remove(a.Exec)
	if _, lost := s.lost.execs[a.Exec]; lost && !ok {
		delete(s.lost.execs, a.Exec)
		return cuda.Success
	}
	if !ok {
		return cuda.ErrorInvalidValue
	}
	res := s.note(s.drv.GraphExecDestroy(x.handle))
	s.endExecMemory(x.memory)
	s.endKept()
	return res
}

// GraphLaunch puts a whole graph on a stream.
func (s *session) GraphLaunch(c *wire.Call, a *wire.GraphLaunchArgs) cuda.Result {
	x, ok := s.execs.get(a.Exec)
	switch {
	case !ok:
		return s.noExec(a.Exec)
	case !x.memory.mayLaunch():
		return cuda.ErrorInvalidValue
	}
	grow, res := s.execOutgrows(c, x)
	if res == cuda.Success {
		res = s.grown(c, grow, s.execOn(c, a.Exec, a.Stream, s.drv.GraphLaunch))
	}
	if res == cuda.Success {
		s.launched(x.memory)
	}
	return res
}

// GraphUpload brings a graph to the device ahead of its first launch.
func (s *session) GraphUpload(c *wire.Call, a *wire.GraphUploadArgs) cuda.Result {
	return s.execOn(c, a.Exec, a.Stream, s.drv.GraphUpload)
}

func (s *session) execOn(c *wire.Call, exec wire.ID, on wire.Stream, do func(bind.GraphExec, bind.Stream) cuda.Result) cuda.Result {
	x, ok := s.execs.get(exec)
	if !ok {
		return s.noExec(exec)
	}
	st, res := s.submit(c, on)
	if res != cuda.Success {
		return res
	}
	s.captured(st, x.all()...)
	return s.note(do(x.handle, st.handle))
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
	if x.memory != nil || s.memoryOf(g) != nil {
		r.Result = updateNotSupported
		return cuda.ErrorGraphExecUpdateFailure
	}
	grow, res := s.growing(c, g.allNeeds())
	if res != cuda.Success {
		return res
	}
	var info bind.GraphExecUpdateResultInfo
	res = s.grown(c, grow, s.drv.GraphExecUpdate(x.handle, g.handle, &info))
	r.Result = info.Result
	if n := s.nodeOf[info.Node]; n != nil {
		r.Node = n.id
	}
	if n := s.nodeOf[info.From]; n != nil {
		r.From = n.id
	}
	if res == cuda.Success {
		x.takes(g)
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
	return s.drv.GraphNodeSetEnabled(x.handle, n.handle, a.Enabled)
}

// GraphNodeGetEnabled tells whether a node works.
func (s *session) GraphNodeGetEnabled(c *wire.Call, a *wire.GraphNodeGetEnabledArgs, r *wire.GraphNodeGetEnabledReply) (res cuda.Result) {
	x, n, ok := s.execNode(a.Exec, a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	r.Enabled, res = s.drv.GraphNodeGetEnabled(x.handle, n.handle)
	return res
}

// GraphNodeGetAttribute reads an attribute of a kernel node.
func (s *session) GraphNodeGetAttribute(c *wire.Call, a *wire.GraphNodeGetAttributeArgs, r *wire.GraphNodeGetAttributeReply) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	var v bind.LaunchAttributeValue
	res := s.drv.GraphKernelNodeGetAttribute(n.handle, a.Attr, &v)
	if res == cuda.Success {
		r.Value = v.Bytes(a.Attr, s.eventID)
	}
	return res
}

// GraphNodeSetAttribute sets an attribute of a kernel node.
func (s *session) GraphNodeSetAttribute(c *wire.Call, a *wire.GraphNodeSetAttributeArgs) cuda.Result {
	n, ok := s.nodes.get(a.Node)
	if !ok {
		return cuda.ErrorInvalidValue
	}
	v, _, res := s.space.AttributeValue(a.Attr, a.Value, s.eventFor(&n.needs))
	if res != cuda.Success {
		return res
	}
	return s.drv.GraphKernelNodeSetAttribute(n.handle, a.Attr, &v)
}

// GraphNodeCopyAttributes copies all attributes of a kernel node.
func (s *session) GraphNodeCopyAttributes(c *wire.Call, a *wire.GraphNodeCopyAttributesArgs) cuda.Result {
	dst, ok1 := s.nodes.get(a.Dst)
	src, ok2 := s.nodes.get(a.Src)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	dst.needs.add(src.needs.events()...)
	return s.drv.GraphKernelNodeCopyAttributes(dst.handle, src.handle)
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
	if res := s.drv.GraphDebugDotPrint(g.handle, fmt.Appendf(nil, "/proc/self/fd/%d", fd), a.Flags); res != cuda.Success {
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
func (s *session) GraphMemGetAttribute(c *wire.Call, a *wire.GraphMemGetAttributeArgs, r *wire.GraphMemGetAttributeReply) (res cuda.Result) {
	if s.arenas.on {
		return s.graphMemAttribute(a, r)
	}
	r.Value, res = s.drv.DeviceGetGraphMemAttribute(a.Dev, a.Attr)
	return res
}

// GraphMemSetAttribute resets a high-water mark.
func (s *session) GraphMemSetAttribute(c *wire.Call, a *wire.GraphMemSetAttributeArgs) cuda.Result {
	res := s.drv.DeviceSetGraphMemAttribute(a.Dev, a.Attr, a.Value)
	if res == cuda.Success {
		delete(s.graphMost, a.Dev)
	}
	return res
}

// GraphMemTrim gives unused graph memory back.
func (s *session) GraphMemTrim(c *wire.Call, a *wire.GraphMemTrimArgs) cuda.Result {
	return s.note(s.drv.DeviceGraphMemTrim(a.Dev))
}

// UserObjectCreate makes a counted object whose destructor is a function of the guest.
func (s *session) UserObjectCreate(c *wire.Call, a *wire.UserObjectCreateArgs) cuda.Result {
	s.openHostFuncs()
	h, res := s.drv.UserObjectCreate(a.ID, hostFuncEntry(), a.Count, a.Flags)
	if res != cuda.Success {
		return res
	}
	s.objects.remove(a.Object) // a destroyed object's handle may come again
	if !s.objects.put(a.Object, h) {
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
		return s.drv.UserObjectRelease(o, a.Count)
	}
	return s.drv.UserObjectRetain(o, a.Count)
}

// GraphUserObject changes a graph's references.
func (s *session) GraphUserObject(c *wire.Call, a *wire.GraphUserObjectArgs) cuda.Result {
	g, ok1 := s.graphs.get(a.Graph)
	o, ok2 := s.objects.get(a.Object)
	if !ok1 || !ok2 {
		return cuda.ErrorInvalidValue
	}
	if a.Release != 0 {
		return s.drv.GraphReleaseUserObject(g.handle, o, a.Count)
	}
	return s.drv.GraphRetainUserObject(g.handle, o, a.Count, a.Flags)
}
