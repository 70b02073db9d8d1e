package device_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/virtio/fs/fstest"
)

// sharedMemory is memory of one program's as it is seen from a program.
type sharedMemory struct {
	*holding
	ptr uint64
}

// put has the GPU write a seed's bytes to memory, and sees has them read.
func (m sharedMemory) put(t *testing.T, seed byte) {
	t.Helper()
	m.fill(seed)
	m.copy(t, m.ptr, m.pinned)
}

func (m sharedMemory) sees(t *testing.T, what string, seed byte) {
	t.Helper()
	clear(m.region)
	m.copy(t, m.pinned, m.ptr)
	got := string(m.region)
	m.fill(seed)
	if got != string(m.region) {
		t.Errorf("%s: memory is not what was written, it begins with %x instead of %x", what, got[:8], m.region[:8])
	}
}

func (m sharedMemory) fill(seed byte) {
	for i := range m.region {
		m.region[i] = byte(i>>8)*3 + byte(i) + seed
	}
}

// offers shares a program's memory by IPC handle.
func (h *holding) offers(t *testing.T) []byte {
	t.Helper()
	var r wire.IpcGetMemHandleReply
	must(t, h.Guest, &wire.IpcGetMemHandleArgs{Ptr: h.at}, &r)
	return append([]byte(nil), r.Token...)
}

// opens maps it in another.
func (h *holding) opens(t *testing.T, token []byte) sharedMemory {
	t.Helper()
	var r wire.IpcOpenMemHandleReply
	must(t, h.Guest, &wire.IpcOpenMemHandleArgs{Token: token}, &r)
	return sharedMemory{h, r.Ptr}
}

// TestMoveOfShared: memory that programs of a VM share by IPC handles goes with it, there and back:
// both see what either writes at the addresses that they had, a handle that was given out before
// can be opened after, an end of it is an end, and all is counted once.
func TestMoveOfShared(t *testing.T) { moveOfShared(t, onSoft(t, nil), empty(t, nil), onSoft(t, nil)) }

// TestMoveOfSharedOnGPU is TestMoveOfShared, and what else programs share that moves, on the GPU of
// gpuEnv.
func TestMoveOfSharedOnGPU(t *testing.T) {
	for range 2 {
		t.Run("memory", func(t *testing.T) { moveOfShared(t, movingVM(t), emptied(t, movingVM(t)), movingVM(t)) })
		t.Run("handles", func(t *testing.T) {
			moveOfSharedHandles(t, movingVM(t), emptied(t, movingVM(t)), func(t *testing.T, a, b *holding) [][2]sharedMemory {
				return [][2]sharedMemory{sharedPool(t, a, b)}
			})
		})
		t.Run("ahead", func(t *testing.T) { preCopyOfShared(t, movingVM(t), emptied(t, movingVM(t))) })
	}
}

func moveOfShared(t *testing.T, v, other, stranger *vm) {
	foreign := hold(t, stranger, 9)
	b, a, c := hold(t, v, 2), hold(t, v, 1), hold(t, v, 3) // the first to come is not who shares
	token, back := a.offers(t), b.offers(t)
	own, opened := sharedMemory{a, a.at}, b.opens(t, token)
	cross := a.opens(t, back)
	before := v.device.Status().Memory
	for round, to := range []string{other.socket, v.socket, other.socket} {
		seed := byte(10 * (round + 1))
		own.put(t, seed)
		cross.put(t, seed+1)
		if round == 1 {
			again := c.opens(t, token) // opened here for the first time
			again.sees(t, "a third program", seed)
		}
		arrive(t, v, to, save(t, v))
		at := map[string]*device.Device{other.socket: other.device, v.socket: v.device}[to]
		opened.sees(t, "who opened it", seed)
		sharedMemory{b, b.at}.sees(t, "who shares and opens", seed+1)
		opened.put(t, seed+2)
		own.sees(t, "who shares it", seed+2)
		// When who left has ended.
		eventually(t, fmt.Sprintf("round %d: not %d bytes are counted, as before", round, before), func() bool { return at.Status().Memory == before })
	}
	if res, err := foreign.Call(0, &wire.IpcOpenMemHandleArgs{Token: token}, &wire.IpcOpenMemHandleReply{}); err != nil || res == cuda.Success {
		t.Errorf("another VM's token: %v, %v", res, err)
	}
	must(t, b.Guest, &wire.IpcCloseMemHandleArgs{Ptr: opened.ptr}, nil)
	must(t, a.Guest, &wire.MemFreeArgs{Ptr: a.at}, nil)
	if res, err := b.Call(0, &wire.IpcOpenMemHandleArgs{Token: token}, &wire.IpcOpenMemHandleReply{}); err != nil || res == cuda.Success {
		t.Errorf("memory that was freed: %v, %v", res, err)
	}
	for _, h := range []*holding{a, b, c, foreign} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	nothingIn(t, other)
}

