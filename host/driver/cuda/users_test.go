package cuda

import (
	"testing"
	"testing/synctest"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// TestWaitsOfWhatIsGone: about a wait whose stream or context has gone the driver is asked nothing
// of that; the one goes on, and the other ends with an error.
func TestWaitsOfWhatIsGone(t *testing.T) {
	const n = 7
	for what, c := range map[string]struct {
		end  func(x *attacker) cuda.Result
		over bool
		want cuda.Result
	}{
		"stream": {func(x *attacker) cuda.Result {
			return x.StreamDestroy(x.in(ending), &wire.StreamDestroyArgs{Stream: n})
		}, false, cuda.Success},
		"context": {func(x *attacker) cuda.Result { return x.CtxDestroy(x.in(0), &wire.CtxDestroyArgs{Ctx: ending}) }, true, cuda.ErrorContextIsDestroyed},
		"another's stream": {func(x *attacker) cuda.Result {
			return x.StreamDestroy(x.in(lasting), &wire.StreamDestroyArgs{Stream: spare})
		}, false, cuda.Success},
	} {
		x := newHeir(t)
		x.must(x.CtxCreate(x.in(0), &wire.CtxCreateArgs{Ctx: ending}))
		x.must(x.StreamCreate(x.in(ending), &wire.StreamCreateArgs{Stream: n}))
		late := &wait{ctx: x.handleOf(ending), stream: x.streams.m[n].handle, word: wordIn(make([]byte, 4)), seq: 1}
		x.watch.waits = append(x.watch.waits, late) // as add does, without the goroutine
		x.must(c.end(x))
		if over, res := x.watch.check(late, time.Now().Add(time.Hour)); over != c.over || res != c.want {
			t.Errorf("a wait whose %s is gone: %v, %v", what, over, res)
		}
		x.unharmed(what, "a look at the wait")
		if of := late.stream == bind.StreamLegacy; of != (what == "stream") {
			t.Errorf("the %s's end changes what is asked: %v", what, of)
		}
	}
}

// TestEndsWaitForUsers: a stream, an event or a context that a goroutine has the driver use ends
// when it does not any more.
func TestEndsWaitForUsers(t *testing.T) {
	const n = 7
	for what, c := range map[string]struct {
		used func(x *attacker) any
		end  func(x *attacker) cuda.Result
	}{
		"stream": {func(x *attacker) any { return x.streams.m[n].handle },
			func(x *attacker) cuda.Result {
				return x.StreamDestroy(x.in(ending), &wire.StreamDestroyArgs{Stream: n})
			}},
		"event": {func(x *attacker) any { return x.events.m[n].handle },
			func(x *attacker) cuda.Result { return x.EventDestroy(x.in(ending), &wire.EventDestroyArgs{Event: n}) }},
		"context": {func(x *attacker) any { return x.handleOf(ending) },
			func(x *attacker) cuda.Result {
				return x.PrimaryCtxRelease(x.in(0), &wire.PrimaryCtxReleaseArgs{Ctx: ending})
			}},
		"context that is reset": {func(x *attacker) any { return x.handleOf(ending) },
			func(x *attacker) cuda.Result {
				return x.PrimaryCtxReset(x.in(0), &wire.PrimaryCtxResetArgs{Ctx: ending})
			}},
		"context that is read in": {func(*attacker) any { return primary{0} },
			func(x *attacker) cuda.Result {
				return x.PrimaryCtxReset(x.in(0), &wire.PrimaryCtxResetArgs{Ctx: ending})
			}},
	} {
		synctest.Test(t, func(t *testing.T) {
			cudatest.RestartLiving()
			x := &attacker{newSession(bind.New(cudatest.Living), drivertest.NewHost(), driver.Options{}), t, nil, 100}
			x.session.warm = &warmth{version: 13000, devices: make([]deviceInfo, 2)}
			x.must(x.PrimaryCtxRetain(x.in(0), &wire.PrimaryCtxRetainArgs{Ctx: ending}, &wire.PrimaryCtxRetainReply{}))
			x.must(x.StreamCreate(x.in(ending), &wire.StreamCreateArgs{Stream: n}))
			x.must(x.EventCreate(x.in(ending), &wire.EventCreateArgs{Event: n}))
			handle := x.streams.m[n].handle
			leave := x.users.enter(c.used(x), bind.StreamLegacy) // and something else
			ended := false
			go func() {
				x.must(c.end(x))
				ended = true
			}()
			synctest.Wait()
			if ended {
				t.Errorf("the %s ends while it is used", what)
			}
			leave()
			synctest.Wait()
			if !ended || len(x.users.n) != 0 {
				t.Errorf("the %s does not end: %v, %d uses", what, ended, len(x.users.n))
			}
			_ = handle
		})
	}
}

// TestReadersOfAContextThatIsReset: what reads memory while the session runs touches nothing of a
// primary context that was reset since, nor gives back what went with it.
func TestReadersOfAContextThatIsReset(t *testing.T) {
	x := newHeir(t)
	r, err := x.newRunningReader(0)
	if err != nil {
		t.Fatal(err)
	}
	b := block{size: 4096}
	x.arenas.running.lives(4096, b)
	x.must(x.PrimaryCtxReset(x.in(0), &wire.PrimaryCtxResetArgs{Ctx: 99}))
	read := &runningBlock{x: r, ptr: 4096, block: b}
	if err := read.fetch(64); err != driver.ErrGone {
		t.Errorf("memory is read through it: %v", err)
	}
	if err := read.Sums(t.Context(), 4096, [2]uint64{}, nil); err == nil {
		t.Error("memory is summed up through it")
	}
	r.close()
	x.unharmed("a reset", "a reader")
	if r, err = x.newRunningReader(0); err != nil {
		t.Fatal(err)
	}
	r.close()
	x.unharmed("a reset", "another reader")
}
