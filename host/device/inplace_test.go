package device_test

import (
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/workertest"
)

// TestInPlaceOfItsVM: what programs of a VM have on the host for lack of room at the GPU is no
// more, all together, than the VM has memory, here and where it moves; one that ends gives back
// what it had.
func TestInPlaceOfItsVM(t *testing.T) {
	other := empty(t, nil)
	v := onSoft(t, nil) // of 64 MiB
	var guests []*workertest.Guest
	for range 2 {
		_, g := start(t, v)
		must(t, g, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{})
		g.Ctx = 16
		guests = append(guests, g)
	}
	a, b := guests[0], guests[1]
	onHost := func(g *workertest.Guest, id wire.ID, want cuda.Result) {
		t.Helper()
		res, err := g.Call(0, &wire.MemCreateArgs{Memhandle: id, Size: 24 << 20, Place: wire.MemOnHost}, nil)
		if err != nil || res != want {
			t.Errorf("memory %d on the host: %v, %v, want %v", id, res, err, want)
		}
	}
	onHost(a, 20, cuda.Success)
	onHost(b, 20, cuda.Success)
	onHost(a, 21, cuda.ErrorOutOfMemory)
	onHost(b, 21, cuda.ErrorOutOfMemory)
	state := save(t, v)
	arrive(t, v, other.socket, state)
	onHost(b, 21, cuda.ErrorOutOfMemory)
	must(t, a, &wire.MemReleaseArgs{Memhandle: 20}, nil)
	onHost(b, 21, cuda.Success)
	onHost(a, 20, cuda.ErrorOutOfMemory)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "what a program had is not free when it has ended", func() bool { return len(other.device.Status().Sessions) == 1 })
	onHost(a, 21, cuda.Success)
	onHost(a, 22, cuda.Success)
	onHost(a, 23, cuda.ErrorOutOfMemory)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
