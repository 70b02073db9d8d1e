package device_test

import (
	gocontext "context"
	"strings"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/vhostuser"
)

// TestStays: who waits hears of a migration that begins while something cannot move, once, and what
// it is; not of one that can succeed.
func TestStays(t *testing.T) {
	v := onSoft(t, nil)
	c := control(t, v, func() {})
	_, g := start(t, v)
	must(t, g, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	g.Ctx = 16
	begin := func() {
		t.Helper()
		if err := v.Front.SetFeatures(vhostuser.Features); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		t.Helper()
		if err := v.Front.SetFeatures(vhostuser.Features &^ vhostuser.FeatureLogAll); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(after uint64, limit time.Duration) (uint64, string) {
		ctx, cancel := gocontext.WithTimeout(context(), limit)
		defer cancel()
		s, _ := c.Stays(ctx, after)
		return s.Number, s.Why
	}
	begin()
	if n, why := wait(0, 600*time.Millisecond); n != 0 {
		t.Errorf("all can move: %s", why)
	}
	end()
	must(t, g, &wire.StreamCreateArgs{Stream: 100}, nil)
	must(t, g, &wire.StreamBeginCaptureArgs{Stream: 100}, nil)
	for n := range uint64(2) {
		begin()
		if got, why := wait(n, time.Minute); got != n+1 || !strings.Contains(why, "captures") || !strings.Contains(why, "4711") {
			t.Errorf("migration %d: %d: %q", n, got, why)
		}
		if got, why := wait(n+1, 100*time.Millisecond); got != 0 {
			t.Errorf("said twice: %d: %q", got, why)
		}
		end()
		if got, _ := wait(n, 100*time.Millisecond); got != 0 {
			t.Error("said after its end")
		}
		time.Sleep(300 * time.Millisecond) // whoever looked has seen that it ended
	}
}
