package soft

import (
	"bytes"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

func TestMemoryLimit(t *testing.T) {
	r := newRig(t, driver.Options{MemoryLimit: 8 << 20})
	p := r.alloc(6 << 20)
	_, res := r.tryAlloc(3 << 20)
	r.want(res, cuda.ErrorOutOfMemory, "beyond the limit")
	var info wire.MemGetInfoReply
	r.ok(r.s.MemGetInfo(r.call(wire.OpMemGetInfo), &info))
	if info.Total != 8<<20 || info.Free != 2<<20 {
		t.Errorf("free %d of %d", info.Free, info.Total)
	}
	r.ok(r.freeMem(p))
	r.alloc(8 << 20)
	for _, size := range []uint64{0, 1 << 62, ^uint64(0)} {
		if _, res := r.tryAlloc(size); res == cuda.Success {
			t.Errorf("allocation of %#x bytes succeeds", size)
		}
	}
}

func TestFreedMemoryIsUnreachable(t *testing.T) {
	r := newRig(t, driver.Options{})
	p, q := r.alloc(100), r.alloc(100)
	if p%allocUnit != 0 || q%allocUnit != 0 {
		t.Errorf("addresses %#x, %#x", p, q)
	}
	for _, c := range []struct {
		what string
		res  cuda.Result
		want cuda.Result
	}{
		{"inside", r.put(p+96, make([]byte, 4), 1), cuda.Success},
		{"across the end", r.put(p+97, make([]byte, 4), 1), cuda.ErrorInvalidValue},
		{"before", r.put(p-1, make([]byte, 4), 1), cuda.ErrorInvalidValue},
		{"wrapping", r.set(p, 0, 1<<62, 1), cuda.ErrorInvalidValue},
		{"free inside", r.freeMem(p + 4), cuda.ErrorInvalidValue},
		{"free", r.freeMem(p), cuda.Success},
		{"free twice", r.freeMem(p), cuda.ErrorInvalidValue},
		{"use after free", r.put(p, make([]byte, 4), 1), cuda.ErrorInvalidValue},
		{"neighbour", r.put(q, make([]byte, 100), 1), cuda.Success},
		{"free of null", r.freeMem(0), cuda.Success},
	} {
		r.want(c.res, c.want, c.what)
	}
}

func TestFreeWaitsForWork(t *testing.T) {
	r := newRig(t, driver.Options{MemoryLimit: 64 << 20})
	p, out := r.alloc(1<<20), r.alloc(1<<20)
	r.ok(r.set(p, 7, 1<<18, 1))
	st := r.stream(0)
	open := r.hold(st)
	r.ok(r.s.Memcpy(r.call(wire.OpMemcpy), &wire.MemcpyArgs{Dst: out, Src: p, Size: 1 << 20, Stream: st}))
	r.ok(r.freeMem(p))
	r.want(r.put(p, make([]byte, 4), 1), cuda.ErrorInvalidValue, "use after free")
	q := r.alloc(1 << 20)
	if q == p {
		t.Error("an address is used again before its memory is free")
	}
	open()
	if v := r.word32(out + 1<<20 - 4); v != 7 {
		t.Errorf("copied %d from memory that was freed behind the copy", v)
	}
	r.ok(r.sync())
	if used, _ := r.s.space.usage(); used > 3<<20 {
		t.Errorf("%d bytes in use", used)
	}
}

func TestManyAllocations(t *testing.T) {
	r := newRig(t, driver.Options{})
	var live []uint64
	for i := range 2000 {
		p := r.alloc(uint64(1 + i*37%9000))
		r.ok(r.put(p, []byte{byte(i)}, 1))
		live = append(live, p)
		if i%3 == 2 {
			r.ok(r.freeMem(live[i/2]))
			live[i/2] = 0
			live = append(live[:0:0], live...)
		}
		for j := len(live) - 1; j >= 0 && live[j] == 0; j-- {
			live = live[:j]
		}
	}
	for i, p := range live {
		if p == 0 {
			continue
		}
		if b, _ := r.get(p, 1); len(b) != 1 || b[0] != byte(i) {
			t.Fatalf("allocation %d holds %v", i, b)
		}
	}
}

func TestPinnedMemoryOverlap(t *testing.T) {
	r := newRig(t, driver.Options{})
	mem := bytes.Repeat([]byte{1}, 8192)
	add := func(id uint32, mem []byte) cuda.Result {
		r.host.Regions[id] = driver.Region{ID: id, Kind: wire.RegionPinned, VA: addressOf(mem), Size: uint64(len(mem)), Mem: mem}
		return r.s.RegionAdd(r.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: id, Kind: wire.RegionPinned, Va: addressOf(mem), Size: uint64(len(mem))}, new(wire.RegionAddReply))
	}
	r.ok(add(5, mem))
	r.want(add(6, mem[4096:]), cuda.ErrorMapFailed, "overlapping regions")
	r.want(r.freeMem(addressOf(mem)), cuda.ErrorInvalidValue, "free of pinned memory")
	r.ok(r.set(addressOf(mem), 0x02020202, 1, 1))
	if mem[3] != 2 || mem[4] != 1 {
		t.Errorf("pinned memory holds % x", mem[:8])
	}
	drop := func(id uint32) cuda.Result {
		return r.s.RegionDrop(r.call(wire.OpRegionDrop), &wire.RegionDropArgs{Region: id})
	}
	r.ok(drop(5))
	r.want(drop(5), cuda.ErrorInvalidValue, "second drop")
	r.want(r.set(addressOf(mem), 0, 1, 1), cuda.ErrorInvalidValue, "use after drop")
}

