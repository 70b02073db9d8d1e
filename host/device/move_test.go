package device_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/host/worker/workertest"
	"causeway/remote/remotetest"
	"causeway/virtio/fs/fstest"
)

// onSoft is a VM on the software GPU.
func onSoft(t *testing.T, change func(*device.Options)) *vm {
	return bootWith(t, func(o *device.Options) {
		o.Worker = link.Config{GPU: "soft"}
		if change != nil {
			change(o)
		}
	})
}

// holding is a program with device memory and a pinned region.
type holding struct {
	*workertest.Guest
	p      *process
	at     uint64
	want   []byte
	region []byte
	pinned uint64
}

const held = 1 << 20

// hold starts a program that fills device memory.
func hold(t *testing.T, v *vm, seed byte) *holding {
	t.Helper()
	p, g := start(t, v)
	must(t, g, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	g.Ctx = 16
	h := &holding{Guest: g, p: p}
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: held}, &m)
	h.at = m.Ptr
	_, mem, res, err := g.AddRegion(0, wire.RegionPinned, held)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	h.region, h.pinned = mem, remotetest.Address(mem)
	h.want = make([]byte, held)
	for i := range h.want {
		h.want[i] = byte(i>>8) + byte(i) + seed
	}
	copy(mem, h.want)
	h.copy(t, h.at, h.pinned)
	return h
}

// copy has the GPU copy between addresses, and waits.
func (h *holding) copy(t *testing.T, to, from uint64) {
	t.Helper()
	must(t, h.Guest, &wire.MemcpyArgs{Dst: to, Src: from, Size: held, Stream: wire.StreamLegacy}, nil)
	must(t, h.Guest, &wire.CtxSynchronizeArgs{}, nil)
}

// check has the device memory copied to the region, by addresses, and compares.
func (h *holding) check(t *testing.T) {
	t.Helper()
	clear(h.region)
	h.copy(t, h.pinned, h.at)
	if !bytes.Equal(h.region, h.want) {
		t.Error("device memory is not what it was")
	}
}

// empty is a device that awaits a VM.
func empty(t *testing.T, change func(*device.Options)) *vm { return emptied(t, onSoft(t, change)) }

// emptied ends the VM of a device.
func emptied(t *testing.T, v *vm) *vm {
	t.Helper()
	if err := v.Kill(); err != nil {
		t.Fatal(err)
	}
	v.Guest = nil
	return v
}

