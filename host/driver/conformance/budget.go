package conformance

import (
	"sync"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// account is a budget whose limit a test changes.
type account struct {
	mu          sync.Mutex
	limit, used uint64
}

var _ driver.Budget = (*account)(nil)

func (b *account) Reserve(n uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit != 0 && (n > b.limit || b.used > b.limit-n) {
		return false
	}
	b.used += n
	return true
}

func (b *account) Book(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n
}

func (b *account) Release(n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.used {
		panic("conformance: more was given back than was booked")
	}
	b.used -= n
}

func (b *account) Enter() bool { return true }
func (b *account) Leave()      {}

func (b *account) Limit() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit
}

func (b *account) Used() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

func (b *account) set(limit uint64) {
	b.mu.Lock()
	b.limit = limit
	b.mu.Unlock()
}

// way is a way to device memory: get takes at least size bytes, and returns what gives them back.
type way struct {
	name string
	size uint64
	get  func() (cuda.Result, func() cuda.Result)
}

// testBudget: every way to device memory asks the budget, changes nothing if that refuses, and
// gives back what it took. Free memory is what the budget has left.
func testBudget(t *testing.T, b driver.Backend) {
	acct := &account{limit: 256 << 20}
	g := Open(t, b, driver.Options{MemoryLimit: 256 << 20, Budget: acct})
	pool := g.ID()
	g.ok(g.Session.PoolGetDefault(g.call(wire.OpPoolGetDefault), &wire.PoolGetDefaultArgs{Pool: pool}), "PoolGetDefault")
	settle := func() uint64 {
		t.Helper()
		g.ok(g.sync(), "CtxSynchronize")
		g.ok(g.Session.PoolTrimTo(g.call(wire.OpPoolTrimTo), &wire.PoolTrimToArgs{Pool: pool}), "PoolTrimTo")
		return acct.Used()
	}
	for _, w := range g.ways() {
		base := settle()
		res, back := w.get()
		g.ok(res, w.name)
		with := acct.Used()
		if with < base+w.size {
			t.Errorf("%s: %d bytes booked for %d", w.name, with-base, w.size)
		}
		var r wire.MemGetInfoReply
		g.ok(g.Session.MemGetInfo(g.call(wire.OpMemGetInfo), &r), "MemGetInfo")
		if left := acct.Limit() - acct.Used(); r.Total != acct.Limit() || r.Free > left {
			t.Errorf("%s: %d of %d bytes free, %d left", w.name, r.Free, r.Total, left)
		}
		g.ok(back(), w.name+": free")
		if after := settle(); after != base {
			t.Errorf("%s: %d bytes stay booked", w.name, int64(after-base))
		}
		acct.set(base + w.size/2)
		if res, _ := w.get(); res != cuda.ErrorOutOfMemory {
			t.Errorf("%s: more than there is: %v", w.name, res)
		}
		if after := settle(); after != base {
			t.Errorf("%s: %d bytes booked by a refusal", w.name, int64(after-base))
		}
		acct.set(256 << 20)
	}
}

// ways lists the ways to device memory that a session books itself.
func (g *Guest) ways() []way {
	const size = 24 << 20
	s := g.Session
	free := func(ptr uint64) func() cuda.Result {
		return func() cuda.Result { return s.MemFree(g.call(wire.OpMemFree), &wire.MemFreeArgs{Ptr: ptr}) }
	}
	async := func(ptr uint64) func() cuda.Result {
		return func() cuda.Result {
			return s.MemFreeAsync(g.call(wire.OpMemFreeAsync), &wire.MemFreeAsyncArgs{Ptr: ptr, Stream: 1})
		}
	}
	own := g.ID()
	g.ok(s.PoolCreate(g.call(wire.OpPoolCreate), &wire.PoolCreateArgs{Pool: own}), "PoolCreate")
	return []way{
		{"MemAlloc", size, func() (cuda.Result, func() cuda.Result) {
			var r wire.MemAllocReply
			res := s.MemAlloc(g.call(wire.OpMemAlloc), &wire.MemAllocArgs{Size: size}, &r)
			return res, free(r.Ptr)
		}},
		{"MemAllocPitch", size, func() (cuda.Result, func() cuda.Result) {
			var r wire.MemAllocPitchReply
			res := s.MemAllocPitch(g.call(wire.OpMemAllocPitch), &wire.MemAllocPitchArgs{Width: 4096, Height: size / 4096, Element: 4}, &r)
			return res, free(r.Ptr)
		}},
		{"MemAllocAsync", size, func() (cuda.Result, func() cuda.Result) {
			var r wire.MemAllocAsyncReply
			res := s.MemAllocAsync(g.call(wire.OpMemAllocAsync), &wire.MemAllocAsyncArgs{Size: size, Stream: 1}, &r)
			return res, async(r.Ptr)
		}},
		{"MemAllocFromPool", size, func() (cuda.Result, func() cuda.Result) {
			var r wire.MemAllocFromPoolReply
			res := s.MemAllocFromPool(g.call(wire.OpMemAllocFromPool), &wire.MemAllocFromPoolArgs{Pool: own, Size: size, Stream: 1}, &r)
			return res, func() cuda.Result {
				if res := async(r.Ptr)(); res != cuda.Success {
					return res
				}
				if res := g.sync(); res != cuda.Success {
					return res
				}
				return s.PoolTrimTo(g.call(wire.OpPoolTrimTo), &wire.PoolTrimToArgs{Pool: own})
			}
		}},
		{"MemCreate", size, func() (cuda.Result, func() cuda.Result) {
			id, res := vm{g}.create(size)
			return res, func() cuda.Result { return vm{g}.release(id) }
		}},
		{"ArrayCreate", size, func() (cuda.Result, func() cuda.Result) {
			id := g.ID()
			res := s.ArrayCreate(g.call(wire.OpArrayCreate), &wire.ArrayCreateArgs{Array: id, Width: 2048, Height: size / 4 / 2048, Format: 0x20, Channels: 1})
			return res, func() cuda.Result {
				return s.ArrayDestroy(g.call(wire.OpArrayDestroy), &wire.ArrayDestroyArgs{Array: id})
			}
		}},
		{"MipmapCreate", size, func() (cuda.Result, func() cuda.Result) {
			id := g.ID()
			res := s.MipmapCreate(g.call(wire.OpMipmapCreate), &wire.MipmapCreateArgs{Mipmap: id, Width: 2048, Height: size / 4 / 2048, Format: 0x20, Channels: 1, Levels: 3})
			return res, func() cuda.Result {
				return s.MipmapDestroy(g.call(wire.OpMipmapDestroy), &wire.MipmapDestroyArgs{Mipmap: id})
			}
		}},
	}
}
