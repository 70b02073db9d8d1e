package cuda

import (
	"encoding/binary"
	"fmt"
	"testing"

	"causeway/cuda"
	"causeway/cuda/fatbin"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestManagedVariablesCount: what a driver makes for managed variables of a guest's code is in the
// budget as long as a kernel can reach it: a guest need not have them moved, and the driver's
// account of a process does not have them.
func TestManagedVariablesCount(t *testing.T) {
	text := func(size uint64) []byte {
		return fmt.Appendf(nil, ".version 7.0\n.target sm_75\n.address_size 64\n.global .attribute /**/ (.managed) .align 8 .b8 y[%d];\n"+
			".global .attribute(.managed) .align 8 .b8 x[8];\n\x00", size-8)
	}
	host := drivertest.NewHost()
	host.Regions[1] = driver.Region{ID: 1, Kind: wire.RegionPinned, VA: 0x6a0000000000, Size: 4096, Mem: make([]byte, 4096)}
	// Whatever is unloaded is counted.
	unload := map[string]uint64{"cuLibraryUnload": cudatest.Busy("cuMemFree_v2"), "cuModuleUnload": cudatest.Busy("cuMemFree_v2")}
	s := agreeing(t, agreeingDriver(unload), host)
	cudatest.SetBusy(0)
	c := &wire.Call{Ctx: 16, Replier: silent{}}
	used := func(what string, res, want cuda.Result, bytes uint64, unloads int) {
		t.Helper()
		if _, n, _ := cudatest.BusyCounts(); res != want || s.used != bytes || s.budget.Used() != bytes || n != unloads {
			t.Fatalf("%s: %v, %d bytes booked, %d unloaded; want %v, %d, %d", what, res, s.used, n, want, bytes, unloads)
		}
	}
	load := func(id wire.ID, image []byte) cuda.Result {
		return s.ModuleLoad(c, &wire.ModuleLoadArgs{Module: id, Image: image}, &wire.ModuleLoadReply{})
	}
	used("a context", s.PrimaryCtxRetain(c, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}), cuda.Success, 0, 0)
	used("1 TiB", load(20, text(1<<40)), cuda.ErrorOutOfMemory, 0, 1)
	used("800 MiB", load(20, text(800<<20)), cuda.Success, 800<<20, 1)
	used("800 MiB more", load(21, text(800<<20)), cuda.ErrorOutOfMemory, 800<<20, 2)
	used("as much of a library", s.LibraryLoad(c, &wire.LibraryLoadArgs{Library: 22, Image: text(800 << 20)}, &wire.LibraryLoadReply{}), cuda.ErrorOutOfMemory, 800<<20, 3)
	used("of which nobody knows how much", load(21, []byte(".version 7.0\n.target sm_75\n.global .attribute(.managed) .b8 y[1 << 30];\n\x00")), cuda.ErrorNotSupported, 800<<20, 4)
	used("unloaded", s.ModuleUnload(c, &wire.ModuleUnloadArgs{Module: 20}), cuda.Success, 0, 5)
	if len(s.made)+len(s.modules.m)+len(s.libs.m)+len(s.images.m) != 0 {
		t.Errorf("%d bookings, %d modules, %d libraries, %d images are left", len(s.made), len(s.modules.m), len(s.libs.m), len(s.images.m))
	}
	simple := []byte(".version 6.4\n.target sm_75\n.address_size 64\n.global .attribute(.managed) .align 4 .b8 x[1000];\n\x00")
	// Known by the guest, which has a kernel of the code that the variables move from.
	for known := range 2 {
		id := wire.ID(30 + known)
		left := uint64(0)
		res := s.LibraryLoad(c, &wire.LibraryLoadArgs{Library: id, Image: simple}, &wire.LibraryLoadReply{})
		used("a library", res, cuda.Success, 1000, 5+2*known)
		if known == 1 {
			s.funcs.put(40, &function{code: code{lib: id}, ctx: 16})
			left = 1000
		}
		var r wire.LibraryManageReply
		used("moved", s.LibraryManage(c, &wire.LibraryManageArgs{Library: id, Region: 1}, &r), cuda.Success, left, 5+2*known)
		used("unloaded", s.LibraryUnload(c, &wire.LibraryUnloadArgs{Library: id}), cuda.Success, 0, 7+2*known)
	}
	// Machine code: a symbol says how large it is, whatever there is of it in the file.
	cubin := make([]byte, 64+2*64+24)
	le := binary.LittleEndian
	copy(cubin, "\x7fELF\x02\x01")
	le.PutUint16(cubin[18:], 190)
	le.PutUint64(cubin[40:], 64)
	le.PutUint16(cubin[58:], 64)
	le.PutUint16(cubin[60:], 2)
	table := cubin[64+64:]
	le.PutUint32(table[4:], 2)
	le.PutUint64(table[24:], 64+2*64)
	le.PutUint64(table[32:], 24)
	symbol := cubin[64+2*64:]
	symbol[4], symbol[5] = 1, 4
	le.PutUint64(symbol[16:], 1<<36)
	if tr := codeTraits(cubin, fatbin.ELF); tr.bytes != 1<<36 {
		t.Errorf("machine code with 64 GiB counts %d bytes", tr.bytes)
	}
}