// save stops the rings and takes the state.
func save(t *testing.T, v *vm) []byte {
	t.Helper()
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	b, err := v.Save()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// nothingIn fails unless a device is as before its first VM.
func nothingIn(t *testing.T, v *vm) {
	t.Helper()
	eventually(t, "something is left behind", func() bool {
		st := v.device.Status()
		return len(st.Sessions) == 0 && st.Memory == 0 && st.Host == 0
	})
}

// TestMove: programs go with their VM to another device and back, with what they have on the GPU
// and at which addresses; a thread that waits is answered there, and errors stay.
func TestMove(t *testing.T) {
	other := empty(t, nil)
	v := onSoft(t, nil)
	sockets := []string{other.socket, v.socket}
	a, b := hold(t, v, 1), hold(t, v, 2)
	_, broken := start(t, v) // its context is lost to a fault
	must(t, broken, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
	broken.Ctx = 16
	if err := broken.Send(&wire.MemsetArgs{Dst: 1 << 40, Element: 1, Width: 1, Height: 1, Stream: wire.StreamLegacy}); err != nil {
		t.Fatal(err)
	}
	lost, err := broken.Call(0, &wire.CtxSynchronizeArgs{}, nil)
	if err != nil || lost == cuda.Success {
		t.Fatal(lost, err)
	}
	for round, to := range sockets {
		seq, err := b.Begin(3, &wire.CtxSynchronizeArgs{})
		if err != nil {
			t.Fatal(err)
		}
		state := save(t, v)
		arrive(t, v, to, state)
		if res, err := b.Finish(3, seq, nil); err != nil || res != cuda.Success {
			t.Errorf("round %d: a call that waited: %v, %v", round, res, err)
		}
		a.check(t)
		b.check(t)
		if res, err := broken.Call(0, &wire.CtxSynchronizeArgs{}, nil); err != nil {
			t.Error(res, err)
		}
		t.Logf("round %d: %d bytes", round, len(state))
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestMoveAgainAtOnce: a VM that leaves again before its programs have lent their pages has all
// that it came with.
func TestMoveAgainAtOnce(t *testing.T) {
	other := empty(t, nil)
	v := onSoft(t, nil)
	home := v.socket
	a, b := hold(t, v, 1), hold(t, v, 2)
	state := save(t, v)
	for _, to := range []string{other.socket, home, other.socket} {
		left, err := v.Move(to, state)
		if err != nil {
			t.Fatal(err)
		}
		left.Close()
		if state, err = v.Save(); err != nil {
			t.Fatal(err)
		}
	}
	arrive(t, v, home, state)
	a.check(t)
	b.check(t)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestMoveThatFails: whatever the destination does not take is refused there and leaves nothing;
// the VM goes on where it was.
func TestMoveThatFails(t *testing.T) {
	cases := map[string]struct {
		change func(*device.Options)
		state  func([]byte) []byte
	}{
		"a byte of the tree":       {nil, func(b []byte) []byte { b[20] ^= 1; return b }},
		"a byte of the memory":     {nil, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		"a byte of the sum":        {nil, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }},
		"cut short":                {nil, func(b []byte) []byte { return b[:len(b)*3/4] }},
		"nothing":                  {nil, func([]byte) []byte { return nil }},
		"foreign":                  {nil, func(b []byte) []byte { return bytes.Repeat([]byte("foreign "), len(b)/8) }},
		"too long":                 {nil, func(b []byte) []byte { return append(b, 0) }},
		"another GPU":              {func(o *device.Options) { o.Tree.GPU = "Other GPU" }, nil},
		"another backend":          {func(o *device.Options) { o.Worker.GPU = "test" }, nil},
		"another library":          {func(o *device.Options) { o.Tree.Lib = otherLibrary(t) }, nil},
		"no room for the memory":   {func(o *device.Options) { o.Limits.Memory = held * 3 / 2 }, nil},
		"no room for the sessions": {func(o *device.Options) { o.Limits.Sessions = 1 }, nil},
	}
	devices := map[string]*vm{}
	for name, c := range cases {
		devices[name] = empty(t, c.change)
	}
	v := onSoft(t, nil)
	a, b := hold(t, v, 3), hold(t, v, 4)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			to := devices[name]
			state := slices.Clone(save(t, v))
			if c.state != nil {
				state = c.state(state)
			}
			if left, err := v.Move(to.socket, state); !errors.Is(err, fstest.ErrRefused) {
				t.Errorf("moved: %v, %v", left, err)
			}
			nothingIn(t, to)
			if err := v.StartRings(); err != nil {
				t.Fatal(err)
			}
			a.check(t)
			b.check(t)
		})
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestMoveThatIsCutOff: whoever gives up while the state travels, or is killed, leaves the VM where
// it was, and nothing at the destination.
func TestMoveThatIsCutOff(t *testing.T) {
	to := empty(t, nil)
	v := onSoft(t, nil)
	a, b := hold(t, v, 5), hold(t, v, 6)
	state := save(t, v)
	for _, part := range []int{0, 8, 100, len(state) / 3, len(state) * 2 / 3, len(state) - 4} {
		if err := fstest.LoadSome(to.socket, state[:part]); err != nil {
			t.Errorf("%d bytes: %v", part, err)
		}
		nothingIn(t, to)
	}
	for _, part := range []int{0, 100, len(state) / 2} {
		if err := v.SaveSome(part); part > 0 && !errors.Is(err, fstest.ErrRefused) {
			t.Errorf("a save that was cancelled after %d bytes: %v", part, err)
		}
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	a.check(t)
	b.check(t)
	state = save(t, v)
	arrive(t, v, to.socket, state)
	a.check(t)
	b.check(t)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	nothingIn(t, v)
}

// arrive has a VM go on at another device, with what it saved.
func arrive(t *testing.T, v *vm, socket string, state []byte) {
	t.Helper()
	left, err := v.Move(socket, state)
	if err != nil {
		t.Fatal(err)
	}
	left.Close()
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
}

func otherLibrary(t *testing.T) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), []byte("ELF of another version"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPauseOfABusyGPU: a VM that is paused while its GPU works goes on with it, however long that
// takes; saved it is not.
func TestPauseOfABusyGPU(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Worker.GPU = "busy"; lapses(o) })
	p, g := start(t, v)
	begin := time.Now()
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped after %v", time.Since(begin))
	if n := p.pending(); n == 0 {
		t.Error("loans ended although the GPU works")
	}
	if _, err := v.Save(); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("saved: %v", err)
	}
	time.Sleep(2500 * time.Millisecond) // longer than a loan's term and the GPU's patience
	if st := v.device.Status().Sessions; len(st) != 1 || st[0].State != "running" {
		t.Fatalf("%+v", st)
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	must(t, g, &wire.SessionFenceArgs{}, nil)
	p.stop(true)
	eventually(t, "loans of a killed process stay", func() bool { return p.pending() == 0 })
}

// TestMoveOfSuspended: sessions that are suspended go with their VM, in memory or in a file, and
// come back on the other side.
func TestMoveOfSuspended(t *testing.T) {
	for what, to := range map[string]string{"in memory": "", "in a file": t.TempDir()} {
		t.Run(what, func(t *testing.T) {
			other, v := empty(t, nil), onSoft(t, nil)
			a, b := hold(t, v, 1), hold(t, v, 2)
			time.Sleep(30 * time.Millisecond)
			if did, err := v.device.Suspend(context(), device.Suspension{To: to}); err != nil || did.Sessions != 2 {
				t.Fatal(did, err)
			}
			arrive(t, v, other.socket, save(t, v))
			a.check(t)
			b.check(t)
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
