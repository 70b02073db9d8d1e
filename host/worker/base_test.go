package worker

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

const baseEnv = "CAUSEWAY_TEST_BASE"

// TestSettledBase: in processes that the kernel lays out by chance, mappings begin where they are
// told to; in one whose mappings grow downwards that is an error.
func TestSettledBase(t *testing.T) {
	const upwards = 0x0200000 // ADDR_COMPAT_LAYOUT
	if os.Getenv(baseEnv) != "" {
		err := settleBase(0x345600000000)
		s, _ := sys.Reserve(1 << 30)
		fmt.Printf("base: %v %#x\n", err, s.At)
		return
	}
	for range 3 {
		if got := laidOut(t, upwards, baseEnv); got != "base: <nil> 0x345610000000" {
			t.Errorf("upwards: %s", got)
		}
	}
	if got := laidOut(t, 0, baseEnv); !strings.Contains(got, "not at 0x345600000000") {
		t.Errorf("downwards: %s", got)
	}
}

// TestBaseLimited: a process that may not have all addresses, or little more memory than it has,
// goes on.
func TestBaseLimited(t *testing.T) {
	if os.Getenv(addressesEnv) != "" || os.Getenv(dataEnv) != "" {
		which, field, more := unix.RLIMIT_AS, "VmSize", uint64(1<<30)
		if os.Getenv(dataEnv) != "" {
			which, field, more = unix.RLIMIT_DATA, "VmData", heapMore-1<<20
		}
		limit := unix.Rlimit{Cur: ownMemory(field) + more, Max: unix.RLIM_INFINITY}
		if err := unix.Setrlimit(which, &limit); err != nil {
			fmt.Println(err)
		}
		err := settleBase(0x345600000000)
		grown = append(grown, make([]byte, 32<<20))
		fmt.Println("base:", err)
		return
	}
	const upwards = 0x0200000
	if got := laidOut(t, upwards, addressesEnv); !strings.Contains(got, "RLIMIT_AS") {
		t.Errorf("with few addresses: %s", got)
	}
	if got := laidOut(t, upwards, dataEnv); got != "base: <nil>" {
		t.Errorf("with little memory: %s", got)
	}
}

// TestBaseCharge: of what a base takes only the heap's is charged where no more memory is promised
// than there is (vm.overcommit_memory=2): what nobody can write is not.
func TestBaseCharge(t *testing.T) {
	if os.Getenv(chargeEnv) != "" {
		before := charged()
		err := settleBase(0x345600000000)
		fmt.Printf("base: %v, %d MiB\n", err, (charged()-before)>>20)
		return
	}
	const stacks = 40 // of threads that the runtime may start meanwhile, 8 each
	least := 1 << 30
	for range 8 {
		// Where the heap begins among what a base takes, what is left of its arena is charged as
		// well.
		var mib int
		got := laidOut(t, 0x0200000, chargeEnv)
		if _, err := fmt.Sscanf(got, "base: <nil>, %d MiB", &mib); err != nil {
			t.Fatal(got)
		}
		least = min(least, mib)
	}
	if least > heapMore>>20+stacks {
		t.Errorf("%d MiB, want %d and stacks of a few threads", least, heapMore>>20)
	}
}

// charged is how many bytes of this process's mappings are charged then: those that it may write
// alone, which /proc/self/smaps flags.
func charged() (sum uint64) {
	b, _ := os.ReadFile("/proc/self/smaps")
	var size uint64
	for line := range strings.Lines(string(b)) {
		if n, _ := fmt.Sscanf(line, "Size: %d kB", &size); n == 0 && strings.HasPrefix(line, "VmFlags:") && strings.Contains(line, " ac") {
			sum += size << 10
		}
	}
	return sum
}

// ownMemory is what /proc/self/status says of a kind of it, in bytes.
func ownMemory(field string) uint64 {
	b, _ := os.ReadFile("/proc/self/status")
	_, b, _ = bytes.Cut(b, []byte(field+":"))
	kib, _ := strconv.ParseUint(string(bytes.Fields(b)[0]), 10, 64)
	return kib << 10
}

// TestHeapApart: what Go allocates behind a base lies apart from what others map there, where Go's
// runtime would have it grow next, too.
func TestHeapApart(t *testing.T) {
	if os.Getenv(heapEnv) != "" {
		const step = 1 << 38 // of Go's places for its heap
		began := uintptr(unsafe.Pointer(unsafe.SliceData(make([]byte, 1<<20)))) &^ (64<<20 - 1)
		if began>>32 == 0xc0 { // where it is not drawn
			fmt.Println("fixed")
			return
		}
		if began < 0x2c00_0000_0000 || began > 0x3f00_0000_0000 {
			fmt.Println("elsewhere") // below what a base takes the heap grows on as ever
			return
		}
		base := began + step - 64<<20
		if err := settleBase(base); err != nil {
			fmt.Println(err)
		}
		for range 16 {
			b := make([]byte, 64<<20)
			if at := uintptr(unsafe.Pointer(&b[0])); at >= base && at < base+heapApart {
				fmt.Printf("heap at %#x, %#x behind the base\n", at, at-base)
			}
			grown = append(grown, b)
		}
		fmt.Println("done")
		return
	}
	const upwards = 0x0200000
	seen := 0
	for n := 0; seen < 2 && n < 60; n++ {
		// Go draws where the heap begins: in one of three processes there
		got := laidOut(t, upwards, heapEnv)
		switch got {
		case "fixed":
			t.Skip("this build has Go's heap at fixed addresses, below any base (the race detector's does)")
		case "elsewhere":
			continue
		}
		if seen++; got != "done" {
			t.Error(got)
		}
	}
	if seen == 0 {
		t.Error("no heap began where a base would be in its way")
	}
}

const (
	heapEnv      = "CAUSEWAY_TEST_HEAP"
	chargeEnv    = "CAUSEWAY_TEST_CHARGE"
	addressesEnv = "CAUSEWAY_TEST_ADDRESSES"
	dataEnv      = "CAUSEWAY_TEST_DATA"
)

var grown [][]byte

// laidOut is the first line of this test in a process of its own, whose mappings are laid out so.
func laidOut(t *testing.T, layout uintptr, env string) string {
	const upwards = 0x0200000
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), env+"=1")
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
