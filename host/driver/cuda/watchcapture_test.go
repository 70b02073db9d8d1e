package cuda

import (
	"testing"
	"time"

	"causeway/cuda"
	"causeway/host/driver/cuda/cudatest"
)

// TestWatchCapturing: a copy whose stream begins to capture behind it, which ends no work that the
// stream has, is not over before the GPU says so: what it is copied from is still read.
func TestWatchCapturing(t *testing.T) {
	s, _ := submitterSession(t, 0)
	cudatest.Reset(0)
	st, ok := s.streams.get(16)
	if !ok {
		t.Fatal("no stream")
	}
	var mark uint32
	x := &wait{word: wordOf(&mark), seq: 1, ctx: s.handleOf(st.ctx), stream: st.handle, ended: func(cuda.Result) {}}
	asked := func() (bool, cuda.Result, int) {
		over, res := s.watch.check(x, x.queried.Add(time.Hour))
		return over, res, len(cudatest.Calls())
	}
	if over, res, n := asked(); over || n != 1 {
		t.Errorf("before the capture: %v, %v, asked %d times", over, res, n)
	}
	cudatest.Capture(16)
	s.active.Store(1)
	if over, res, n := asked(); over || n != 1 {
		t.Errorf("while it captures: %v, %v, asked %d times", over, res, n)
	}
	cudatest.Capture(17) // another does
	if over, res, n := asked(); over || n != 2 {
		t.Errorf("while another captures: %v, %v, asked %d times", over, res, n)
	}
	cudatest.Capture(16)
	x.word.store(1)
	if over, res, _ := asked(); !over || res != cuda.Success {
		t.Errorf("behind the GPU's word: %v, %v", over, res)
	}
}
