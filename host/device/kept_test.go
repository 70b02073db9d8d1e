package device_test

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
)

// TestKeptMemoryCounts: memory that one program shares and lets go of counts for the VM as long as another has it, so that programs which pass it to and fro have no
// more than their VM may have; it is free when the last of them lets go, or ends, and nothing of it stays in the books.
func TestKeptMemoryCounts(t *testing.T) {
	const size, limit, file = 2 << 20, 32 << 20, 1
	v := onSoft(t, func(o *device.Options) { o.Limits.Memory = limit })
	a, b := hold(t, v, 1), hold(t, v, 2)
	before := v.device.Status().Memory
	give := func(from, to *holding, id wire.ID) cuda.Result {
		t.Helper()
		if res, err := from.Call(0, &wire.MemCreateArgs{Memhandle: id, Size: size, Handles: file}, nil); err != nil || res != cuda.Success {
			return res
		}
		var e wire.MemExportReply
		must(t, from.Guest, &wire.MemExportArgs{Memhandle: id}, &e)
		must(t, to.Guest, &wire.MemImportArgs{Memhandle: id, Token: e.Token}, &wire.MemImportReply{})
		must(t, from.Guest, &wire.MemReleaseArgs{Memhandle: id}, nil)
		return cuda.Success
	}
	counts := func(what string, n uint64) {
		t.Helper()
		if used := v.device.Status().Memory - before; used != n*size {
			t.Errorf("%s: %d bytes are counted, and %d are held", what, used, n*size)
		}
	}
	given := uint64(0)
	for ; given < 100; given++ {
		if res := give(a, b, 1000+wire.ID(given)); res == cuda.ErrorOutOfMemory {
			break
		} else if res != cuda.Success {
			t.Fatal(res)
		}
		counts("given away", given+1)
	}
	if most := (limit - before) / size; given != most {
		t.Errorf("%d times memory is given away, %d fit the limit", given, most)
	}
	for id := range given {
		must(t, b.Guest, &wire.MemReleaseArgs{Memhandle: 1000 + wire.ID(id)}, nil)
		counts("let go of", given-id-1)
	}

	// By addresses, which IPC handles are of, and by the end of who shared, or who has it open.
	var m wire.MemAllocReply
	var h wire.IpcGetMemHandleReply
	must(t, a.Guest, &wire.MemAllocArgs{Size: size}, &m)
	must(t, a.Guest, &wire.IpcGetMemHandleArgs{Ptr: m.Ptr}, &h)
	var o wire.IpcOpenMemHandleReply
	for range 2 {
		must(t, b.Guest, &wire.IpcOpenMemHandleArgs{Token: h.Token}, &o)
	}
	counts("shared by address", 1)
	must(t, a.Guest, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	counts("freed while it is open", 1)
	must(t, b.Guest, &wire.IpcCloseMemHandleArgs{Ptr: o.Ptr}, nil)
	counts("closed", 0)

	if res := give(a, b, 2000); res != cuda.Success {
		t.Fatal(res)
	}
	if res := give(b, a, 2001); res != cuda.Success {
		t.Fatal(res)
	}
	var e wire.MemExportReply
	must(t, a.Guest, &wire.MemCreateArgs{Memhandle: 2002, Size: size, Handles: file}, nil)
	must(t, a.Guest, &wire.MemExportArgs{Memhandle: 2002}, &e)
	must(t, b.Guest, &wire.MemImportArgs{Memhandle: 2002, Token: e.Token}, &wire.MemImportReply{})
	counts("to and fro, and one that both have", 3)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	const ofContexts = held // of the program that is gone
	eventually(t, "what a program that is gone had is not counted as it is", func() bool { return v.device.Status().Memory+ofContexts-before == 2*size })
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "memory is counted for nobody", func() bool { return v.device.Status().Memory == 0 })
}
