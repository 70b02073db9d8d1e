package cuda

import (
	"sync/atomic"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// tally counts replies by their results.
type tally struct{ fine, refused atomic.Int32 }

func (a *tally) Reply(_, _ uint32, res cuda.Result, _ []byte) {
	if res == cuda.Success {
		a.fine.Add(1)
	} else {
		a.refused.Add(1)
	}
}
func (*tally) GPUDone(uint32) (uintptr, bool) { return 0, false }
func (*tally) WakeSlot(uint32, uint32)        {}

// TestBlockedWaits: a guest that waits time and again without hearing of it has as many threads of
// the worker's wait as it has slots, and no more; when they have been answered others may.
func TestBlockedWaits(t *testing.T) {
	s, a := agreeing(t, agreeingDriver(cudatest.Parts()), drivertest.NewHost()), &tally{}
	for round := range int32(2) {
		hold := make(chan struct{})
		for range 10 * wire.SlotCount {
			s.blockOn(&wire.Call{Op: wire.OpStreamSynchronize, Replier: a}, func() cuda.Result {
				<-hold
				return cuda.Success
			})
		}
		if n := s.watch.blocked.Load(); n > wire.SlotCount || a.refused.Load() != (round+1)*9*wire.SlotCount {
			t.Errorf("%d waits have threads, %d are refused", n, a.refused.Load())
		}
		close(hold)
		for end := time.Now().Add(10 * time.Second); a.fine.Load() < (round+1)*wire.SlotCount && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := a.fine.Load(); n != (round+1)*wire.SlotCount {
			t.Errorf("%d waits were answered", n)
		}
	}
}
