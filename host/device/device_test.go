package device_test

import (
	"bytes"
	gocontext "context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/worker/workertest"
	"causeway/remote"
)

func context() gocontext.Context { return gocontext.Background() }

func cancellable() (gocontext.Context, func()) {
	return gocontext.WithCancel(gocontext.Background())
}

func must(t *testing.T, g *workertest.Guest, a wire.Args, r wire.Reply) {
	t.Helper()
	if res, err := g.Call(0, a, r); err != nil || res != cuda.Success {
		t.Fatalf("%v: %v, %v", a.Op(), res, err)
	}
}

func start(t *testing.T, v *vm) (*process, *workertest.Guest) {
	t.Helper()
	p, g, err := v.exec(4711)
	if err != nil {
		t.Fatal(err)
	}
	return p, g
}

func TestSession(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 1 << 20}, &m)
	id, mem, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	for i := range mem {
		mem[i] = byte(i >> 12) // a page of each value: the order of pages counts
	}
	want := bytes.Clone(mem)
	for _, a := range []wire.Args{
		&wire.MemcpyStagedArgs{Region: id, Size: 1 << 20, Device: m.Ptr, Word: 1, Value: 1},
		&wire.MemcpyStagedArgs{Direction: 1, Region: id, Size: 1 << 20, Device: m.Ptr, Word: 2, Value: 1},
	} {
		if err := g.Send(a); err != nil {
			t.Fatal(err)
		}
		must(t, g, &wire.SessionFenceArgs{}, nil)
		if a.(*wire.MemcpyStagedArgs).Direction == 0 {
			clear(mem)
		}
	}
	if !bytes.Equal(mem, want) {
		t.Error("bytes changed on their way through staging")
	}
	// Sleeping on both sides: the doorbell wakes the worker, a READ the guest.
	time.Sleep(30 * time.Millisecond)
	if !g.Sleeping() {
		t.Error("idle worker does not sleep")
	}
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if res, err := g.DropRegion(0, id); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	time.Sleep(1200 * time.Millisecond) // two renewals
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestKilled: a killed process stops renewing; its READs complete, whatever its GPU does, and its
// worker ends with its file. After how long, TestLapse and TestParkOfAHungWorker say by a clock of
// their own.
func TestKilled(t *testing.T) {
	for _, gpu := range []string{"test", "busy"} {
		v := bootWith(t, func(o *device.Options) { o.Worker.GPU = gpu; lapses(o) })
		p, g := start(t, v)
		if _, _, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20); err != nil || res != cuda.Success {
			t.Fatal(res, err)
		}
		begin := time.Now()
		p.stop(true)
		for p.pending() > 0 {
			if time.Since(begin) > time.Minute {
				t.Fatalf("%d READs are pending after %v, GPU: %s", p.pending(), time.Since(begin), gpu)
			}
			time.Sleep(5 * time.Millisecond)
		}
		t.Logf("GPU %s: pages are back after %v", gpu, time.Since(begin))
		if err := p.file.Close(); err != nil {
			t.Error(err)
		}
		noChildren(t)
	}
}

