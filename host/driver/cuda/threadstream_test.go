package cuda

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// roomy is a host with room for some streams of threads.
type roomy struct {
	*drivertest.Host
	left int
}

func (r *roomy) ReserveHost(n uint64) bool {
	if n != driver.StreamMemory || r.left == 0 {
		return false
	}
	r.left--
	return true
}

func (r *roomy) ReleaseHost(n uint64) { r.left += int(n / driver.StreamMemory) }

// TestStreamsOfThreads: each thread of a guest has a default stream of its own as long as there may
// be work on it. Of threads that came and went not more are kept than enough, those with attributes
// apart, and what there is of them is in the budget of host memory.
func TestStreamsOfThreads(t *testing.T) {
	const room = 1000
	others := map[string]uint64{"cuStreamQuery": cudatest.Busy("cuStreamQuery"), "cuCtxSetCurrent": cudatest.Busy("cuCtxSetCurrent")}
	open := func(t *testing.T, room int) (*session, *roomy) {
		host := &roomy{drivertest.NewHost(), room}
		s := agreeing(t, agreeingDriver(others), host.Host)
		s.host = host
		for id, handle := range map[uint32]uint64{5: 0x5000, 6: 0x6000} {
			s.ctxs.put(id, &context_{handle: made[bind.Context](handle)})
		}
		cudatest.SetBusy(0)
		return s, host
	}
	use := func(t *testing.T, s *session, ctx, thread uint32, want cuda.Result) *stream {
		t.Helper()
		st, res := s.submit(&wire.Call{Ctx: ctx, Thread: thread, Replier: silent{}}, streamPerThread)
		if res != want {
			t.Fatalf("thread %d in context %d: %v, want %v", thread, ctx, res, want)
		}
		return st
	}
	has := func(t *testing.T, s *session, host *roomy, what string, least, most int) {
		t.Helper()
		if n := len(s.threads); n < least || n > most || host.left != room-n {
			t.Errorf("%s: %d streams, %d booked; want %d to %d", what, n, room-host.left, least, most)
		}
	}
	t.Run("that end", func(t *testing.T) {
		s, host := open(t, room)
		for i := range uint32(20000) {
			use(t, s, 5, i+1, cuda.Success)
		}
		has(t, s, host, "20,000 threads, one after another", driver.EnoughThreads, driver.EnoughThreads)
		if len(s.ofThreads.Keys()) != len(s.threads) {
			t.Errorf("%d threads are looked at for %d streams", len(s.ofThreads.Keys()), len(s.threads))
		}
		for i := range uint32(1000) {
			use(t, s, 6, i+1, cuda.Success)
		}
		has(t, s, host, "1,000 more in another context", driver.EnoughThreads, 3*driver.EnoughThreads)
		s.forgetThreads(5)
		s.forgetThreads(6)
		has(t, s, host, "without contexts", 0, 0)
	})
	t.Run("that work", func(t *testing.T) {
		s, host := open(t, room)
		cudatest.SetBusy(0x5000)
		of := map[*stream]bool{}
		for i := range uint32(room) {
			of[use(t, s, 5, i+1, cuda.Success)] = true
		}
		if has(t, s, host, "1,000 threads with work", room, room); len(of) != room {
			t.Errorf("they share %d streams", len(of))
		}
		use(t, s, 5, room+1, cuda.ErrorOutOfMemory)
		use(t, s, 6, 1, cuda.ErrorOutOfMemory)
		cudatest.SetBusy(0)
		use(t, s, 5, room+1, cuda.Success)
		use(t, s, 6, 1, cuda.ErrorOutOfMemory)
	})
	t.Run("that come back", func(t *testing.T) {
		s, host := open(t, room)
		for range 4 {
			for i := range uint32(300) {
				use(t, s, 5, i+1, cuda.Success)
			}
		}
		has(t, s, host, "300 threads by turns", driver.EnoughThreads, 300)
		first := use(t, s, 5, 1, cuda.Success)
		for i := range uint32(10000) { // one that is used stays where it is
			use(t, s, 5, 1000+i, cuda.Success)
			if st := use(t, s, 5, 1, cuda.Success); st != first {
				t.Fatalf("a thread that is at work lost its stream to thread %d", 1000+i)
			}
		}
	})
	t.Run("with attributes", func(t *testing.T) {
		s, host := open(t, room)
		for i := range uint32(500) {
			use(t, s, 5, i+1, cuda.Success)
			s.threads[threadKey{5, i + 1}].shaped(cuda.Success)
		}
		has(t, s, host, "500 threads with attributes", 500, 500)
		for i := range uint32(500) {
			use(t, s, 5, i+1, cuda.Success)
			use(t, s, 5, 1000+i, cuda.Success)
		}
		has(t, s, host, "and 500 without", 501, 501+2*driver.EnoughThreads)
	})
	t.Run("while one captures", func(t *testing.T) {
		s, host := open(t, room)
		s.active.Store(1)
		for i := range uint32(500) {
			use(t, s, 5, i+1, cuda.Success)
		}
		has(t, s, host, "500 threads", 500, 500)
		s.active.Store(0)
	})
}
