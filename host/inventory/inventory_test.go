package inventory

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"testing"
	"time"

	"causeway/host/driver"
	"causeway/host/worker/link"
)

func all(ids []Identity) ([]int, error) {
	var list []int
	for i := range ids {
		list = append(list, i)
	}
	return list, nil
}

func read(t *testing.T, lib Library, choose func([]Identity) ([]int, error)) *Reading {
	t.Helper()
	s, err := OpenNVML(lib, choose)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return r
}

func TestNVML(t *testing.T) {
	r := read(t, newFake(2), all)
	if r.CUDA != 13000 || r.Driver != "580.1.2" || r.NVML != "" || len(r.Devices) != 2 || len(r.Pairs) != 4 {
		t.Fatalf("%+v", r)
	}
	d := &r.Devices[1]
	if text(d.Name[:]) != "Fake GPU" || d.UUID != [16]byte{0, 0, 0, 2} || d.PCIBus != 2 || d.MinorNumber != 1 || d.Power != 2000 {
		t.Errorf("device 1: %+v", d)
	}
	if d.MemoryTotal != 1000 || d.MemoryReserved != 50 || d.MemoryFree != 700 {
		t.Errorf("memory: %d %d %d", d.MemoryTotal, d.MemoryReserved, d.MemoryFree)
	}
	if d.Temperature != Unknown32 || d.Energy != Unknown64 || d.MigCurrent != 1 || AnswerFor(r, Owner{}).Devices[1].MigCurrent != 0 {
		t.Errorf("what is not supported: %d %d, MIG %d", d.Temperature, d.Energy, d.MigCurrent)
	}
	if want := (Pair{A: 0, B: 1, Topology: Unknown32, P2p: [5]uint32{0, 1, 2, 3, 4}}); r.Pairs[1] != want {
		t.Errorf("pair: %+v", r.Pairs[1])
	}
	if r.Used[0][4000] != 200 || r.Used[1][4001] != 200 {
		t.Errorf("processes: %v", r.Used)
	}
}

