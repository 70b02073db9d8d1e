package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon"
	"causeway/host/daemon/daemontest"
	"causeway/host/daemon/peer"
)

// smallDisk is a folder with room for some pages.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=755")
	if errors.Is(err, unix.EPERM) {
		t.Skip("mounting is not allowed here")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestFullDisk: a request that cannot be written down fails, and nothing is half done.
func TestFullDisk(t *testing.T) {
	count := filepath.Join(t.TempDir(), "count")
	h := newHost(t, daemontest.Soft(1<<30)).env(daemontest.CountEnv, count)
	disk := smallDisk(t)
	h.cfg.RunDir, h.cfg.StateDir = disk, filepath.Join(disk, "state")
	h.start()
	junk := filepath.Join(disk, "junk")

	daemontest.Fill(junk)
	_, err := h.c.Ensure(t.Context(), one.Wish())
	refused(t, err, 507, "no space left", "nothing was changed")
	if _, err := os.Stat(count); err == nil || len(h.below()) > 0 {
		t.Errorf("something was started: %v, %v", err, h.below())
	}
	refused(t, h.c.Drain(t.Context(), "soft"), 507, "no space left")
	if gpus, err := h.c.GPUs(t.Context()); err != nil || gpus[0].Drained || gpus[0].Promised != 0 {
		t.Errorf("%+v, %v", gpus, err)
	}
	_ = os.Remove(junk)
	v := h.ensure(one)

	daemontest.Fill(junk)
	_, err = h.c.SetLimits(t.Context(), one.VM, one.Name, api.Limits{Cap: 50}.Change())
	refused(t, err, 507, "no space left")
	if now := h.vgpu(one); now.Spec.Cap != 0 || now.Status.Limits.Cap != 0 {
		t.Errorf("limits changed all the same: %+v", now)
	}
	// What is lost is known, though it cannot be written down, and going works without room.
	_ = syscall.Kill(v.PID, syscall.SIGKILL)
	until(t, "lost", func() bool { return h.vgpu(one).State == api.Lost })
	if err := h.c.Release(t.Context(), one.VM, one.Name, true); err != nil {
		t.Error(err)
	}
	_ = os.Remove(junk)
	h.stop()

	// The disk is full once the process has started: that is ended.
	h.env(daemontest.FillEnv, junk).start()
	_ = os.Remove(count)
	_, err = h.c.Ensure(t.Context(), one.Wish())
	refused(t, err, 507, "no space left")
	b, err := os.ReadFile(count)
	if pid := strings.TrimSpace(string(b)); err != nil || pid == "" {
		t.Errorf("nothing was started: %v", err)
	} else if _, err := os.Stat("/proc/" + pid); err == nil {
		t.Error("its process is left")
	}
	if len(h.below()) > 0 {
		t.Errorf("left: %v", h.below())
	}
}

// stopped: no thread of a process runs. kill(2) returns before that.
func stopped(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, f := range files {
		b, err := os.ReadFile(f) // a thread may have ended since
		if _, rest, _ := strings.Cut(string(b), ") "); err != nil || !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return len(files) > 0
}

// TestSilent: a device process that hangs holds nobody up who changes its limits or ends it: they
// are told, and how it is ended all the same. What it did not take is not noted.
func TestSilent(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30))
	h.obey = 100 * time.Millisecond
	v := h.start().ensure(one)
	if err := syscall.Kill(v.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "it has stopped", func() bool { return stopped(v.PID) })
	_, err := h.c.SetLimits(t.Context(), one.VM, one.Name, change(t, `{"sessions":7}`))
	refused(t, err, 409, "does not answer", "causeway delete --force "+v.Spec.Key())
	refused(t, h.c.Release(t.Context(), one.VM, one.Name, true), 409, "does not answer", "causeway delete --force "+v.Spec.Key())
	if now, err := h.c.VGPU(t.Context(), one.VM, one.Name); err != nil || now.Spec.Limits != v.Spec.Limits || now.State == api.Lost {
		t.Errorf("%+v, %v", now, err)
	}
	if err := h.c.Release(t.Context(), one.VM, one.Name, false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fmt.Sprint("/proc/", v.PID)); err == nil || len(h.below()) > 0 {
		t.Errorf("left: process %d, %v", v.PID, h.below())
	}
}

