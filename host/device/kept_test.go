package device_test

import (
	"errors"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/virtio/fs/fstest"
)

// TestKeptMemoryCounts: memory that one program shares and lets go of counts for the VM as long as
// another has it, so that programs which pass it to and fro have no more than their VM may have; it
// is free when the last of them lets go, or ends, and nothing of it stays in the books.
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

// TestLastingMemory: a handle of memory of cuMemCreate is good while anybody has that, as a
// driver's descriptors are: a third program opens it when who made it has ended, and a fourth when
// only the third has it. What is its owner's no more keeps the VM here, and to ask for that opens
// nothing.
func TestLastingMemory(t *testing.T) {
	const size, file, id = 2 << 20, 1, 1000
	v := onSoft(t, nil)
	maker, h := hold(t, v, 1), []*holding{hold(t, v, 2), hold(t, v, 3), hold(t, v, 4)}
	var e wire.MemExportReply
	must(t, maker.Guest, &wire.MemCreateArgs{Memhandle: id, Size: size, Handles: file}, nil)
	must(t, maker.Guest, &wire.MemExportArgs{Memhandle: id}, &e)
	token := append([]byte(nil), e.Token...)
	takes := func(h *holding) cuda.Result {
		t.Helper()
		res, err := h.Call(0, &wire.MemImportArgs{Memhandle: id, Token: token}, &wire.MemImportReply{})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := takes(h[0]); res != cuda.Success {
		t.Fatal(res)
	}
	must(t, maker.Guest, &wire.MemReleaseArgs{Memhandle: id}, nil)
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := v.Save(); !errors.Is(err, fstest.ErrRefused) {
			t.Errorf("saved with memory that nobody owns: %v", err)
		}
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	if err := maker.Close(); err != nil {
		t.Error(err)
	}
	const each = held // and what else a program has
	eventually(t, "who made it has not ended", func() bool { return v.device.Status().Memory == 3*each+size })
	for i, next := range h[1:] {
		if res := takes(next); res != cuda.Success {
			t.Fatalf("program %d does not get what another has: %v", i+2, res)
		}
		must(t, h[i].Guest, &wire.MemReleaseArgs{Memhandle: id}, nil)
		if used := v.device.Status().Memory; used != 3*each+size {
			t.Errorf("%d bytes are counted", used)
		}
	}
	must(t, h[2].Guest, &wire.MemReleaseArgs{Memhandle: id}, nil)
	if used := v.device.Status().Memory; used != 3*each {
		t.Errorf("%d bytes are counted when nobody has it", used)
	}
	if res := takes(h[0]); res != cuda.ErrorUnknown {
		t.Errorf("when nobody has it: %v", res)
	}
	for _, h := range h {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "memory is counted for nobody", func() bool { return v.device.Status().Memory == 0 })
}
