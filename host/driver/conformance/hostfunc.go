package conformance

import (
	"bytes"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// testHostFunc: a stream waits for a function of the guest, other streams do not, and each function
// runs once, in turn.
func testHostFunc(t *testing.T, g *Guest) {
	type ran struct {
		id     uint64
		status cuda.Result
	}
	calls, release := make(chan ran, 64), make(chan struct{})
	g.mu.Lock()
	g.onCall = func(id uint64, status cuda.Result) {
		calls <- ran{id, status}
		if id == 1 {
			<-release
		}
	}
	g.mu.Unlock()
	next := func(want ran) {
		t.Helper()
		select {
		case got := <-calls:
			if got != want {
				t.Errorf("function %d with status %v, want %d with %v", got.id, got.status, want.id, want.status)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("function %d never ran", want.id)
		}
	}
	// Each call's in turn: a worker decodes an operation where the last of its kind was.
	var args wire.LaunchHostFuncArgs
	launch := func(stream wire.Stream, id uint64, status uint32) {
		t.Helper()
		args = wire.LaunchHostFuncArgs{Stream: stream, ID: id, Status: status}
		g.ok(g.Session.LaunchHostFunc(g.call(wire.OpLaunchHostFunc), &args), "LaunchHostFunc")
	}
	set := func(stream wire.Stream, p uint64, value uint32) {
		g.ok(g.Session.Memset(g.call(wire.OpMemset), &wire.MemsetArgs{Dst: p, Value: value, Element: 1, Width: 64, Height: 1, Stream: stream}), "Memset")
	}
	sync := func(stream wire.Stream) {
		t.Helper()
		res, _ := g.wait(wire.OpStreamSynchronize, func(c *wire.Call) cuda.Result {
			return g.Session.StreamSynchronize(c, &wire.StreamSynchronizeArgs{Stream: stream})
		})
		g.ok(res, "StreamSynchronize")
	}
	a, b := g.ID(), g.ID()
	for _, s := range []wire.Stream{a, b} {
		g.ok(g.Session.StreamCreate(g.call(wire.OpStreamCreate), &wire.StreamCreateArgs{Stream: s, Flags: cuda.StreamNonBlocking}), "StreamCreate")
	}
	p, q := g.alloc(64), g.alloc(64)
	set(a, p, 1)
	launch(a, 1, 0)
	set(a, p, 2)
	next(ran{1, cuda.Success})
	set(b, q, 3)
	sync(b)
	if res := g.Session.StreamQuery(g.call(wire.OpStreamQuery), &wire.StreamQueryArgs{Stream: a}); res != cuda.ErrorNotReady {
		t.Errorf("a stream whose function has not returned: %v", res)
	}
	for id := uint64(2); id < 34; id++ {
		launch(a, id, uint32(id%2))
	}
	close(release)
	sync(a)
	for id := uint64(2); id < 34; id++ {
		next(ran{id, cuda.Success})
	}
	if got := g.get(p, 64); !bytes.Equal(got, bytes.Repeat([]byte{2}, 64)) {
		t.Errorf("work behind a function left %v", got)
	}
	g.want(g.get(q, 64), bytes.Repeat([]byte{3}, 64), "work on the other stream")
	if res := g.Session.LaunchHostFunc(g.call(wire.OpLaunchHostFunc), &wire.LaunchHostFuncArgs{Stream: 9999, ID: 1}); res != cuda.ErrorInvalidHandle {
		t.Errorf("function on a stream that is not there: %v", res)
	}
}
