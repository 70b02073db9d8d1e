package vhostuser_test

import (
	"bytes"
	"errors"
	"runtime/debug"
	"testing"

	"causeway/vhostuser"
	"causeway/vhostuser/vhosttest"
)

// liveRing is ring 1, which runs.
func liveRing(t *testing.T) (*fakeDevice, *vhosttest.Frontend, *vhosttest.Memory, *vhosttest.Ring) {
	t.Helper()
	dev := &fakeDevice{next: 9}
	f := serve(t, dev).connect()
	m := ram(t, 0x10_0000, 1<<20)
	must(t, f.AddMemory(m))
	r := &vhosttest.Ring{Size: 64, Desc: 0x10_0000, Avail: 0x10_1000, Used: 0x10_2000}
	must(t, f.StartRing(m, 1, r, 5))
	dev.take()
	return dev, f, m, r
}

func newEvent(t *testing.T) *vhosttest.Event {
	t.Helper()
	e, err := vhosttest.NewEvent()
	must(t, err)
	t.Cleanup(e.Close)
	return e
}

// TestEventsOfARunningRing: interrupts and errors go to the newest eventfd, at once, and a new kick
// restarts the ring.
func TestEventsOfARunningRing(t *testing.T) {
	dev, f, _, r := liveRing(t)
	call, fault, kick := newEvent(t), newEvent(t), newEvent(t)
	must(t, f.Set(vhostuser.SetVringCall, vhosttest.U64(1), call.FD()))
	must(t, f.Set(vhostuser.SetVringErr, vhosttest.U64(1), fault.FD()))
	if got := dev.take(); got != "update1 update1" {
		t.Errorf("new events called %q", got)
	}
	if !call.Wait(0) {
		t.Error("what went to the old eventfd while the front end changed it is not told to the new one")
	}
	c := dev.config(1)
	c.Call.Signal()
	c.Err.Signal()
	if !call.Wait(0) || !fault.Wait(0) || r.Call.Wait(0) {
		t.Error("a signal went elsewhere")
	}
	must(t, f.Set(vhostuser.SetVringKick, vhosttest.U64(1), kick.FD()))
	if got := dev.take(); got != "stop1 start1" {
		t.Errorf("a new kick called %q", got)
	}
	c = dev.config(1)
	if c.Base != 9 {
		t.Errorf("started again at %d, stopped at 9", c.Base)
	}
	kick.Signal()
	must(t, c.Kick.Wait())
	c.Call.Signal()
	if !call.Wait(0) {
		t.Error("after the restart a signal went elsewhere")
	}
	must(t, f.Set(vhostuser.SetVringCall, vhosttest.U64(1|1<<8))) // none
	if got := dev.take(); got != "update1" {
		t.Errorf("no call eventfd called %q", got)
	}
	dev.config(1).Call.Signal()
	if call.Wait(0) {
		t.Error("an eventfd that was taken back was signalled")
	}
}

