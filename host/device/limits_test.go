package device_test

import (
	gocontext "context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/api"
	"causeway/host/device"
	"causeway/host/inventory"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/worker/workertest"
	"causeway/remote"
)

// alloc is a MemAlloc that is expected to end so.
func alloc(t *testing.T, g *workertest.Guest, size uint64, want cuda.Result) uint64 {
	t.Helper()
	var m wire.MemAllocReply
	if res, err := g.Call(0, &wire.MemAllocArgs{Size: size}, &m); err != nil || res != want {
		t.Fatalf("%d bytes: %v, %v, want %v", size, res, err, want)
	}
	return m.Ptr
}

func free(t *testing.T, g *workertest.Guest) uint64 {
	t.Helper()
	var r wire.MemGetInfoReply
	must(t, g, &wire.MemGetInfoArgs{}, &r)
	return r.Free
}

// eventually waits for what takes a moment.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(hangs); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(late) {
			standsStill(t, what)
		}
	}
}

// await is eventually for what comes from a channel, or for its end.
func await[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(hangs):
		standsStill(t, what)
	}
	return v
}

// standsStill ends a test with what all goroutines of this process and of its workers are at.
func standsStill(t *testing.T, what string) {
	t.Helper()
	b := make([]byte, 8<<20)
	t.Logf("%s", b[:runtime.Stack(b, true)])
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				t.Logf("process %d says where it is: %v", pid, unix.Kill(pid, unix.SIGQUIT))
			}
		}
	}
	time.Sleep(time.Second) // for what they write
	t.Fatal(what)
}

// hangs is after how long nothing comes any more, however crowded the machine: more than any part
// of a move may take, and far less than the package's tests may.
const hangs = 150 * time.Second

// TestOneLimit: the sessions of a virtual GPU share its limit, which may change; a session that
// dies gives back what it had, and one that moves keeps it.
func TestOneLimit(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Limits.Memory = 100 << 20 })
	pa, a := start(t, v)
	_, b := start(t, v)
	alloc(t, a, 60<<20, cuda.Success)
	alloc(t, b, 41<<20, cuda.ErrorOutOfMemory)
	if n := free(t, b); n != 40<<20 {
		t.Errorf("%d bytes free after another session's 60 MiB", n)
	}
	ptr := alloc(t, b, 40<<20, cuda.Success)
	alloc(t, a, 1, cuda.ErrorOutOfMemory)
	if n, err := v.device.Rebuild(context()); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if st := v.device.Status(); st.Memory != 100<<20 || len(st.Sessions) != 2 || st.Sessions[0].Memory != 60<<20 || st.Sessions[1].Memory != 40<<20 {
		t.Errorf("after both moved: %+v", st)
	}
	alloc(t, a, 1, cuda.ErrorOutOfMemory)
	if _, err := v.device.SetLimits(api.Limits{Memory: 50 << 20}.All()); err != nil {
		t.Fatal(err)
	}
	must(t, b, &wire.MemFreeArgs{Ptr: ptr}, nil)
	alloc(t, b, 1, cuda.ErrorOutOfMemory) // 60 of 50 MiB
	if n := free(t, b); n != 0 {
		t.Errorf("%d bytes free beyond the limit", n)
	}
	pid := v.device.Status().Sessions[0].Worker
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a killed worker's memory does not come back", func() bool { return v.device.Status().Memory == 0 })
	alloc(t, b, 50<<20, cuda.Success)
	st := v.device.Status()
	if c := st.Past; c.MemoryPeak != 60<<20 || c.OutOfMemory != 2 || c.Calls == 0 || c.WorkerNanos == 0 {
		t.Errorf("past: %+v", c)
	}
	pa.halt()
	_ = pa.file.Close()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "sessions stay", func() bool { return len(v.device.Status().Sessions) == 0 })
	if st := v.device.Status(); st.Memory != 0 || st.Opened != 2 || st.Refused != 0 {
		t.Errorf("%+v", st)
	}
}

