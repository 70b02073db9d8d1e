package soft

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/memory"
	"causeway/remote/sys"
)

// TestModulesAndHeapCount: variables of modules and the heap of kernels are memory of the budget,
// and come back.
func TestModulesAndHeapCount(t *testing.T) {
	const global = 24 << 20
	image := []byte(".version 6.4\n.target sm_75\n.address_size 64\n.visible .global .align 8 .b8 big[25165824];\n")
	budget := driver.Options{MemoryLimit: 32 << 20}.Memory()
	r := newRig(t, driver.Options{MemoryLimit: 32 << 20, Budget: budget})
	load := func() (wire.ID, cuda.Result) {
		id := r.id()
		return id, r.s.ModuleLoad(r.call(wire.OpModuleLoad), &wire.ModuleLoadArgs{Module: id, ErrCap: 256, Image: image}, new(wire.ModuleLoadReply))
	}
	id, res := load()
	r.ok(res)
	if n := budget.Used(); n < global {
		t.Errorf("%d bytes booked for a variable of %d", n, global)
	}
	if _, res := load(); res != cuda.ErrorOutOfMemory {
		t.Errorf("a second one: %v", res)
	}
	g := r.s.ctxs[r.ctx]
	if _, res := r.s.heapFor(g); res != cuda.Success { // 8 MiB
		t.Error(res)
	}
	if n := budget.Used(); n != 32<<20 {
		t.Errorf("%d bytes booked with the heap", n)
	}
	r.ok(r.s.ModuleUnload(r.call(wire.OpModuleUnload), &wire.ModuleUnloadArgs{Module: id}))
	if n := budget.Used(); n != 8<<20 {
		t.Errorf("%d bytes booked after the module went", n)
	}
	r.close()
	if n := budget.Used(); n != 0 {
		t.Errorf("%d bytes booked after the session", n)
	}
}

// TestLimitChanges: a limit that changes while the session runs holds at once, and is what the
// guest sees.
func TestLimitChanges(t *testing.T) {
	p, err := memory.New(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	mem, err := sys.MapPage(p.File(), true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.UnmapPage(mem) })
	b, err := memory.Open(mem, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Take(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, driver.Options{MemoryLimit: 64 << 20, Budget: b})
	alloc := func(size uint64, want cuda.Result) {
		t.Helper()
		if _, res := r.tryAlloc(size); res != want {
			t.Errorf("%d bytes: %v, want %v", size, res, want)
		}
	}
	see := func(free, total uint64) {
		t.Helper()
		var info wire.MemGetInfoReply
		r.ok(r.s.MemGetInfo(r.call(wire.OpMemGetInfo), &info))
		if info.Free != free || info.Total != total {
			t.Errorf("%d of %d bytes free, want %d of %d", info.Free, info.Total, free, total)
		}
	}
	alloc(48<<20, cuda.Success)
	see(16<<20, 64<<20)
	alloc(32<<20, cuda.ErrorOutOfMemory)
	p.SetLimit(128 << 20)
	see(80<<20, 128<<20)
	alloc(32<<20, cuda.Success)
	p.SetLimit(40 << 20)
	see(0, 40<<20)
	alloc(1, cuda.ErrorOutOfMemory)
}
