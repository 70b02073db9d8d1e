package cuda

import (
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestMemoryOnHostCalls: memory for which the GPU has no room is made on the node of the host that
// is next to the GPU, is charged to nobody's device memory, and is not had of a driver that does
// not say that it makes such memory.
func TestMemoryOnHostCalls(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cudatest.RestartMapping()
	entries := map[string]uint64{}
	open := func(names ...string) *session {
		for _, name := range names {
			entries[name] = cudatest.Mapping(name)
		}
		s := newSession(agreeingDriver(entries), drivertest.NewHost(), driver.Options{MemoryLimit: 4 << 20})
		s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 1)}
		return s
	}
	create := func(s *session, a wire.MemCreateArgs) cuda.Result {
		return s.MemCreate(&wire.Call{Ctx: 16, Replier: silent{}}, &a)
	}
	far := wire.MemCreateArgs{Memhandle: 20, Size: 8 << 20, Place: wire.MemOnHost}
	s := open("cuMemCreate", "cuMemRelease")
	if res := create(s, far); res != cuda.ErrorNotSupported || s.makesOnHost(1) {
		t.Errorf("a driver that makes none: %v", res)
	}
	// Before a VM moves there, its programs are told, and not when it stands still.
	s.opt.Rehearsal = true
	c := &wire.Call{Ctx: 16, Replay: true, Replier: silent{}}
	if res := s.MemCreate(c, &far); res != cuda.ErrorNotSupported || c.Reason() == nil {
		t.Errorf("a rehearsal with a driver that makes none: %v, %v", res, c.Reason())
	}
	s = open("cuDeviceGetAttribute", "cuMemAddressReserve", "cuMemMap", "cuMemUnmap")
	if !s.makesOnHost(1) || s.makesOnHost(0) {
		t.Error("it is not said that the driver makes some")
	}
	if res := create(s, far); res != cuda.Success {
		t.Fatal(res)
	}
	if kind, id := cudatest.MappingPlace(); kind != memLocationNUMA || id != 5 || s.used != 0 {
		t.Errorf("made at %d %d, %d bytes charged", kind, id, s.used)
	}
	if res := s.MemExport(&wire.Call{}, &wire.MemExportArgs{Memhandle: 20}, &wire.MemExportReply{}); res != cuda.ErrorInvalidValue {
		t.Errorf("shared: %v", res)
	}
	for _, a := range []wire.MemCreateArgs{
		{Memhandle: 21, Size: 2 << 20, Place: 2}, {Memhandle: 21, Size: 2 << 20, Handles: 1, Place: wire.MemOnHost}, {Memhandle: 21, Size: 2 << 20, Flags: 1, Place: wire.MemOnHost},
	} {
		if res := create(s, a); res != cuda.ErrorInvalidValue {
			t.Errorf("%+v: %v", a, res)
		}
	}
	if res := create(s, wire.MemCreateArgs{Memhandle: 20, Size: 2 << 20, Place: wire.MemOnHost}); res != cuda.ErrorInvalidHandle {
		t.Errorf("an id that is in use: %v", res)
	}
	if res := create(s, wire.MemCreateArgs{Memhandle: 22, Size: 4 << 20}); res != cuda.Success {
		t.Errorf("all of the device's memory beside it: %v", res)
	}
	if kind, _ := cudatest.MappingPlace(); kind != memLocationDevice {
		t.Errorf("made at %d", kind)
	}
	c = &wire.Call{Ctx: 16, Replier: silent{}}
	var at wire.MemAddressReserveReply
	if res := s.MemAddressReserve(c, &wire.MemAddressReserveArgs{Resv: 30, Size: 32 << 20}, &at); res != cuda.Success {
		t.Fatal(res)
	}
	if res := s.MemMap(c, &wire.MemMapArgs{Mapping: 31, Resv: 30, Memhandle: 20, Ptr: at.Ptr, Size: 8 << 20}); res != cuda.Success {
		t.Fatal(res)
	}
	if _, res := s.space.Mem(at.Ptr+5, 8<<20-5); res != cuda.Success {
		t.Errorf("the guest cannot name what it has mapped: %v", res)
	}
	// The driver would keep what is mapped, and it would be of nobody's budget.
	if res := s.MemMap(c, &wire.MemMapArgs{Mapping: 32, Resv: 30, Memhandle: 22, Ptr: at.Ptr + 8<<20, Size: 4 << 20}); res != cuda.Success {
		t.Fatal(res)
	}
	for id := wire.ID(20); id <= 22; id += 2 {
		if res := s.MemRelease(&wire.Call{}, &wire.MemReleaseArgs{Memhandle: id}); res != cuda.ErrorInvalidValue || s.used != 4<<20 {
			t.Errorf("memory that is mapped is released: %v, %d bytes charged", res, s.used)
		}
	}
	for id := wire.ID(31); id <= 32; id++ {
		if res := s.MemUnmap(c, &wire.MemUnmapArgs{Mapping: id}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	for id := wire.ID(20); id <= 22; id += 2 {
		if res := s.MemRelease(&wire.Call{}, &wire.MemReleaseArgs{Memhandle: id}); res != cuda.Success {
			t.Error(res)
		}
	}
	if created, _, _, wrong := cudatest.MappingCounts(); created != 0 || wrong != 0 || s.used != 0 {
		t.Errorf("%d left, %d calls made no sense, %d bytes charged", created, wrong, s.used)
	}
}
