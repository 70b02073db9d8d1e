package worker

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
	"causeway/host/worker/link"
)

// stream is this end of one to another worker, and that one's.
func stream(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

// TestAdoptionThatFails: a parent is told by message that its parked session could not be taken
// over.
func TestAdoptionThatFails(t *testing.T) {
	parent, worker := ends(t)
	defer parent.Close()
	defer worker.Close()
	ours, theirs := stream(t)
	_ = unix.Close(theirs)                           // nothing comes
	if err := parent.Send(link.Quit{}); err != nil { // where a worker looks at its link first
		t.Fatal(err)
	}
	s := &starter{link: worker, backend: noGPU().Backend, log: slog.New(slog.DiscardHandler)}
	done := make(chan error, 1)
	go func() { done <- s.adoptParked(t.Context(), ours) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("nothing was taken over, and that is no error")
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits still")
	}
	_ = worker.Close()
	r, err := parent.Receive()
	if err != nil {
		t.Fatalf("the parent is told nothing: %v", err)
	}
	if m, ok := r.Message().(link.Adopted); !ok || m.Err() == nil {
		t.Errorf("the parent is told %#v", r.Message())
	}
}

// TestCutCopy: a round that is cut ends, and what went ahead stays for the next; it is dropped only
// when there will be none.
func TestCutCopy(t *testing.T) {
	for _, last := range []bool{false, true} {
		parent, worker := ends(t)
		ours, theirs := stream(t)
		h, err := newHandover(ours, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &starter{link: worker}
		ctx, cancel := context.WithCancel(t.Context())
		s.ahead.h, s.ahead.cancel = h, cancel
		if err := parent.Send(link.CutCopy{Over: last}); err != nil {
			t.Fatal(err)
		}
		if err := s.follow(over(), receive(t, worker), func() {}); err != nil {
			t.Error(err)
		}
		if ctx.Err() == nil || (s.ahead.h == nil) != last {
			t.Errorf("over: %v: the round has ended: %v, what went ahead is dropped: %v", last, ctx.Err() != nil, s.ahead.h == nil)
		}
		s.ahead.drop()
		_ = unix.Close(theirs)
		_, _ = parent.Close(), worker.Close()
	}
}

// TestPlacesBeyondTheEnd: what comes from elsewhere names no node, and no graph, that is not there.
func TestPlacesBeyondTheEnd(t *testing.T) {
	g := &graphs{}
	for n := range 3 {
		of := restored{t: &template{}, names: make([]wire.ID, n), serials: make([]uint64, n)}
		for beyond := range uint32(2) {
			place := uint32(n) + beyond
			for what, v := range map[string]execState{"parameters": {params: []paramsState{{place: place}}}, "switched off": {off: []uint32{place}}} {
				if err := g.restoreChanges(&execGraph{}, &v, &of); err != errPlace {
					t.Errorf("%s of node %d of %d: %v", what, place, n, err)
				}
			}
			if n == 0 {
				continue
			}
			for what, v := range map[string]graphTwin{"graph": {graph: 1 + beyond}, "place": {place: place}, "live": {live: place}} {
				of.t.of = &liveGraph{}
				if err := g.restoreTwin(&v, &of, []restored{of}); err != errPlace {
					t.Errorf("a twin whose %s is beyond the end: %v", what, err)
				}
			}
		}
	}
}

// TestKeysOfObjects: requests mean the same object when they name it by the same number, but for
// access to a peer, which is each context's own.
func TestKeysOfObjects(t *testing.T) {
	kinds := []wire.Kind{wire.KindMem, wire.KindRegion, wire.KindSession, wire.KindPeer, wire.KindStream}
	type named struct {
		ctx  wire.ID
		kind wire.Kind
		id   uint64
	}
	of := map[objectKey]named{}
	for _, kind := range kinds {
		for ctx := range wire.ID(4) {
			for id := range uint64(4) {
				who := named{kind: kind, id: id}
				if kind == wire.KindPeer {
					who.ctx = ctx
				}
				k := keyIn(ctx, kind, id)
				if was, ok := of[k]; ok && was != who {
					t.Errorf("%+v and %+v have the key %+v", was, who, k)
				}
				of[k] = who
			}
		}
	}
	if len(of) != (len(kinds)-1)*4+16 {
		t.Errorf("%d keys", len(of))
	}
}
