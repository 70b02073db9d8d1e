package cuda

import (
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
	"causeway/remote"
)

const brought = 9 // a region that a carrier brings

// carriedSession is a session with 8 MiB of device memory and as much of region brought. Calls of
// those entries do nothing, and fail when cudatest.FailMapping says so.
func carriedSession(t *testing.T, entries ...string) (*session, *drivertest.Host, uint64) {
	t.Helper()
	nothingDone := cudatest.Mapping("cuMemSetAccess")
	drv := bind.New(func(symbol string) uint64 {
		if slices.Contains(entries, symbol) {
			return nothingDone
		}
		return cudatest.Owning(symbol)
	})
	cudatest.Restart()
	cudatest.FailMapping(0)
	host := drivertest.NewHost()
	host.Regions = maps.Clone(guestRegions(t))
	host.Regions[brought] = driver.Region{ID: brought, Kind: wire.RegionStaging, Size: 8 << 20, IO: nothing{}}
	s := agreeing(t, drv, host)
	if res := s.PrimaryCtxRetain(&wire.Call{Replier: silent{}}, &wire.PrimaryCtxRetainArgs{Ctx: 5}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	var m wire.MemAllocReply
	if res := s.MemAlloc(&wire.Call{Ctx: 5, Seq: 1, Replier: silent{}}, &wire.MemAllocArgs{Size: 8 << 20}, &m); res != cuda.Success {
		t.Fatal(res)
	}
	return s, host, m.Ptr
}

// TestCopyAside: copies to the GPU through a carrier go on while the consumer does. Their words are
// told when the GPU is behind them, and no earlier; when no pinned memory is left, one is waited
// for at once. A few bytes on an idle stream are, too.
func TestCopyAside(t *testing.T) {
	const piece = padSize / 4
	// The driver takes the write of a fence, and the GPU never makes it.
	s, host, dev := carriedSession(t, "cuStreamWriteValue32_v2")
	call := func() *wire.Call { return &wire.Call{Ctx: 5, Seq: 1, Replier: silent{}} }
	do := func(word uint32, size uint64) {
		t.Helper()
		a := &wire.MemcpyStagedArgs{Region: brought, Offset: uint64(word) * piece, Size: size, Device: dev, Stream: wire.StreamLegacy, Word: word, Value: 7}
		if res := s.MemcpyStaged(call(), a); res != cuda.Success {
			t.Fatalf("copy %d: %v", word, res)
		}
		*a = wire.MemcpyStagedArgs{} // it is the consumer's
	}
	under := func() map[uint32]*wait {
		s.watch.mu.Lock()
		defer s.watch.mu.Unlock()
		list := map[uint32]*wait{}
		for i, x := range s.watch.waits {
			list[uint32(i)] = x
		}
		return list
	}
	told := func(word, want uint32) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); host.Word(word) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("word %d is %#x, want %#x", word, host.Word(word), want)
			}
		}
	}
	st, _ := s.stream(call(), wire.StreamLegacy)
	do(0, 4096)
	if host.Word(0) != 7 || st.busy() || !s.fences.pads.IsZero() {
		t.Fatalf("a few bytes on an idle stream: word %#x, busy %v, pinned memory %v", host.Word(0), st.busy(), !s.fences.pads.IsZero())
	}
	free := len(s.fences.free_)
	do(1, piece)
	do(2, 4096) // the stream has something to do
	do(3, padSize)
	do(4, piece)
	list := under()
	if len(list) != padCount || len(s.fences.padded) != 0 {
		t.Fatalf("%d copies are under way, %d pads are free", len(list), len(s.fences.padded))
	}
	do(5, piece)
	for w, want := range map[uint32]uint32{1: 0, 2: 0, 3: 0, 4: 0, 5: 7} {
		if host.Word(w) != want {
			t.Errorf("word %d is %#x before the GPU has copied, want %#x", w, host.Word(w), want)
		}
	}
	for i := range uint32(padCount) {
		list[i].word.store(list[i].seq)
		told(i+1, 7)
	}
	for end := time.Now().Add(10 * time.Second); len(under()) > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	s.watch.settle()
	if len(s.fences.padded) != padCount || len(s.fences.free_) != free {
		t.Errorf("behind them %d pads and %d fences of %d are free", len(s.fences.padded), len(s.fences.free_), free)
	}
	st.submitted++
	do(6, piece)
	if res := s.PrimaryCtxRelease(&wire.Call{Replier: silent{}}, &wire.PrimaryCtxReleaseArgs{Ctx: 5}); res != cuda.Success {
		t.Fatal(res)
	}
	told(6, 7|wire.WordFailed) // what it was copied to is gone
}