// TestSharedStays: what is shared moves with everyone who shares it or stays, and says so before: a
// program that uses what another has freed, and one that is to be taken from the GPU, or moved,
// alone.
func TestSharedStays(t *testing.T) {
	other := empty(t, nil)
	v := onSoft(t, nil)
	a, b := hold(t, v, 1), hold(t, v, 2)
	token := a.offers(t)
	opened := b.opens(t, token)
	sharedMemory{a, a.at}.put(t, 5)
	if n, err := v.device.Rebuild(context()); err == nil || n != 0 || !strings.Contains(err.Error(), "shared") {
		t.Errorf("moved to other workers: %d, %v", n, err)
	}
	if did, err := v.device.Suspend(context(), device.Suspension{}); err == nil || did.Sessions != 0 || !strings.Contains(err.Error(), "shared") {
		t.Errorf("suspended: %+v, %v", did, err)
	}
	opened.sees(t, "who opened it", 5)
	must(t, a.Guest, &wire.MemFreeArgs{Ptr: a.at}, nil)
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Save(); !errors.Is(err, fstest.ErrRefused) {
		t.Errorf("saved with memory that its program has freed: %v", err)
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	must(t, b.Guest, &wire.IpcCloseMemHandleArgs{Ptr: opened.ptr}, nil)
	b.check(t)
	arrive(t, v, other.socket, save(t, v))
	b.check(t)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// TestMoveOfSharedHandles: likewise memory of cuMemCreate, allocations of pools, and events.
func TestMoveOfSharedHandles(t *testing.T) {
	moveOfSharedHandles(t, onSoft(t, nil), empty(t, nil), func(t *testing.T, a, b *holding) [][2]sharedMemory {
		return [][2]sharedMemory{sharedPool(t, a, b)}
	})
}

func moveOfSharedHandles(t *testing.T, v, other *vm, more func(t *testing.T, a, b *holding) [][2]sharedMemory) {
	const (
		handle, addresses, mapping, event = 100, 101, 102, 104

		unit = 2 << 20
		file = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
		both = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	)
	b, a := hold(t, v, 2), hold(t, v, 1)
	sockets := []string{other.socket, v.socket, other.socket}
	mapped := func(h *holding) sharedMemory {
		t.Helper()
		var r wire.MemAddressReserveReply
		must(t, h.Guest, &wire.MemAddressReserveArgs{Resv: addresses, Size: unit}, &r)
		must(t, h.Guest, &wire.MemMapArgs{Mapping: mapping, Resv: addresses, Memhandle: handle, Ptr: r.Ptr, Size: unit}, nil)
		must(t, h.Guest, &wire.MemSetAccessArgs{Mapping: mapping, Flags: both}, nil)
		return sharedMemory{h, r.Ptr}
	}
	must(t, a.Guest, &wire.MemCreateArgs{Memhandle: handle, Size: unit, Handles: file}, nil)
	var e wire.MemExportReply
	must(t, a.Guest, &wire.MemExportArgs{Memhandle: handle}, &e)
	must(t, b.Guest, &wire.MemImportArgs{Memhandle: handle, Token: e.Token}, &wire.MemImportReply{})
	physical := [2]sharedMemory{mapped(a), mapped(b)}

	shared := append([][2]sharedMemory{physical, {{a, a.at}, b.opens(t, a.offers(t))}}, more(t, a, b)...)
	if err := a.Send(&wire.EventCreateArgs{Event: event, Flags: cuda.EventDisableTiming | cuda.EventInterprocess}); err != nil {
		t.Fatal(err)
	}
	var given wire.IpcGetEventHandleReply
	must(t, a.Guest, &wire.IpcGetEventHandleArgs{Event: event}, &given)
	must(t, b.Guest, &wire.IpcOpenEventHandleArgs{Event: event, Token: given.Token}, nil)

	for round, to := range sockets {
		seed := byte(20 * (round + 1))
		for n, m := range shared {
			m[n%2].put(t, seed+byte(n))
		}
		arrive(t, v, to, save(t, v))
		for n, m := range shared {
			for _, x := range m {
				x.sees(t, fmt.Sprintf("round %d, shared memory %d", round, n), seed+byte(n))
			}
			m[(n+1)%2].put(t, seed+10+byte(n))
			for _, x := range m {
				x.sees(t, fmt.Sprintf("round %d, shared memory %d, written there", round, n), seed+10+byte(n))
			}
		}
		for _, pair := range [2][2]*holding{{a, b}, {b, a}} {
			marks(t, pair[0], pair[1], event, uint64(seed))
		}
	}
	for _, h := range []*holding{a, b} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	nothingIn(t, other)
}

// sharedPool is an allocation of a pool that two programs share.
func sharedPool(t *testing.T, a, b *holding) [2]sharedMemory {
	t.Helper()
	const pool, file = 103, 1
	must(t, a.Guest, &wire.PoolCreateArgs{Pool: pool, Handles: file}, nil)
	var m wire.MemAllocFromPoolReply
	must(t, a.Guest, &wire.MemAllocFromPoolArgs{Size: held, Pool: pool, Stream: wire.StreamLegacy}, &m)
	var exported wire.PoolExportReply
	must(t, a.Guest, &wire.PoolExportArgs{Pool: pool}, &exported)
	must(t, b.Guest, &wire.PoolImportArgs{Pool: pool, Token: exported.Token}, &wire.PoolImportReply{})
	var pointer wire.PoolExportPointerReply
	var imported wire.PoolImportPointerReply
	must(t, a.Guest, &wire.PoolExportPointerArgs{Ptr: m.Ptr}, &pointer)
	must(t, b.Guest, &wire.PoolImportPointerArgs{Pool: pool, Token: pointer.Token}, &imported)
	return [2]sharedMemory{{a, m.Ptr}, {b, imported.Ptr}}
}

// TestPreCopyOfShared: shared memory goes ahead with whose it is, and what another writes to it
// meanwhile, while that one stands still, is not missed.
func TestPreCopyOfShared(t *testing.T) { preCopyOfShared(t, onSoft(t, nil), empty(t, nil)) }

func preCopyOfShared(t *testing.T, from, to *vm) {
	v := from
	b, a := hold(t, v, 2), hold(t, v, 1)
	opened, own := b.opens(t, a.offers(t)), sharedMemory{a, a.at}
	own.put(t, 1)
	c := precopy(t, from, to, device.CopyOptions{})
	c.ready(t, 2)
	opened.put(t, 7)
	front, err := fstest.Await(to.socket)
	if err != nil {
		t.Fatal(err)
	}
	logs(t, v)
	opened.put(t, 8)
	c.moves(t, v, front, save(t, v))
	own.sees(t, "who shares it", 8)
	own.put(t, 9)
	opened.sees(t, "who opened it", 9)
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// marks has a program record an event behind work that waits, which another finds not done, and
// done when it is.
func marks(t *testing.T, by, at *holding, event wire.ID, value uint64) {
	t.Helper()
	const stream, other = 200, 201
	send := func(args wire.Args) {
		t.Helper()
		if err := by.Send(args); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []wire.ID{stream, other} {
		send(&wire.StreamCreateArgs{Stream: id, Flags: cuda.StreamNonBlocking})
	}
	const equal = 1
	send(&wire.StreamWriteValueArgs{Stream: other, Addr: by.at, Value: ^value & 0xffff, Width: 4})
	must(t, by.Guest, &wire.StreamSynchronizeArgs{Stream: other}, nil)
	send(&wire.StreamWaitValueArgs{Stream: stream, Addr: by.at, Value: value, Width: 4, Flags: equal})
	send(&wire.EventRecordArgs{Event: event, Stream: stream})
	must(t, by.Guest, &wire.SessionFenceArgs{}, nil)
	for _, h := range []*holding{by, at} {
		if res, err := h.Call(0, &wire.EventQueryArgs{Event: event}, nil); err != nil || res != cuda.ErrorNotReady {
			t.Errorf("an event behind work that waits: %v, %v", res, err)
		}
	}
	send(&wire.StreamWriteValueArgs{Stream: other, Addr: by.at, Value: value, Width: 4})
	must(t, at.Guest, &wire.EventSynchronizeArgs{Event: event}, nil)
	must(t, by.Guest, &wire.StreamSynchronizeArgs{Stream: stream}, nil)
	for _, id := range []wire.ID{stream, other} {
		send(&wire.StreamDestroyArgs{Stream: id})
	}
}
