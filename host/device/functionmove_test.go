package device_test

import (
	"testing"
	"time"

	"causeway/cuda/wire"
)

// TestMoveBehindFunction: a session moves although a stream has called a function of the program
// that asks its worker for something before it returns, as one does that touches managed memory.
func TestMoveBehindFunction(t *testing.T) {
	v := bootGPU(t, "soft")
	_, g := start(t, v)
	must(t, g, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	from, err := g.OpenCallbacks(9)
	if err != nil {
		t.Fatal(err)
	}
	const stream = 77
	must(t, g, &wire.StreamCreateArgs{Stream: stream}, nil)
	must(t, g, &wire.LaunchHostFuncArgs{Stream: stream, ID: 5}, nil)
	id, _, done, err := from.Take()
	if err != nil || id != 5 {
		t.Fatal(id, err)
	}
	moved := make(chan error, 1)
	go func() {
		n, err := v.device.Rebuild(context())
		if err == nil && n != 1 {
			t.Errorf("%d sessions have moved", n)
		}
		moved <- err
	}()
	// The function asks until the move stands in its way, which it does not for good.
	slow := false
	for begun := time.Now(); !slow && time.Since(begun) < 10*time.Second; {
		asked := time.Now()
		must(t, g, &wire.SessionFenceArgs{}, nil)
		slow = time.Since(asked) > 50*time.Millisecond
	}
	done()
	if err := <-moved; err != nil {
		t.Errorf("the session does not move: %v", err)
	}
	if !slow {
		t.Error("the move never waited for the function")
	}
	must(t, g, &wire.StreamSynchronizeArgs{Stream: stream}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
