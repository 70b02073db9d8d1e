package cuda

import (
	"errors"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestReach: where kernels can address all of a worker's memory no session starts, and none gets
// ready, unless the host permits it.
func TestReach(t *testing.T) {
	drv := agreeingDriver(nil)
	const hmm, ats = int32(cuda.DeviceAttrPageableMemoryAccess), int32(cuda.DeviceAttrPageableMemoryAccessUsesHostPageTables)
	for _, c := range []struct {
		name   string
		set    []int32
		reach  driver.Reach
		remedy string
	}{
		{"neither", nil, driver.ReachNone, ""},
		{"HMM", []int32{hmm}, driver.ReachHMM, "uvm_disable_hmm=1"},
		{"ATS", []int32{hmm, ats}, driver.ReachATS, "uvm_ats_mode=0"},
		{"ATS alone", []int32{ats}, driver.ReachATS, "uvm_ats_mode=0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, a := range c.set {
				cudatest.SetAttribute(a, 1)
				defer cudatest.SetAttribute(a, 0)
			}
			b := &Backend{drv: drv}
			list, err := b.Devices()
			if err != nil || len(list) != 1 || list[0].Reach != c.reach {
				t.Fatalf("%+v, %v: want reach %q", list, err, c.reach)
			}
			for _, permitted := range []bool{false, true} {
				refused := c.reach != driver.ReachNone && !permitted
				o := driver.Options{ReachWorker: permitted}
				err := b.Warm(o)
				var why *driver.ReachError
				if errors.As(err, &why) != refused || refused && (why.Reach != c.reach || !strings.Contains(err.Error(), c.remedy) || !strings.Contains(err.Error(), "--kernels-reach-worker")) {
					t.Errorf("permitted %v: ready: %v", permitted, err)
				}
				s := agreeing(t, drv, drivertest.NewHost())
				s.warm, s.opt.ReachWorker = nil, permitted
				want := cuda.Success
				if refused {
					want = cuda.ErrorNotPermitted
				}
				if res := s.SessionInit(&wire.Call{}, &wire.SessionInitArgs{}, &wire.SessionInitReply{}); res != want {
					t.Errorf("permitted %v: session: %v, want %v", permitted, res, want)
				}
				s.warm.let(s.drv)
			}
		})
	}
}
