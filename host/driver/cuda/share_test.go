package cuda

import (
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// market is a worker whose session shares with others, all of which the test keeps.
type market struct {
	*drivertest.Host
	next  byte
	there map[driver.ShareToken][]byte
}

func (m *market) LetGo(driver.ShareToken) {}

func (m *market) Offer(o driver.Shared) (driver.ShareToken, error) {
	m.next++
	t := driver.ShareToken{m.next, 1}
	m.there[t] = o.Blob
	return t, nil
}

func (m *market) OfferAgain(t driver.ShareToken, o driver.Shared) error {
	m.there[t] = o.Blob
	return nil
}

func (m *market) Redeem(t driver.ShareToken) ([]byte, int, error) {
	b, ok := m.there[t]
	if !ok {
		return nil, -1, errors.New("no such token")
	}
	return b, -1, nil
}

func (m *market) Withdraw(t driver.ShareToken) { delete(m.there, t) }

// TestSharedByChance: what a session shares can be had as long as it is there, whatever ends it, a
// call or its context, and is no reason any more then that the session stays where it is.
func TestSharedByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m := &market{drivertest.NewHost(), 0, map[driver.ShareToken][]byte{}}
	s := agreeing(t, agreeingDriver(map[string]uint64{"cuMemAllocAsync": cudatest.Mapping("cuMemAllocAsync")}), m.Host)
	s.host = m
	cudatest.FailMapping(0)
	call := func(ctx uint32) *wire.Call { return &wire.Call{Ctx: ctx, Replier: silent{}} }
	type thing struct {
		id     uint64
		ctx    uint32
		pooled bool
		event  bool
		token  driver.ShareToken
	}
	const primary, own = 16, 17
	var all []*thing
	begin := func(ctx uint32) {
		t.Helper()
		res := cuda.Success
		if ctx == primary {
			res = s.PrimaryCtxRetain(call(0), &wire.PrimaryCtxRetainArgs{Ctx: ctx}, &wire.PrimaryCtxRetainReply{})
		} else {
			res = s.CtxCreate(call(0), &wire.CtxCreateArgs{Ctx: ctx})
		}
		if res != cuda.Success {
			t.Fatal(res)
		}
	}
	drop := func(gone func(*thing) bool) {
		left := all[:0]
		for _, x := range all {
			if !gone(x) {
				left = append(left, x)
			}
		}
		all = left
	}
	begin(primary)
	begin(own)
	shared, events := 0, uint32(100)
	for step := range 2000 {
		ctx := uint32(primary + rng.IntN(2))
		var x *thing
		if len(all) > 0 {
			x = all[rng.IntN(len(all))]
		}
		res := cuda.Success
		switch k := rng.IntN(20); {
		case k < 3:
			var r wire.MemAllocReply
			res = s.MemAlloc(call(ctx), &wire.MemAllocArgs{Size: 4096}, &r)
			all = append(all, &thing{id: r.Ptr, ctx: ctx})
		case k < 5:
			var r wire.MemAllocAsyncReply
			res = s.MemAllocAsync(call(ctx), &wire.MemAllocAsyncArgs{Size: 4096, Stream: wire.StreamLegacy}, &r)
			all = append(all, &thing{id: r.Ptr, pooled: true})
		case k < 6:
			events++
			res = s.EventCreate(call(ctx), &wire.EventCreateArgs{Event: events, Flags: cuda.EventInterprocess | cuda.EventDisableTiming})
			all = append(all, &thing{id: uint64(events), ctx: ctx, event: true})
		case k < 12 && x != nil && x.token == (driver.ShareToken{}):
			var token []byte
			switch {
			case x.event:
				var r wire.IpcGetEventHandleReply
				res = s.IpcGetEventHandle(call(ctx), &wire.IpcGetEventHandleArgs{Event: uint32(x.id)}, &r)
				token = r.Token
			case x.pooled:
				var r wire.PoolExportPointerReply
				res = s.PoolExportPointer(call(ctx), &wire.PoolExportPointerArgs{Ptr: x.id}, &r)
				token = r.Token
			default:
				var r wire.IpcGetMemHandleReply
				res = s.IpcGetMemHandle(call(ctx), &wire.IpcGetMemHandleArgs{Ptr: x.id}, &r)
				token = r.Token
			}
			x.token = driver.ShareToken(token)
			shared++
		case k < 17 && x != nil:
			switch {
			case x.event:
				res = s.EventDestroy(call(ctx), &wire.EventDestroyArgs{Event: uint32(x.id)})
			case x.pooled || rng.IntN(2) == 0:
				res = s.MemFreeAsync(call(ctx), &wire.MemFreeAsyncArgs{Ptr: x.id, Stream: wire.StreamLegacy})
			default:
				res = s.MemFree(call(ctx), &wire.MemFreeArgs{Ptr: x.id})
			}
			drop(func(y *thing) bool { return y == x })
		case k == 17 && rng.IntN(4) == 0:
			res = s.CtxDestroy(call(own), &wire.CtxDestroyArgs{Ctx: own})
			drop(func(y *thing) bool { return y.ctx == own })
			begin(own)
		case k == 18 && rng.IntN(4) == 0:
			res = s.PrimaryCtxReset(call(primary), &wire.PrimaryCtxResetArgs{Ctx: primary})
			drop(func(y *thing) bool { return y.ctx == primary || y.pooled })
			begin(primary)
		}
		if res != cuda.Success {
			t.Fatalf("step %d: %v", step, res)
		}
		want := map[driver.ShareToken]bool{}
		for _, x := range all {
			if x.token != (driver.ShareToken{}) {
				want[x.token] = true
			}
		}
		got := map[driver.ShareToken]bool{}
		for token := range m.there {
			got[token] = true
		}
		if !maps.Equal(got, want) || s.offers.Any() != (len(want) > 0) {
			t.Fatalf("step %d: %d things can be had, of %d that are shared; any: %v", step, len(got), len(want), s.offers.Any())
		}
		if m.next == 255 {
			m.next = 0
			clear(m.there)
			s.offers = driver.Offers{}
			for _, x := range all {
				x.token = driver.ShareToken{}
			}
		}
	}
	if shared < 100 {
		t.Errorf("only %d were shared", shared)
	}
}