// TestCopyAsideFails: a copy that fails at the driver, or whose bytes do not come, says so in its
// word and gives back what it took.
func TestCopyAsideFails(t *testing.T) {
	const broken = 10
	s, host, dev := carriedSession(t, "cuMemcpyHtoDAsync_v2", "cuStreamWriteValue32_v2")
	host.Regions[broken] = driver.Region{ID: broken, Kind: wire.RegionStaging, Size: 8 << 20, IO: brokenIO{}}
	call := &wire.Call{Ctx: 5, Seq: 1, Replier: silent{}}
	for what, c := range map[string]struct {
		region uint32
		fail   int
	}{"the copy": {brought, 1}, "the fence": {brought, 2}, "the carrier": {broken, 0}} {
		cudatest.FailMapping(c.fail)
		res := s.MemcpyStaged(call, &wire.MemcpyStagedArgs{Region: c.region, Size: padSize, Device: dev, Stream: wire.StreamLegacy, Word: 3, Value: 7})
		cudatest.FailMapping(0)
		if res == cuda.Success || host.Word(3) != 7|wire.WordFailed {
			t.Errorf("%s fails: %v, its word is %#x", what, res, host.Word(3))
		}
		if len(s.fences.padded) != padCount || len(s.fences.free_) != fenceCount {
			t.Errorf("%s fails: %d pads and %d fences are free", what, len(s.fences.padded), len(s.fences.free_))
		}
		clear(host.Words)
	}
}

// landing is a carrier whose bytes of copies come to memory that the driver pins.
type landing struct {
	nothing
	mem  []byte
	at   uint64
	held bool
	err  error
	lets atomic.Int32
	asks int
}

func (l *landing) Landings() []byte { return l.mem }

func (l *landing) HoldStaged(*wire.MemcpyStagedArgs) (uint64, func(), bool, error) {
	l.asks++
	return l.at, func() { l.lets.Add(1) }, l.held, l.err
}

// TestCopyAsideLanded: what came to the carrier's landings is copied from there, and stays until
// the GPU has read it; what did not is copied as ever. An error is the copy's.
func TestCopyAsideLanded(t *testing.T) {
	const size = 128 << 10
	s, host, dev := carriedSession(t, "cuStreamWriteValue32_v2")
	mem, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	cudatest.Lend(mem)
	l := &landing{mem: mem}
	reg := host.Regions[brought]
	reg.IO = l
	host.Regions[brought] = reg
	do := func(word uint32) cuda.Result {
		a := &wire.MemcpyStagedArgs{Region: brought, Size: size, Device: dev, Stream: wire.StreamLegacy, Word: word, Value: 7}
		return s.MemcpyStaged(&wire.Call{Ctx: 5, Seq: 1, Replier: silent{}}, a)
	}
	last := func() *wait {
		s.watch.mu.Lock()
		defer s.watch.mu.Unlock()
		return s.watch.waits[len(s.watch.waits)-1]
	}
	told := func(word, want uint32, lets int32) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); host.Word(word) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("word %d is %#x, want %#x", word, host.Word(word), want)
			}
		}
		if n := l.lets.Load(); n != lets {
			t.Errorf("behind word %d %d were let go, want %d", word, n, lets)
		}
	}
	if res := do(0); res != cuda.Success || l.asks != 0 || s.fences.landings.IsZero() {
		t.Fatalf("the first copy: %v, asked %d times, landings pinned: %v", res, l.asks, !s.fences.landings.IsZero())
	}
	x := last()
	x.word.store(x.seq)
	told(0, 7, 0)
	l.at, l.held = 256<<10, true
	if res := do(1); res != cuda.Success || l.asks != 1 {
		t.Fatalf("a copy from a landing: %v, asked %d times", res, l.asks)
	}
	if x = last(); x.fence.pad != 0 || x.fence.bounce.Size() != size {
		t.Errorf("it has pad %d and %d bytes", x.fence.pad, x.fence.bounce.Size())
	}
	if n := l.lets.Load(); n != 0 {
		t.Errorf("%d let go ahead of the GPU", n)
	}
	x.word.store(x.seq)
	told(1, 7, 1)
	l.held = false
	if res := do(2); res != cuda.Success || last().fence.pad == 0 {
		t.Errorf("a copy that is at no landing: %v, pad %d", res, last().fence.pad)
	}
	x = last()
	x.word.store(x.seq)
	told(2, 7, 1)
	l.held, l.err = true, remote.ErrOutOfBounds
	if res := do(3); res != cuda.ErrorInvalidValue {
		t.Errorf("bytes that the guest refuses: %v", res)
	}
	told(3, 7|wire.WordFailed, 1)
}

// TestFencePoolUnpins: landings that a pool has pinned are unpinned with it, once.
func TestFencePoolUnpins(t *testing.T) {
	drv := bind.New(func(symbol string) uint64 {
		if symbol == "cuMemHostUnregister" {
			return cudatest.Busy(symbol)
		}
		return cudatest.Owning(symbol)
	})
	cudatest.Restart()
	mem, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	cudatest.Lend(mem)
	defer cudatest.TakeBack(mem)
	cudatest.SetBusy(1) // else what is unpinned is not counted
	defer cudatest.SetBusy(0)
	for want, landings := range [][]byte{nil, mem} {
		p, res := newFencePool(drv)
		if res != cuda.Success {
			t.Fatal(res)
		}
		p.havePads(drv, landings)
		if p.landings.IsZero() != (landings == nil) {
			t.Errorf("of %d bytes pinned: %v", len(landings), !p.landings.IsZero())
		}
		p.free(drv)
		if n, _, _ := cudatest.BusyCounts(); n != want {
			t.Errorf("behind a pool with %d bytes of landings %d were unpinned, want %d", len(landings), n, want)
		}
	}
}
