package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"causeway/host/driver"
	"causeway/host/inventory"
)

// ask reads the state of the vGPU of a run whose folder for temporary files is in env.
func ask(t *testing.T, env []string) *inventory.Answer {
	t.Helper()
	dir := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "TMPDIR="); ok {
			dir = v
		}
	}
	paths, _ := filepath.Glob(filepath.Join(dir, "*", "nvml"))
	if len(paths) != 1 {
		t.Fatalf("sockets in %s: %v", dir, paths)
	}
	c, err := net.Dial("unix", paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	a, err := inventory.DecodeAnswer(b)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestNVML: a run tells of its limit and of its programs, before, while and after they use the GPU.
func TestNVML(t *testing.T) {
	cmd := causeway(t, "run", "--gpu", "soft", "--memory", "64MiB", "--lib", libFolder(t), "--", "/proc/self/exe", guestArg)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	if n, _ := out.Read(b); string(b[:n]) != "1 devices\n" {
		t.Fatalf("program says %q", b[:n])
	}
	a := ask(t, cmd.Env)
	if len(a.Devices) != 1 || len(a.Processes) != 1 || a.CUDA != softCUDA || a.Driver != softDriver {
		t.Fatalf("%+v", a)
	}
	if d := &a.Devices[0]; d.MemoryTotal != 64<<20 || d.MemoryUsed != 4096 || d.MemoryFree != 64<<20-4096 {
		t.Errorf("memory: %d, used %d, free %d", d.MemoryTotal, d.MemoryUsed, d.MemoryFree)
	}
	p := &a.Processes[0]
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.Pid))
	if own, _ := os.Executable(); err != nil || exe != own {
		t.Errorf("process %d runs %s (%v)", p.Pid, exe, err)
	}
	if p.Used != 4096 || string(p.Name[:5]) != "test\x00" {
		t.Errorf("%+v", p)
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	empty(t, cmd)
}

func TestByUUID(t *testing.T) {
	ids := []inventory.Identity{{UUID: "GPU-a"}, {UUID: "GPU-b"}, {UUID: "GPU-c"}}
	order, err := byUUID(ids, []driver.DeviceSummary{{UUID: "GPU-c"}, {UUID: "GPU-A"}})
	if err != nil || len(order) != 2 || order[0] != 2 || order[1] != 0 {
		t.Errorf("%v, %v", order, err)
	}
	if _, err := byUUID(ids, []driver.DeviceSummary{{UUID: "MIG-1"}}); err == nil {
		t.Error("a GPU that NVML does not show was found")
	}
}

// TestSameOrder: CUDA is asked for its order only where it may be another than NVML's.
func TestSameOrder(t *testing.T) {
	alike := []inventory.Identity{{Name: "H"}, {Name: "H"}}
	mixed := []inventory.Identity{{Name: "H"}, {Name: "L"}}
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"} {
		t.Setenv(name, "") // restored after the test
		_ = os.Unsetenv(name)
	}
	if !sameOrder(alike) || sameOrder(mixed) {
		t.Error("without an environment")
	}
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	if !sameOrder(mixed) {
		t.Error("in PCI order")
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	if sameOrder(alike) {
		t.Error("with devices hidden")
	}
}

// TestFarNVML: programs of a container are told of a GPU server's GPU what the lease says, by a
// socket as for one of this host; a VM has a file for it.
func TestFarNVML(t *testing.T) {
	f := &deviceFlags{programs: true, socket: filepath.Join(t.TempDir(), "session")}
	ln, err := f.listenNVML()
	if err != nil || ln == nil {
		t.Fatalf("%v %v", ln, err)
	}
	defer ln.Close()
	r, err := farMachine(&gpuLine{Backend: remoteBackend, Name: "NVIDIA H200", UUID: "GPU-00000000-0000-0000-0000-000000000001", Memory: 8 << 30, Driver: "580.95.05"})(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := inventory.AnswerFor(r, inventory.Owner{Limit: 1 << 30, Used: 1 << 20})
	if a.Driver != "580.95.05" || len(a.Devices) != 1 || a.Devices[0].MemoryTotal != 1<<30 || a.Devices[0].MemoryUsed != 1<<20 || a.Devices[0].Temperature != inventory.Unknown32 {
		t.Errorf("%+v", a)
	}
	if ln, err := (&deviceFlags{socket: f.socket}).listenNVML(); ln != nil || err != nil {
		t.Errorf("%v %v", ln, err)
	}
}
