package remotetest

import (
	"errors"
	"net/netip"
	"slices"
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

// deaf is an adapter whose queue pairs never connect.
type deaf struct {
	verbs.Adapter
	over <-chan struct{} // closed when the test is
}

type deafQueue struct {
	verbs.Queue
	over <-chan struct{}
}

func (a deaf) NewQueue(size verbs.QueueSize) (verbs.Queue, error) {
	q, err := a.Adapter.NewQueue(size)
	return deafQueue{q, a.over}, err
}

func (q deafQueue) Connect(verbs.Path) error {
	<-q.over
	return errors.New("the test is over")
}

// TestMovesUnreached: where the adapter of a host that a session comes to never connects, or
// nothing comes through, the session goes on at once, over TLS, and by RDMA again at the next host.
func TestMovesUnreached(t *testing.T) {
	here := netip.MustParseAddr("127.0.0.1")
	for name, unreached := range map[string]func(f *verbstest.Fabric, over <-chan struct{}) verbs.Adapter{
		"never connects": func(f *verbstest.Fabric, over <-chan struct{}) verbs.Adapter {
			return deaf{f.Adapter("host b", here), over}
		},
		"nothing comes through": func(f *verbstest.Fabric, _ <-chan struct{}) verbs.Adapter {
			a := f.Adapter("host b", here)
			f.Stick(a)
			return a
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, over := verbstest.New(), make(chan struct{})
			a := f.Adapter("host a", here)
			m, err := NewMover(here.String(), one(f.Adapter("worker", here)), one(a), one(unreached(f, over)))
			if err != nil {
				t.Fatal(err)
			}
			m.Settle = 0
			var before uint64 // once it has been at host a again
			CheckMoves(t, m, 8, func() bool {
				is := f.MovedBy(a, verbs.WriteImmediate)
				if before == 0 {
					before = is
				}
				return is > before
			})
			close(over)
			f.Stick(nil)
			// A machine with other work takes longer now and then; who waits for an adapter does so
			// each time.
			if least := slices.Min(m.Stood); least >= 200*time.Millisecond {
				t.Errorf("it stood for %v each time", least)
			}
			for end := time.Now().Add(Limit); f.Left() != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d queue pairs and registrations are left", f.Left())
				}
			}
		})
	}
}
