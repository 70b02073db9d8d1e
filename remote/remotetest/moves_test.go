package remotetest

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"causeway/remote/verbs"
	"causeway/remote/verbs/verbstest"
)

// TestMoves: a session whose relay goes from host to host has no byte lost, or another, and its
// memory is reached by RDMA where there are adapters.
func TestMoves(t *testing.T) {
	for name, flap := range map[string]int{"moves": 0, "flap": 397} {
		t.Run(name, func(t *testing.T) {
			m, err := NewMover(flap)
			if err != nil {
				t.Fatal(err)
			}
			m.Every = moveRarely // so that memory is granted, however slow the machine is
			p := m.Passed()
			over := make(chan error, 1)
			pass := p.Pass
			p.Pass = func(program *net.UnixConn) error {
				err := pass(program)
				over <- err
				return err
			}
			s := start(t, p.ends)
			const size = 1 << 20
			mem, b := s.declare(t, 1, size), make([]byte, size)
			reached := func(op verbs.Op) bool { return m.ReachedBy(m.worker, op) > 0 }
			end := time.Now().Add(Limit)
			for round := byte(0); m.Went.Load() < 30 || !reached(verbs.Read) || !reached(verbs.Write); round++ {
				if time.Now().After(end) {
					t.Fatalf("moved %d times; its memory is reached by READ: %v, by WRITE: %v", m.Went.Load(), reached(verbs.Read), reached(verbs.Write))
				}
				select {
				case err := <-over:
					t.Fatal(err)
				default:
				}
				pattern(mem, 1, 0, round)
				if err := s.Memory().ReadAt(1, b, 0); err != nil || !bytes.Equal(b, mem) {
					t.Fatalf("round %d: %v, or other bytes", round, err)
				}
				if err := s.Memory().WriteAt(1, pattern(b, 1, 0, ^round), 0); err != nil {
					t.Fatal(err)
				}
				s.fence(t)
				if !bytes.Equal(b, mem) {
					t.Fatalf("round %d: other bytes are written", round)
				}
			}
			for _, h := range m.hosts[:2] {
				a := h.Adapters[0].(*verbstest.Adapter)
				if m.MovedBy(a, verbs.WriteImmediate) == 0 {
					t.Errorf("%s: nothing goes by RDMA", a.Port().Device)
				}
			}
			s.end(t)
			if err := <-over; err != nil {
				t.Error(err)
			}
			slices.Sort(m.Stood)
			t.Logf("moved %d times, stayed %d times; stood for %v, at most %v", m.Went.Load(), m.Stayed.Load(), m.Stood[len(m.Stood)/2], m.Stood[len(m.Stood)-1])
			for end = time.Now().Add(Limit); m.Left() != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d queue pairs and registrations are left", m.Left())
				}
			}
		})
	}
}
