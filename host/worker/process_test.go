package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/soft"
	"causeway/host/driver/soft/softtest"
	"causeway/host/sandbox"
	"causeway/host/worker"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/host/worker/workertest"
	"causeway/remote/remotetest"
)

// workerEnv makes this test binary a worker process; with collectEnv it collects garbage once it
// has its log.
const (
	workerEnv  = "CAUSEWAY_TEST_WORKER"
	collectEnv = "CAUSEWAY_TEST_COLLECT"
)

func TestMain(m *testing.M) {
	switch os.Getenv(workerEnv) {
	case "":
		os.Exit(m.Run())
	case "pong":
		if err := workertest.Pong(); err != nil {
			fmt.Fprintln(os.Stderr, "pong:", err)
			os.Exit(1)
		}
		os.Exit(0)
	case "gone": // once it is told what it shall be
		_, _ = unix.Poll([]unix.PollFd{{Fd: spawn.LinkFD, Events: unix.POLLIN}}, -1)
		os.Exit(3)
	}
	p := &worker.Process{
		Backend: func(name string) (driver.Backend, error) {
			switch name {
			case "test":
				return &warmBackend{}, nil
			case softGPU:
				return soft.New(), nil
			case softtest.DifferentGPU:
				return softtest.Different{}, nil
			}
			return nil, fmt.Errorf("no GPU named %s", name)
		},
		Resume: os.Getenv(worker.ResumeEnv),
		Logger: func(l slog.Level) *slog.Logger {
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
			// As the program does: nothing of the libraries' holds os.Stderr then.
			slog.SetDefault(log)
			if os.Getenv(collectEnv) != "" && !stderrStays() {
				fmt.Fprintln(os.Stderr, "test worker: 2 is not the descriptor that it was")
				os.Exit(1)
			}
			return log
		},
	}
	if err := p.Main(context.Background(), spawn.LinkFD); err != nil {
		fmt.Fprintln(os.Stderr, "test worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// stderrStays collects garbage and reports whether descriptor 2 is still what os.Stderr writes to.
func stderrStays() bool {
	for range 2 { // the second time's finalizer runs behind all of the first's
		ran := make(chan struct{})
		runtime.SetFinalizer(&[16]byte{}, func(*[16]byte) { close(ran) })
		runtime.GC()
		<-ran
	}
	var is, was unix.Stat_t
	return unix.Fstat(2, &is) == nil && unix.Fstat(int(os.Stderr.Fd()), &was) == nil && is.Ino == was.Ino && is.Dev == was.Dev
}

// TestStderrStays: a worker's standard error is its own until a backend takes it, whatever is
// collected meanwhile.
func TestStderrStays(t *testing.T) {
	t.Setenv(collectEnv, "1")
	p, g, err := startProcess(t, unixConfig)
	if err == nil {
		_, err = g.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = g.Close()
	awaitEnd(t, p)
}

// TestCarrierErrorIsSaid: a session that ends because its guest broke the carrier's rules says so,
// unlike one that ends.
func TestCarrierErrorIsSaid(t *testing.T) {
	p, g, err := startProcess(t, unixConfig)
	if err == nil {
		_, err = g.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	id, _, res, err := g.AddRegion(0, wire.RegionStaging, 1<<16)
	if err == nil && res == cuda.Success {
		err = g.EndRegion(id) // in use
	}
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("the session goes on")
	}
	if p.Err() == nil {
		t.Error("the worker says nothing of a region that ended while it was in use")
	}
	_ = g.Close()
	_ = p.Close()
}

func spawner() *spawn.Spawner {
	return &spawn.Spawner{Command: []string{"/proc/self/exe"}, Env: append(os.Environ(), workerEnv+"=1")}
}

var unixConfig = link.Config{Carrier: link.CarrierUnix, GPU: "test", LogLevel: "WARN"}

// startProcess starts a worker process and a guest.
func startProcess(t testing.TB, cfg link.Config) (*spawn.Process, *workertest.Guest, error) {
	t.Helper()
	gc, host, err := remotetest.PairFile()
	if err != nil {
		t.Fatal(err)
	}
	p, err := spawner().Start(cfg, nil, int(host.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	_ = host.Close()
	g, err := workertest.Connect(gc)
	return p, g, err
}

func awaitEnd(t testing.TB, p *spawn.Process) {
	t.Helper()
	select {
	case <-p.Done():
		if err := p.Err(); err != nil {
			t.Error(err)
		}
		_ = p.Close()
	case <-time.After(time.Minute):
		t.Error("worker process goes on without a guest")
		p.Kill()
	}
}

func call(t testing.TB, g *workertest.Guest, want cuda.Result, a wire.Args, r wire.Reply) {
	t.Helper()
	if res, err := g.Call(0, a, r); err != nil || res != want {
		t.Fatalf("%v: %v, %v, want %v", a.Op(), res, err, want)
	}
}

// TestRebuild moves a session to fresh processes, twice, in the middle of everything.
func TestRebuild(t *testing.T) {
	old, g, err := startProcess(t, unixConfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	var keep, gone wire.MemAllocReply
	call(t, g, cuda.Success, &wire.PrimaryCtxRetainArgs{Ctx: 16}, nil)
	g.Ctx = 16
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 3 << 20}, &gone)
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 3 << 20}, &keep)
	image := bytes.Repeat([]byte("image"), 50_000)
	call(t, g, cuda.Success, &wire.ModuleLoadArgs{Module: 17, Image: image}, nil)
	call(t, g, cuda.Success, &wire.ModuleLoadArgs{Module: 18, Image: image}, nil)
	for _, a := range []wire.Args{
		&wire.MemcpyHtoDArgs{Dst: keep.Ptr + 5, Src: []byte("survives")},
		&wire.MemFreeArgs{Ptr: gone.Ptr},
		&wire.StreamCreateArgs{Stream: 20}, &wire.StreamCreateArgs{Stream: 21}, &wire.StreamDestroyArgs{Stream: 20},
		&wire.MemFreeArgs{Ptr: 1}, // a deferred error
		&wire.LaunchArgs{Func: 9, Params: []byte("console text")},
	} {
		if err := g.Send(a); err != nil {
			t.Fatal(err)
		}
	}
	region, mem, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		next, err := spawner().Rebuild(ctx, old, unixConfig)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		awaitEnd(t, old)
		old = next
	}
	// The deferred error came along.
	call(t, g, cuda.ErrorInvalidValue, &wire.CtxSynchronizeArgs{}, nil)
	var r wire.MemcpyDtoHReply
	call(t, g, cuda.Success, &wire.MemcpyDtoHArgs{Src: keep.Ptr + 5, Size: 8}, &r)
	if string(r.Dst) != "survives" {
		t.Errorf("memory holds %q", r.Dst)
	}
	var text wire.ConsoleReadReply
	call(t, g, cuda.Success, &wire.ConsoleReadArgs{}, &text)
	if string(text.Text) != "console text" {
		t.Errorf("console holds %q", text.Text)
	}
	call(t, g, cuda.ErrorInvalidValue, &wire.MemcpyDtoHArgs{Src: gone.Ptr, Size: 8}, nil)
	for _, a := range []wire.Args{
		&wire.StreamDestroyArgs{Stream: 21},
		&wire.MemcpyStagedArgs{Direction: 1, Region: region, Size: 13, Device: keep.Ptr, Word: 3, Value: 4},
	} {
		if err := g.Send(a); err != nil {
			t.Fatal(err)
		}
	}
	call(t, g, cuda.Success, &wire.CtxSynchronizeArgs{}, nil)
	if string(mem[5:13]) != "survives" || g.Word(3) != 4 {
		t.Errorf("staging holds %q, word %d", mem[:13], g.Word(3))
	}
	// A region declared after the move reaches the new process.
	if _, _, res, err := g.AddRegion(0, wire.RegionPinned, 1<<20); err != nil || res != cuda.Success {
		t.Error(res, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, old)
}

// TestOOMScore: when memory runs out the kernel ends workers before the process that started them.
func TestOOMScore(t *testing.T) {
	score := func(pid int) (n int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(string(b), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	p, g, err := startProcess(t, unixConfig)
	if err != nil {
		t.Fatal(err)
	}
	if own, its := score(os.Getpid()), score(p.PID()); its < sandbox.WorkerOOM || own >= its {
		t.Errorf("the worker has %d, this process %d", its, own)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, p)
}

// TestRebuildFails: the successor has no such GPU; the session goes on where it was.
func TestRebuildFails(t *testing.T) {
	p, g, err := startProcess(t, unixConfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	var m wire.MemAllocReply
	call(t, g, cuda.Success, &wire.MemAllocArgs{Size: 4096}, &m)
	bad := unixConfig
	bad.GPU = "other"
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := spawner().Rebuild(ctx, p, bad); err == nil {
		t.Fatal("moved to a GPU that does not exist")
	}
	gone := &spawn.Spawner{Command: []string{"/proc/self/exe"}, Env: append(os.Environ(), workerEnv+"=gone")}
	if _, err := gone.Rebuild(ctx, p, unixConfig); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a successor that ends at once: %v", err)
	}
	call(t, g, cuda.Success, &wire.MemFreeArgs{Ptr: m.Ptr}, nil)
	if _, _, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20); err != nil || res != cuda.Success {
		t.Error(res, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	awaitEnd(t, p)
}

// TestNoBackend: the guest is told why.
func TestNoBackend(t *testing.T) {
	cfg := unixConfig
	cfg.GPU = "other"
	p, _, err := startProcess(t, cfg)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("no GPU named other")) {
		t.Errorf("guest hears %v", err)
	}
	_ = ended(t, p)
}

// TestWorkerKilled: a guest whose worker is killed notices.
func TestWorkerKilled(t *testing.T) {
	p, g, err := startProcess(t, unixConfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Init(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(p.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.Gone():
	case <-time.After(time.Minute):
		t.Error("guest does not notice")
	}
	_ = ended(t, p)
	_ = g.Close()
}
