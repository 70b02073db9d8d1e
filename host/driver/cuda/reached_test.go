package cuda

import (
	"io"
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestReachedWhereItIs: memory of cuMemCreate is copied in a context of the device that it is on,
// whichever context was used last; where the session has none there, in one that it has, which is
// given access.
func TestReachedWhereItIs(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, devs := range [][]uint32{{0, 1}, {1, 0}, {0}, {1}} {
		others := map[string]uint64{}
		for _, name := range []string{"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuMemGetAllocationPropertiesFromHandle", "cuMemAddressReserve", "cuMemSetAccess", "cuMemcpyDtoHAsync_v2"} {
			others[name] = cudatest.OnDevice(name)
		}
		host := drivertest.NewHost()
		host.OnCallBack = func(uint64, cuda.Result) {}
		s := newSession(agreeingDriver(others), host, driver.Options{Migratable: true, MemoryLimit: 1 << 40})
		s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 2)}
		for _, dev := range devs {
			if res := s.PrimaryCtxRetain(&wire.Call{Ctx: 16 + dev, Replier: silent{}}, &wire.PrimaryCtxRetainArgs{Ctx: 16 + dev, Dev: dev}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
				t.Fatal(res)
			}
		}
		m, err := s.moverOf(4096)
		if err != nil {
			t.Fatal(err)
		}
		p := &physical{handle: made[bind.MemGenericAllocationHandle](5), size: 8192}
		err = m.reached(p, func(mem bind.Mem) error {
			_, err := io.Copy(io.Discard, &memReader{m: m, mem: mem})
			return err
		})
		if n := cudatest.OnDeviceCopies(); err != nil || n == 0 {
			t.Errorf("contexts on %v: %v, %d copies", devs, err, n)
		}
		m.close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
