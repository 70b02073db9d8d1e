package device_test

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"strings"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/worker/workertest"
)

// diversion has a device's programs go to the server.
func (s *relayServer) diversion() api.Diversion {
	r := s.relay
	return api.Diversion{To: api.Upstream{Server: r.Server, Lease: r.Lease, GPU: "Test GPU", UUID: "GPU-of-" + r.Lease.String()}, Addresses: r.Addresses, Identity: r.Identity}
}

// count is how many sessions began at the server.
func (s *relayServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.workers)
}

// counting is a program that keeps a number at its GPU.
type counting struct {
	*workertest.Guest
	at uint64
	n  uint64
}

func counts(t *testing.T, v *vm) *counting {
	t.Helper()
	_, g := start(t, v)
	must(t, g, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 1 << 20}, &m)
	return &counting{Guest: g, at: m.Ptr}
}

// next has the number be the next, and looks whether it was the last one before.
func (c *counting) next(t *testing.T) {
	t.Helper()
	var b [8]byte
	if binary.LittleEndian.PutUint64(b[:], c.n); c.n > 0 {
		var r wire.MemcpyDtoHReply
		if must(t, c.Guest, &wire.MemcpyDtoHArgs{Src: c.at, Size: uint32(len(b)), Stream: wire.StreamLegacy}, &r); !bytes.Equal(r.Dst, b[:]) {
			t.Fatalf("it has %x, not %x", r.Dst, b)
		}
	}
	c.n++
	binary.LittleEndian.PutUint64(b[:], c.n)
	if err := c.Send(&wire.MemcpyHtoDArgs{Dst: c.at, Src: b[:], Stream: wire.StreamLegacy}); err != nil {
		t.Fatal(err)
	}
}

// TestDiverted: a VM's programs go to another GPU server and back over the device's control socket,
// with what they have there, and work on meanwhile; the programs that they leave behind end, and
// new ones begin where they are. A server that takes none leaves all where they were.
func TestDiverted(t *testing.T) {
	one, two, none := newRelayServer(t), newRelayServer(t), newRelayServer(t)
	one.moves, two.moves = true, true
	v := bootWith(t, func(o *device.Options) { one.options(o); o.Tree.GPU = "Test GPU" })
	for _, s := range []*relayServer{one, two, none} {
		s.endsFirst(t)
	}
	list := []*counting{counts(t, v), counts(t, v)}
	c := control(t, v, func() {})
	works := func() {
		t.Helper()
		for _, p := range list {
			p.next(t)
			p.next(t)
		}
	}
	works()
	goes := func(to *relayServer) (did api.Relocated, err error) {
		return did, c.Do(context(), http.MethodPost, "/v1/divert", to.diversion(), &did)
	}
	if _, err := goes(none); err == nil || !strings.Contains(err.Error(), "not migratable") {
		t.Errorf("to a server whose leases take none: %v", err)
	}
	works()
	for round, to := range []*relayServer{two, one, two} {
		from := to.count()
		did, err := goes(to)
		if err != nil || did.Sessions != len(list) || did.Lost != 0 {
			t.Fatalf("round %d: %+v, %v", round, did, err)
		}
		t.Logf("round %d: %d programs in %v", round, did.Sessions, time.Duration(did.Nanos))
		began := to.count() - from
		if began != 2*len(list) { // each was rehearsed by another
			t.Errorf("round %d: %d sessions began there", round, began)
		}
		works()
		if st := v.device.Status(); st.Lease != to.relay.Lease || !st.Next.IsZero() || st.UUID != to.diversion().To.UUID {
			t.Errorf("round %d: %v, %v, %v", round, st.Lease, st.Next, st.UUID)
		}
		list = append(list, counts(t, v))
		if n := to.count() - from; n != began+1 {
			t.Errorf("round %d: a new one is elsewhere", round)
		}
		works()
	}
	for _, p := range list {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []*relayServer{one, two, none} {
		eventually(t, "a session is left at a server", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, w := range s.workers {
				select {
				case <-w.Done():
				default:
					return false
				}
			}
			return true
		})
	}
}
