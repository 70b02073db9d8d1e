package worker_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
)

// Limits of these tests, in bytes.
const (
	testHost = 64 << 20  // of a session's host memory
	testRoom = 160 << 20 // what its worker may use beside: Go's heap grows to twice what it holds
)

// hoarder is a session with a budget of host memory, in a worker process.
func hoarder(t *testing.T, cfg link.Config) *workertest.Guest {
	t.Helper()
	p, g, err := startProcess(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	t.Cleanup(func() {
		// Small requests fit again.
		call(t, g, cuda.Success, &wire.EventCreateArgs{Event: 1 << 20}, nil)
		if n := peak(t, p.PID()); n > testHost+testRoom {
			t.Errorf("the worker used %d MiB", n>>20)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		awaitEnd(t, p)
	})
	return g
}

// peak is the most memory that a process has had, in bytes.
func peak(t *testing.T, pid int) (n uint64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "VmHWM:")
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// until makes requests until one is refused for want of memory, and returns how many were not. So
// many that nothing bounds them fail.
func until(t *testing.T, g *workertest.Guest, most int, request func(i int) wire.Args) int {
	t.Helper()
	for i := range most {
		res, err := g.Call(0, request(i), nil)
		if err != nil {
			t.Fatal(err)
		}
		switch res {
		case cuda.Success:
		case cuda.ErrorOutOfMemory:
			return i
		default:
			t.Fatal(res)
		}
	}
	t.Fatalf("%d requests, and none is refused", most)
	return 0
}

// awaitRoom makes a request again and again while it is refused for want of memory that becomes
// free by itself.
func awaitRoom(t *testing.T, g *workertest.Guest, request wire.Args) {
	t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		res, err := g.Call(0, request, nil)
		switch {
		case err == nil && res == cuda.Success:
			return
		case err != nil || res != cuda.ErrorOutOfMemory || time.Now().After(late):
			t.Fatalf("%v: %v, %v", request.Op(), res, err)
		}
	}
}

// TestHostMemory: whatever a guest makes a worker keep ends at its budget, with an error; the
// session goes on, and what ends is free again.
func TestHostMemory(t *testing.T) {
	cfg := unixConfig
	cfg.HostMemory, cfg.LogLevel = testHost, "ERROR"
	noise := make([]byte, 10<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	t.Run("modules from one buffer", func(t *testing.T) {
		g := hoarder(t, cfg)
		load := func(i int) wire.Args { return &wire.ModuleLoadArgs{Module: uint32(100 + i), Image: noise} }
		// One image is kept for them all, and the driver keeps a copy for each.
		n := until(t, g, 100, load)
		t.Logf("%d modules of 10 MiB in 64 MiB", n)
		if n < 3 || n > 5 {
			t.Errorf("%d modules of 10 MiB in 64 MiB", n)
		}
		call(t, g, cuda.Success, &wire.CtxDestroyArgs{Ctx: 16}, nil)
		call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 17}, nil)
		g.Ctx = 17
		call(t, g, cuda.Success, load(1000), nil)
	})
	t.Run("modifications", func(t *testing.T) {
		g := hoarder(t, cfg)
		call(t, g, cuda.Success, &wire.LinkCreateArgs{Link: 50}, nil)
		n := until(t, g, 1<<16, func(i int) wire.Args {
			return &wire.LinkAddArgs{Link: 50, Type: 1, Input: noise[i%4096:][:30<<10], Name: []byte("x")}
		})
		if n < 400 {
			t.Errorf("only %d inputs of 30 KiB in 64 MiB", n)
		}
		call(t, g, cuda.Success, &wire.LinkDestroyArgs{Link: 50}, nil)
		call(t, g, cuda.Success, &wire.LinkCreateArgs{Link: 51}, nil)
	})
	t.Run("objects", func(t *testing.T) {
		cfg := cfg
		cfg.HostMemory = 4 << 20
		g := hoarder(t, cfg)
		if n := until(t, g, 1<<13, func(i int) wire.Args { return &wire.EventCreateArgs{Event: uint32(100 + i)} }); n < 2000 {
			t.Errorf("only %d events in 4 MiB", n)
		}
		for i := range 100 {
			call(t, g, cuda.Success, &wire.EventDestroyArgs{Event: uint32(100 + i)}, nil)
		}
	})
	t.Run("promises", func(t *testing.T) {
		g := hoarder(t, cfg)
		n := until(t, g, 256, func(i int) wire.Args {
			return &wire.BlobAppendArgs{Blob: uint32(5000 + i), Total: 8 << 20, Part: noise[:1]}
		})
		if n > 8 {
			t.Errorf("%d times 8 MiB are promised within 64 MiB", n)
		}
		// Drops it.
		call(t, g, cuda.ErrorInvalidValue, &wire.BlobAppendArgs{Blob: 5000, Total: 7, Part: noise[:1]}, nil)
		call(t, g, cuda.Success, &wire.BlobAppendArgs{Blob: 6000, Total: 7 << 20, Part: noise[:1]}, nil)
		call(t, g, cuda.ErrorInvalidValue, &wire.BlobAppendArgs{Blob: 6000, Total: 7, Part: noise[:1]}, nil)
	})
	t.Run("unpacking", func(t *testing.T) {
		g := hoarder(t, cfg)
		call(t, g, cuda.ErrorOutOfMemory, &wire.ModuleLoadArgs{Module: 70, Image: bomb(t, 1<<30)}, nil)
		call(t, g, cuda.Success, &wire.ModuleLoadArgs{Module: 70, Image: bomb(t, 1<<20)}, nil)
	})
}

