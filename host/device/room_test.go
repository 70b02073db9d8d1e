package device_test

import (
	"slices"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/worker/link"
)

// swapping is a VM whose sessions have no room until it is given.
func swapping(t *testing.T, limit uint64) *vm {
	t.Helper()
	return bootWith(t, func(o *device.Options) {
		o.Worker, o.Limits.Memory, o.Swap = link.Config{GPU: "soft", Devices: []int{0}}, limit, true
	})
}

func room(v *vm, n uint64) api.RoomStatus { return v.device.SetRoom(api.RoomChange{Room: &n}) }

// needs waits for so many.
func needs(t *testing.T, v *vm, n int) []api.Need {
	t.Helper()
	eventually(t, "needs are not told", func() bool { return len(v.device.RoomStatus().Needs) == n })
	return v.device.RoomStatus().Needs
}

// TestRoom: an allocation waits for room, is made when there is some, and refused when there is
// none to be had; the session can leave and come back while it waits.
func TestRoom(t *testing.T) {
	v := swapping(t, 256*mib)
	g := &onGPU{T: t, v: v}
	a := g.session()
	alloc := func(size uint64) (res chan cuda.Result, m *wire.MemAllocReply) {
		res, m = make(chan cuda.Result, 1), &wire.MemAllocReply{}
		go func() {
			r, err := a.Call(0, &wire.MemAllocArgs{Size: size}, m)
			if err != nil {
				t.Error(err)
			}
			res <- r
		}()
		return res, m
	}
	is := func(what string, res chan cuda.Result, want cuda.Result) {
		t.Helper()
		if r := await(t, what+": nothing comes", res); r != want {
			t.Errorf("%s: %v", what, r)
		}
	}
	res, m := alloc(64 * mib)
	n := needs(t, v, 1)
	if n[0].Bytes != 64*mib || n[0].Back {
		t.Errorf("%+v", n)
	}
	if st := room(v, 32*mib); len(st.Needs) != 1 {
		t.Errorf("%+v", st)
	}
	room(v, 64*mib)
	is("with room", res, cuda.Success)
	must(t, a, &wire.MemsetArgs{Dst: m.Ptr, Element: 1, Value: 7, Width: 64 * mib, Height: 1, Stream: wire.StreamLegacy}, nil)
	must(t, a, &wire.CtxSynchronizeArgs{}, nil)

	res, _ = alloc(300 * mib) // which no room makes good
	is("beyond the limit", res, cuda.ErrorOutOfMemory)
	res, _ = alloc(32 * mib)
	n = needs(t, v, 1)
	v.device.SetRoom(api.RoomChange{Deny: []uint64{n[0].Session}, Why: "a test"})
	is("denied", res, cuda.ErrorOutOfMemory)

	// It leaves with its allocation unmade, counts for the limit, and makes it when it is back.
	res, _ = alloc(32 * mib)
	n = needs(t, v, 1)
	room(v, 1)
	did, err := v.device.Suspend(context(), device.Suspension{Session: n[0].Session, Away: true})
	if err != nil || did.Sessions != 1 {
		t.Fatal(did, err)
	}
	eventually(t, "it does not ask for its return", func() bool { n = needs(t, v, 1); return n[0].Back })
	if st := v.device.RoomStatus(); n[0].Bytes < 64*mib || st.Away < 64*mib || st.Used != 0 || len(st.Sessions) != 0 {
		t.Errorf("%+v", st)
	}
	select {
	case r := <-res:
		t.Fatalf("made without room: %v", r)
	case <-time.After(100 * time.Millisecond):
	}
	room(v, 128*mib)
	is("after its return", res, cuda.Success)
	st := v.device.Status()
	if c := st.Swaps; c.Out != 1 || c.In != 1 || c.OutBytes < 64*mib || c.InBytes != c.OutBytes || c.Denied != 1 || c.WaitNS == 0 || st.Away != 0 || st.Room != 128*mib {
		t.Errorf("%+v", st)
	}
	if s := v.device.RoomStatus().Sessions; len(s) != 1 || s[0].Bytes < 96*mib || s[0].Here > 20*time.Second {
		t.Errorf("%+v", s)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	nothingIn(t, v)
}

// TestRoomInTurn: who needs much is not overtaken by who needs little, and one that ends makes
// room.
func TestRoomInTurn(t *testing.T) {
	v := swapping(t, 256*mib)
	room(v, 64*mib)
	g := &onGPU{T: t, v: v}
	a, b, c := g.session(), g.session(), g.session()
	alloc(t, a, 63*mib, cuda.Success)
	order := make(chan string, 2)
	ask := func(name string, s interface {
		Call(uint32, wire.Args, wire.Reply) (cuda.Result, error)
	}, size uint64) {
		if res, err := s.Call(0, &wire.MemAllocArgs{Size: size}, &wire.MemAllocReply{}); err != nil || res != cuda.Success {
			t.Error(res, err)
		}
		order <- name
	}
	go ask("much", b, 50*mib)
	needs(t, v, 1)
	go ask("little", c, 2*mib)
	if n := needs(t, v, 2); n[0].Bytes != 50*mib {
		t.Errorf("%+v", n)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	got := []string{await(t, "nobody has room", order), await(t, "only one has room", order)}
	if slices.Sort(got); got[0] != "little" || got[1] != "much" {
		t.Error(got)
	}
	for _, s := range []interface{ Close() error }{b, c} {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRoomForMoved: a VM that comes from another host has what it brings, whatever room there is,
// and what it wants from then on waits.
func TestRoomForMoved(t *testing.T) {
	other, v := empty(t, func(o *device.Options) { o.Limits.Memory, o.Swap = 64*mib, true }), onSoft(t, nil)
	a := hold(t, v, 1)
	arrive(t, v, other.socket, save(t, v))
	a.check(t)
	done := make(chan cuda.Result, 1)
	go func() {
		res, err := a.Call(0, &wire.MemAllocArgs{Size: mib}, &wire.MemAllocReply{})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	needs(t, other, 1)
	room(other, 8*mib)
	if res := await(t, "it has no room", done); res != cuda.Success {
		t.Error(res)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
