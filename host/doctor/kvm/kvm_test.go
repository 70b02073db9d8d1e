package kvm

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// TestLayouts: sizes of linux/kvm.h, which its requests carry too.
func TestLayouts(t *testing.T) {
	for name, c := range map[string][2]uintptr{
		"kvm_userspace_memory_region": {unsafe.Sizeof(memoryRegion{}), setUserMemoryRegion >> 16 & 0x3fff},
		"kvm_regs":                    {unsafe.Sizeof(regs{}), setRegs >> 16 & 0x3fff},
		"kvm_sregs":                   {unsafe.Sizeof(sregs{}), getSregs >> 16 & 0x3fff},
		"kvm_segment":                 {unsafe.Sizeof(segment{}), 24},
		"kvm_cpuid_entry2":            {unsafe.Sizeof(cpuid{}.entries[0]), 40},
		"kvm_msrs and an entry":       {unsafe.Sizeof(msr{}), 8 + 16},
	} {
		if c[0] != c[1] {
			t.Errorf("%s has %d bytes, want %d", name, c[0], c[1])
		}
	}
}

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		reason uint32
		port   uint16
		value  byte
		took   time.Duration
		want   error
	}{
		"well":           {exitIO, donePort, doneValue, time.Millisecond, nil},
		"slow":           {exitIO, donePort, doneValue, time.Second, ErrSlow},
		"another port":   {exitIO, 0x80, doneValue, 0, ErrStopped},
		"another value":  {exitIO, donePort, 0, 0, ErrStopped},
		"early":          {exitHLT, 0, 0, 0, ErrStopped},
		"triple fault":   {exitShutdown, 0, 0, 0, ErrStopped},
		"not entered":    {exitFailEntry, 0, 0, 0, ErrStopped},
		"internal error": {exitInternalError, 0, 0, 0, ErrStopped},
		"anything":       {99, 0, 0, 0, ErrStopped},
	} {
		if err := judge(c.reason, c.port, c.value, c.took); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestProbe compares the verdict with QEMU's: KVM works if, and only if, a guest's firmware gets a
// CPU under -cpu host and comes to its end.
func TestProbe(t *testing.T) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skip("no /dev/kvm")
	}
	files, threads := count(t, "/proc/self/fd"), count(t, "/proc/self/task")
	err := Probe(t.Context())
	t.Logf("verdict: %v", err)
	// A guest that was too slow is left to come to its end.
	after := count(t, "/proc/self/fd")
	for until := time.Now().Add(time.Minute); after > files+1 && time.Now().Before(until); after = count(t, "/proc/self/fd") {
		time.Sleep(10 * time.Millisecond)
	}
	if after > files+1 {
		t.Errorf("%d descriptors before, %d after", files, after)
	}
	if after := count(t, "/proc/self/task"); after > threads+2 {
		t.Errorf("%d threads before, %d after", threads, after)
	}
	qemu, missing := exec.LookPath("qemu-system-x86_64")
	if missing != nil {
		t.Skip("no QEMU to compare with")
	}
	cmd := exec.CommandContext(t.Context(), qemu, "-accel", "kvm", "-cpu", "host", "-m", "64M", "-nodefaults", "-display", "none", "-monitor", "stdio")
	cmd.Stdin = strings.NewReader("quit\n")
	said, failed := cmd.CombinedOutput()
	// QEMU alone starts no kernel: a slow KVM satisfies it.
	if failed != nil && err == nil {
		t.Errorf("the probe finds nothing, and QEMU fails: %v: %s", failed, said)
	}
	if failed == nil && errors.Is(err, ErrHost) {
		t.Errorf("the probe says %v, and QEMU starts: %s", err, said)
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
