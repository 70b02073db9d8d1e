package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
)

// TestHubOneLimit: the processes of a run share its memory limit, on the software GPU with workers
// of their own.
func TestHubOneLimit(t *testing.T) {
	h := newServer(&spawn.Spawner{Env: append(os.Environ(), mainEnv+"=1")}, link.Config{GPU: "soft", MemoryLimit: 64 << 20}, logger(false))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	path := filepath.Join(t.TempDir(), "session")
	if err := h.listen(ctx, path); err != nil {
		t.Fatal(err)
	}
	defer h.stop()
	dial := func() *workertest.Guest {
		t.Helper()
		g, err := workertest.Dial(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := g.Init()
		if err != nil || r.MemLimit != 64<<20 {
			t.Fatalf("limit %d, %v", r.MemLimit, err)
		}
		if res, err := g.Call(0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); err != nil || res != cuda.Success {
			t.Fatal(res, err)
		}
		g.Ctx = 16
		return g
	}
	alloc := func(g *workertest.Guest, mib uint64, want cuda.Result) {
		t.Helper()
		var m wire.MemAllocReply
		if res, err := g.Call(0, &wire.MemAllocArgs{Size: mib << 20}, &m); err != nil || res != want {
			t.Fatalf("%d MiB: %v, %v, want %v", mib, res, err, want)
		}
	}
	a, b := dial(), dial()
	alloc(a, 40, cuda.Success)
	alloc(b, 25, cuda.ErrorOutOfMemory)
	alloc(b, 24, cuda.Success)
	var info wire.MemGetInfoReply
	if res, err := a.Call(0, &wire.MemGetInfoArgs{}, &info); err != nil || res != cuda.Success || info.Free != 0 || info.Total != 64<<20 {
		t.Errorf("%+v, %v, %v", info, res, err)
	}
	if n, err := h.rebuild(ctx); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if limit, used := h.memory(); limit != 64<<20 || used != 64<<20 {
		t.Errorf("%d of %d bytes used after both moved", used, limit)
	}
	alloc(b, 1, cuda.ErrorOutOfMemory)
	_ = a.Close()
	for i := 0; ; i++ {
		if _, used := h.memory(); used == 24<<20 {
			break
		} else if i > 200 {
			t.Fatalf("%d bytes used after the end of one process", used)
		}
		time.Sleep(20 * time.Millisecond)
	}
	alloc(b, 40, cuda.Success)
	h.mu.Lock()
	for p := range h.workers {
		_ = unix.Kill(p.PID(), unix.SIGKILL)
	}
	h.mu.Unlock()
	c := dial()
	for i := 0; i < 200; i++ {
		if _, used := h.memory(); used == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	alloc(c, 64, cuda.Success)
	_ = c.Close()
}