// carrier is a region that cannot be mapped.
type carrier struct{ mem []byte }

func (c carrier) ReadAt(p []byte, off int64) (int, error)  { return copy(p, c.mem[off:]), nil }
func (c carrier) WriteAt(p []byte, off int64) (int, error) { return copy(c.mem[off:], p), nil }

func TestCarriedCopies(t *testing.T) {
	r := newRig(t, driver.Options{})
	const size = 3<<20 + 17
	far := carrier{make([]byte, size)}
	r.host.Regions[9] = driver.Region{ID: 9, Kind: wire.RegionStaging, Size: size, IO: far}
	r.ok(r.s.RegionAdd(r.call(wire.OpRegionAdd), &wire.RegionAddArgs{Region: 9, Kind: wire.RegionStaging, Size: size}, new(wire.RegionAddReply)))
	p := r.alloc(size)
	r.ok(r.set(p, 0x03030303, size/4, 1))
	staged := func(dir uint32, off, n uint64, word uint32) cuda.Result {
		return r.s.MemcpyStaged(r.call(wire.OpMemcpyStaged), &wire.MemcpyStagedArgs{Direction: dir, Region: 9, Offset: off, Size: n, Device: p, Stream: 1, Word: word, Value: 1})
	}
	r.ok(staged(1, 0, size-1, 3))
	r.ok(r.sync())
	if r.host.Word(3) != 1 || far.mem[0] != 3 || far.mem[size-2-size%4] != 3 {
		t.Errorf("word %d, first % x", r.host.Word(3), far.mem[:4])
	}
	copy(far.mem[100:], "through the carrier")
	r.ok(staged(0, 100, 19, 4))
	if b, _ := r.get(p, 19); string(b) != "through the carrier" {
		t.Errorf("device holds %q", b)
	}
	r.want(staged(0, size-1, 2, 5), cuda.ErrorInvalidValue, "beyond the region")
	r.want(staged(0, ^uint64(0), 2, 5), cuda.ErrorInvalidValue, "wrapping offset")
	r.want(staged(0, 0, 2, wire.WordCount), cuda.ErrorInvalidValue, "word that is not there")
	r.want(staged(2, 0, 2, 5), cuda.ErrorInvalidValue, "unknown direction")
	r.ok(r.s.Memcpy3D(r.call(wire.OpMemcpy3D), &wire.Memcpy3DArgs{
		SrcKind: 1, SrcRegion: 9, Src: 100, SrcPitch: 8, SrcHeight: 1, DstPitch: 16, Dst: p + 1024, DstHeight: 1,
		Width: 7, Height: 1, Depth: 2, Stream: 1,
	}))
	if b, _ := r.get(p+1024, 23); string(b[:7])+string(b[16:]) != "through"+"the car" {
		t.Errorf("box holds %q", b)
	}
}

