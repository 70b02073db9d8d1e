package cuda

import (
	"encoding/binary"
	"errors"
	"maps"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// brokenIO is memory of a carrier whose connection is lost.
type brokenIO struct{}

var errBroken = errors.New("lost")

func (brokenIO) ReadAt([]byte, int64) (int, error)  { return 0, errBroken }
func (brokenIO) WriteAt([]byte, int64) (int, error) { return 0, errBroken }

// TestWordsOfCopiesThatFail: a guest waits for a copy's word and for nothing else. Whatever of the
// copy fails, at the driver or on the way, the word says so; and it is never said of one that did
// not.
func TestWordsOfCopiesThatFail(t *testing.T) {
	const l, carried, broken, array = wire.StreamLegacy, 9, 10, 50
	fails := cudatest.Mapping("cuMemSetAccess") // as many calls succeed as the test says
	may := map[string]bool{"cuMemcpyHtoDAsync_v2": true, "cuMemcpyDtoHAsync_v2": true, "cuMemcpy3DAsync_v2": true, "cuStreamWriteValue32_v2": true, "cuStreamSynchronize": true}
	drv := bind.New(func(symbol string) uint64 {
		if may[symbol] {
			return fails
		}
		return cudatest.Owning(symbol)
	})
	cudatest.Restart()
	host := drivertest.NewHost()
	host.Regions = maps.Clone(guestRegions(t))
	host.Regions[carried] = driver.Region{ID: carried, Kind: wire.RegionStaging, Size: regionSize, IO: nothing{}}
	host.Regions[broken] = driver.Region{ID: broken, Kind: wire.RegionStaging, Size: regionSize, IO: brokenIO{}}
	s := agreeing(t, drv, host)
	var d wire.Dispatcher
	do := func(a wire.Args) cuda.Result {
		t.Helper()
		c := wire.Call{Op: a.Op(), Ctx: 5, Seq: 1, Replier: silent{}}
		s.Before(c.Op, false)
		_, res, err := d.Dispatch(s, &c, recordsOf(t, request{Args: a}), nil)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	cudatest.FailMapping(0)
	for _, r := range append(begin(), request{Args: &wire.ArrayCreateArgs{Array: array, Width: 64, Height: 64, Depth: 1, Format: 1, Channels: 1}}) {
		if res := do(r.Args); res != cuda.Success {
			t.Fatalf("%v: %v", r.Op(), res)
		}
	}
	staged := func(region, direction uint32, size uint64) *wire.MemcpyStagedArgs {
		return &wire.MemcpyStagedArgs{Direction: direction, Region: region, Size: size, Device: dev, Stream: l, Word: 3, Value: 7}
	}
	box := func(a wire.Memcpy3DArgs) *wire.Memcpy3DArgs {
		a.Stream, a.Word, a.Value, a.Width, a.Height, a.Depth = l, 3, 7, 16, 4, 1
		a.SrcPitch, a.DstPitch, a.SrcHeight, a.DstHeight = 64, 64, 4, 4
		return &a
	}
	toArray := wire.Memcpy3DArgs{SrcKind: wire.OperandStaging, SrcRegion: carried, DstKind: wire.OperandArray, Dst: array}
	fromArray := swapped(toArray)
	toBroken, fromBroken := fromArray, toArray
	toBroken.DstRegion, fromBroken.SrcRegion = broken, broken
	for what, c := range map[string]struct {
		a     wire.Args
		fails int // calls of the driver of which each may
		ends  bool
	}{
		"in":                      {staged(regionStaging, 0, 4096), 2, true},
		"out":                     {staged(regionStaging, 1, 4096), 2, true},
		"carried in":              {staged(carried, 0, 4096), 2, true},
		"carried out":             {staged(carried, 1, 4096), 2, true},
		"carried in, in parts":    {staged(carried, 0, regionSize), 2, true},
		"in, of a lost carrier":   {staged(broken, 0, 4096), 0, false},
		"out, to a lost carrier":  {staged(broken, 1, 4096), 2, false},
		"box in":                  {box(wire.Memcpy3DArgs{SrcKind: wire.OperandStaging, SrcRegion: regionStaging, Dst: dev}), 2, true},
		"box out":                 {box(wire.Memcpy3DArgs{Src: dev, DstKind: wire.OperandStaging, DstRegion: regionStaging}), 2, true},
		"box to an array":         {box(toArray), 2, true},
		"box from an array":       {box(fromArray), 2, true},
		"box to a lost carrier":   {box(toBroken), 0, false},
		"box from a lost carrier": {box(fromBroken), 0, false},
	} {
		for n := 1; ; n++ {
			clear(host.Words)
			cudatest.FailMapping(n)
			res := do(c.a)
			cudatest.FailMapping(0)
			word := host.Word(3)
			if n <= c.fails {
				if res == cuda.Success || word != 7|wire.WordFailed {
					t.Errorf("%s, whose call %d of the driver fails: %v, its word is %#x", what, n, res, word)
				}
				continue
			}
			if (res == cuda.Success) != c.ends || word&wire.WordFailed != 0 == c.ends {
				t.Errorf("%s: %v, its word is %#x", what, res, word)
			}
			break
		}
	}
}

// TestFencesOfWhatFails: what answers behind a fence, and fails at the driver before that is behind
// it, gives the fence back.
func TestFencesOfWhatFails(t *testing.T) {
	fails := cudatest.Mapping("cuMemSetAccess")
	drv := bind.New(func(symbol string) uint64 {
		if symbol == "cuMemcpyDtoHAsync_v2" || symbol == "cuStreamWriteValue32_v2" {
			return fails
		}
		return cudatest.Owning(symbol)
	})
	cudatest.Restart()
	cudatest.FailMapping(0)
	s := agreeing(t, drv, drivertest.NewHost())
	call := func() *wire.Call { return &wire.Call{Ctx: 5, Seq: 1, Replier: silent{}} }
	var m wire.MemAllocReply
	if res := s.PrimaryCtxRetain(&wire.Call{Replier: silent{}}, &wire.PrimaryCtxRetainArgs{Ctx: 5}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	if res := s.MemAlloc(call(), &wire.MemAllocArgs{Size: 4096}, &m); res != cuda.Success {
		t.Fatal(res)
	}
	st, _ := s.stream(call(), wire.StreamLegacy)
	for what, do := range map[string]func(){
		"a copy": func() {
			s.MemcpyDtoH(call(), &wire.MemcpyDtoHArgs{Src: m.Ptr, Size: 64, Stream: wire.StreamLegacy}, &wire.MemcpyDtoHReply{})
		},
		"what waits": func() {
			st.submitted++
			s.StreamSynchronize(call(), &wire.StreamSynchronizeArgs{Stream: wire.StreamLegacy})
		},
	} {
		for n := range 2 {
			before := len(s.fences.free_)
			cudatest.FailMapping(n + 1)
			do()
			cudatest.FailMapping(0)
			if after := len(s.fences.free_); after != before && (what == "a copy" || n == 0) {
				t.Errorf("%s, whose call %d of the driver fails: %d fences are free, %d were", what, n+1, after, before)
			}
		}
	}
}

// TestBorrowedOnce: memory that another worker has lent is one page's, at its place, of its size
// and its GPU, and of no other.
func TestBorrowedOnce(t *testing.T) {
	const at, size = 1 << 40, 2 << 20
	s := agreeing(t, agreeingDriver(nil), drivertest.NewHost())
	s.arenas.borrowed = map[uint64]borrowed{at: {made[bind.MemGenericAllocationHandle](7), size, 1, -1}}
	for _, c := range []struct {
		dev      uint32
		at, size uint64
		came     bool
	}{{1, at + size, size, false}, {1, at, 2 * size, false}, {0, at, size, false}, {1, at, size, true}, {1, at, size, false}} {
		p, res := (&addressRange{s: s, dev: c.dev}).physical(c.at, c.size)
		if res != cuda.Success || p.came != c.came || c.came != (number(p.handle) == 7) {
			t.Errorf("%+v: came %v, %v", c, p.came, res)
		}
	}
	if len(s.arenas.borrowed) != 0 {
		t.Error("it is given back as well")
	}
}

// TestNodesWithoutAllOfTheirBytes: parameters of a node of any kind that are cut off anywhere are
// refused, and so are counts of more than there is behind them, or may be.
func TestNodesWithoutAllOfTheirBytes(t *testing.T) {
	x := newGraphAttacker(t)
	module, f, g, e, child := x.fresh(), x.fresh(), x.graph(), x.fresh(), x.graph()
	x.must(x.ModuleLoad(x.call(), &wire.ModuleLoadArgs{Module: module, Image: []byte(".version 7.0")}, &wire.ModuleLoadReply{}))
	x.must(x.ModuleGetFunction(x.call(), &wire.ModuleGetFunctionArgs{Func: f, Module: module, Name: []byte("k")}, &wire.ModuleGetFunctionReply{}))
	x.must(x.EventCreate(x.call(), &wire.EventCreateArgs{Event: e}))
	var cond wire.GraphConditionalCreateReply
	x.must(x.GraphConditionalCreate(x.call(), &wire.GraphConditionalCreateArgs{Graph: g}, &cond))
	device := x.alloc(1 << 20)
	operand := wire.MemcpyOperand{Type: cuda.MemoryTypeUnified, Ptr: device, Pitch: 64}
	op := make([]byte, bind.MemOpSize)
	op[0] = 2 // a word is written
	binary.LittleEndian.PutUint64(op[8:], device)
	fresh := func() []byte { return binary.LittleEndian.AppendUint32(nil, x.fresh()) }
	kernel := func(size uint32, n int) []byte {
		v := wire.KernelNode{Func: f, Gx: 1, Gy: 1, Gz: 1, Bx: 1, By: 1, Bz: 1, Size: size}
		return append(v.Append(nil), make([]byte, n)...)
	}
	alloc := func(access uint32, n int) []byte {
		b := append((&wire.AllocNode{Size: 1 << 20, Access: access}).Append(nil), make([]byte, bind.PoolPropsSize+n*bind.AccessDescSize)...)
		b[wire.AllocNodeSize+8] = 1 // of a device
		for i := range n {
			b[wire.AllocNodeSize+bind.PoolPropsSize+i*bind.AccessDescSize] = 1
		}
		return b
	}
	batch := func(count uint32, n int) []byte {
		b := (&wire.BatchNode{Count: count}).Append(nil)
		for range n {
			b = append(b, op...)
		}
		return b
	}
	bodies := func(size uint32, n int) []byte {
		b := (&wire.ConditionalNode{Handle: cond.Handle, Size: size}).Append(nil)
		for range n {
			b = append(b, fresh()...)
		}
		return b
	}
	for kind, good := range map[uint32]func() []byte{
		wire.NodeKernel: func() []byte { return kernel(cudatest.KernelBytes, cudatest.KernelBytes) },
		wire.NodeMemcpy: func() []byte {
			return (&wire.MemcpyNode{Width: 64, Height: 1, Depth: 1}).Append(operand.Append(operand.Append(nil)))
		},
		wire.NodeMemset:      func() []byte { return (&wire.MemsetNode{Dst: device, Element: 4, Width: 16, Height: 1}).Append(nil) },
		wire.NodeHost:        func() []byte { return (&wire.HostNode{ID: 5}).Append(nil) },
		wire.NodeGraph:       func() []byte { return (&wire.ChildNode{Graph: child}).Append(nil) },
		wire.NodeWaitEvent:   func() []byte { return (&wire.EventNode{Event: e}).Append(nil) },
		wire.NodeEventRecord: func() []byte { return (&wire.EventNode{Event: e}).Append(nil) },
		wire.NodeMemAlloc:    func() []byte { return alloc(1, 1) },
		wire.NodeBatchMemOp:  func() []byte { return batch(2, 2) },
		wire.NodeConditional: func() []byte { return bodies(1, 1) },
	} {
		b := good()
		for n := 0; n < len(b); n += 1 + n/64 {
			if res := x.node(g, kind, b[:n]); res == cuda.Success {
				t.Errorf("a node of kind %d with %d of %d bytes: %v", kind, n, len(b), res)
			}
		}
		if res := x.node(g, kind, b[:len(b)-1]); res == cuda.Success {
			t.Errorf("a node of kind %d without its last byte: %v", kind, res)
		}
		if res := x.node(g, kind, good()); res != cuda.Success {
			t.Errorf("a node of kind %d as it should be: %v", kind, res)
		}
	}
	for what, c := range map[string]struct {
		kind uint32
		b    []byte
	}{
		"more parameters than there are":  {wire.NodeKernel, kernel(cudatest.KernelBytes+1, cudatest.KernelBytes)},
		"parameters beyond all":           {wire.NodeKernel, kernel(1<<32-1, cudatest.KernelBytes)},
		"more rights than there are":      {wire.NodeMemAlloc, alloc(2, 1)},
		"more rights than may be":         {wire.NodeMemAlloc, alloc(maxAccess+1, maxAccess+1)},
		"rights beyond all":               {wire.NodeMemAlloc, alloc(1<<32-1, 1)},
		"more operations than there are":  {wire.NodeBatchMemOp, batch(3, 2)},
		"more operations than may be":     {wire.NodeBatchMemOp, batch(maxBatchOps+1, maxBatchOps+1)},
		"operations beyond all":           {wire.NodeBatchMemOp, batch(1<<32-1, 1)},
		"more bodies than there are":      {wire.NodeConditional, bodies(2, 1)},
		"more bodies than may be":         {wire.NodeConditional, bodies(maxCondBodies+1, maxCondBodies+1)},
		"bodies beyond all":               {wire.NodeConditional, bodies(1<<32-1, 1)},
		"a kind that is none":             {99, nil},
		"a child that is moved and moved": {wire.NodeGraph, (&wire.ChildNode{Graph: child, Ownership: 9}).Append(nil)},
	} {
		x.refused(what, x.node(g, c.kind, c.b))
	}
}