// TestStopped: a stopped process parks its session, and goes on with it when continued.
func TestStopped(t *testing.T) {
	v := bootWith(t, lapses)
	p, g := start(t, v)
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 4096}, &m)
	if err := g.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: []byte("kept")}); err != nil {
		t.Fatal(err)
	}
	must(t, g, &wire.SessionFenceArgs{}, nil)
	p.stop(true)
	eventually(t, "READs of a program that stopped are pending", func() bool { return p.pending() == 0 })
	// What is appended while parked waits.
	seq, err := g.Begin(0, &wire.MemcpyDtoHArgs{Src: m.Ptr, Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	p.stop(false)
	var r wire.MemcpyDtoHReply
	if res, err := g.Finish(0, seq, &r); err != nil || res != cuda.Success || string(r.Dst) != "kept" {
		t.Fatalf("%v, %v, %q", res, err, r.Dst)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestWorkerDies: a session whose ring breaks a rule ends, alone.
func TestWorkerDies(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	_, other := start(t, v)
	g.Publish(1 << 40)
	if _, err := g.Call(1, &wire.CtxSynchronizeArgs{}, nil); !errors.Is(err, workertest.ErrGone) && !errors.Is(err, workertest.ErrSilent) {
		t.Errorf("call of a dead session: %v", err)
	}
	if g.State() != remote.WorkerDead {
		t.Errorf("worker_state is %d", g.State())
	}
	must(t, other, &wire.CtxSynchronizeArgs{}, nil)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// TestRebuild: a session moves to another worker while it is lent, and back to work.
func TestRebuild(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 4096}, &m)
	id, mem, res, err := g.AddRegion(0, wire.RegionPinned, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	if err := g.Send(&wire.MemcpyHtoDArgs{Dst: m.Ptr, Src: []byte("kept")}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, err := v.device.Rebuild(context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := g.Send(&wire.MemcpyStagedArgs{Direction: 1, Region: id, Offset: 8192, Size: 4, Device: m.Ptr, Word: 1, Value: 1}); err != nil {
		t.Fatal(err)
	}
	must(t, g, &wire.SessionFenceArgs{}, nil)
	if string(mem[8192:8196]) != "kept" {
		t.Errorf("memory holds %q", mem[8192:8196])
	}
	time.Sleep(1200 * time.Millisecond) // renewals go on
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestSuspend: rings stop and start, as for virsh suspend. Loans end, and come back.
func TestSuspend(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: 4096}, &m)
	begin := time.Now()
	if err := v.StopRings(); err != nil {
		t.Fatal(err)
	}
	t.Logf("QEMU waited %v", time.Since(begin)) // TestRevoke bounds it, by a clock of its own
	time.Sleep(100 * time.Millisecond)
	if err := v.StartRings(); err != nil {
		t.Fatal(err)
	}
	must(t, g, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestVMKilled: without a front end nothing is left, and another VM can have the device.
func TestVMKilled(t *testing.T) {
	v := boot(t)
	p, _ := start(t, v)
	p.halt()
	if err := v.Kill(); err != nil {
		t.Error(err)
	}
	noChildren(t)
	v.connect()
	_, g := start(t, v)
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestTree(t *testing.T) {
	v := boot(t)
	for path, want := range map[string]string{"info": fmt.Sprintf("protocol=%d\nmax_read=1048576\n", remote.ProtocolVersion), "lib/libcuda.so.1": "ELF", "bin/setup": "#!/bin/sh"} {
		f, err := v.Open(syscall.O_RDONLY, caller(1), strings.Split(path, "/")...)
		if err != nil {
			t.Fatal(path, err)
		}
		c, err := f.Read(0, 0, v.Pages(4))
		if err != nil {
			t.Fatal(err)
		}
		b, errno, err := c.Wait(time.Minute)
		if err != nil || errno != 0 || !bytes.HasPrefix(b, []byte(want)) {
			t.Errorf("%s: %q, %v, %v", path, b, errno, err)
		}
	}
}

// TestInfoIsOfNow: the guest reads the limit of memory that holds, and keeps no copy of the file.
func TestInfoIsOfNow(t *testing.T) {
	v := boot(t)
	for _, limit := range []uint64{0, 64 << 20, 3 << 30} {
		if limit != 0 {
			if _, err := v.device.SetLimits(api.Limits{Memory: limit}.All()); err != nil {
				t.Fatal(err)
			}
		}
		f, err := v.Open(syscall.O_RDONLY, caller(1), "info")
		if err != nil {
			t.Fatal(err)
		}
		if f.Flags&fuse.FOPEN_DIRECT_IO == 0 || f.Flags&fuse.FOPEN_KEEP_CACHE != 0 {
			t.Errorf("opened with flags %#x, which let a guest keep what it read", f.Flags)
		}
		c, err := f.Read(0, 0, v.Pages(1))
		if err != nil {
			t.Fatal(err)
		}
		b, errno, err := c.Wait(time.Minute)
		if want := fmt.Sprintf("\nmemory=%d\n", limit); err != nil || errno != 0 || !bytes.HasSuffix(b, []byte(want)) {
			t.Errorf("%q, %v, %v; want an end of %q", b, errno, err, want)
		}
	}
}

// TestRefusals: what a guest may not say.
func TestRefusals(t *testing.T) {
	v := boot(t)
	hello := remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size}
	for name, do := range map[string]func(p *process) error{
		"start first":    func(p *process) error { return p.control(remote.Hello{Type: remote.MsgStart}) },
		"small region 0": func(p *process) error { h := hello; h.Size = 4096; return p.control(h) },
		"odd address":    func(p *process) error { h := hello; h.Va = 5; return p.control(h) },
		"hello twice":    func(p *process) error { return errors.Join(ignore(p.control(hello)), p.control(hello)) },
		"unknown":        func(p *process) error { return p.control(remote.Hello{Type: 77}) },
		"region first":   func(p *process) error { return p.control(remote.Hello{Type: remote.MsgRegion, Region: 1, Size: 4096}) },
		"not a hello":    func(p *process) error { _, err := p.file.WriteBytes(make([]byte, 64), 0); return err },
		"too short":      func(p *process) error { _, err := p.file.WriteBytes(make([]byte, 8), 0); return err },
		"elsewhere":      func(p *process) error { _, err := p.file.WriteBytes(make([]byte, 8), 0x3000); return err },
		"loan unasked": func(p *process) error {
			c, err := p.file.Read(0, loanAt(3, 0), v.Pages(1))
			if err != nil {
				return err
			}
			_, errno, err := c.Wait(time.Minute)
			return errors.Join(err, errno)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := v.Open(syscall.O_RDWR, caller(9), "session")
			if err != nil {
				t.Fatal(err)
			}
			if err := do(&process{vm: v, file: f}); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("answered %v", err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func ignore(error) error { return nil }
