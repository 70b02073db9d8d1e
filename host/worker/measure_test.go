package worker_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
)

func measure(t *testing.T, p *spawn.Process) link.Use {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	u, err := p.Measure(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestMeasure: a worker says who its guest process is and what it uses, also after it moved.
func TestMeasure(t *testing.T) {
	p, g, err := startProcess(t, unixConfig)
	if err != nil {
		t.Fatal(err)
	}
	if u := measure(t, p); u.PID != 0 {
		t.Errorf("before the guest said anything: %+v", u)
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 3 << 20}, &m)
	want := func(p *spawn.Process, bytes uint64) {
		t.Helper()
		u := measure(t, p)
		if u.PID != uint32(os.Getpid()) || u.Program != "test" || len(u.Devices) != 1 || u.Devices[0] != (link.DeviceUse{UUID: [16]byte{15: 1}, Bytes: bytes}) {
			t.Errorf("%+v, want %d bytes", u, bytes)
		}
	}
	want(p, 3<<20)
	next, err := spawner().Rebuild(t.Context(), p, unixConfig)
	if err != nil {
		t.Fatal(err)
	}
	want(next, 3<<20)
	call(t, g, cuda.Success, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	want(next, 0)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if _, err := next.Measure(ctx); err != nil && !errors.Is(err, spawn.ErrSilent) {
				t.Error(err)
			}
		})
		want(next, 0)
	}
	wg.Wait()
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, next)
	if _, err := next.Measure(t.Context()); err == nil {
		t.Error("a worker that has ended answers")
	}
}
