package cuda_test

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	driverof "causeway/host/driver/cuda"
	"causeway/host/driver/drivertest"
)

// TestExpect: memory that came before the operation that allocates it is what that finds; what
// another takes the place of, or nothing, is given back. It needs a driver of its own, and one GPU.
func TestExpect(t *testing.T) {
	b := present(t)
	runtime.LockOSThread() // which has contexts current
	defer runtime.UnlockOSThread()
	const (
		ctx           = 5
		size          = 5 << 20
		limit         = 8 * size
		pages         = 6 << 20 // that a block of size takes
		fills, taken  = 1, 2
		small, second = 512, 3000
	)
	o := driver.Options{Migratable: true, MemoryLimit: limit, Devices: []int{0}}
	open := func() driver.Session {
		s, err := b.Open(drivertest.NewHost(), o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	cold := open()
	if cold.(driver.Expecter).Expects() {
		t.Error("a session whose driver has not started expects memory")
	}
	if err := cold.Close(); err != nil {
		t.Error(err)
	}
	if err := b.(driver.Warmer).Warm(o); err != nil {
		t.Fatal(err)
	}
	s := open()
	defer driverof.ReleaseArenas(s)
	e := s.(driver.Expecter)
	if !e.Expects() {
		t.Fatal("it expects no memory")
	}

	base := uint64(0)
	for _, at := range driverof.Ranges {
		if err := e.Expect(at, size); err == nil {
			base = at
			break
		}
	}
	if base == 0 {
		t.Fatal("the driver gives none of the addresses")
	}
	stays, changes, goes, early, parts := base, base+pages, base+2*pages, base+3*pages, base+4*pages
	expect := func(addr, n uint64, fill byte) {
		t.Helper()
		if addr != stays {
			if err := e.Expect(addr, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Fill(addr+n/2, n/4, bytes.NewReader(bytes.Repeat([]byte{fill}, int(n/4)))); err != nil {
			t.Fatal(err)
		}
	}
	expect(stays, size, fills)
	expect(changes, size, taken)
	expect(goes, size, 3)
	expect(early, size, 4)
	expect(parts, small, 5)
	expect(parts+small, second, 6)
	expect(parts+1<<20, small, 7)
	for name, err := range map[string]error{
		"twice":             e.Expect(stays, size),
		"over two":          e.Expect(stays+pages-(1<<20), size),
		"in a large one":    e.Expect(stays+512, 512),
		"over a small one":  e.Expect(parts, size),
		"between units":     e.Expect(base+8*pages+1, 512),
		"outside":           e.Expect(0x1000, size),
		"of no range":       e.Expect(0x1234_0000_0000, size),
		"of another range":  e.Expect(base^1<<39, size),
		"wraps":             e.Expect(^uint64(0)-4095, 4096),
		"past the range":    e.Expect(base+1<<39-(2<<20), size),
		"over the limit":    e.Expect(base+8*pages, limit-3*size),
		"fill, not there":   e.Fill(base+8*pages, 1, bytes.NewReader([]byte{1})),
		"fill, past an end": e.Fill(stays+size-1, 2, bytes.NewReader([]byte{1, 2})),
		"fill, wraps":       e.Fill(stays+1, ^uint64(0), bytes.NewReader([]byte{1, 2})),
		"fill, cut":         e.Fill(stays, 2, bytes.NewReader([]byte{1})),
		"zero, not there":   e.Zero(base+8*pages, 1),
		"forget, a part":    e.Forget(early, size-1),
		"forget, inside":    e.Forget(early+512, size),
		"landed too early":  e.Landed(early, size),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, at := range []uint64{early, parts + 1<<20} {
		n := uint64(size)
		if at != early {
			n = small
		}
		if err := e.Forget(at, n); err != nil {
			t.Error(err)
		}
	}
	expect(early, size, 0)

	call := func(op wire.Op, placed ...uint64) *wire.Call {
		return &wire.Call{Op: op, Ctx: ctx, Replay: true, Placed: placed}
	}
	ok := func(res cuda.Result) {
		t.Helper()
		if res != cuda.Success {
			t.Fatal(res)
		}
	}
	ok(s.SessionInit(call(wire.OpSessionInit), &wire.SessionInitArgs{}, &wire.SessionInitReply{}))
	ok(s.PrimaryCtxRetain(call(wire.OpPrimaryCtxRetain), &wire.PrimaryCtxRetainArgs{Ctx: ctx}, &wire.PrimaryCtxRetainReply{}))
	place := func(at, n uint64) cuda.Result {
		c, r := call(wire.OpMemAlloc, at), wire.MemAllocReply{}
		res := s.(wire.User).Use(c)
		if res == cuda.Success {
			res = s.MemAlloc(c, &wire.MemAllocArgs{Size: n}, &r)
		}
		if res == cuda.Success && r.Ptr != at {
			t.Errorf("allocated at %#x, was at %#x", r.Ptr, at)
		}
		return res
	}
	ok(place(stays, size))
	if place(stays, size) == cuda.Success {
		t.Error("the same is allocated once more")
	}
	ok(place(changes, size/2))
	ok(place(parts+small, second))
	for name, err := range map[string]error{"stays": e.Landed(stays, size), "small": e.Landed(parts+small, second), "zero": e.Zero(stays, size/2+4)} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"another size": e.Landed(changes, size), "not allocated": e.Landed(goes, size), "beside": e.Landed(parts, small),
		"forgotten, and allocated": e.Forget(stays, size), "filled, and replaced": e.Fill(changes, 1, bytes.NewReader([]byte{1})),
	} {
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := e.Settle(); err != nil {
		t.Error(err)
	}
	if used := driverof.UsedBy(s); used != size+size/2+second {
		t.Errorf("%d bytes are booked", used)
	}
	if e.Fill(stays, 1, bytes.NewReader([]byte{1})) == nil {
		t.Error("filled after the end")
	}
	ok(place(goes, size))
	got := map[uint64][]byte{}
	err := s.ExportMemory(func(addr, _ uint64, r io.Reader) (err error) {
		got[addr], err = io.ReadAll(r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := append(make([]byte, size/2+4), bytes.Repeat([]byte{fills}, size/4-4)...)
	if want = append(want, make([]byte, size/4)...); !bytes.Equal(got[stays], want) {
		t.Error("memory that came is another")
	}
	want = append(make([]byte, second/2), bytes.Repeat([]byte{6}, second/4)...)
	if want = append(want, make([]byte, second/4)...); !bytes.Equal(got[parts+small], want) {
		t.Error("small memory that came is another")
	}
	if len(got) != 4 {
		t.Errorf("%d blocks", len(got))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
