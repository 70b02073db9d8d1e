package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestMemoryKill(t *testing.T) {
	const own = "6,712,5140900,-;"
	for record, want := range map[string]string{
		own + "Out of memory: Killed process 77 (causeway) total-vm:1kB, anon-rss:1kB\n SUBSYSTEM=x\n": "the host's",
		own + "Memory cgroup out of memory: Killed process 77 (a: b) total-vm:1kB\n":                   "its control group's",
		"3,712,5140900,-,caller=T1;Out of memory: Killed process 77 (x)\n":                             "the host's",
		own + "Out of memory: Killed process 770 (causeway)\n":                                         "",
		own + "oom_reaper: reaped process 77 (causeway)\n":                                             "",
		own + "tricky: Killed process 77 (x)\n":                                                        "",
		// In a key.
		own + "nothing\n Out of memory: Killed process 77 (x)\n": "",
		// Root wrote it.
		"14,712,5140900,-;Out of memory: Killed process 77 (x)\n": "",
		// Another of that id.
		"6,712,4999999,-;Out of memory: Killed process 77 (x)\n": "",
		"6,712;Out of memory: Killed process 77 (x)\n":           "",
		"x,712,5140900,-;Out of memory: Killed process 77 (x)\n": "",
		"": "",
	} {
		scope, ok := memoryKill(record, 77, 5*time.Second)
		if scope != want || ok != (want != "") {
			t.Errorf("%q: %q %v, want %q", record, scope, ok, want)
		}
	}
}

// FuzzMemoryKill: whatever stands in the log, only a record of that process counts.
func FuzzMemoryKill(f *testing.F) {
	f.Add("6,712,5140900,-;Out of memory: Killed process 77 (causeway) total-vm:1kB\n")
	f.Add("6,1,1,-;Memory cgroup out of memory: Killed process 77 (")
	f.Add(",,,;")
	f.Fuzz(func(t *testing.T, record string) {
		if scope, ok := memoryKill(record, 77, 0); ok != (scope != "") {
			t.Errorf("%q: %q %v", record, scope, ok)
		}
		if _, ok := memoryKill(record, 78, 0); ok {
			if _, both := memoryKill(record, 77, 0); both {
				t.Errorf("%q is of two processes", record)
			}
		}
	})
}

// TestKilledForMemory has the kernel kill a process that has a control group with too little
// memory.
func TestKilledForMemory(t *testing.T) {
	group := memoryGroup(t, 8<<20)
	begun := time.Now()
	p, _ := start(t, fmt.Sprintf("echo $$ > %s/cgroup.procs && exec tail /dev/zero", group))
	if why := wait(t, p); why != "signal 9 (killed) ended it" {
		t.Skipf("it was not killed: %s", why)
	}
	if _, err := os.Open("/dev/kmsg"); err != nil {
		t.Skip(err)
	}
	if !kernelsPIDs() {
		if scope, killed := KilledForMemory(p.PID(), begun); killed {
			t.Errorf("in a PID namespace the log's numbers are taken for this one's: %q", scope)
		}
		t.Skip("the kernel's log numbers processes otherwise")
	}
	if scope, killed := KilledForMemory(p.PID(), begun); !killed || scope != "its control group's" {
		t.Errorf("process %d: %q %v", p.PID(), scope, killed)
	}
	if _, killed := KilledForMemory(p.PID(), time.Now().Add(time.Minute)); killed {
		t.Error("an earlier process of that id counts")
	}
	if _, killed := KilledForMemory(os.Getpid(), begun); killed {
		t.Error("this process was killed")
	}
}

// memoryGroup makes a control group with a limit, of whichever version this host has.
func memoryGroup(t *testing.T, limit int) string {
	t.Helper()
	for parent, file := range map[string]string{"/sys/fs/cgroup": "memory.max", "/sys/fs/cgroup/memory": "memory.limit_in_bytes"} {
		dir := filepath.Join(parent, "causeway-test-"+strconv.Itoa(os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
		// Where there is none, this is no control group.
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		_, err = fmt.Fprint(f, limit)
		if errors.Join(err, f.Close()) == nil {
			return dir
		}
	}
	t.Skip("no control group for memory can be made here")
	return ""
}
