package conformance

import (
	"bytes"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

func (g vm) createOnHost(size uint64, handles uint32) (wire.ID, cuda.Result) {
	id := g.ID()
	return id, g.Session.MemCreate(g.call(wire.OpMemCreate), &wire.MemCreateArgs{Memhandle: id, Size: size, Handles: handles, Place: wire.MemOnHost})
}

func (g vm) free() uint64 {
	g.t.Helper()
	var r wire.MemGetInfoReply
	g.ok(g.Session.MemGetInfo(g.call(wire.OpMemGetInfo), &r), "MemGetInfo")
	return r.Free
}

// testMemoryOnHost: memory of MemCreate that lies on the host is the device's to use, takes none of
// its memory, and is not shared; it and the device's take each other's place at one address.
func testMemoryOnHost(t *testing.T, guest *Guest) {
	g := vm{guest}
	if _, res := g.createOnHost(vmmUnit, 1); res == cuda.Success {
		t.Error("memory on the host can be shared")
	}
	if res := g.Session.MemCreate(g.call(wire.OpMemCreate), &wire.MemCreateArgs{Memhandle: g.ID(), Size: vmmUnit, Place: wire.MemOnHost + 1}); res == cuda.Success {
		t.Error("memory at a place that there is not")
	}
	rest, res := g.create(1<<30 - vmmUnit) // of the session's limit
	g.ok(res, "MemCreate")
	before := g.free()
	far, res := g.createOnHost(4*vmmUnit, 0)
	if said := g.caps&wire.CapMemOnHost != 0; said == (res == cuda.ErrorNotSupported) {
		t.Errorf("memory on the host: said to be had is %v, and %v", said, res)
	}
	if res == cuda.ErrorNotSupported {
		t.Skip("this driver makes no memory on the host")
	}
	g.ok(res, "MemCreate on the host, of more than there is room for")
	if after := g.free(); after != before {
		t.Errorf("%d bytes of the device are free with memory on the host, %d without", after, before)
	}
	if res := g.Session.MemExport(g.call(wire.OpMemExport), &wire.MemExportArgs{Memhandle: far}, &wire.MemExportReply{}); res == cuda.Success {
		t.Error("memory on the host was shared")
	}
	resv, base := g.reserve(8 * vmmUnit)
	a, res := g.mapAt(resv, far, base, 4*vmmUnit)
	g.ok(res, "MemMap")
	g.ok(g.access(a, 3), "MemSetAccess")
	text := []byte("lies on the host, and is the device's")
	g.put(base+4*vmmUnit-64, text)
	g.ok(g.release(rest), "MemRelease")
	near, res := g.create(4 * vmmUnit)
	g.ok(res, "MemCreate")
	b, res := g.mapAt(resv, near, base+4*vmmUnit, 4*vmmUnit)
	g.ok(res, "MemMap beside it")
	g.ok(g.access(b, 3), "MemSetAccess")
	g.ok(g.Session.Memcpy(g.call(wire.OpMemcpy), &wire.MemcpyArgs{Dst: base + 4*vmmUnit, Src: base, Size: 4 * vmmUnit, Stream: 1}), "Memcpy")
	g.ok(g.sync(), "CtxSynchronize")
	g.ok(g.unmap(a), "MemUnmap")
	g.ok(g.unmap(b), "MemUnmap")
	a, res = g.mapAt(resv, near, base, 4*vmmUnit)
	g.ok(res, "MemMap in its place")
	g.ok(g.access(a, 3), "MemSetAccess")
	if got := g.get(base+4*vmmUnit-64, len(text)); !bytes.Equal(got, text) {
		t.Errorf("what came from the host: %q", got)
	}
	g.ok(g.unmap(a), "MemUnmap")
	g.ok(g.release(near), "MemRelease")
	g.ok(g.release(far), "MemRelease")
	g.ok(g.unreserve(resv), "MemAddressFree")
	rest, res = g.create(1 << 30)
	g.ok(res, "MemCreate of all that the session may have")
	g.ok(g.release(rest), "MemRelease")
}