// TestEventsAreLetGo: of eventfds that were replaced none stays open, nor of a ring that was asked
// for its base.
func TestEventsAreLetGo(t *testing.T) {
	_, f, _, _ := liveRing(t)
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close them sooner or later
	e := newEvent(t)
	ids := []vhostuser.MessageID{vhostuser.SetVringKick, vhostuser.SetVringCall, vhostuser.SetVringErr}
	for _, id := range ids { // those that are there
		must(t, f.Set(id, vhosttest.U64(1), e.FD()))
	}
	before := openFDs(t)
	for range 10 {
		for _, id := range ids {
			must(t, f.Set(id, vhosttest.U64(1), e.FD()))
		}
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
	for n := range 3 {
		if _, err := f.GetU64(vhostuser.GetVringBase, vhosttest.U32s(1, 0)); err != nil {
			t.Fatal(err)
		}
		if got := openFDs(t); got != before-1 {
			t.Errorf("%d times asked for its base: %d descriptors, %d before", n+1, got, before)
		}
	}
}

// TestDisableAndEnable: a running ring that is disabled stops, and goes on where it was.
func TestDisableAndEnable(t *testing.T) {
	dev, f, _, _ := liveRing(t)
	enable := func(on uint32) { must(t, f.Set(vhostuser.SetVringEnable, vhosttest.U32s(1, on))) }
	enable(1)
	if got := dev.take(); got != "" {
		t.Errorf("enabling what runs called %q", got)
	}
	enable(0)
	enable(0)
	if got := dev.take(); got != "stop1" {
		t.Errorf("disabling called %q", got)
	}
	enable(1)
	if got := dev.take(); got != "start1" || dev.config(1).Base != 9 {
		t.Errorf("enabling called %q, from %d", got, dev.config(1).Base)
	}
}

// TestWhatARunningRingKeeps: size, base and addresses of a ring that runs are not for change.
func TestWhatARunningRingKeeps(t *testing.T) {
	dev, f, m, r := liveRing(t)
	addr := func(desc, used, avail uint64) []byte {
		return append(vhosttest.U32s(1, 0), vhosttest.U64(m.UserOf(desc), m.UserOf(used), m.UserOf(avail), 0)...)
	}
	for name, c := range map[string]struct {
		id      vhostuser.MessageID
		payload []byte
	}{
		"base":  {vhostuser.SetVringBase, vhosttest.U32s(1, 7)},
		"size":  {vhostuser.SetVringNum, vhosttest.U32s(1, 128)},
		"desc":  {vhostuser.SetVringAddr, addr(r.Desc+4096, r.Used, r.Avail)},
		"used":  {vhostuser.SetVringAddr, addr(r.Desc, r.Used+4096, r.Avail)},
		"avail": {vhostuser.SetVringAddr, addr(r.Desc, r.Used, r.Avail+4096)},
	} {
		if err := f.Set(c.id, c.payload); !errors.Is(err, vhosttest.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, f.Set(vhostuser.SetVringNum, vhosttest.U32s(1, 64))) // the same is no change
	if got := dev.take(); got != "" {
		t.Errorf("refused messages called %q", got)
	}
	base, err := f.StopRing(1)
	must(t, err)
	if base != 9 {
		t.Errorf("stopped at %d", base)
	}
	must(t, f.Set(vhostuser.SetVringBase, vhosttest.U32s(1, 7)))
	dev.take()
	// Neither its kick nor its addresses outlive the stop: it must not run until both came anew.
	must(t, f.Set(vhostuser.SetVringEnable, vhosttest.U32s(1, 1)))
	must(t, f.Set(vhostuser.SetVringKick, vhosttest.U64(1), r.Kick.FD()))
	if got := dev.take(); got != "" {
		t.Errorf("a ring without addresses: %q", got)
	}
	must(t, f.Set(vhostuser.SetVringAddr, addr(r.Desc, r.Used, r.Avail)))
	if got := dev.take(); got != "start1" || dev.config(1).Base != 7 {
		t.Errorf("with all it needs: %q, from %d", got, dev.config(1).Base)
	}
	_, err = f.StopRing(1)
	must(t, err)
	must(t, f.Set(vhostuser.SetVringAddr, addr(r.Desc, r.Used, r.Avail)))
	must(t, f.Set(vhostuser.SetVringEnable, vhosttest.U32s(1, 1)))
	if got := dev.take(); got != "stop1" {
		t.Errorf("a ring without a kick: %q", got)
	}
	must(t, f.Set(vhostuser.SetVringKick, vhosttest.U64(1), r.Kick.FD()))
	if got := dev.take(); got != "start1" {
		t.Errorf("with a kick: %q", got)
	}
}

// TestRingsByFeatures: a ring has what its driver has accepted, each by itself.
func TestRingsByFeatures(t *testing.T) {
	const base = vhostuser.FeatureVersion1 | vhostuser.FeatureProtocolFeatures
	for _, has := range []uint64{0, vhostuser.FeatureEventIdx, vhostuser.FeatureIndirectDesc, vhostuser.FeatureEventIdx | vhostuser.FeatureIndirectDesc} {
		dev := &fakeDevice{}
		f := serve(t, dev).connect()
		must(t, f.Set(vhostuser.SetFeatures, vhosttest.U64(base|has)))
		m := ram(t, 0x10_0000, 1<<20)
		must(t, f.AddMemory(m))
		must(t, f.StartRing(m, 1, &vhosttest.Ring{Size: 64, Desc: 0x10_0000, Avail: 0x10_1000, Used: 0x10_2000}, 0))
		if c := dev.config(1); c.Size != 64 || c.EventIdx != (has&vhostuser.FeatureEventIdx != 0) || c.IndirectDesc != (has&vhostuser.FeatureIndirectDesc != 0) || c.LogUsed {
			t.Errorf("features %#x: %+v", has, c)
		}
	}
}

// TestBaseOfARunningRing: a ring that runs when it is asked for its base stops first: the answer is
// where it stopped, and nothing of the guest is touched afterwards.
func TestBaseOfARunningRing(t *testing.T) {
	dev, f, _, _ := liveRing(t)
	for n, calls := range []string{"stop1", ""} {
		p, err := f.Get(vhostuser.GetVringBase, vhosttest.U32s(1, 0))
		if err != nil || !bytes.Equal(p, vhosttest.U32s(1, 9)) {
			t.Errorf("time %d: % x, %v", n, p, err)
		}
		if got := dev.take(); got != calls {
			t.Errorf("time %d: called %q", n, got)
		}
	}
}

// TestRingsThatNobodyEnables: a ring of a front end without protocol features runs as soon as it is
// complete; with them it waits to be enabled.
func TestRingsThatNobodyEnables(t *testing.T) {
	for features, calls := range map[uint64]string{vhostuser.FeatureVersion1: "start1", vhostuser.FeatureVersion1 | vhostuser.FeatureProtocolFeatures: ""} {
		dev := &fakeDevice{}
		f := serve(t, dev).connect()
		must(t, f.Set(vhostuser.SetFeatures, vhosttest.U64(features)))
		m := ram(t, 0x10_0000, 1<<20)
		must(t, f.AddMemory(m))
		must(t, f.Set(vhostuser.SetVringNum, vhosttest.U32s(1, 64)))
		must(t, f.Set(vhostuser.SetVringAddr, append(vhosttest.U32s(1, 0), vhosttest.U64(m.UserOf(0x10_0000), m.UserOf(0x10_2000), m.UserOf(0x10_1000), 0)...)))
		dev.take() // what went before
		must(t, f.Set(vhostuser.SetVringKick, vhosttest.U64(1), newEvent(t).FD()))
		if got := dev.take(); got != calls {
			t.Errorf("features %#x: %q, want %q", features, got, calls)
		}
	}
}

// TestRingWithoutASize: a ring of which everything is known but its size does not start, and does
// when that comes.
func TestRingWithoutASize(t *testing.T) {
	dev := &fakeDevice{}
	f := serve(t, dev).connect()
	m := ram(t, 0x10_0000, 1<<20)
	must(t, f.AddMemory(m))
	dev.take() // what went before
	kick := newEvent(t)
	addr := append(vhosttest.U32s(1, 0), vhosttest.U64(m.UserOf(0x10_0000), m.UserOf(0x10_2000), m.UserOf(0x10_1000), 0)...)
	must(t, f.Set(vhostuser.SetVringAddr, addr))
	must(t, f.Set(vhostuser.SetVringKick, vhosttest.U64(1), kick.FD()))
	must(t, f.Set(vhostuser.SetVringEnable, vhosttest.U32s(1, 1)))
	if got := dev.take(); got != "" {
		t.Errorf("without a size: %q", got)
	}
	must(t, f.Set(vhostuser.SetVringNum, vhosttest.U32s(1, 1)))
	if got := dev.take(); got != "start1" {
		t.Errorf("with one: %q", got)
	}
	if got := dev.config(1).Size; got != 1 {
		t.Errorf("it has %d entries", got)
	}
}

// TestEventsGoWithTheConnection: of a front end that goes no eventfd stays open, of whatever kind,
// whether its ring ran or not.
func TestEventsGoWithTheConnection(t *testing.T) {
	b := serve(t, &fakeDevice{})
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close them sooner or later
	e := newEvent(t)
	visit := func() {
		f := b.connect()
		for _, id := range []vhostuser.MessageID{vhostuser.SetVringKick, vhostuser.SetVringCall, vhostuser.SetVringErr} {
			must(t, f.Set(id, vhosttest.U64(0), e.FD()))
		}
		f.Close()
	}
	visit()
	next := b.connect() // the one before it has gone
	before := openFDs(t)
	next.Close()
	for range 5 {
		visit()
	}
	b.connect()
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}