// TestDrain: a drained GPU gets no new vGPU, also after a restart; what runs there is not touched.
func TestDrain(t *testing.T) {
	h := newHost(t, daemontest.Real(2, "NVIDIA H200", 1<<30)).start()
	one := roomy
	v := h.ensure(one)
	if v.GPU != daemontest.UUID(0) {
		t.Fatalf("placed on %s", v.GPU)
	}
	if err := h.c.Drain(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	h.stop()
	h.start()
	if got := h.vgpu(one); got.PID != v.PID || got.State != api.Waiting {
		t.Errorf("%+v", got)
	}
	if got := h.ensure(api.Spec{VM: "vm2", Name: "gpu0"}); got.GPU != daemontest.UUID(1) {
		t.Errorf("placed on %s", got.GPU)
	}
	_, err := h.c.Ensure(t.Context(), api.Spec{VM: "vm3", Name: "gpu0", GPU: "0"}.Wish())
	refused(t, err, 409, "drained by", "gpus resume")
	if err := h.c.Resume(t.Context(), daemontest.UUID(0)); err != nil {
		t.Fatal(err)
	}
	h.ensure(api.Spec{VM: "vm3", Name: "gpu0", GPU: "0"})
}

// TestFaults: faults of a GPU drain it, faults of programs do not.
func TestFaults(t *testing.T) {
	h := newHost(t, daemontest.Real(3, "NVIDIA H200", 1<<30)).start()
	h.m.Change(func(r *daemon.Reading) {
		r.Faults = []daemon.Fault{
			{GPU: daemontest.UUID(0), XID: 79, Text: "XID 79"},
			{GPU: daemontest.UUID(1), XID: 31, Text: "XID 31"},
			{GPU: daemontest.UUID(2), Text: "2 more uncorrectable memory errors"},
		}
	})
	drained := func() (list []string) {
		gpus, err := h.c.GPUs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range gpus {
			if g.Drained {
				list = append(list, g.ID+" "+g.Why)
			}
		}
		return list
	}
	want := []string{daemontest.UUID(0) + " XID 79", daemontest.UUID(2) + " 2 more uncorrectable memory errors"}
	until(t, "drained", func() bool { return len(drained()) == 2 })
	if got := drained(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if v := h.ensure(roomy); v.GPU != daemontest.UUID(1) {
		t.Errorf("placed on %s", v.GPU)
	}
	h.stop()
	h.start()
	if got := drained(); !slices.Equal(got, want) {
		t.Errorf("after a restart: %v", got)
	}
	h.stop()
	h.cfg.Health.Drain = false
	h.start()
	h.m.Change(func(r *daemon.Reading) { r.Faults = []daemon.Fault{{GPU: daemontest.UUID(1), XID: 79}} })
	until(t, "reported", func() bool { return h.log.has("does not drain it") })
	if got := drained(); len(got) != 2 {
		t.Errorf("with health.drain = false: %v", got)
	}
}

// TestMissingDriver: a host that has GPUs of which the driver does not answer does not fall back to
// the software GPU.
func TestMissingDriver(t *testing.T) {
	m := daemontest.Soft(1 << 30)
	m.Change(func(r *daemon.Reading) { r.Missing = "the NVIDIA driver does not answer: timeout" })
	h := newHost(t, m).start()
	_, err := h.c.Ensure(t.Context(), one.Wish())
	refused(t, err, 503, "does not answer", "causeway doctor")
	soft := one
	soft.GPU = "soft"
	h.ensure(soft)
}

// TestHungDriver: a driver that does not answer any more holds nobody up for long.
func TestHungDriver(t *testing.T) {
	t.Parallel()
	h := newHost(t, daemontest.Real(1, "NVIDIA H200", 1<<30)).start()
	one := roomy
	h.ensure(one)
	h.m.Hang()
	time.Sleep(600 * time.Millisecond) // what is known is fresh so long
	begun := time.Now()
	if gpus, err := h.c.GPUs(t.Context()); err != nil || len(gpus) != 1 || gpus[0].Promised != one.Memory {
		t.Errorf("%+v, %v", gpus, err)
	}
	until(t, "vGPUs are listed, with their accounts", func() bool {
		list, err := h.c.VGPUs(t.Context())
		return err == nil && len(list) == 1 && list[0].Status != nil
	})
	if d := time.Since(begun); d > time.Minute {
		t.Errorf("it took %v", d)
	}
	h.stop()
}

// TestScheduler: started with causewayd, started again when it ends, found again by the next
// causewayd.
func TestScheduler(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30))
	h.cfg.Scheduler.Enabled = true
	pid := func() int {
		var r struct{ PID int }
		b, _ := os.ReadFile(filepath.Join(h.cfg.RunDir, "scheduler.json"))
		_ = json.Unmarshal(b, &r)
		return r.PID
	}
	h.start()
	until(t, "a scheduler", func() bool { return pid() > 0 })
	first := pid()
	h.stop()
	if !runs(first) {
		t.Fatal("it ended with causewayd")
	}
	h.start()
	until(t, "found again", func() bool { return h.log.has("scheduler found") })
	_ = syscall.Kill(first, syscall.SIGKILL)
	until(t, "another scheduler", func() bool { return pid() != first && runs(pid()) })
	if n := h.d.Counts(); n.SchedulerRestarts != 1 {
		t.Errorf("%+v", n)
	}
	h.stop()
	// It was not written down.
	second := pid()
	until(t, "it serves", func() bool {
		who, err := peer.Serving(filepath.Join(h.cfg.RunDir, "scheduler.sock"))
		return err == nil && who.PID == second
	})
	_ = os.Remove(filepath.Join(h.cfg.RunDir, "scheduler.json"))
	h.start()
	until(t, "taken as it is", func() bool { return h.log.has("did not start\" pid=" + itoa(second)) })
	h.stop()
	h.env(daemontest.FailEnv, "no such command").start()
	until(t, "up", func() bool { return h.d.Counts().SchedulerUp })
	_ = syscall.Kill(second, syscall.SIGKILL)
	until(t, "said", func() bool { return h.log.has("the scheduler is gone") })
	until(t, "not up", func() bool { return !h.d.Counts().SchedulerUp })
}