// bomb is a fatbin with one entry, of which its header says that it unpacks to size bytes. Nobody
// gets as far as that.
func bomb(t *testing.T, size uint64) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := w.EncodeAll(make([]byte, 4096), nil)
	packed = append(packed, make([]byte, -len(packed)&7)...)
	le := binary.LittleEndian
	b := make([]byte, 16+64)
	le.PutUint32(b, 0xba55ed50)
	le.PutUint16(b[4:], 1)
	le.PutUint16(b[6:], 16)
	le.PutUint64(b[8:], uint64(64+len(packed)))
	e := b[16:]
	le.PutUint16(e, 2) // machine code
	le.PutUint32(e[4:], 64)
	le.PutUint64(e[8:], uint64(len(packed)))
	le.PutUint32(e[16:], uint32(len(packed)))
	le.PutUint32(e[28:], 90)
	le.PutUint64(e[40:], 0x8000) // zstd
	le.PutUint64(e[56:], size)
	return append(b, packed...)
}

// TestHostMemoryOfVirtualGPU: sessions share a budget besides their own, what one held is free when
// it has ended, and a session that moves holds neither more nor less in its new process.
func TestHostMemoryOfVirtualGPU(t *testing.T) {
	page, err := memory.New(testHost)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	member := func() (link.Config, int) {
		slot, err := page.Take()
		if err != nil {
			t.Fatal(err)
		}
		cfg := unixConfig
		cfg.HostMemory, cfg.HostSlot, cfg.Pages, cfg.LogLevel = testHost, slot, []link.Page{{Kind: link.PageHost, File: page.File()}}, "ERROR"
		return cfg, slot
	}
	start := func(cfg link.Config) (*spawn.Process, *workertest.Guest) {
		p, g, err := startProcess(t, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Init(); err != nil {
			t.Fatal(err)
		}
		call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
		g.Ctx = 16
		return p, g
	}
	noise := make([]byte, 12<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	firstConfig, slot := member()
	secondConfig, _ := member()
	first, g1 := start(firstConfig)
	second, g2 := start(secondConfig)
	call(t, g1, cuda.Success, &wire.ModuleLoadArgs{Module: 20, Image: noise}, nil)
	call(t, g1, cuda.Success, &wire.ModuleLoadArgs{Module: 21, Image: noise}, nil)
	held, _ := page.Held(slot)
	if held < 36<<20 || held > 40<<20 {
		t.Errorf("%d bytes held for one image and two modules of 12 MiB", held)
	}
	call(t, g2, cuda.ErrorOutOfMemory, &wire.ModuleLoadArgs{Module: 20, Image: noise}, nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	next, err := spawner().Rebuild(ctx, first, firstConfig)
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, first)
	if after, _ := page.Held(slot); after < held-2<<20 || after > held+2<<20 {
		t.Errorf("%d bytes are held after the move, %d before", after, held)
	}
	call(t, g2, cuda.ErrorOutOfMemory, &wire.ModuleLoadArgs{Module: 20, Image: noise}, nil)
	if err := g1.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, next)
	page.Free(slot)
	call(t, g2, cuda.Success, &wire.ModuleLoadArgs{Module: 20, Image: noise}, nil)
	if err := g2.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, second)
}

// TestInPlaceOfVirtualGPU: what sessions have on the host in place of their VM's memory is as much
// in the books when one of them goes to a new process, and free when it ends.
func TestInPlaceOfVirtualGPU(t *testing.T) {
	page, err := memory.New(testHost)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	page.SetPart(16 << 20)
	var procs [2]*spawn.Process
	var guests [2]*workertest.Guest
	var configs [2]link.Config
	for i := range procs {
		cfg := unixConfig
		if cfg.HostSlot, err = page.Take(); err != nil {
			t.Fatal(err)
		}
		cfg.GPU, cfg.HostMemory, cfg.Pages, cfg.LogLevel = "soft", testHost, []link.Page{{Kind: link.PageHost, File: page.File()}}, "ERROR"
		if procs[i], guests[i], err = startProcess(t, cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := guests[i].Init(); err != nil {
			t.Fatal(err)
		}
		call(t, guests[i], cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
		guests[i].Ctx, configs[i] = 16, cfg
	}
	a, b := guests[0], guests[1]
	inPlace := func(id wire.ID) wire.Args {
		return &wire.MemCreateArgs{Memhandle: id, Size: 10 << 20, Place: wire.MemOnHost}
	}
	call(t, a, cuda.Success, inPlace(20), nil)
	call(t, b, cuda.ErrorOutOfMemory, inPlace(20), nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	next, err := spawner().Rebuild(ctx, procs[0], configs[0])
	if err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, procs[0])
	call(t, b, cuda.ErrorOutOfMemory, inPlace(20), nil)
	call(t, a, cuda.ErrorOutOfMemory, inPlace(21), nil)
	call(t, a, cuda.Success, &wire.MemReleaseArgs{Memhandle: 20}, nil)
	call(t, a, cuda.Success, inPlace(21), nil)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, next)
	page.Free(configs[0].HostSlot)
	call(t, b, cuda.Success, inPlace(20), nil)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, procs[1])
}
