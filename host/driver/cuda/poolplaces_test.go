package cuda_test

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	driverof "causeway/host/driver/cuda"
	"causeway/host/driver/drivertest"
)

// placesEnv is what TestPoolPlaces does first: a word of how the driver starts (warm, cold), and one of what uses the device's own pool before another is made (nothing, gone, asked).
const placesEnv = "CAUSEWAY_TEST_POOLS"

// TestPoolPlaces says where the memory of a pool of the guest's own lies in a process that has made nothing else: `scripts/h200.sh pools` compares many processes. It needs a driver of
// its own, and a GPU.
func TestPoolPlaces(t *testing.T) {
	b := present(t)
	runtime.LockOSThread() // which has contexts current
	defer runtime.UnlockOSThread()
	const ctx, pool, own = 5, 6, 7
	o := driver.Options{Migratable: true, Devices: []int{0}}
	how := os.Getenv(placesEnv)
	if strings.Contains(how, "warm") {
		if err := b.(driver.Warmer).Warm(o); err != nil {
			t.Fatal(err)
		}
	}
	s, err := b.Open(drivertest.NewHost(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer driverof.ReleaseArenas(s)
	do := func(f func(c *wire.Call) cuda.Result) {
		t.Helper()
		if res := f(&wire.Call{Ctx: ctx}); res != cuda.Success {
			t.Fatal(res)
		}
	}
	do(func(c *wire.Call) cuda.Result {
		return s.SessionInit(c, &wire.SessionInitArgs{}, &wire.SessionInitReply{})
	})
	do(func(c *wire.Call) cuda.Result {
		return s.PrimaryCtxRetain(c, &wire.PrimaryCtxRetainArgs{Ctx: ctx}, &wire.PrimaryCtxRetainReply{})
	})
	switch {
	case strings.Contains(how, "gone"):
		var r wire.MemAllocAsyncReply
		do(func(c *wire.Call) cuda.Result {
			return s.MemAllocAsync(c, &wire.MemAllocAsyncArgs{Size: 4096, Stream: wire.StreamLegacy}, &r)
		})
		do(func(c *wire.Call) cuda.Result {
			return s.MemFreeAsync(c, &wire.MemFreeAsyncArgs{Ptr: r.Ptr, Stream: wire.StreamLegacy})
		})
	case strings.Contains(how, "asked"):
		do(func(c *wire.Call) cuda.Result { return s.PoolGetDefault(c, &wire.PoolGetDefaultArgs{Pool: own}) })
	}
	do(func(c *wire.Call) cuda.Result { return s.PoolCreate(c, &wire.PoolCreateArgs{Pool: pool}) })
	var r wire.MemAllocFromPoolReply
	do(func(c *wire.Call) cuda.Result {
		return s.MemAllocFromPool(c, &wire.MemAllocFromPoolArgs{Size: 4096, Pool: pool, Stream: wire.StreamLegacy}, &r)
	})
	t.Logf("memory of a pool at %#x", r.Ptr)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
