package worker_test

import (
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/remote/remotetest"
)

// count is what is sent on some connections.
type count struct{ writes, bytes atomic.Int64 }

// counted is a connection that counts what is sent on it.
type counted struct {
	net.Conn
	*count
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	c.bytes.Add(int64(len(p)))
	return c.Conn.Write(p)
}

// TestRelayTraffic bounds what a call and a copy cost between relay and server, in system calls and
// bytes: these are what a link's time goes to, and they are the same on any machine. A byte more
// than asked for, or a write more than frames that must not wait for each other, is a step back.
func TestRelayTraffic(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			var up, down count
			var conns atomic.Int64
			pair := func() (net.Conn, net.Conn, error) {
				near, far, err := remotetest.PairTCP()
				conns.Add(1)
				return &counted{near, &up}, &counted{far, &down}, err
			}
			s := startOver(t, func() (remotetest.Ends, error) { return remotetest.RelayedBy(pair, secure) })
			const size = 1 << 20
			var m wire.MemAllocReply
			s.must(t, cuda.Success, &wire.MemAllocArgs{Size: size}, &m)
			id, _, res, err := s.AddRegion(0, wire.RegionStaging, size)
			if err != nil || res != cuda.Success {
				t.Fatal(res, err)
			}
			staged := func(direction uint32, n uint64) func() {
				return func() {
					if err := s.Send(&wire.MemcpyStagedArgs{Direction: direction, Region: id, Size: n, Device: m.Ptr, Word: 3, Value: 1}); err != nil {
						t.Fatal(err)
					}
				}
			}
			// A MiB with TLS goes over other connections, in parts of 256 KiB, of which each is two
			// writes.
			most, wide := [3]int64{9, 3, 5}, int64(0)
			if secure {
				most, wide = [3]int64{9, 7, 10}, remotetest.Branches
			}
			for n := 0; conns.Load() <= wide && wide > 0 || n < 4; n++ {
				staged(0, size)()
				s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil)
			}
			for _, c := range []struct {
				name                 string
				do                   func()
				upWrites, downWrites int64 // at most; a fence's are added
				upBytes, downBytes   int64 // of payload
			}{
				{"the smallest call", func() {}, 0, 0, 0, 0},
				{"4 KiB to the GPU", staged(0, 4<<10), 2, 2, 4 << 10, 0},
				{"4 KiB from the GPU", staged(1, 4<<10), 1, 1, 0, 4 << 10},
				// With TLS each 512 KiB are acknowledged (package resume).
				{"1 MiB to the GPU", staged(0, size), most[0], most[1], size, 0},
				{"1 MiB from the GPU", staged(1, size), 3, most[2], 0, size},
			} {
				// A round's writes are those of most rounds: on a machine with other things to do
				// what is acknowledged now and then goes by itself.
				const rounds = 21
				ub, db := up.bytes.Load(), down.bytes.Load()
				var ups, downs [rounds]int64
				for i := range rounds {
					uw, dw := up.writes.Load(), down.writes.Load()
					c.do()
					s.must(t, cuda.Success, &wire.SessionFenceArgs{}, nil)
					ups[i], downs[i] = up.writes.Load()-uw, down.writes.Load()-dw
				}
				slices.Sort(ups[:])
				slices.Sort(downs[:])
				gotUp, gotDown := ups[rounds/2], downs[rounds/2]
				bytesUp, bytesDown := float64(up.bytes.Load()-ub)/rounds, float64(down.bytes.Load()-db)/rounds
				t.Logf("%s: %d writes and %.0f bytes up, %d and %.0f down", c.name, gotUp, bytesUp, gotDown, bytesDown)
				// TLS over TCP may cut a write in two where its buffer is full.
				if gotUp > c.upWrites+1+c.upBytes>>17 || gotDown > c.downWrites+1+c.downBytes>>17 {
					t.Errorf("%s: %d writes up, at most %d, %d down, at most %d", c.name, gotUp, c.upWrites+1, gotDown, c.downWrites+1)
				}
				// Frames' heads, records, and 22 bytes of each record of TLS.
				if most := func(n int64) float64 { return float64(n) + float64(n)/200 + 400 }; bytesUp > most(c.upBytes) || bytesDown > most(c.downBytes) {
					t.Errorf("%s: %.0f bytes up of %d, %.0f down of %d", c.name, bytesUp, c.upBytes, bytesDown, c.downBytes)
				}
			}
			if err := s.finish(t); err != nil {
				t.Error(err)
			}
		})
	}
}
