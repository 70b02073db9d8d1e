package schedule

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/host/schedule/policy"
	"causeway/remote/sys"
)

// TestDoubtByChance: a scheduler is asked when a session has stood at its gate from one look to the
// next, and is not when each has passed meanwhile, however often.
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

// TestLeavesOpen: an engine that still decided when a session's own side had opened its grant
// already, as its connection had ended, leaves it open.
func TestLeavesOpen(t *testing.T) {
	e, err := newEngine("GPU-1", true, quietLog)
	if err != nil {
		t.Fatal(err)
	}
	s := e.join("a", policy.Limits{Weight: 1})
	own := &Session{files: [3]int{-1, -1, -1}, grantRO: -1}
	if err := own.create(); err != nil {
		t.Fatal(err)
	}
	defer own.release()
	var files []int
	for _, fd := range own.files {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, dup)
	}
	x, err := openSession(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.add(s, 1, x); err != nil {
		t.Fatal(err)
	}
	own.g.Set(page.Open, 0)
	e.mu.Lock()
	x.g.Set(page.Metered, 0) // the last decision
	e.dropLocked(s, 1, x)
	e.mu.Unlock()
	if w := own.g.Word(); !w.Free() {
		t.Errorf("its grant stays %#x", w)
	}
	if !e.leave(s) {
		t.Error("the engine has more")
	}
	e.close()
}
