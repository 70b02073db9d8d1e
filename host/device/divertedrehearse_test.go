package device_test

import (
	"net/http"
	"strings"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/driver/soft/softtest"
)

// TestDivertedRehearsed: a program of which something would come out another at another GPU server
// is named before anything of it goes there, with what that is, and nobody moves; without it all
// do.
func TestDivertedRehearsed(t *testing.T) {
	one, two := newRelayServer(t), newRelayServer(t)
	for _, s := range []*relayServer{one, two} {
		s.moves, s.gpu = true, softtest.DifferentGPU
	}
	parts := make(chan string, 64)
	v := bootWith(t, func(o *device.Options) {
		one.options(o)
		o.Tree.GPU = "Test GPU"
		o.Reached = func(part string) {
			if part != "rehearsing" && part != "settling" {
				parts <- part
			}
		}
	})
	for _, s := range []*relayServer{one, two} {
		s.endsFirst(t)
	}
	list := []*counting{counts(t, v), counts(t, v)}
	works := func() {
		t.Helper()
		for _, p := range list {
			p.next(t)
			p.next(t)
		}
	}
	works()
	var m wire.MemAllocReply
	must(t, list[1].Guest, &wire.MemAllocArgs{Size: softtest.Wanders}, &m)
	c := control(t, v, func() {})
	goes := func() (did api.Relocated, err error) {
		return did, c.Do(context(), http.MethodPost, "/v1/divert", two.diversion(), &did)
	}
	for range 2 {
		_, err := goes()
		for _, want := range []string{"session 2, guest process", "gpu server gpu1: it cannot be rebuilt there: ", "MemAlloc", "comes out beside where it was"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("what comes out another there: %v, want %q", err, want)
			}
		}
		works()
		if st := v.device.Status(); st.Lease != one.relay.Lease || !st.Next.IsZero() || len(parts) != 0 {
			t.Errorf("%v, %v, and %d parts of a move", st.Lease, st.Next, len(parts))
		}
	}
	must(t, list[1].Guest, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	if did, err := goes(); err != nil || did.Sessions != 2 || did.Lost != 0 || did.Rounds == 0 {
		t.Errorf("without it: %+v, %v", did, err)
	}
	works()
	for _, p := range list {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
