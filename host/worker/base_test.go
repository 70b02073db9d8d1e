package worker

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const baseEnv = "CAUSEWAY_TEST_BASE"

// TestSettledBase: in processes that the kernel lays out by chance, mappings begin where they are told to; in one whose mappings grow downwards that is
// an error.
func TestSettledBase(t *testing.T) {
	const upwards = 0x0200000 // ADDR_COMPAT_LAYOUT
	if os.Getenv(baseEnv) != "" {
		err := settleBase(0x345600000000)
		at, _ := reserve(1 << 30)
		fmt.Printf("base: %v %#x\n", err, at)
		return
	}
	run := func(layout uintptr) string {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestSettledBase$")
		cmd.Env = append(os.Environ(), baseEnv+"=1")
		var out []byte
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			now, _, _ := unix.RawSyscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
			if _, _, errno := unix.RawSyscall(unix.SYS_PERSONALITY, now&^upwards|layout, 0, 0); errno != 0 {
				done <- errno
				return
			}
			var err error
			out, err = cmd.CombinedOutput()
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return line
	}
	for range 3 {
		if got := run(upwards); !strings.HasPrefix(got, "base: <nil> 0x3456") {
			t.Errorf("upwards: %s", got)
		}
	}
	if got := run(0); !strings.Contains(got, "not at 0x345600000000") {
		t.Errorf("downwards: %s", got)
	}
}