// TestOpenedAsOftenAsClosed: memory of another session's that is opened several times is one piece,
// and is closed at the driver as often.
func TestOpenedAsOftenAsClosed(t *testing.T) {
	drv := agreeingDriver(map[string]uint64{
		// Which leaves the address as it is: the same each time.
		"cuIpcOpenMemHandle_v2": cudatest.Mapping("cuMemSetAccess"),
		"cuIpcCloseMemHandle":   cudatest.Busy("cuCtxDestroy_v2"), // which is counted
	})
	m := &market{drivertest.NewHost(), 0, map[driver.ShareToken][]byte{}}
	s := agreeing(t, drv, m.Host)
	s.host = m
	cudatest.FailMapping(0)
	if res := s.CtxCreate(&wire.Call{Replier: silent{}}, &wire.CtxCreateArgs{Ctx: 1}); res != cuda.Success {
		t.Fatal(res)
	}
	c := &wire.Call{Ctx: 1, Replier: silent{}}
	token, _ := m.Offer(driver.Shared{Blob: append([]byte{shareMemory}, make([]byte, opaqueSize)...), File: -1})
	for times := range 4 {
		cudatest.SetBusy(0)
		var r wire.IpcOpenMemHandleReply
		for range times {
			if res := s.IpcOpenMemHandle(c, &wire.IpcOpenMemHandleArgs{Flags: 1, Token: token[:]}, &r); res != cuda.Success {
				t.Fatal(res)
			}
		}
		res := s.IpcCloseMemHandle(c, &wire.IpcCloseMemHandleArgs{Ptr: r.Ptr})
		if _, _, closed := cudatest.BusyCounts(); closed != times || (res == cuda.Success) != (times > 0) || len(s.opened) != 0 {
			t.Errorf("opened %d times, closed %d times: %v", times, closed, res)
		}
	}
	s.opened = make(map[uint64]opened, maxObjects)
	for i := range uint64(maxObjects) {
		s.opened[i+1] = opened{}
	}
	cudatest.SetBusy(0)
	var r wire.IpcOpenMemHandleReply
	res := s.IpcOpenMemHandle(c, &wire.IpcOpenMemHandleArgs{Flags: 1, Token: token[:]}, &r)
	if _, _, closed := cudatest.BusyCounts(); res != cuda.ErrorOutOfMemory || r.Ptr != 0 || closed != 1 || len(s.opened) != maxObjects {
		t.Errorf("one more than may be open: %v, at %#x, closed %d times", res, r.Ptr, closed)
	}
}

// TestSharedPoolEnds: a pool that is shared is so until it is destroyed.
func TestSharedPoolEnds(t *testing.T) {
	m := &market{drivertest.NewHost(), 0, map[driver.ShareToken][]byte{}}
	s := agreeing(t, agreeingDriver(nil), m.Host)
	s.host = m
	c := &wire.Call{Ctx: 1, Replier: silent{}}
	for id := range uint32(3) {
		if res := s.PoolCreate(c, &wire.PoolCreateArgs{Pool: 20 + id}); res != cuda.Success {
			t.Fatal(res)
		}
		if _, res := s.offer(c, sharePool, uint64(20+id), driver.SharedMemory{}, func() ([]byte, int, cuda.Result) { return make([]byte, 16), -1, cuda.Success }); res != cuda.Success {
			t.Fatal(res)
		}
	}
	for left := 2; left >= 0; left-- {
		if res := s.PoolDestroy(c, &wire.PoolDestroyArgs{Pool: 20 + uint32(left)}); res != cuda.Success {
			t.Fatal(res)
		}
		if len(m.there) != left || s.offers.Any() != (left > 0) {
			t.Errorf("%d pools can be had, of %d; any: %v", len(m.there), left, s.offers.Any())
		}
	}
}

