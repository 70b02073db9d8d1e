package conformance

import (
	"bytes"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

const vmmUnit = 2 << 20 // granularity of every GPU so far

// vm calls the operations of virtual memory on device 0.
type vm struct{ *Guest }

func (g vm) reserve(size uint64) (id wire.ID, ptr uint64) {
	g.t.Helper()
	id = g.ID()
	var r wire.MemAddressReserveReply
	g.ok(g.Session.MemAddressReserve(g.call(wire.OpMemAddressReserve), &wire.MemAddressReserveArgs{Resv: id, Size: size}, &r), "MemAddressReserve")
	return id, r.Ptr
}

func (g vm) create(size uint64) (wire.ID, cuda.Result) {
	id := g.ID()
	return id, g.Session.MemCreate(g.call(wire.OpMemCreate), &wire.MemCreateArgs{Memhandle: id, Size: size})
}

func (g vm) mapAt(resv, mem wire.ID, ptr, size uint64) (wire.ID, cuda.Result) {
	id := g.ID()
	return id, g.Session.MemMap(g.call(wire.OpMemMap), &wire.MemMapArgs{Mapping: id, Resv: resv, Memhandle: mem, Ptr: ptr, Size: size})
}

func (g vm) access(mapping wire.ID, flags uint32) cuda.Result {
	return g.Session.MemSetAccess(g.call(wire.OpMemSetAccess), &wire.MemSetAccessArgs{Mapping: mapping, Flags: flags})
}

func (g vm) unmap(mapping wire.ID) cuda.Result {
	return g.Session.MemUnmap(g.call(wire.OpMemUnmap), &wire.MemUnmapArgs{Mapping: mapping})
}

func (g vm) release(mem wire.ID) cuda.Result {
	return g.Session.MemRelease(g.call(wire.OpMemRelease), &wire.MemReleaseArgs{Memhandle: mem})
}

func (g vm) unreserve(resv wire.ID) cuda.Result {
	return g.Session.MemAddressFree(g.call(wire.OpMemAddressFree), &wire.MemAddressFreeArgs{Resv: resv})
}

func testVirtualMemory(t *testing.T, guest *Guest) {
	g := vm{guest}
	resv, base := g.reserve(8 * vmmUnit)
	one, res := g.create(vmmUnit)
	g.ok(res, "MemCreate")
	two, res := g.create(2 * vmmUnit)
	g.ok(res, "MemCreate")
	for _, c := range []struct {
		what      string
		resv, mem wire.ID
		ptr, size uint64
	}{
		{"no reservation", 9999, one, base, vmmUnit},
		{"no memory", resv, 9999, base, vmmUnit},
		{"before the reservation", resv, one, base - vmmUnit, vmmUnit},
		{"past the reservation", resv, two, base + 7*vmmUnit, 2 * vmmUnit},
		{"far past it", resv, one, ^uint64(0) - vmmUnit + 1, vmmUnit},
		{"the whole address space", resv, one, base, ^uint64(0)},
		{"more than there is", resv, one, base, 2 * vmmUnit},
		{"a part", resv, two, base, vmmUnit},
		{"between units", resv, one, base + 4096, vmmUnit},
	} {
		if _, res := g.mapAt(c.resv, c.mem, c.ptr, c.size); res == cuda.Success {
			t.Fatalf("mapped %s", c.what)
		}
	}
	a, res := g.mapAt(resv, one, base, vmmUnit)
	g.ok(res, "MemMap")
	b, res := g.mapAt(resv, two, base+vmmUnit, 2*vmmUnit)
	g.ok(res, "MemMap")
	if _, res := g.mapAt(resv, one, base+2*vmmUnit, vmmUnit); res == cuda.Success {
		t.Error("mapped over a mapping")
	}
	if g.access(a, 2) == cuda.Success || g.access(9999, 3) == cuda.Success {
		t.Error("access without meaning was given")
	}
	g.ok(g.access(a, 3), "MemSetAccess")
	g.ok(g.access(b, 3), "MemSetAccess")
	text := []byte("runs over two mappings, side by side")
	at := base + vmmUnit - 16
	g.put(at, text)
	if got := g.get(at, len(text)); !bytes.Equal(got, text) {
		t.Errorf("read %q", got)
	}
	if g.unreserve(resv) == cuda.Success {
		t.Error("addresses in use were given back")
	}
	if g.release(one) == cuda.Success {
		t.Error("memory that is mapped was released")
	}
	g.ok(g.unmap(a), "MemUnmap")
	if g.unmap(a) == cuda.Success {
		t.Error("unmapped twice")
	}
	g.ok(g.unmap(b), "MemUnmap")
	again, res := g.mapAt(resv, one, base+4*vmmUnit, vmmUnit)
	g.ok(res, "MemMap elsewhere")
	g.ok(g.access(again, 1), "MemSetAccess")
	if got := g.get(base+5*vmmUnit-16, 16); !bytes.Equal(got, text[:16]) {
		t.Errorf("memory kept %q", got)
	}
	g.ok(g.unmap(again), "MemUnmap")
	g.ok(g.release(one), "MemRelease")
	if g.release(one) == cuda.Success {
		t.Error("released twice")
	}
	g.ok(g.release(two), "MemRelease")
	g.ok(g.unreserve(resv), "MemAddressFree")
	testMemoryLimit(t, g)
}

// testMemoryLimit: memory without an address counts against the session's limit, at once.
func testMemoryLimit(t *testing.T, g vm) {
	if _, res := g.create(1<<30 + vmmUnit); res != cuda.ErrorOutOfMemory {
		t.Errorf("more than the limit: %v", res)
	}
	half, res := g.create(600 << 20)
	g.ok(res, "MemCreate")
	if _, res := g.create(600 << 20); res != cuda.ErrorOutOfMemory {
		t.Errorf("twice more than half of the limit: %v", res)
	}
	g.ok(g.release(half), "MemRelease")
	half, res = g.create(600 << 20)
	g.ok(res, "MemCreate after MemRelease")
	g.ok(g.release(half), "MemRelease")
}

func testPools(t *testing.T, g *Guest) {
	pool := g.ID()
	g.ok(g.Session.PoolCreate(g.call(wire.OpPoolCreate), &wire.PoolCreateArgs{Pool: pool}), "PoolCreate")
	alloc := func(pool wire.ID, size uint64) (uint64, cuda.Result) {
		var r wire.MemAllocFromPoolReply
		res := g.Session.MemAllocFromPool(g.call(wire.OpMemAllocFromPool), &wire.MemAllocFromPoolArgs{Pool: pool, Size: size, Stream: 1}, &r)
		return r.Ptr, res
	}
	free := func(ptr uint64) cuda.Result {
		return g.Session.MemFreeAsync(g.call(wire.OpMemFreeAsync), &wire.MemFreeAsyncArgs{Ptr: ptr, Stream: 1})
	}
	p, res := alloc(pool, 4<<20)
	g.ok(res, "MemAllocFromPool")
	g.put(p, []byte("pooled"))
	if got := g.get(p, 6); string(got) != "pooled" {
		t.Errorf("read %q", got)
	}
	if _, res := alloc(9999, 4096); res == cuda.Success {
		t.Error("allocated from no pool")
	}
	if _, res := alloc(pool, 2<<30); res != cuda.ErrorOutOfMemory {
		t.Errorf("more than the limit: %v", res)
	}
	var access wire.PoolGetAccessReply
	g.ok(g.Session.PoolGetAccess(g.call(wire.OpPoolGetAccess), &wire.PoolGetAccessArgs{Pool: pool}, &access), "PoolGetAccess")
	if access.Flags != 3 {
		t.Errorf("access %d", access.Flags)
	}
	g.ok(free(p), "MemFreeAsync")
	if free(p) == cuda.Success {
		t.Error("freed twice")
	}
	g.ok(g.Session.PoolDestroy(g.call(wire.OpPoolDestroy), &wire.PoolDestroyArgs{Pool: pool}), "PoolDestroy")
	if g.Session.PoolDestroy(g.call(wire.OpPoolDestroy), &wire.PoolDestroyArgs{Pool: pool}) == cuda.Success {
		t.Error("destroyed twice")
	}
	// What nobody shared cannot be had, whatever the token.
	for _, token := range [][]byte{nil, make([]byte, 31), make([]byte, wire.ShareTokenSize), make([]byte, 4096)} {
		if g.Session.MemImport(g.call(wire.OpMemImport), &wire.MemImportArgs{Memhandle: g.ID(), Token: token}, new(wire.MemImportReply)) == cuda.Success ||
			g.Session.IpcOpenMemHandle(g.call(wire.OpIpcOpenMemHandle), &wire.IpcOpenMemHandleArgs{Flags: 1, Token: token}, new(wire.IpcOpenMemHandleReply)) == cuda.Success ||
			g.Session.IpcOpenEventHandle(g.call(wire.OpIpcOpenEventHandle), &wire.IpcOpenEventHandleArgs{Event: g.ID(), Token: token}) == cuda.Success ||
			g.Session.PoolImport(g.call(wire.OpPoolImport), &wire.PoolImportArgs{Pool: g.ID(), Token: token}, new(wire.PoolImportReply)) == cuda.Success {
			t.Errorf("a token of %d bytes opened something", len(token))
		}
	}
	if g.Session.IpcCloseMemHandle(g.call(wire.OpIpcCloseMemHandle), &wire.IpcCloseMemHandleArgs{Ptr: p}) == cuda.Success {
		t.Error("closed what was not open")
	}
}
