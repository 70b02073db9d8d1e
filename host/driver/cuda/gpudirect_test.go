package cuda

import (
	"errors"
	"io"
	"slices"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// directHost is a worker whose adapter moves bytes, or does not.
type directHost struct {
	*drivertest.Host
	least  uint64
	moves  bool
	fails  error
	moved  []wire.MemcpyStagedArgs
	told   []driver.DeviceMemory
	export error // of the last
	off    uint64
	never  error
}

func (h *directHost) Direct(size uint64) bool { return size >= h.least && h.never == nil }

func (h *directHost) MoveDirect(a *wire.MemcpyStagedArgs, m driver.DeviceMemory) (bool, error) {
	cudatest.DirectSays('M')
	f, off, err := m.Export()
	if h.export, h.off = err, off; err == nil {
		_ = f.Close()
	}
	h.moved, h.told = append(h.moved, *a), append(h.told, m)
	return h.moves, h.fails
}

func (h *directHost) ForgetDirect(address, size uint64) {
	if h.least > 0 {
		cudatest.DirectSays('f')
	}
}

func (h *directHost) NeverDirect(why error) { h.never = why }

// farRegion is staging memory that is not mapped.
type farRegion struct{ writes int }

func (f *farRegion) ReadAt(p []byte, off int64) (int, error) { return len(p), nil }
func (f *farRegion) WriteAt(p []byte, off int64) (int, error) {
	f.writes++
	return len(p), nil
}

var _ interface {
	io.ReaderAt
	io.WriterAt
} = (*farRegion)(nil)

func newDirect(t *testing.T) (*session, *directHost, *farRegion) {
	others := map[string]uint64{}
	for _, name := range []string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemFreeAsync", "cuCtxDestroy_v2", "cuPointerGetAttribute", "cuMemGetHandleForAddressRange", "cuDeviceGetAttribute", "cuStreamSynchronize", "cuFlushGPUDirectRDMAWrites"} {
		others[name] = cudatest.Direct(name)
	}
	h := &directHost{Host: drivertest.NewHost(), least: 64 << 10, moves: true}
	s := agreeing(t, agreeingDriver(others), h.Host)
	s.host = h
	region := &farRegion{}
	h.Regions[5] = driver.Region{ID: 5, Kind: wire.RegionStaging, Size: 4 << 20, IO: region}
	if res := s.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 16}); res != cuda.Success {
		t.Fatal(res)
	}
	for attribute, value := range map[uint32]int32{cuda.DeviceAttrDmaBufSupported: 1, cuda.DeviceAttrGPUDirectRDMAWritesOrdering: 0, cuda.DeviceAttrGPUDirectRDMAFlushWritesOptions: 1} {
		cudatest.DirectIs(attribute, value)
	}
	t.Cleanup(cudatest.DirectEmpty)
	cudatest.DirectBegins(0)
	cudatest.DirectRefuses(0)
	cudatest.DirectSaid()
	return s, h, region
}

func (h *directHost) copied(t *testing.T, s *session, direction uint32, device, size uint64) cuda.Result {
	t.Helper()
	a := wire.MemcpyStagedArgs{Direction: direction, Region: 5, Offset: 4096, Size: size, Device: device, Stream: wire.StreamLegacy, Word: 2, Value: 7}
	return s.MemcpyStaged(&wire.Call{Ctx: 16, Replier: silent{}}, &a)
}

func (h *directHost) allocated(t *testing.T, s *session, size uint64) uint64 {
	t.Helper()
	var r wire.MemAllocReply
	if res := s.MemAlloc(&wire.Call{Ctx: 16, Replier: silent{}}, &wire.MemAllocArgs{Size: size}, &r); res != cuda.Success {
		t.Fatal(res)
	}
	return r.Ptr
}

