package device_test

import (
	"bytes"
	"net"
	"os"
	"testing"
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
	"causeway/remote/mtls"
)

// bootRelayed is boot of a device whose GPU is a server's: its workers pass on, over leased memory of the VM, to workers that the test starts for each connection of
// the lease.
func bootRelayed(t *testing.T) *vm {
	t.Helper()
	server, client, err := mtls.NewPinnedPair()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lease := remote.NewLeaseID()
	v := bootWith(t, func(o *device.Options) {
		o.Worker.GPU = "none here"
		o.Worker.Relay = &link.Relay{Server: "gpu1", Addresses: []string{ln.Addr().String()}, Lease: lease, Identity: client}
	})
	workers := make(chan []*spawn.Process, 1)
	go func() {
		var started []*spawn.Process
		defer func() { workers <- started }()
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if p, err := remote.ReadPreface(c); err != nil || p.Lease != lease {
				t.Errorf("preface %+v, %v", p, err)
			}
			w, err := serveRelayed(c.(*net.TCPConn), &server)
			if err != nil {
				t.Error(err)
				continue
			}
			started = append(started, w)
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		for _, w := range <-workers {
			w.Stop(5 * time.Second) // it has ended with its program
		}
	})
	return v
}

// serveRelayed starts a worker with a GPU for a connection. It ends with the connection.
func serveRelayed(c *net.TCPConn, keys *mtls.Pinned) (*spawn.Process, error) {
	defer c.Close()
	f, err := c.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &spawn.Spawner{Command: []string{"/proc/self/exe"}, Env: append(os.Environ(), workerEnv+"=1", promptly)}
	return s.Start(link.Config{Carrier: link.CarrierTCP, GPU: "test", TLS: keys}, nil, int(f.Fd()))
}

// TestRelayed: a VM's program on a server's GPU copies and calls by memory that it leases, is parked when it stops, goes on when it is continued, and
// ends; the VM's next program does the same on the same lease.
func TestRelayed(t *testing.T) {
	v := bootRelayed(t)
	p, g := start(t, v)
	if s := v.device.Status().Sessions; len(s) != 1 || s[0].Carrier != "TCP with TLS" {
		t.Errorf("what carries the session: %+v", s)
	}
	const size = 1 << 20
	var m wire.MemAllocReply
	must(t, g, &wire.MemAllocArgs{Size: size}, &m)
	id, mem, res, err := g.AddRegion(0, wire.RegionStaging, size)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	for i := range mem {
		mem[i] = byte(i >> 12) // a page of each value: the order of pages counts
	}
	want := bytes.Clone(mem)
	for direction := range uint32(2) {
		if err := g.Send(&wire.MemcpyStagedArgs{Direction: direction, Region: id, Size: size, Device: m.Ptr, Word: 1, Value: direction + 1}); err != nil {
			t.Fatal(err)
		}
		must(t, g, &wire.SessionFenceArgs{}, nil)
		if direction == 0 {
			clear(mem)
		}
	}
	if g.Word(1) != 2 || !bytes.Equal(mem, want) {
		t.Error("bytes changed on their way")
	}
	for range 2 {
		p.stop(true)
		for p.pending() > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		seq, err := g.Begin(0, &wire.MemcpyDtoHArgs{Src: m.Ptr + 8192, Size: 4}) // what is appended while parked waits
		if err != nil {
			t.Fatal(err)
		}
		p.stop(false)
		var r wire.MemcpyDtoHReply
		if res, err := g.Finish(0, seq, &r); err != nil || res != cuda.Success || !bytes.Equal(r.Dst, want[8192:8196]) {
			t.Fatalf("%v, %v, %x", res, err, r.Dst)
		}
	}
	if res, err := g.DropRegion(0, id); err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	_, other := start(t, v) // the VM has another program on the same lease
	must(t, other, &wire.CtxSynchronizeArgs{}, nil)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}
