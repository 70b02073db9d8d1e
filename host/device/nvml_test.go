package device_test

import (
	gocontext "context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"causeway/cuda/wire"
	"causeway/host/inventory"
)

// slow is how long the next reading of machine takes, in ms; negative: it fails.
var slow atomic.Int64

// machine has the Test GPU.
func machine(ctx gocontext.Context) (*inventory.Reading, error) {
	ms := slow.Swap(0)
	if ms < 0 {
		return nil, errors.New("no such machine")
	}
	select {
	case <-time.After(time.Duration(ms) * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d := inventory.Unknown()
	d.UUID, d.MemoryTotal, d.MemoryReserved = [16]byte{15: 1}, 1<<30, 0
	return &inventory.Reading{CUDA: 13000, Devices: []inventory.Device{d}}, nil
}

// ask reads the file nvml in pieces of 4 KiB, as a guest does.
func ask(t *testing.T, v *vm) []byte {
	t.Helper()
	f, err := v.Open(syscall.O_RDONLY, caller(1), "nvml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []byte
	for {
		c, err := f.Read(0, int64(len(all)), v.Pages(1))
		if err != nil {
			t.Fatal(err)
		}
		b, errno, err := c.Wait(time.Minute)
		if err != nil || errno != 0 {
			t.Fatal(errno, err)
		}
		if len(b) == 0 {
			return all
		}
		all = append(all, b...)
	}
}

func TestNVML(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 1 << 20}, &m)
	a, err := inventory.DecodeAnswer(ask(t, v))
	if err != nil || len(a.Devices) != 1 || len(a.Processes) != 1 {
		t.Fatalf("%+v, %v", a, err)
	}
	if p := &a.Processes[0]; p.Pid != uint32(os.Getpid()) || p.Used != 1<<20 || a.Devices[0].MemoryUsed != 1<<20 {
		t.Errorf("%+v", a)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	time.Sleep(150 * time.Millisecond) // an answer serves for 100 ms
	slow.Store(-1)
	if b := ask(t, v); len(b) != 0 {
		t.Errorf("a machine that cannot be read gives %d bytes", len(b))
	}
}

// TestNVMLSuspend: pages of a READ whose answer takes long are let go of at once.
func TestNVMLSuspend(t *testing.T) {
	v := boot(t)
	f, err := v.Open(syscall.O_RDONLY, caller(1), "nvml")
	if err != nil {
		t.Fatal(err)
	}
	slow.Store(5000)
	c, err := f.Read(0, 0, v.Pages(1))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	begin := time.Now()
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 4*time.Second {
		t.Errorf("QEMU waited %v", d)
	}
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	if _, errno, err := c.Wait(time.Minute); err != nil || errno != syscall.EINTR {
		t.Errorf("the READ ended with %v, %v", errno, err)
	}
	if a, err := inventory.DecodeAnswer(ask(t, v)); err != nil || len(a.Devices) != 1 {
		t.Errorf("afterwards: %+v, %v", a, err)
	}
}
