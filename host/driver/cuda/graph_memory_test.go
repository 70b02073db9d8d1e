package cuda

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
)

// allocParams are those of a node that allocates on device 0.
func allocParams(size uint64) []byte {
	b := append((&wire.AllocNode{Size: size}).Append(nil), make([]byte, bind.PoolPropsSize)...)
	binary.LittleEndian.PutUint32(b[wire.AllocNodeSize:], memPinned)
	binary.LittleEndian.PutUint32(b[wire.AllocNodeSize+8:], deviceLocation)
	return b
}

// graphRig is a session with a graph 30 and what the tests of its memory do.
type graphRig struct {
	*testing.T
	s    *session
	call func() *wire.Call
	next uint32
}

func newGraphRig(t *testing.T) *graphRig {
	s, call := ownSession(t, 1<<30)
	r := &graphRig{t, s, call, 100}
	r.want(cuda.Success, s.GraphCreate(call(), &wire.GraphCreateArgs{Graph: 30}), "create")
	return r
}

func (r *graphRig) want(want, got cuda.Result, what string) {
	r.Helper()
	if got != want {
		r.Fatalf("%s: %v, not %v", what, got, want)
	}
}

// node adds one that allocates, at a place if it is not 0.
func (r *graphRig) node(size, place uint64) (id uint32, at uint64) {
	r.Helper()
	c := r.call()
	if place != 0 {
		c.Replay, c.Placed = true, []uint64{place}
	}
	r.next++
	var reply wire.GraphAddNodeReply
	r.want(cuda.Success, r.s.GraphAddNode(c, &wire.GraphAddNodeArgs{Graph: 30, Node: r.next, Type: wire.NodeMemAlloc, Params: allocParams(size)}, &reply), "add")
	return r.next, reply.Value
}

func (r *graphRig) free(at uint64) cuda.Result {
	r.next++
	return r.s.GraphAddNode(r.call(), &wire.GraphAddNodeArgs{Graph: 30, Node: r.next, Type: wire.NodeMemFree, Params: (&wire.FreeNode{Ptr: at}).Append(nil)}, &wire.GraphAddNodeReply{})
}

func (r *graphRig) instantiate(exec uint32, flags uint64) cuda.Result {
	return r.s.GraphInstantiate(r.call(), &wire.GraphInstantiateArgs{Graph: 30, Exec: exec, Flags: flags, Form: wire.GraphFormFlags}, &wire.GraphInstantiateReply{})
}

func (r *graphRig) launch(exec uint32) cuda.Result {
	return r.s.GraphLaunch(r.call(), &wire.GraphLaunchArgs{Exec: exec, Stream: wire.StreamLegacy})
}

func (r *graphRig) freeOutside(at uint64) cuda.Result {
	return r.s.MemFreeAsync(r.call(), &wire.MemFreeAsyncArgs{Ptr: at, Stream: wire.StreamLegacy})
}

