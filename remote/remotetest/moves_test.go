package remotetest

import (
	"testing"
	"time"

	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// TestMovesOnFabric: a session whose relay goes from host to host has no byte lost, or another, and
// its memory is reached by RDMA where there are adapters.
func TestMovesOnFabric(t *testing.T) {
	for name, flap := range map[string]int{"moves": 0, "moves flap": 397} {
		t.Run(name, func(t *testing.T) {
			f, m, err := onFabric(flap)
			if err != nil {
				t.Fatal(err)
			}
			worker := m.worker.Adapters[0].(*verbstest.Adapter)
			CheckMoves(t, m, 30, func() bool { return f.ReachedBy(worker, verbs.Read) > 0 && f.ReachedBy(worker, verbs.Write) > 0 })
			for _, h := range m.hosts[:2] {
				a := h.Adapters[0].(*verbstest.Adapter)
				if f.MovedBy(a, verbs.WriteImmediate) == 0 {
					t.Errorf("%s: nothing goes by RDMA", a.Port().Device)
				}
			}
			for end := time.Now().Add(Limit); f.Left() != 0; time.Sleep(time.Millisecond) {
				// A way that was given up may still be.
				if time.Now().After(end) {
					t.Fatalf("%d queue pairs and registrations are left", f.Left())
				}
			}
		})
	}
}
