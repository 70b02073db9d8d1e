package schedule

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/host/schedule/policy"
	"causeway/remote/sys"
)

// described makes the three files of a session, with what its worker says of itself.
func described(t *testing.T) (files []int, u page.Usage) {
	t.Helper()
	x := &Session{files: [3]int{-1, -1, -1}, grantRO: -1}
	if err := x.create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.release)
	for _, fd := range x.files {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, d)
	}
	return files, x.u
}

// TestCountsByChance: virtual GPUs join and leave, and their sessions come and go. What the
// scheduler says of each is what there is; what its sessions have waited it never forgets, what
// they had used before they came is not counted, and once all have left there is nothing.
func TestCountsByChance(t *testing.T) {
	leaks(t)
	rng := rand.New(rand.NewPCG(1, 2))
	server := &Server{Log: quietLog, engines: map[string]*engine{}}
	type there struct {
		*client
		sessions map[uint64]page.Usage
		past     time.Duration
	}
	clients := map[string]*there{}
	for step := range 400 {
		key := string(rune('a' + rng.IntN(6)))
		c := clients[key]
		switch k := rng.IntN(10); {
		case c == nil:
			c = &there{&client{server: server}, map[uint64]page.Usage{}, 0}
			if err := c.do(request{Op: opJoin, GPU: "GPU-" + string(rune('0'+rng.IntN(2))), Key: key, Weight: 1, Cap: 50}, nil, &answer{}); err != nil {
				t.Fatal(err)
			}
			clients[key] = c
		case k == 0:
			c.leave()
			delete(clients, key)
		case k < 5:
			id := rng.Uint64N(5)
			files, u := described(t)
			u.Busy.Store(uint64(time.Hour)) // by the worker that had it before
			u.Waited.Store(uint64(rng.IntN(1000)) * uint64(time.Millisecond))
			_, has := c.sessions[id]
			if err := c.do(request{Op: opAdd, Session: id}, files, &answer{}); (err != nil) != has {
				t.Fatalf("step %d: a session that is there already, %v, is added: %v", step, has, err)
			} else if !has {
				c.sessions[id] = u
			}
		case k < 7 && len(c.sessions) > 0:
			id := slices.Min(slices.Collect(maps.Keys(c.sessions)))
			c.past += time.Duration(c.sessions[id].Waited.Load())
			if err := c.do(request{Op: opRemove, Session: id}, nil, &answer{}); err != nil {
				t.Fatal(err)
			}
			delete(c.sessions, id)
		default:
			for _, u := range c.sessions {
				u.Waited.Add(uint64(time.Second))
				u.Active.Store(rng.Uint32N(2)) // and has the GPU for that long
			}
		}
		seen := 0
		for _, g := range server.Status().GPUs {
			for _, s := range g.Shares {
				c := clients[s.Key]
				if seen++; c == nil {
					t.Fatalf("step %d: %s has left", step, s.Key)
				}
				waited := c.past
				for _, u := range c.sessions {
					waited += time.Duration(u.Waited.Load())
				}
				if s.Sessions != len(c.sessions) || s.Waited != waited || s.Busy != 0 {
					t.Fatalf("step %d: %s has %d sessions that waited %v and used %v; it is said to have %+v", step, s.Key, len(c.sessions), waited, 0, s)
				}
			}
		}
		for _, e := range server.engines {
			e.mu.Lock()
			bells, sessions := len(e.bells), 0
			for _, s := range e.shares {
				sessions += len(s.sessions)
			}
			e.mu.Unlock()
			if bells != sessions {
				// Else the next session with that descriptor would count for one that has ended.
				t.Fatalf("step %d: %d bells of %d sessions", step, bells, sessions)
			}
		}
		if seen != len(clients) || server.shares != len(clients) {
			t.Fatalf("step %d: %d virtual GPUs are there, %d are told of, %d counted", step, len(clients), seen, server.shares)
		}
	}
	for _, c := range clients {
		c.leave()
	}
	if server.shares != 0 || len(server.engines) != 0 {
		t.Errorf("%d virtual GPUs and %d GPUs are left", server.shares, len(server.engines))
	}
}

// TestFilesOfRequests: whatever is asked, and whether it is done or refused, its descriptors are
// closed, but for those of a session that is there.
func TestFilesOfRequests(t *testing.T) {
	leaks(t)
	server := &Server{Log: quietLog, engines: map[string]*engine{}}
	c := &client{server: server}
	join := request{Op: opJoin, GPU: "GPU-1", Key: "a", Weight: 1}
	plain := func(n int) (files []int) {
		for range n {
			fd, mem, err := sys.NewPage("test", 4096, 0)
			if err != nil {
				t.Fatal(err)
			}
			sys.UnmapPage(mem)
			files = append(files, fd)
		}
		return files
	}
	whole := func() []int { files, _ := described(t); return files }
	for i, s := range []struct {
		r     request
		files []int
		fails bool
	}{
		{request{Op: opAdd}, whole(), true}, {request{Op: opLimits}, plain(1), true}, {request{Op: opStatus}, plain(2), false}, {join, plain(3), false}, {join, plain(1), true},
		{request{Op: opLimits, Weight: 2}, plain(1), false}, {request{Op: opAdd}, plain(2), true}, {request{Op: opAdd}, plain(3), true}, {request{Op: opAdd}, append(whole(), plain(1)...), true},
		{request{Op: opAdd, Session: 1}, whole(), false}, {request{Op: opAdd, Session: 1}, whole(), true}, {request{Op: opRemove, Session: 2}, plain(1), true},
		{request{Op: opRemove, Session: 1}, plain(1), false}, {request{Op: opAccount, Period: time.Second}, plain(1), false},
	} {
		if err := c.do(s.r, s.files, &answer{}); (err != nil) != s.fails {
			t.Errorf("%d, %s: %v", i, s.r.Op, err)
		}
	}
	c.leave()
}

// TestLimitsAreTheShares: what a virtual GPU may have is told by status as it was asked for last.
func TestLimitsAreTheShares(t *testing.T) {
	leaks(t)
	server := &Server{Log: quietLog, engines: map[string]*engine{}}
	c := &client{server: server}
	defer c.leave()
	for _, r := range []request{{Op: opJoin, GPU: "g", Key: "k", Weight: 7, Cap: 20}, {Op: opLimits, Weight: 9, Cap: 30}, {Op: opLimits, Weight: 1}} {
		if err := c.do(r, nil, &answer{}); err != nil {
			t.Fatal(err)
		}
		if s := server.Status().GPUs[0].Shares[0]; (policy.Limits{Weight: s.Share, Cap: s.Cap}) != (policy.Limits{Weight: r.Weight, Cap: r.Cap}) {
			t.Errorf("%+v after %+v", s, r)
		}
	}
}
