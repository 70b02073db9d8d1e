package lib

import (
	"os/exec"
	"strings"
	"testing"
)

// output is what go test prints of a package that passes, one that fails, and one that hangs.
const output = `ok  	causeway/cuda	1.0s
--- FAIL: TestFails (0.01s)
    some_test.go:7: time=2026-01-01T00:00:00Z level=ERROR msg="of the program under test"
    some_test.go:9: 3 is not 4
FAIL
FAIL	causeway/remote	0.5s
=== RUN   TestHangs
    other_test.go:5: said before
panic: test timed out after 10m0s
	running tests:
		TestHangs (9m50s)
		TestHangs/here (9m49s)

goroutine 99 [running]:
testing.(*M).startAlarm.func1()
	testing/testing.go:2802 +0x605
created by time.goFunc
	time/sleep.go:215 +0x45

goroutine 1 [chan receive, 9 minutes]:
testing.(*T).Run(0xc00016ad88, {0x146654b, 0x15}, 0x149c358)
	testing/testing.go:2109 +0xb3e
causeway/host/device_test.TestMain(0xc000117040)
	causeway/host/device/guest_test.go:73 +0x332

goroutine 7 [select, 9 minutes]:
causeway/virtio/fs/fstest.(*Call).Wait(0xc0001, 0x1)
	causeway/virtio/fs/fstest/call.go:143 +0xd8
causeway/host/device_test.TestHangs.func1(0xc0002)
	causeway/host/device/other_test.go:6 +0x20
testing.tRunner(0xc00016ad88, 0xc0000519f0)
	testing/testing.go:2036 +0x21d
created by testing.(*T).Run in goroutine 1
	testing/testing.go:2101 +0xb25

goroutine 20 [syscall, 9 minutes]:
os.(*Process).Wait(...)
	os/exec.go:346
causeway/host/worker/spawn.(*Spawner).process.func1()
	causeway/host/worker/spawn/spawn.go:155 +0x38
created by causeway/host/worker/spawn.(*Spawner).process in goroutine 7
	causeway/host/worker/spawn/spawn.go:154 +0xe8b

goroutine 21 [syscall, 9 minutes]:
os.(*Process).Wait(...)
	os/exec.go:346
causeway/host/worker/spawn.(*Spawner).process.func1()
	causeway/host/worker/spawn/spawn.go:155 +0x38

goroutine 22 [IO wait]:
internal/poll.runtime_pollWait(0x7fc7461c3c00, 0x72)
	runtime/netpoll.go:351 +0x85
created by causeway/host/qmp.Dial in goroutine 7
	causeway/host/qmp/qmp.go:5 +0x1
FAIL	causeway/host/device	600.1s
ok  	causeway/virtio	2.0s
`

// TestFailures: the stage that runs the unit tests says at its end what failed, and of a package
// that hangs which test it was, and where that and others stood.
func TestFailures(t *testing.T) {
	cmd := exec.Command("awk", "-f", "failures.awk")
	cmd.Stdin = strings.NewReader(output)
	got, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	const want = `--- FAIL: TestFails (0.01s)
    some_test.go:9: 3 is not 4
FAIL	causeway/remote	0.5s
panic: test timed out after 10m0s
FAIL	causeway/host/device	600.1s
in causeway/host/device: panic: test timed out after 10m0s
  tests that ran: TestHangs (9m50s) TestHangs/here (9m49s)
  [syscall, 9 minutes]: host/worker/spawn.(*Spawner).process.func1 spawn.go:155 (2 times)
  the test: [select, 9 minutes]: virtio/fs/fstest.(*Call).Wait call.go:143 < host/device_test.TestHangs.func1 other_test.go:6
`
	if string(got) != want {
		t.Errorf("it says\n%swant\n%s", got, want)
	}
}