func TestBoxBounds(t *testing.T) {
	r := newRig(t, driver.Options{})
	p, q := r.alloc(4096), r.alloc(4096)
	good := wire.Memcpy3DArgs{Src: p, SrcPitch: 64, SrcHeight: 8, Dst: q, DstPitch: 64, DstHeight: 8, Width: 64, Height: 8, Depth: 8, Stream: 1}
	for _, c := range []struct {
		what   string
		change func(*wire.Memcpy3DArgs)
		want   cuda.Result
	}{
		{"all", func(*wire.Memcpy3DArgs) {}, cuda.Success},
		{"nothing", func(a *wire.Memcpy3DArgs) { a.Depth = 0; a.Src = 0 }, cuda.Success},
		{"one row without a pitch", func(a *wire.Memcpy3DArgs) { a.SrcPitch, a.Height, a.Depth = 0, 1, 1 }, cuda.Success},
		{"rows without a pitch", func(a *wire.Memcpy3DArgs) { a.SrcPitch = 0 }, cuda.ErrorInvalidValue},
		{"wider than the pitch", func(a *wire.Memcpy3DArgs) { a.SrcX = 1 }, cuda.ErrorInvalidValue},
		{"higher than the slice", func(a *wire.Memcpy3DArgs) { a.DstY = 1 }, cuda.ErrorInvalidValue},
		{"deeper than the memory", func(a *wire.Memcpy3DArgs) { a.DstZ = 1 }, cuda.ErrorInvalidValue},
		{"overflowing pitch", func(a *wire.Memcpy3DArgs) { a.SrcPitch = 1 << 63 }, cuda.ErrorInvalidValue},
		{"overflowing height", func(a *wire.Memcpy3DArgs) { a.SrcHeight = 1 << 62; a.Height = 1 << 62 }, cuda.ErrorInvalidValue},
		{"overflowing width", func(a *wire.Memcpy3DArgs) { a.Width = ^uint64(0) }, cuda.ErrorInvalidValue},
		{"unknown kind", func(a *wire.Memcpy3DArgs) { a.SrcKind = 7 }, cuda.ErrorInvalidValue},
		{"unknown region", func(a *wire.Memcpy3DArgs) { a.SrcKind, a.SrcRegion = 1, 3 }, cuda.ErrorInvalidValue},
		{"the control page", func(a *wire.Memcpy3DArgs) { a.SrcKind, a.SrcRegion, a.Src = 1, 0, 0 }, cuda.ErrorInvalidValue},
	} {
		a := good
		c.change(&a)
		r.want(r.s.Memcpy3D(r.call(wire.OpMemcpy3D), &a), c.want, c.what)
	}
}

func TestPools(t *testing.T) {
	r := newRig(t, driver.Options{})
	id := r.id()
	r.ok(r.s.PoolGetDefault(r.call(wire.OpPoolGetDefault), &wire.PoolGetDefaultArgs{Pool: id}))
	st := r.stream(0)
	var m wire.MemAllocAsyncReply
	r.ok(r.s.MemAllocAsync(r.call(wire.OpMemAllocAsync), &wire.MemAllocAsyncArgs{Size: 1 << 20, Stream: st}, &m))
	attr := func(a int32) uint64 {
		var v wire.PoolGetAttributeReply
		r.ok(r.s.PoolGetAttribute(r.call(wire.OpPoolGetAttribute), &wire.PoolGetAttributeArgs{Pool: id, Attr: a}, &v))
		return v.Value
	}
	if attr(cuda.PoolAttrUsedMemCurrent) != 1<<20 {
		t.Errorf("%d bytes in use", attr(cuda.PoolAttrUsedMemCurrent))
	}
	open := r.hold(st)
	r.ok(r.set(m.Ptr, 9, 1<<18, st))
	r.ok(r.s.MemFreeAsync(r.call(wire.OpMemFreeAsync), &wire.MemFreeAsyncArgs{Ptr: m.Ptr, Stream: st}))
	r.want(r.s.MemFreeAsync(r.call(wire.OpMemFreeAsync), &wire.MemFreeAsyncArgs{Ptr: m.Ptr, Stream: st}), cuda.ErrorInvalidValue, "free twice")
	open()
	r.ok(r.sync())
	if attr(cuda.PoolAttrUsedMemCurrent) != 0 || attr(cuda.PoolAttrUsedMemHigh) != 1<<20 {
		t.Errorf("%d bytes in use, at most %d", attr(cuda.PoolAttrUsedMemCurrent), attr(cuda.PoolAttrUsedMemHigh))
	}
}