// TestMeter: what a session does is counted, with a guest that says who it is.
func TestMeter(t *testing.T) {
	v := boot(t)
	_, g := start(t, v)
	ptr := alloc(t, g, 1<<20, cuda.Success)
	id, _, res, err := g.AddRegion(0, wire.RegionStaging, 1<<20)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	for _, a := range []wire.Args{
		&wire.MemcpyHtoDArgs{Dst: ptr, Src: make([]byte, 100)},
		&wire.MemcpyStagedArgs{Region: id, Size: 1 << 20, Device: ptr, Word: 1, Value: 1},
		&wire.MemcpyStagedArgs{Direction: 1, Region: id, Size: 4096, Device: ptr, Word: 2, Value: 1},
		&wire.MemcpyHtoDArgs{Dst: 1, Src: make([]byte, 100)}, // fails
	} {
		if err := g.Send(a); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = g.Call(0, &wire.CtxSynchronizeArgs{}, nil) // tells of the failure
	must(t, g, &wire.MemcpyDtoHArgs{Src: ptr, Size: 7}, &wire.MemcpyDtoHReply{})
	s := v.device.Status().Sessions[0]
	c := s.Counters
	if c.BytesIn != 100+1<<20 || c.BytesOut != 4096+7 || c.FailedCalls != 1 || c.Calls < 8 || c.MemoryPeak != 1<<20 || s.State != "running" {
		t.Errorf("%+v", s)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// TestMembership: sessions have a place at the scheduler, from the start or from the first limit on
// that needs one, also after they moved.
func TestMembership(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	v := bootWith(t, func(o *device.Options) {
		o.Scheduler = func(l api.Limits) (*schedule.Membership, error) {
			if l.Cap == 0 {
				return nil, nil
			}
			return schedule.Alone(schedule.Member{GPU: "GPU-1", Key: "vm/gpu0", Weight: l.Share, Cap: l.Cap}, log), nil
		}
	})
	_, early := start(t, v)
	half, none := limit.Cap(50), limit.Cap(0)
	if _, err := v.device.SetLimits(api.Change{Cap: &half}); !errors.Is(err, device.ErrUnheld) || v.device.Limits().Cap != 0 {
		t.Errorf("a cap that would not hold a program that runs: %v, %+v", err, v.device.Limits())
	}
	if err := early.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "it runs on", func() bool { return len(v.device.Status().Sessions) == 0 })
	other := limit.Share(50)
	if _, err := v.device.SetLimits(api.Change{Share: &other}); !errors.Is(err, device.ErrUnheld) {
		t.Errorf("a share without a scheduler: %v", err)
	}
	if now, err := v.device.SetLimits(api.Change{Cap: &half}); err != nil || now.Cap != 50 {
		t.Fatal(now, err)
	}
	_, a := start(t, v)
	_, b := start(t, v)
	work := func(g *workertest.Guest) {
		t.Helper()
		ptr := alloc(t, g, 4096, cuda.Success)
		for range 50 {
			if err := g.Send(&wire.MemcpyHtoDArgs{Dst: ptr, Src: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		must(t, g, &wire.CtxSynchronizeArgs{}, nil)
	}
	work(a)
	work(b)
	if n, err := v.device.Rebuild(context()); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	work(b)
	if st := v.device.Status(); st.Sessions[1].Counters.BytesIn != 100 || st.Unheld != "" {
		t.Errorf("%+v", st)
	}
	if _, err := v.device.SetLimits(api.Change{Cap: &none}); err != nil {
		t.Fatal(err)
	}
	work(b)
	for _, g := range []*workertest.Guest{a, b} {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// refusal is what a session's Hello is answered, and the text that explains it.
func refusal(t *testing.T, v *vm, pid uint32) (text string, errno error) {
	t.Helper()
	p, _, err := v.exec(pid)
	if err == nil {
		t.Fatal("the session was let in")
	}
	c, e := p.file.Read(0, int64(remote.FileError), v.Pages(1))
	if e != nil {
		t.Fatal(e)
	}
	b, _, e := c.Wait(time.Minute)
	if e != nil {
		t.Fatal(e)
	}
	if e := p.file.Close(); e != nil {
		t.Error(e)
	}
	return string(b), err
}

// TestTooManySessions: one more than may be is refused, and says why; another's end makes room.
func TestTooManySessions(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Limits.Sessions = 2 })
	_, a := start(t, v)
	_, b := start(t, v)
	text, err := refusal(t, v, 7)
	if !errors.Is(err, syscall.EUSERS) || !strings.Contains(text, "as many CUDA processes as it may: 2") {
		t.Errorf("%v: %q", err, text)
	}
	must(t, b, &wire.CtxSynchronizeArgs{}, nil) // others are unaffected
	if st := v.device.Status(); st.Refused != 1 || len(st.Sessions) != 2 {
		t.Errorf("%+v", st)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "no room after a session's end", func() bool { return len(v.device.Status().Sessions) < 2 })
	_, c := start(t, v)
	for _, g := range []*workertest.Guest{b, c} {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFlood: a guest that opens files and sessions as fast as it can gets what the limit allows;
// the device stays small, and a session that runs does not notice.
func TestFlood(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Limits.Sessions = 4 })
	_, g := start(t, v)
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 60 {
				f, err := v.Open(syscall.O_RDWR, caller(99), "session")
				if err != nil {
					continue
				}
				p := &process{vm: v, file: f}
				if i%2 == 0 {
					_ = p.control(remote.Hello{Type: remote.MsgHello, Va: 0x7f0000000000, Size: remote.Region0Size})
				}
				_ = f.Close()
			}
		})
	}
	worst := time.Duration(0)
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	for flooding := true; flooding; {
		select {
		case <-done:
			flooding = false
		default:
		}
		begin := time.Now()
		must(t, g, &wire.CtxSynchronizeArgs{}, nil)
		worst = max(worst, time.Since(begin))
		time.Sleep(time.Millisecond) // the flood wants the processor
	}
	t.Logf("slowest call: %v; %+v", worst, v.device.Status().Refused)
	if worst > 20*time.Second { // the flood lasts as long on a crowded machine
		t.Errorf("a call took %v", worst)
	}
	eventually(t, "sessions stay", func() bool { return len(v.device.Status().Sessions) == 1 && runtime.NumGoroutine() < before+20 })
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// files counts this process's descriptors by what they are, for messages.
func files(t *testing.T) (n int, kinds map[string]int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	kinds = map[string]int{}
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			n++
			kinds[strings.TrimRight(to, "[]0123456789")]++
		}
	}
	return n, kinds
}

// TestStartsLeakNothing: after many sessions of several VMs, ended in every way, there are as many
// descriptors, goroutines and processes as after a few.
func TestStartsLeakNothing(t *testing.T) {
	v := bootWith(t, func(o *device.Options) { o.Limits.Memory = 64 << 20 })
	cycle := func(i int) {
		if i%12 == 11 { // another VM, after one that was killed: the fake one's memory is small
			if err := v.Kill(); err != nil {
				t.Fatal(err)
			}
			v.connect()
		}
		p, g, err := v.exec(uint32(i + 1))
		if err != nil {
			t.Fatal(i, err)
		}
		alloc(t, g, 40<<20, cuda.Success) // two at once would not fit
		switch i % 3 {
		case 0:
			err = g.Close()
		case 1: // its worker is killed
			_ = unix.Kill(v.device.Status().Sessions[0].Worker, unix.SIGKILL)
			p.halt()
			err = p.file.Close()
		case 2: // it is killed itself
			p.halt()
			err = p.file.Close()
		}
		_ = p.mem.Close()
		if err != nil {
			t.Fatal(i, err)
		}
		eventually(t, fmt.Sprintf("session %d stays", i), func() bool {
			st := v.device.Status()
			return len(st.Sessions) == 0 && st.Memory == 0
		})
	}
	rounds := 120
	if testing.Short() {
		rounds = 30
	}
	for i := range 12 {
		cycle(i)
	}
	goroutines := runtime.NumGoroutine()
	before, _ := files(t)
	for i := range rounds {
		cycle(i)
	}
	noChildren(t)
	eventually(t, "goroutines stay", func() bool { return runtime.NumGoroutine() <= goroutines+3 })
	if after, kinds := files(t); after > before+3 {
		t.Errorf("%d descriptors before, %d after: %v", before, after, kinds)
	}
	if st := v.device.Status(); st.Opened != uint64(rounds+12) || st.Past.Calls == 0 {
		t.Errorf("%+v", st)
	}
}

// TestAudit: what the driver says of a worker counts beside what it booked, and a worker that uses
// what it did not ask for is ended.
func TestAudit(t *testing.T) {
	var mu sync.Mutex
	used, total := map[int]uint64{}, time.Duration(0)
	set := func(pid int, n uint64) {
		mu.Lock()
		used[pid] = n
		mu.Unlock()
	}
	v := bootWith(t, func(o *device.Options) {
		o.Limits.Memory, o.Audit = 1<<30, 20*time.Millisecond
		o.Machine = func(gocontext.Context) (*inventory.Reading, error) {
			mu.Lock()
			defer mu.Unlock()
			m, worked := map[int]uint64{}, map[int]time.Duration{}
			total += 10 * time.Millisecond
			for pid, n := range used {
				m[pid], worked[pid] = n, total
			}
			return &inventory.Reading{Used: []map[int]uint64{m}, Worked: []map[int]time.Duration{worked}, Sampled: []bool{true}}, nil
		}
	})
	_, honest := start(t, v)
	_, liar := start(t, v)
	alloc(t, honest, 100<<20, cuda.Success)
	st := v.device.Status()
	h, l := st.Sessions[0].Worker, st.Sessions[1].Worker
	set(h, 400<<20) // a context of 300 MiB
	set(l, 300<<20)
	eventually(t, "contexts do not count", func() bool { return v.device.Status().Memory == 700<<20 })
	alloc(t, honest, 325<<20, cuda.ErrorOutOfMemory)
	alloc(t, honest, 324<<20, cuda.Success)
	set(h, 724<<20)
	eventually(t, "no GPU time", func() bool { return v.device.Status().Sessions[0].Counters.BusyNanos > 0 })
	// Beyond a limit that was lowered is no crime.
	if _, err := v.device.SetLimits(api.Limits{Memory: 512 << 20}.All()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(150 * time.Millisecond)
	must(t, liar, &wire.CtxSynchronizeArgs{}, nil)
	if _, err := v.device.SetLimits(api.Limits{Memory: 1 << 30}.All()); err != nil {
		t.Fatal(err)
	}
	set(l, 2<<30)
	eventually(t, "a worker that takes what it did not ask for goes on", func() bool {
		_, err := liar.Call(1, &wire.CtxSynchronizeArgs{}, nil)
		return err != nil
	})
	must(t, honest, &wire.CtxSynchronizeArgs{}, nil)
	if err := honest.Close(); err != nil {
		t.Error(err)
	}
}

// TestForger: a guest whose words say that it uses no GPU time, while the driver says that it uses
// all, is charged by the driver's account.
func TestForger(t *testing.T) {
	v, _ := forger(t, true)
	eventually(t, "not charged", func() bool {
		c := v.device.Status().Card
		return c.Known && c.Charged > 0 && c.Nanos >= c.Charged
	})
}

// TestForgerUnseen: where the driver does not tell of processes nothing is known, and nothing
// charged.
func TestForgerUnseen(t *testing.T) {
	v, audits := forger(t, false)
	eventually(t, "no audits", func() bool { return audits.Load() > 30 })
	if c := v.device.Status().Card; c != (api.Card{}) {
		t.Errorf("of a driver that tells nothing: %+v", c)
	}
}

// forger is a virtual GPU with a cap whose one session counts nothing, on a GPU whose driver, if it
// tells, says that it works for that all the time.
func forger(t *testing.T, tells bool) (v *vm, audits *atomic.Int32) {
	began := time.Now()
	audits = new(atomic.Int32)
	var worker atomic.Int64
	v = bootWith(t, func(o *device.Options) {
		o.Limits.Cap, o.Audit = 20, 20*time.Millisecond
		o.Scheduler = func(l api.Limits) (*schedule.Membership, error) {
			return schedule.Alone(schedule.Member{GPU: "GPU-1", Key: "vm/gpu0", Weight: l.Share, Cap: l.Cap}, slog.New(slog.DiscardHandler)), nil
		}
		o.Machine = func(gocontext.Context) (*inventory.Reading, error) {
			audits.Add(1)
			worked := map[int]time.Duration{int(worker.Load()): time.Since(began)}
			return &inventory.Reading{Worked: []map[int]time.Duration{worked}, Sampled: []bool{tells}}, nil
		}
	})
	start(t, v)
	worker.Store(int64(v.device.Status().Sessions[0].Worker))
	return v, audits
}