// TestLinks: links to switches and to own devices are told, others not.
func TestLinks(t *testing.T) {
	links := read(t, newFake(2), all).Links
	var got [][3]uint32
	for _, l := range links {
		got = append(got, [3]uint32{l.Device, l.Link, l.RemoteBus})
	}
	if want := [][3]uint32{{0, 0, 0x80}, {0, 1, 2}, {1, 0, 0x80}, {1, 1, 1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("links %v, want %v", got, want)
	}
	if len(links) > 0 && links[0].Capabilities != 0b101010 {
		t.Errorf("capabilities %b", links[0].Capabilities)
	}
	if one := read(t, newFake(2), func([]Identity) ([]int, error) { return []int{1}, nil }); len(one.Links) != 1 || len(one.Pairs) != 1 {
		t.Errorf("a vGPU of one device: links %v, pairs %v", one.Links, one.Pairs)
	}
}

func TestNVMLFails(t *testing.T) {
	for entry, r := range map[string]Return{"nvmlInit_v2": 9, "nvmlDeviceGetCount_v2": 999, "nvmlDeviceGetHandleByIndex_v2": 15} {
		f := newFake(1)
		f.fails[entry] = r
		if _, err := OpenNVML(f, all); !errors.Is(err, r) {
			t.Errorf("%s: %v", entry, err)
		}
		if entry != "nvmlInit_v2" && f.calls["nvmlShutdown"] != 1 {
			t.Errorf("%s: the library stays started", entry)
		}
	}
	if _, err := OpenNVML(newFake(1), func([]Identity) ([]int, error) { return []int{1}, nil }); err == nil {
		t.Error("a GPU that is not there was opened")
	}
	if _, err := LoadNVML("libdoesnotexist.so.7"); !errors.Is(err, ErrNoNVML) {
		t.Errorf("missing library: %v", err)
	}
}

func TestAnswerFor(t *testing.T) {
	r := read(t, newFake(2), all)
	uuid := r.Devices[0].UUID
	mine := Session{Worker: 4000, PID: 7, Name: "/bin/a", Use: []Use{{uuid, 120}}}
	untold := Session{Worker: 5000, PID: 8, Name: "/bin/b", Use: []Use{{uuid, 80}}}
	idle := Session{Worker: 5001, PID: 9}
	for _, c := range []struct {
		name                        string
		limit                       uint64
		sessions                    []Session
		total, reserved, used, free uint64
		listed                      []uint32
	}{
		{"nobody", 0, nil, 1000, 50, 0, 700, nil},
		{"the driver knows of more than the session", 0, []Session{mine}, 1000, 50, 200, 700, []uint32{7}},
		{"two", 0, []Session{mine, untold, idle}, 1000, 50, 280, 670, []uint32{7, 8}},
		{"limit", 500, []Session{untold}, 500, 0, 80, 420, []uint32{8}},
		{"beyond the limit", 100, []Session{mine}, 100, 0, 100, 0, []uint32{7}},
		{"limit above the device", 5000, []Session{untold}, 1000, 50, 80, 870, []uint32{8}},
	} {
		a := AnswerFor(r, Owner{Limit: c.limit, Sessions: c.sessions})
		d := &a.Devices[0]
		if d.MemoryTotal != c.total || d.MemoryReserved != c.reserved || d.MemoryUsed != c.used || d.MemoryFree != c.free {
			t.Errorf("%s: total %d, reserved %d, used %d, free %d", c.name, d.MemoryTotal, d.MemoryReserved, d.MemoryUsed, d.MemoryFree)
		}
		var listed []uint32
		for _, p := range a.Processes {
			if p.Device != 0 {
				t.Errorf("%s: process on device %d", c.name, p.Device)
			}
			listed = append(listed, p.Pid)
		}
		if !reflect.DeepEqual(listed, c.listed) {
			t.Errorf("%s: processes %v, want %v", c.name, listed, c.listed)
		}
	}
}

func TestEncode(t *testing.T) {
	r := read(t, newFake(2), all)
	a := AnswerFor(r, Owner{Sessions: []Session{{Worker: 4001, PID: 3, Name: "x"}}})
	got, err := DecodeAnswer(a.Encode())
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("%v\n%+v\n%+v", err, got, a)
	}
	many := &Answer{Processes: make([]Process, SnapshotProcesses+5), Driver: string(make([]byte, 500))}
	if got, err := DecodeAnswer(many.Encode()); err != nil || len(got.Processes) != SnapshotProcesses {
		t.Errorf("too many processes: %v", err)
	}
}

func FuzzDecodeAnswer(f *testing.F) {
	f.Add((&Answer{}).Encode())
	f.Add((&Answer{Driver: "x", Devices: []Device{Unknown()}, Processes: make([]Process, 1), Pairs: make([]Pair, 1), Links: make([]Link, 2)}).Encode())
	f.Add([]byte("CWNM"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAnswer(b)
		if err != nil {
			return
		}
		if n := len(a.Devices)*DeviceSize + len(a.Processes)*ProcessSize + len(a.Pairs)*PairSize + len(a.Links)*LinkSize + SnapshotSize; n != len(b) {
			t.Errorf("%d bytes decoded as %d", len(b), n)
		}
	})
}

func TestParseUUID(t *testing.T) {
	for _, s := range []string{"", "GPU-", "GPU-0", "MIG-c095689f-a602-4866-c19d-755f008bd021x", "GPU-c095689f-a602-4866-c19d-755f008bd0"} {
		if _, err := ParseUUID(s); err == nil {
			t.Errorf("%q is a UUID", s)
		}
	}
	if id, err := ParseUUID("GPU-c095689f-a602-4866-c19d-755f008bd021"); err != nil || id[0] != 0xc0 || id[15] != 0x21 {
		t.Errorf("%x, %v", id, err)
	}
}

