package conformance

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// testGraphRefusals: nodes that would reach memory that is none of the guest's, or that ask what
// nobody made.
func testGraphRefusals(t *testing.T, g *Guest) {
	const size = 1 << 16
	add := g.kernel(g.load(kernels), "add")
	buf, graph := g.alloc(size), g.ID()
	mem := g.AddRegion(3, wire.RegionPinned, size)
	g.ok(g.do(&wire.RegionAddArgs{Region: 3, Kind: wire.RegionPinned, Va: address(mem), Size: size}, &wire.RegionAddReply{}), "RegionAdd")
	own := random(64) // of this process, and not the guest's
	g.ok(g.do(&wire.GraphCreateArgs{Graph: graph}, nil), "GraphCreate")
	node := func(kind uint32, params []byte) cuda.Result {
		return g.do(&wire.GraphAddNodeArgs{Graph: graph, Node: g.ID(), Type: kind, Params: params}, &wire.GraphAddNodeReply{})
	}
	kernel := func(size int) []byte {
		v := wire.KernelNode{Func: add, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: uint32(size)}
		b := binary.LittleEndian.AppendUint64(v.Append(nil), buf)
		return append(b, make([]byte, size-8)...)
	}
	box := func(src wire.MemcpyOperand, width, height, depth uint64) []byte {
		dst := wire.MemcpyOperand{Type: cuda.MemoryTypeDevice, Ptr: buf, Pitch: width, Height: height}
		e := wire.MemcpyNode{Width: width, Height: height, Depth: depth}
		return e.Append(dst.Append(src.Append(nil)))
	}
	pinned := wire.MemcpyOperand{Type: cuda.MemoryTypeHost, Ptr: address(mem), Pitch: 64, Height: 1}
	from := func(change func(*wire.MemcpyOperand)) []byte {
		operand := pinned
		change(&operand)
		return box(operand, 64, 1, 1)
	}
	fill := func(dst, pitch, width, height uint64) []byte {
		return (&wire.MemsetNode{Dst: dst, Pitch: pitch, Value: 1, Element: 4, Width: width, Height: height}).Append(nil)
	}
	condition := binary.LittleEndian.AppendUint32((&wire.ConditionalNode{Handle: 0x414141414141, Size: 1}).Append(nil), g.ID())
	for _, c := range []struct {
		what   string
		kind   uint32
		params []byte
	}{
		{"a kernel with 20 of 24 bytes of parameters", wire.NodeKernel, kernel(20)},
		{"a kernel with 8 of 24 bytes of parameters", wire.NodeKernel, kernel(8)},
		{"a copy from this process", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.Ptr = address(own) })},
		{"a copy from before a region", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.Ptr -= 32 })},
		{"a copy over a region's end", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.Ptr += size - 32 })},
		{"a copy whose offset leaves its region", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.X = size; s.Pitch = size + 64 })},
		{"a copy whose offset wraps around", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.X = ^uint64(0) - 31 })},
		{"a copy whose slice lies nowhere", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.Z = 1 << 40; s.Height = 1 << 40 })},
		{"slices that wrap around to before a region", wire.NodeMemcpy,
			box(wire.MemcpyOperand{Type: cuda.MemoryTypeHost, Ptr: address(mem), Pitch: 1, Height: 1 << 24, Z: 1<<40 - 1}, 1, 4096, 2)},
		{"rows without a pitch that leave a region", wire.NodeMemcpy,
			box(wire.MemcpyOperand{Type: cuda.MemoryTypeHost, Ptr: address(mem)}, 4096, 2*size/4096, 1)},
		{"a copy out of an array that is not there", wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.Type = cuda.MemoryTypeArray; s.Array = 9999 })},
		{"a fill of this process", wire.NodeMemset, fill(address(own), 0, 4, 1)},
		{"a fill over a region's end", wire.NodeMemset, fill(address(mem)+size-32, 0, 16, 1)},
		{"rows to fill that wrap around", wire.NodeMemset, fill(address(mem), 1<<63, 4, 3)},
		{"elements to fill that wrap around", wire.NodeMemset, fill(address(mem), 0, 1<<62+4, 1)},
		{"the end of an allocation that no node made", wire.NodeMemFree, (&wire.FreeNode{Ptr: address(own)}).Append(nil)},
		{"the end of an allocation that is no graph's", wire.NodeMemFree, (&wire.FreeNode{Ptr: buf}).Append(nil)},
		{"a condition that nobody made", wire.NodeConditional, condition},
	} {
		if res := node(c.kind, c.params); res == cuda.Success {
			t.Errorf("%s was taken", c.what)
		}
	}
	if res := node(wire.NodeKernel, kernel(24)); res != cuda.Success {
		t.Errorf("a kernel with all of its parameters: %v", res)
	}
	if res := node(wire.NodeMemcpy, from(func(s *wire.MemcpyOperand) { s.Ptr += size - 64 })); res != cuda.Success {
		t.Errorf("a copy of a region's last bytes: %v", res)
	}
}
