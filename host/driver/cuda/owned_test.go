package cuda

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// owningDriver is one that knows what it may touch.
func owningDriver() *bind.Driver { return bind.New(cudatest.Owning) }

// Regions of the guest in FuzzOperations: 0 is the ring, regionStaging has pages of its own, and
// regionPinned lies where the guest has it.
const (
	regionStaging = 1
	regionPinned  = 2
	regionSize    = 1 << 20
	regionsAt     = 0x6a1000000000
	pinnedAt      = regionsAt + regionPinned<<28
)

// guestRegions maps them, each between pages that nobody may touch, and lends them to the driver
// until the test ends.
func guestRegions(t testing.TB) map[uint32]driver.Region {
	regions := map[uint32]driver.Region{}
	for id, kind := range []uint32{0, wire.RegionStaging, wire.RegionPinned} {
		at := uintptr(regionsAt) + uintptr(id)<<28
		p, err := unix.MmapPtr(-1, 0, *(*unsafe.Pointer)(unsafe.Pointer(&at)), regionSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
		if err != nil {
			t.Fatal(err)
		}
		mem := unsafe.Slice((*byte)(p), regionSize)
		cudatest.Lend(mem)
		regions[uint32(id)] = driver.Region{ID: uint32(id), Kind: kind, VA: uint64(at), Size: regionSize, Mem: mem}
		t.Cleanup(func() {
			cudatest.TakeBack(mem)
			if err := unix.MunmapPtr(p, regionSize); err != nil {
				t.Error(err)
			}
		})
	}
	return regions
}

// request is one of context 5.
type request struct {
	wire.Args
	want cuda.Result
}

func recordsOf(t testing.TB, list ...request) (b []byte) {
	for _, r := range list {
		var err error
		if b, err = wire.AppendRecord(b, wire.Header{Ctx: 5}, r.Args); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

const dev = cudatest.FirstAddress

// begin is what copies need: a context, the regions and 1 MiB of device memory at dev.
func begin() []request {
	return []request{
		{Args: &wire.PrimaryCtxRetainArgs{Ctx: 5}},
		{Args: &wire.RegionAddArgs{Region: regionStaging, Kind: wire.RegionStaging, Va: regionsAt + regionStaging<<28, Size: regionSize}},
		{Args: &wire.RegionAddArgs{Region: regionPinned, Kind: wire.RegionPinned, Va: pinnedAt, Size: regionSize}},
		{Args: &wire.MemAllocArgs{Size: regionSize}},
	}
}

// copies are right, and reach the last byte of what they touch.
func copies() []request {
	const l = wire.StreamLegacy
	box := func(a wire.Memcpy3DArgs) request {
		a.Stream, a.SrcPitch, a.SrcHeight, a.DstPitch, a.DstHeight = l, 4096, 16, 8192, 8
		a.Width, a.Height, a.Depth = 4096, 8, 16
		a.SrcZ, a.DstZ, a.SrcY = 0, 0, 8
		return request{Args: &a}
	}
	return append(begin(),
		request{Args: &wire.MemcpyHtoDArgs{Dst: dev + regionSize - 7, Stream: l, Src: []byte("1234567")}},
		request{Args: &wire.MemcpyDtoHArgs{Src: dev + regionSize - 64, Size: 64, Stream: l}},
		request{Args: &wire.MemcpyStagedArgs{Region: regionStaging, Size: regionSize, Device: dev, Stream: l, Word: 1, Value: 1}},
		request{Args: &wire.MemcpyStagedArgs{Direction: 1, Region: regionStaging, Offset: 4096, Size: regionSize - 4096, Device: dev + 4096, Stream: l, Word: 2, Value: 1}},
		request{Args: &wire.MemcpyArgs{Dst: pinnedAt, Src: dev, Size: regionSize, Stream: l}},
		request{Args: &wire.MemcpyArgs{Dst: dev + 1, Src: pinnedAt + 1, Size: regionSize - 1, Stream: l}},
		box(wire.Memcpy3DArgs{SrcKind: wire.OperandStaging, SrcRegion: regionStaging, Dst: dev}),
		box(wire.Memcpy3DArgs{Src: dev, Dst: pinnedAt, Word: 3, Value: 1}),
		box(wire.Memcpy3DArgs{Src: pinnedAt, DstKind: wire.OperandStaging, DstRegion: regionStaging, Word: 4, Value: 1}),
		request{Args: &wire.MemsetArgs{Dst: dev, Element: 4, Width: regionSize / 4, Height: 1, Stream: l}},
		request{Args: &wire.MemsetArgs{Dst: dev, Pitch: 4096, Element: 2, Width: 2048, Height: 256, Stream: l}},
		request{Args: &wire.MemsetArgs{Dst: pinnedAt, Element: 1, Width: regionSize, Height: 1, Stream: l}},
		request{Args: &wire.StreamWriteValueArgs{Stream: l, Addr: dev + 8, Value: 1, Width: 4}},
		request{Args: &wire.MemFreeArgs{Ptr: dev}},
	)
}

// wrongCopies reach one byte too far, or wrap around, each in its own way.
func wrongCopies() []request {
	const l, bad = wire.StreamLegacy, cuda.ErrorInvalidValue
	box := wire.Memcpy3DArgs{SrcKind: wire.OperandStaging, SrcRegion: regionStaging, Dst: dev, SrcPitch: 4096, DstPitch: 4096, SrcHeight: 16, DstHeight: 16, Width: 4096, Height: 16, Depth: 16, Stream: l}
	deep, far, wide, wrap, other := box, box, box, box, box
	deep.SrcZ = 1
	far.SrcX = 1
	wide.SrcPitch = 1 << 39
	wrap.SrcZ, wrap.SrcHeight, wrap.Depth = 1<<24, 1<<40, 1 // in 64 bits these are 16 rows
	other.SrcRegion = 9
	list := []wire.Args{
		&wire.MemcpyStagedArgs{Region: regionStaging, Offset: 1, Size: regionSize, Device: dev, Stream: l},
		&wire.MemcpyStagedArgs{Region: regionStaging, Offset: 1 << 63, Size: 1 << 63, Device: dev, Stream: l},
		&wire.MemcpyStagedArgs{Region: 9, Size: 1, Device: dev, Stream: l},
		&deep, &far, &wide, &wrap, &other,
		&wire.MemcpyArgs{Dst: pinnedAt + 1, Src: dev, Size: regionSize, Stream: l},
		&wire.MemcpyArgs{Dst: regionsAt + regionStaging<<28, Src: dev, Size: 1<<28 + 1, Stream: l},
		&wire.MemcpyArgs{Dst: dev, Src: regionsAt - 4096, Size: 1, Stream: l},
		&wire.MemsetArgs{Dst: pinnedAt, Element: 1, Width: regionSize + 1, Height: 1, Stream: l},
		&wire.MemsetArgs{Dst: pinnedAt, Pitch: 1 << 47, Element: 1, Width: 1, Height: 1 << 20, Stream: l},
	}
	requests := begin()
	for _, a := range list {
		requests = append(requests, request{a, bad})
	}
	return requests
}

// TestCopiesReachTheDriver: right copies of every form come to a driver that looks at each range,
// and wrong ones do not.
func TestCopiesReachTheDriver(t *testing.T) {
	drv, regions := owningDriver(), guestRegions(t)
	for name, list := range map[string][]request{"right": copies(), "wrong": wrongCopies()} {
		t.Run(name, func(t *testing.T) {
			cudatest.Restart()
			host := drivertest.NewHost()
			host.Regions = regions
			s := agreeing(t, drv, host)
			var d wire.Dispatcher
			for _, r := range list {
				rec := recordsOf(t, r)
				c := wire.Call{Op: r.Op(), Ctx: 5, Seq: 1, Replier: silent{}}
				s.Before(c.Op, false)
				_, res, err := d.Dispatch(s, &c, rec, nil)
				if err != nil || res != r.want {
					t.Errorf("%v %+v: %v, %v, want %v", r.Op(), r.Args, res, err, r.want)
				}
				if found := cudatest.Finding(); found != "" {
					t.Fatalf("%v %+v: %s", r.Op(), r.Args, found)
				}
			}
			device, pinned, own := cudatest.Reached()
			if name == "right" && (device < 10 || pinned < 8 || own < 1) {
				t.Errorf("%d ranges of device memory reached the driver, %d of the guest's, %d of calls", device, pinned, own)
			}
		})
	}
}