// TestGraphMemory: a node that allocates has memory of the session's ranges, for as long as
// something may allocate it; what a driver refuses for such graphs is refused.
func TestGraphMemory(t *testing.T) {
	r := newGraphRig(t)
	s := r.s
	kept, at := r.node(4<<20, 0)
	_, within := r.node(100, 0)
	if s.arenaOf(at) == nil || s.arenaOf(within) == nil || at == within {
		t.Fatalf("memory at %#x and %#x", at, within)
	}
	r.want(cuda.Success, r.free(within), "free node")
	r.want(cuda.ErrorInvalidValue, r.free(at+512), "free node of nothing")
	if _, res := s.space.Mem(at, 4<<20); res != cuda.Success {
		t.Errorf("nodes cannot name the memory: %v", res)
	}
	var p wire.GraphNodeGetParamsReply
	r.want(cuda.Success, s.GraphNodeGetParams(r.call(), &wire.GraphNodeGetParamsArgs{Node: kept}, &p), "params")
	var v wire.AllocNode
	if p.Type != wire.NodeMemAlloc || v.Decode(p.Params) != nil || v.Ptr != at || v.Size != 4<<20 || len(p.Params) != len(allocParams(0)) {
		t.Errorf("a node of type %d says %+v", p.Type, v)
	}
	r.want(cuda.ErrorNotSupported, s.GraphClone(r.call(), &wire.GraphCloneArgs{Graph: 31, Original: 30}), "clone")
	r.want(cuda.ErrorNotSupported, s.GraphDestroyNode(r.call(), &wire.GraphDestroyNodeArgs{Node: kept}), "destroy a node")
	r.want(cuda.ErrorInvalidValue, r.freeOutside(at), "free before a launch")
	r.want(cuda.Success, r.instantiate(40, 0), "instantiate")
	r.want(cuda.ErrorNotSupported, r.instantiate(41, 0), "instantiate twice")
	r.want(cuda.Success, r.launch(40), "launch")
	r.want(cuda.ErrorInvalidValue, r.launch(40), "launch over what the last has left")
	r.want(cuda.Success, r.freeOutside(at), "free")
	r.want(cuda.ErrorInvalidValue, r.freeOutside(at), "free twice")
	r.want(cuda.Success, r.launch(40), "launch again")
	if err := s.Movable(); err != nil {
		t.Error(err)
	}
	r.want(cuda.Success, s.GraphDestroy(r.call(), &wire.GraphDestroyArgs{Graph: 30}), "destroy")
	if err := s.Movable(); err == nil {
		t.Error("memory of which no graph tells is to move")
	}
	r.want(cuda.Success, s.GraphExecDestroy(r.call(), &wire.GraphExecDestroyArgs{Exec: 40}), "destroy what is executable")
	if len(s.allocs) != 1 || s.used != 4<<20 {
		t.Errorf("%d allocations are left, %d bytes are booked; the last launch's is not freed", len(s.allocs), s.used)
	}
	r.want(cuda.Success, r.freeOutside(at), "free the last")
	s.reclaim()
	s.arenas.ranges[0].Trim()
	if created, pages, _, wrong := cudatest.MappingCounts(); created+pages+wrong != 0 || s.used != 0 || len(s.graphMems)+len(s.memNodes) != 0 {
		t.Errorf("of nothing %d pieces and %d pages are left, %d bytes are booked, %d pieces and %d nodes are noted; %d calls made no sense",
			created, pages, s.used, len(s.graphMems), len(s.memNodes), wrong)
	}
}

// TestGraphMemoryMoves: nodes have their memory where it was when another process makes their graph
// again, two of one place among them; what launches have left goes along, and nothing else.
func TestGraphMemoryMoves(t *testing.T) {
	r := newGraphRig(t)
	_, left := r.node(3<<20, 0)
	_, unused := r.node(1<<20, 0)
	r.want(cuda.Success, r.free(unused), "free node")
	r.want(cuda.Success, r.instantiate(40, 0), "instantiate")
	r.want(cuda.Success, r.launch(40), "launch")
	live := bytes.Clone(r.s.liveGraphMemory())
	if !bytes.Equal(live, binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, left), 1)) {
		t.Fatalf("left are %x", live)
	}
	list := 0
	_ = r.s.ExportRunning(func(at, size uint64, _ io.Reader) error {
		if list++; at != left || size != 3<<20 {
			t.Errorf("%d bytes at %#x go ahead", size, at)
		}
		return nil
	})
	if list != 1 {
		t.Errorf("%d allocations go ahead", list)
	}
	for _, n := range r.s.memNodes { // the process ends
		r.s.setLive(n.mem, false)
	}
	r.want(cuda.Success, r.s.GraphExecDestroy(r.call(), &wire.GraphExecDestroyArgs{Exec: 40}), "end")
	r.want(cuda.Success, r.s.GraphDestroy(r.call(), &wire.GraphDestroyArgs{Graph: 30}), "end")
	r.s.reclaim()
	r.s.arenas.ranges[0].Trim()

	again := newGraphRig(t)
	if err := again.s.setLiveGraphMemory(uint64(len(live)), bytes.NewReader(live)); err == nil {
		t.Error("memory of a graph that is not there is taken over")
	}
	_, small := again.node(3<<20-700, left)
	_, large := again.node(3<<20, left)
	if _, other := again.node(1<<20, unused); small != left || large != left || other != unused || len(again.s.graphMems) != 2 {
		t.Errorf("memory lies at %#x, %#x and %#x, and was at %#x and %#x", small, large, other, left, unused)
	}
	if a := again.s.allocs[left]; a.size != 3<<20 || again.s.used != 4<<20 {
		t.Errorf("%d bytes, %d are booked", a.size, again.s.used)
	}
	if err := again.s.setLiveGraphMemory(uint64(len(live)), bytes.NewReader(live)); err != nil {
		t.Fatal(err)
	}
	again.want(cuda.Success, again.instantiate(40, 1), "instantiate")
	again.want(cuda.Success, again.launch(40), "launch over what the last has left, if that is freed by itself")
	again.want(cuda.Success, again.freeOutside(left), "free")
}
