package worker

import (
	"context"
	"encoding/binary"
	"log/slog"
	"testing"

	"causeway/cuda/wire"
	"causeway/host/driver/drivertest"
	"causeway/remote/shm"
)

// TestReceiveThatBreaksOff: wherever a session that comes breaks off, or makes no sense, it is an
// error, and no descriptor that came with it stays.
func TestReceiveThatBreaksOff(t *testing.T) {
	const name = "causeway-test-came"
	left := func() int { return filesOf(t, name) + filesOf(t, "lent") }
	s := newRecorded(t)
	s.w.session = &lendingGPU{plainGPU: s.gpu}
	bad := func(h *handover) error {
		_, err := h.Write(binary.LittleEndian.AppendUint32(nil, snapshotMagic+1))
		return err
	}
	nowhere := func(h *handover) error { // a carrier without its doorbell
		snap := s.snapshot()
		snap.Unix = &shm.UnixState{}
		snap.write(h.out)
		return h.out.Flush()
	}
	rounds := func(h *handover) error {
		return h.sendRounds(context.Background(), s.w.session, slog.New(slog.DiscardHandler))
	}
	files := func(h *handover) error { return h.sendFiles([]int{memfile(t, name, 0), memfile(t, name, 0)}) }
	lent := func(h *handover) error { _, err := h.lend(s.w); return err }
	before := left()
	for what, list := range map[string]steps{
		"at once": nil, "in the rounds": {func(h *handover) error { _, err := h.Write([]byte{9}); return err }}, "behind them": {rounds}, "behind descriptors": {rounds, files}, "behind what is lent": {rounds, files, lent},
		"no snapshot": {rounds, files, lent, bad}, "no carrier": {rounds, files, lent, nowhere},
	} {
		ours, theirs := stream(t)
		out, err := newHandover(ours, localMost)
		if err != nil {
			t.Fatal(err)
		}
		in, err := newHandover(theirs, localMost)
		if err != nil {
			t.Fatal(err)
		}
		sent := list.play(out)
		st := &starter{ready: &drivertest.Backend{}, log: slog.New(slog.DiscardHandler)}
		if w, m, err := st.receive(t.Context(), in); err == nil || w != nil || m != nil {
			t.Errorf("%s: %v, %v", what, w, m)
		}
		in.close()
		if err := <-sent; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		own := 0
		if len(list) > 1 {
			own = 2 // this end's own
		}
		if n := left() - before - own; n != 0 {
			t.Errorf("%s: %d descriptors are left", what, n)
		}
		before += own
	}
}

// TestBookedAsItIs: what is booked of a request is its bytes, twice, as a driver keeps them, too,
// what the driver has of it besides, and what its object takes; of one that names no object, or
// none that there is, nothing. It is never more than was reserved.
func TestBookedAsItIs(t *testing.T) {
	h := &hostMemory{limit: 1 << 30}
	r := newRecorder(h)
	note := func(ctx wire.ID, a wire.Args, reply []byte, extra uint64) (n uint64, length int) {
		t.Helper()
		was := h.used
		if err := r.note(&wire.Call{Op: a.Op(), Ctx: ctx}, a.Op().Info(), a, reply, extra); err != nil {
			t.Fatal(err)
		}
		rec, err := wire.AppendRecord(nil, wire.Header{Ctx: ctx}, a)
		if err != nil {
			t.Fatal(err)
		}
		return h.used - was, len(rec)
	}
	note(0, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil, 0)
	address := binary.LittleEndian.AppendUint64(nil, 1<<40)
	for what, c := range map[string]struct {
		ctx   wire.ID
		a     wire.Args
		reply []byte
		extra uint64
		base  int // -1: nothing at all
	}{
		"a stream":                       {16, &wire.StreamCreateArgs{Stream: 30}, nil, 0, objectBytes},
		"memory":                         {16, &wire.MemAllocArgs{Size: 1}, address, 0, objectBytes},
		"and what a driver has of it":    {16, &wire.StreamCreateArgs{Stream: 31}, nil, 77, objectBytes + 77},
		"memory that lies nowhere":       {16, &wire.MemAllocArgs{Size: 1}, nil, 5, -1},
		"a limit":                        {16, &wire.CtxSetLimitArgs{Limit: 1, Value: 7}, nil, 9, entryBytes + 9},
		"a limit of nothing":             {17, &wire.CtxSetLimitArgs{Limit: 1, Value: 7}, nil, 9, -1},
		"an attribute of no function":    {16, &wire.FuncSetAttributeArgs{Func: 99, Attr: 1, Value: 1}, nil, 0, -1},
		"flags of a context that is not": {0, &wire.PrimaryCtxSetFlagsArgs{Ctx: 18, Flags: 1}, nil, 0, -1},
	} {
		objects := len(r.objects)
		n, length := note(c.ctx, c.a, c.reply, c.extra)
		want := uint64(0)
		if c.base >= 0 {
			want = uint64(c.base + 2*length)
		}
		if n != want || c.base < 0 && len(r.objects) != objects {
			t.Errorf("%s: %d are booked, not %d; %d objects are new", what, n, want, len(r.objects)-objects)
		}
		if most := toll(c.a.Op().Info(), length) + c.extra; n > most {
			t.Errorf("%s: %d are booked, of %d that were reserved", what, n, most)
		}
	}
	if _, _ = note(0, &wire.PrimaryCtxReleaseArgs{Ctx: 16}, nil, 0); h.used != 0 || len(r.objects) != 0 {
		t.Errorf("%d bytes and %d objects stay", h.used, len(r.objects))
	}
}
