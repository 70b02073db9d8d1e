package schedule

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// TestDoubtByChance: a scheduler is asked when a session has stood at its gate from one look to the next, and is not when each has passed meanwhile, however often.
func TestDoubtByChance(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		if ends[i], err = sys.UnixConn(fd, "scheduler"); err != nil {
			t.Fatal(err)
		}
	}
	asked := make(chan struct{}, 16)
	go func() {
		for b := make([]byte, maxPacket); ; {
			if n, err := ends[1].Read(b); err != nil || n == 0 {
				return
			}
			asked <- struct{}{}
			_, _ = ends[1].Write([]byte("{}"))
		}
	}()
	defer ends[1].Close()
	s := newMembership(Member{}, slog.New(slog.DiscardHandler))
	s.conn = newCaller(ends[0])
	defer s.Close()
	x, y := add(t, s), add(t, s)
	for range 2 {
		<-asked // of the sessions that came
	}
	rnd := rand.New(rand.NewPCG(5, 5))
	seen := map[*Session]uint64{}
	for i := range 300 {
		want := 0
		for _, x := range []*Session{x, y} {
			x.u.Waits.Add(uint64(max(rnd.IntN(6)-2, 0)))
			x.u.Waiting.Store(uint32(rnd.IntN(2)))
			if n := x.u.Waits.Load(); x.u.Waiting.Load() != 0 && n == seen[x] {
				want = 1
			}
			seen[x] = x.u.Waits.Load()
		}
		s.doubt()
		if got := len(asked); got != want {
			t.Fatalf("%d: it is asked %d times, not %d", i, got, want)
		}
		for range want {
			<-asked
		}
	}
}
