package remotetest

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"
)

// TestMoves: a session whose relay goes from host to host has no byte lost, or another, and its
// memory is reached by RDMA where there are adapters.
func TestMoves(t *testing.T) {
	for name, flap := range map[string]int{"moves": 0, "flap": 97} {
		t.Run(name, func(t *testing.T) {
			m, err := NewMover(flap)
			if err != nil {
				t.Fatal(err)
			}
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
			for round := byte(0); m.Went.Load() < 60; round++ {
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
			s.end(t)
			if err := <-over; err != nil {
				t.Error(err)
			}
			t.Logf("moved %d times, stayed %d times", m.Went.Load(), m.Stayed.Load())
			for end := time.Now().Add(Limit); m.Left() != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d queue pairs and registrations are left", m.Left())
				}
			}
			_ = errors.Is
		})
	}
}