// TestSharedMoves: with what it shares a session that may move moves together with those who have
// it, and not alone.
func TestSharedMoves(t *testing.T) {
	m := &market{drivertest.NewHost(), 0, map[driver.ShareToken][]byte{}}
	s := agreeing(t, agreeingDriver(nil), m.Host)
	s.host, s.arenas.on, s.devices = m, true, s.warm.devices
	c := &wire.Call{Ctx: 1, Replier: silent{}}
	offer := func(kind byte, id uint64) {
		t.Helper()
		if _, res := s.offer(c, kind, id, driver.SharedMemory{}, func() ([]byte, int, cuda.Result) { return make([]byte, 64), -1, cuda.Success }); res != cuda.Success {
			t.Fatal(res)
		}
	}
	if err := errors.Join(s.Movable(), s.Shared()); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []byte{shareMemory, shareEvent, sharePhysical, sharePool, sharePointer} {
		offer(kind, 7)
		if err := s.Movable(); err != nil || s.Shared() == nil {
			t.Errorf("kind %c: %v, %v", kind, err, s.Shared())
		}
		s.unshare(kind, 7)
	}
	token := driver.ShareToken{9}
	if res := s.PoolImport(&wire.Call{Replay: true, Placed: []uint64{0}}, &wire.PoolImportArgs{Pool: 29, Token: token[:]}, &wire.PoolImportReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	if s.Shared() == nil || s.Movable() != nil {
		t.Errorf("with another's pool: %v, %v", s.Shared(), s.Movable())
	}
	var p wire.MemAllocFromPoolReply
	if res := s.MemAllocFromPool(c, &wire.MemAllocFromPoolArgs{Pool: 29, Size: 1, Stream: wire.StreamLegacy}, &p); res == cuda.Success {
		t.Error("memory of another's pool")
	}
	if res := s.PoolDestroy(c, &wire.PoolDestroyArgs{Pool: 29}); res != cuda.Success || s.Shared() != nil {
		t.Errorf("the other's pool is given up: %v, %v", res, s.Shared())
	}
	at := &wire.Call{Replay: true, Placed: []uint64{2 << 20, 0}}
	if res := s.MemImport(at, &wire.MemImportArgs{Memhandle: 30, Token: token[:]}, &wire.MemImportReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	if res := s.IpcOpenEventHandle(&wire.Call{Replay: true}, &wire.IpcOpenEventHandleArgs{Event: 31, Token: token[:]}); res != cuda.Success {
		t.Fatal(res)
	}
	if got := s.Foreign(); len(got) != 2 || got[0] != token || s.Shared() == nil || s.Movable() != nil {
		t.Errorf("of others: %v, %v, %v", got, s.Shared(), s.Movable())
	}
	if err := s.Rejoin(); err == nil {
		t.Error("what nobody shares is there")
	}
}

// TestPoolsComeUnderFreeNames: a pool of another session's that is imported under the name of one
// of the guest's own changes nothing: what that one holds stays booked here.
func TestPoolsComeUnderFreeNames(t *testing.T) {
	m := &market{drivertest.NewHost(), 0, map[driver.ShareToken][]byte{}}
	s := agreeing(t, agreeingDriver(nil), m.Host)
	s.host = &filed{m}
	c := &wire.Call{Ctx: 1, Replier: silent{}}
	if res := s.PoolCreate(c, &wire.PoolCreateArgs{Pool: 20}); res != cuda.Success {
		t.Fatal(res)
	}
	s.devices = make([]deviceInfo, 1)
	own := len(s.ownPools())
	token, _ := m.Offer(driver.Shared{Blob: append([]byte{sharePool}, make([]byte, 16)...), File: -1})
	for pool, want := range map[uint32]cuda.Result{20: cuda.ErrorInvalidHandle, 21: cuda.Success} {
		res := s.PoolImport(c, &wire.PoolImportArgs{Pool: pool, Token: token[:]}, &wire.PoolImportReply{})
		if n := len(s.ownPools()); res != want || n != own || s.pooling.imported[pool] != (res == cuda.Success) {
			t.Errorf("imported as %d: %v; %d pools are booked here, of %d", pool, res, n, own)
		}
	}
}

// filed is a market where a descriptor goes with everything.
type filed struct{ *market }

func (f *filed) Redeem(t driver.ShareToken) ([]byte, int, error) {
	b, _, err := f.market.Redeem(t)
	if err != nil {
		return nil, -1, err
	}
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	return b, fd, err
}
