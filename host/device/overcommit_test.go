package device_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/daemon/swap"
	"causeway/host/device"
)

// arbiter makes room on a GPU for virtual GPUs as causewayd does.
type arbiter struct {
	memory uint64
	vms    []*vm
	denied int
}

// look takes steps until there is none, and fails if there is room for more than there is.
func (a *arbiter) look(t *testing.T) {
	for range 64 {
		g, given, sum := swap.GPU{Memory: a.memory, Overcommit: 3}, uint64(0), uint64(0)
		for i, v := range a.vms {
			st := v.device.RoomStatus()
			g.VGPUs = append(g.VGPUs, swap.VGPU{Key: fmt.Sprint(i), RoomStatus: st})
			given, sum = given+st.Room, sum+max(st.Room, st.Used)
		}
		// A session whose room goes while it begins to come back has its context until that is
		// refused.
		if given > a.memory+uint64(len(a.vms)) || sum > a.memory+uint64(len(a.vms))*held {
			t.Errorf("room for %d bytes, %d with what is used beyond, of %d", given, sum, a.memory)
		}
		step := swap.Next(&g)
		var i int
		if step.Kind == swap.None || step.Kind == swap.Wait {
			return
		}
		if _, err := fmt.Sscan(step.Key, &i); err != nil {
			t.Error(err)
			return
		}
		d := a.vms[i].device
		switch step.Kind {
		case swap.Give:
			d.SetRoom(api.RoomChange{Room: &step.Room})
		case swap.Suspend:
			if _, err := d.Suspend(context(), device.Suspension{Session: step.Session, Away: true}); err != nil {
				t.Logf("session %d of %s stays: %v", step.Session, step.Key, err)
			}
		case swap.Deny:
			a.denied++
			d.SetRoom(api.RoomChange{Deny: []uint64{step.Session}, Why: step.Why})
		}
	}
}

// TestOvercommit: three virtual GPUs whose programs hold half as much again as their GPU has, each
// of which writes and checks all of it again and again. Every byte is right, every program gets its
// turn, and what is more than the GPU has is refused at once.
func TestOvercommit(t *testing.T) {
	const part, share = 48 * mib, 48*mib + 2*held
	a := &arbiter{memory: 2*share + share/4}
	for range 3 {
		a.vms = append(a.vms, swapping(t, 4*share))
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				a.look(t)
			}
		}
	}()
	// Each goes on until there were turns: on a busy machine few are taken in any given time.
	turns := func() (out, in uint64) {
		for _, v := range a.vms {
			c := v.device.Status().Swaps
			out, in = out+c.Out, in+c.In
		}
		return out, in
	}
	const least = 3
	enough := func() bool {
		out, in := turns()
		return out >= least && in >= least || t.Failed()
	}
	var all sync.WaitGroup
	rounds := make([]int, len(a.vms))
	for i, v := range a.vms {
		all.Go(func() { rounds[i] = swappedProgram(t, v, byte(i+1), part, 6*time.Second, enough) })
	}
	all.Wait()
	var denied uint64
	for i, v := range a.vms {
		c := v.device.Status().Swaps
		t.Logf("program %d: %d rounds, %+v", i, rounds[i], c)
		denied += c.Denied
		if rounds[i] < 3 {
			t.Errorf("program %d came to %d rounds", i, rounds[i])
		}
	}
	if out, in := turns(); out < least || in < least || in > out || denied < 3 || a.denied < 3 {
		t.Errorf("%d left the GPU, %d came back, %d refused of %d", out, in, denied, a.denied)
	}
	close(stop)
	await(t, "the arbiter does not end", done)
	for _, v := range a.vms {
		nothingIn(t, v)
		if st := v.device.RoomStatus(); st.Away != 0 || st.Used != 0 || len(st.Needs) != 0 {
			t.Errorf("left behind: %+v", st)
		}
	}
}

// swappedProgram works for a while, for some rounds and until it is enough, and returns how many
// rounds it came to.
func swappedProgram(t *testing.T, v *vm, seed byte, size uint64, long time.Duration, enough func() bool) (n int) {
	h := hold(t, v, seed)
	var m, none wire.MemAllocReply
	must(t, h.Guest, &wire.MemAllocArgs{Size: size}, &m)
	if res, err := h.Call(0, &wire.MemAllocArgs{Size: 2*size + size/2}, &none); err != nil || res != cuda.ErrorOutOfMemory {
		t.Errorf("more than the GPU has: %v, %v", res, err)
	}
	const least = 5 // rounds, the fourth with a rest
	for begin := time.Now(); n < least || time.Since(begin) < long || !enough(); n++ {
		if time.Since(begin) > hangs {
			t.Errorf("%d rounds in %v", n, time.Since(begin))
			break
		}
		value := seed + byte(n)*3
		must(t, h.Guest, &wire.MemsetArgs{Dst: m.Ptr, Element: 1, Value: uint32(value), Width: size, Height: 1, Stream: wire.StreamLegacy}, nil)
		must(t, h.Guest, &wire.CtxSynchronizeArgs{}, nil)
		if n%4 == 3 {
			time.Sleep(700 * time.Millisecond) // idle: somebody else's turn
		}
		for at := uint64(0); at < size; at += 12 * mib {
			h.copy(t, h.pinned, m.Ptr+at)
			for j, b := range h.region {
				if b != value {
					t.Errorf("round %d: byte %d is %d, not %d", n, at+uint64(j), b, value)
					return n
				}
			}
		}
		h.check(t)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	return n
}