func TestPlain(t *testing.T) {
	p := &Plain{Driver: "1", CUDA: 13000, Devices: []driver.DeviceSummary{
		{Name: "S", UUID: fakeUUID(0), TotalMem: 1 << 20, PCIBusID: "ca50:00:00.0", Compute: 90},
		{Name: "S", UUID: fakeUUID(1), TotalMem: 1 << 20, PCIBusID: "ca50:00:01.0", Compute: 90},
	}}
	r, err := p.Read()
	if err != nil || len(r.Devices) != 2 || len(r.Pairs) != 4 || len(r.Links) != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if d := &r.Devices[1]; d.PCIDomain != 0xca50 || d.PCIDevice != 1 || d.Major != 9 || d.Architecture != 9 || d.Minor != 0 || d.Power != Unknown32 {
		t.Errorf("%+v", d)
	}
	p.Devices[0].PCIBusID = "?"
	if _, err := p.Read(); err == nil {
		t.Error("a PCI address that is none was read")
	}
}

type fakeWorker struct {
	pid int
	use link.Use
	err error
}

func (w *fakeWorker) PID() int { return w.pid }

func (w *fakeWorker) Measure(context.Context) (link.Use, error) { return w.use, w.err }

func TestServer(t *testing.T) {
	r := read(t, newFake(1), all)
	w := &fakeWorker{pid: 1, use: link.Use{PID: 5, Program: "p", Devices: []link.DeviceUse{{UUID: r.Devices[0].UUID, Bytes: 30}}}}
	silent := &fakeWorker{pid: 2, err: errors.New("busy")}
	reads := 0
	d := &Server{
		Workers: func() []Worker { return []Worker{w, silent} },
		Machine: func(context.Context) (*Reading, error) {
			reads++
			return r, nil
		},
	}
	used := func() uint64 {
		t.Helper()
		b, err := d.Answer(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a, err := DecodeAnswer(b)
		if err != nil {
			t.Fatal(err)
		}
		return a.Devices[0].MemoryUsed
	}
	for range 10 {
		if n := used(); n != 30 {
			t.Errorf("%d bytes used", n)
		}
	}
	if reads > 2 {
		t.Errorf("the machine was read %d times within a moment", reads)
	}
	w.err = errors.New("busy") // it counts as it did last
	time.Sleep(fresh)
	if n := used(); n != 30 {
		t.Errorf("%d bytes used while the worker is busy", n)
	}
	d.Machine = func(context.Context) (*Reading, error) { return nil, errors.New("no GPU") }
	time.Sleep(fresh)
	if _, err := d.Answer(t.Context()); err == nil {
		t.Error("an answer without a machine")
	}
}

// TestMain is also the child of TestClient.
func TestMain(m *testing.M) {
	switch os.Getenv("INVENTORY_CHILD") {
	case "serves":
		s, err := OpenNVML(newFake(1), all)
		if err == nil {
			err = Serve(os.Stdin, os.Stdout, s)
		}
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case "hangs":
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "fails":
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func client(kind string) *Client {
	return &Client{Command: []string{"/proc/self/exe"}, Env: append(os.Environ(), "INVENTORY_CHILD="+kind), Idle: 50 * time.Millisecond}
}

func TestClient(t *testing.T) {
	c := client("serves")
	defer c.Close()
	for range 3 {
		r, err := c.Read(t.Context())
		if err != nil || len(r.Devices) != 1 || r.Used[0][4000] != 200 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if r, err := c.Read(t.Context()); err != nil || r.Devices[0].Temperature != Unknown32 {
		t.Error(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		gone := c.child == nil
		c.mu.Unlock()
		if gone {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the child stays although nobody asks")
		}
	}
	if _, err := c.Read(t.Context()); err != nil {
		t.Errorf("after a rest: %v", err)
	}
}

func TestClientFails(t *testing.T) {
	c := client("fails")
	defer c.Close()
	if _, err := c.Read(t.Context()); err == nil {
		t.Error("a child that failed answered")
	}
	c = client("hangs")
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := c.Read(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 5*time.Second {
		t.Errorf("a child that hangs: %v after %v", err, time.Since(start))
	}
}