// TestCopiesDirect: a copy goes by the adapter behind the stream's work, and what it brought is
// made visible to kernels; whatever cannot go so goes as it did; memory is freed when the adapter
// knows it no more.
func TestCopiesDirect(t *testing.T) {
	s, h, far := newDirect(t)
	p := h.allocated(t, s, 1<<20)
	cudatest.DirectSaid()
	for i, c := range []struct {
		direction uint32
		at, size  uint64
		said      string
	}{
		{0, 0, 1 << 20, "SMP"},
		{1, 0, 1 << 20, "SM"},
		{0, 1000, 64 << 10, "SMP"},
	} {
		if res := h.copied(t, s, c.direction, p+c.at, c.size); res != cuda.Success || h.export != nil || h.Word(2) != 7 {
			t.Errorf("copy %d: %v, %v, %#x", i, res, h.export, h.Word(2))
		}
		if said := cudatest.DirectSaid(); said != c.said {
			t.Errorf("copy %d: %q, not %q", i, said, c.said)
		}
		m := h.told[len(h.told)-1]
		if m.Address != p || m.Size != 1<<20 || !m.Holds(p+c.at, c.size) || m.Holds(p+c.at, 1<<20+1) || far.writes != 0 {
			t.Errorf("copy %d: %+v", i, m)
		}
	}
	// What the adapter does not do goes through this process's memory; so do few bytes.
	h.moves = false
	if res := h.copied(t, s, 1, p, 1<<20); res != cuda.Success || far.writes != 1 || cudatest.DirectSaid() != "SMS" {
		t.Error(res, far.writes)
	}
	h.moves = true
	if res := h.copied(t, s, 1, p, 32<<10); res != cuda.Success || far.writes != 2 || cudatest.DirectSaid() != "S" {
		t.Error(res, far.writes)
	}
	h.fails = errors.New("the stream's end")
	if res := h.copied(t, s, 1, p, 1<<20); res == cuda.Success || h.Word(2) != 7|wire.WordFailed {
		t.Error(res, h.Word(2))
	}
	h.fails = nil
	cudatest.DirectSaid()
	// Freed, one way and the other, and with its context.
	if res := s.MemFree(&wire.Call{Ctx: 16, Replier: silent{}}, &wire.MemFreeArgs{Ptr: p}); res != cuda.Success || cudatest.DirectSaid() != "fF" {
		t.Error(res)
	}
	p = h.allocated(t, s, 1<<20)
	if res := s.MemFreeAsync(&wire.Call{Ctx: 16, Replier: silent{}}, &wire.MemFreeAsyncArgs{Ptr: p, Stream: wire.StreamLegacy}); res != cuda.Success || cudatest.DirectSaid() != "fF" {
		t.Error(res)
	}
	h.allocated(t, s, 1<<20)
	if res := s.CtxDestroy(&wire.Call{Ctx: 16, Replier: silent{}}, &wire.CtxDestroyArgs{Ctx: 16}); res != cuda.Success || cudatest.DirectSaid() != "fE" {
		t.Error(res)
	}
}

// TestDirectMemory: an adapter is told of whole pages of what the session has allocated, and of
// nothing beside; and each allocation has a number of its own.
func TestDirectMemory(t *testing.T) {
	s, h, _ := newDirect(t)
	cudatest.DirectBegins(512)
	p := h.allocated(t, s, 1<<20)
	m, ok := s.directMemory(p+4096, 1000)
	if !ok || m.Address != p+4096-512 || m.Size != 1<<20-4096 {
		t.Errorf("%+v, %v", m, ok)
	}
	if _, _, err := m.Export(); err != nil {
		t.Error(err)
	}
	for _, x := range [][2]uint64{{p, 4096}, {p + 100, 1 << 19}, {p + 1<<20 - 100, 100}, {p + 4096, 1 << 20}, {p + 8192, 1<<64 - 1}, {p - 4096, 4096}, {p + 1<<30, 4096}} {
		if m, ok := s.directMemory(x[0], x[1]); ok {
			t.Errorf("%#x bytes at %#x of it: %+v", x[1], x[0]-p, m)
		}
	}
	if m, ok := s.directMemory(h.allocated(t, s, 1000), 1000); ok {
		t.Errorf("less than a page: %+v", m)
	}
	for name, change := range map[string]func(a *allocation){
		"of a pool":         func(a *allocation) { a.pooled = true },
		"of a pool of ours": func(a *allocation) { a.pool = &ownPool{} },
		"of a graph":        func(a *allocation) { a.graph = &graphMem{} },
		"of fewer bytes":    func(a *allocation) { a.size = 8192 },
		"not the session's": func(a *allocation) { a.size = 0 },
	} {
		a := s.allocs[p]
		was := a
		change(&a)
		s.allocs[p] = a
		if m, ok := s.directMemory(p+1<<19, 4096); ok {
			t.Errorf("%s: %+v", name, m)
		}
		s.allocs[p] = was
	}
	q := h.allocated(t, s, 1<<20)
	other, _ := s.directMemory(q+4096, 1000)
	if other.Serial == m.Serial || slices.Contains([]uint64{m.Serial, other.Serial}, 0) {
		t.Errorf("%d and %d", m.Serial, other.Serial)
	}
	cudatest.DirectRefuses(uint32(cuda.ErrorNotSupported))
	if _, _, err := m.Export(); !errors.Is(err, cuda.ErrorNotSupported) {
		t.Error(err)
	}
	cudatest.DirectIs(cuda.DeviceAttrDmaBufSupported, 0)
	if _, _, err := m.Export(); !errors.Is(err, driver.ErrNoFiles) {
		t.Error(err)
	}
}

// TestDirectOrder: a GPU that orders what adapters write for all is not asked to, and one that
// neither does nor can be asked is written to by none.
func TestDirectOrder(t *testing.T) {
	s, h, _ := newDirect(t)
	p := h.allocated(t, s, 1<<20)
	cudatest.DirectIs(cuda.DeviceAttrGPUDirectRDMAWritesOrdering, 200)
	cudatest.DirectSaid()
	if res := h.copied(t, s, 0, p, 1<<20); res != cuda.Success || cudatest.DirectSaid() != "SM" {
		t.Error(res)
	}
	cudatest.DirectIs(cuda.DeviceAttrGPUDirectRDMAWritesOrdering, 100)
	cudatest.DirectIs(cuda.DeviceAttrGPUDirectRDMAFlushWritesOptions, 2)
	if res := h.copied(t, s, 0, p, 1<<20); res != cuda.Success || len(h.moved) != 1 || h.never == nil {
		t.Error(res, len(h.moved), h.never)
	}
}