// TestSchedulerSilent: a scheduler that is stopped is not up until it goes on, and is not ended.
func TestSchedulerSilent(t *testing.T) {
	t.Parallel()
	h := newHost(t, daemontest.Soft(1<<30))
	h.cfg.Scheduler.Enabled = true
	h.start()
	pid := 0
	until(t, "a scheduler", func() bool {
		who, err := peer.Serving(filepath.Join(h.cfg.RunDir, "scheduler.sock"))
		pid = who.PID
		return err == nil && h.d.Counts().SchedulerUp
	})
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	until(t, "not up", func() bool { return !h.d.Counts().SchedulerUp })
	if !h.log.has("kill -CONT " + itoa(pid)) {
		t.Error("nothing is said of it")
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	until(t, "up again", func() bool { return h.d.Counts().SchedulerUp && h.log.has("answers again") })
	if n := h.d.Counts(); n.SchedulerRestarts != 0 || !runs(pid) {
		t.Errorf("%+v", n)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestLeaks: many vGPUs come and go; descriptors, goroutines and files are as before.
func TestLeaks(t *testing.T) {
	h := newHost(t, daemontest.Soft(1<<30)).start()
	cycle := func() {
		v := h.ensure(one)
		if err := h.c.Release(t.Context(), one.VM, one.Name, true); err != nil {
			t.Fatal(err)
		}
		if runs(v.PID) {
			t.Error("its process is left")
		}
	}
	cycle()
	h.c.Close()
	fds, routines := 0, 0
	until(t, "at rest", func() bool {
		again := descriptors(t) == fds && runtime.NumGoroutine() == routines
		fds, routines = descriptors(t), runtime.NumGoroutine()
		return again
	})
	for range 10 {
		cycle()
	}
	h.c.Close()
	until(t, "as before", func() bool { return descriptors(t) <= fds && runtime.NumGoroutine() <= routines })
	if left := h.below(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	h.stop()
	until(t, "all gone", func() bool { return runtime.NumGoroutine() < routines })
}

// TestHostileDevice: what a device process says that its guest has taken over is bounded.
func TestHostileDevice(t *testing.T) {
	h := newHost(t, daemontest.Real(1, "NVIDIA H200", 1<<30)).start()
	h.m.Change(func(r *daemon.Reading) { r.GPUs[0].Used = 1 << 28 })
	one := roomy
	free := api.Spec{VM: "vm1", Name: "gpu0"} // without a limit
	h.ensure(one)
	two := api.Spec{VM: "vm2", Name: "gpu0"}
	h.ensure(two)
	h.tell(free, api.Status{Memory: 1 << 63})
	h.tell(two, api.Status{Memory: 1 << 63})
	h.vgpu(free)
	h.vgpu(two)
	// A vGPU with a limit cannot claim others' use for itself; one without has at most all.
	if gpus, err := h.c.GPUs(t.Context()); err != nil || gpus[0].Promised != one.Memory+1<<30 {
		t.Errorf("%+v, %v", gpus, err)
	}
	h.tell(two, api.Status{Sessions: []api.Session{{Program: strings.Repeat("x", 5<<20)}}})
	if v, err := h.c.VGPU(t.Context(), two.VM, two.Name); err != nil || v.Status != nil || v.State != api.Waiting {
		t.Errorf("an account of 5 MiB was taken: %v", err)
	}
	until(t, "the other one's is", func() bool {
		list, err := h.c.VGPUs(t.Context())
		return err == nil && len(list) == 2 && list[0].Status != nil
	})
}
