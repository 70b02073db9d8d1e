package cuda

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// passedSession is in one of two processes of a host.
type passedSession struct {
	*session
	process int
}

func newPassed(t *testing.T, process int) passedSession {
	t.Helper()
	others := map[string]uint64{}
	for _, name := range []string{"cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemImportFromShareableHandle", "cuMemExportToShareableHandle", "cuMemRelease",
		"cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemcpyAsync", "cuStreamSynchronize"} {
		others[name] = cudatest.Passed(name)
	}
	cudatest.PassedProcess(process)
	host := drivertest.NewHost()
	host.OnCallBack = func(uint64, cuda.Result) {}
	s := newSession(agreeingDriver(others), host, driver.Options{Migratable: true, MemoryLimit: 1 << 40})
	s.warm = &warmth{version: 13000, devices: make([]deviceInfo, 1)}
	if res := s.PrimaryCtxRetain(&wire.Call{Ctx: 16, Replier: silent{}}, &wire.PrimaryCtxRetainArgs{Ctx: 16}, &wire.PrimaryCtxRetainReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	return passedSession{s, process}
}

// alloc is memory at an address, or for 0 anywhere.
func (s passedSession) alloc(t *testing.T, size, at uint64) uint64 {
	t.Helper()
	c := &wire.Call{Ctx: 16, Replier: silent{}}
	if at != 0 {
		c.Replay, c.Placed = true, []uint64{at}
	}
	var m wire.MemAllocReply
	if res := s.MemAlloc(c, &wire.MemAllocArgs{Size: size}, &m); res != cuda.Success {
		t.Fatal(res)
	}
	return m.Ptr
}

// close ends the session, of which nothing may be left.
func (s passedSession) close(t *testing.T) {
	t.Helper()
	cudatest.PassedProcess(s.process)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.letGo(func(uint32) bool { return true })
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestFetch: a session reads its memory from the process where it was, on another GPU. Whichever
// call of the driver fails, the memory there is as it was, nothing of it is kept here, and the next
// try, or another way, has it all.
func TestFetch(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rng := rand.New(rand.NewPCG(3, 4))
	from := newPassed(t, 0)
	type block struct {
		at    uint64
		bytes []byte
	}
	var blocks []block
	for _, size := range []uint64{512, 700, 3 << 20, 100 << 10, 1 << 20, 4096, 2<<20 + 1} {
		b := block{from.alloc(t, size, 0), make([]byte, size)}
		for i := range b.bytes {
			b.bytes[i] = byte(rng.Uint32())
		}
		if !cudatest.PassedWrite(b.at, b.bytes) {
			t.Fatal("no memory")
		}
		blocks = append(blocks, b)
	}
	to := newPassed(t, 1)
	for _, b := range blocks {
		to.alloc(t, uint64(len(b.bytes)), b.at)
	}
	pieces, mapped, reserved, _ := cudatest.PassedCounts()
	same := func(process int) bool {
		cudatest.PassedProcess(process)
		for _, b := range blocks {
			got := make([]byte, len(b.bytes))
			if !cudatest.PassedRead(b.at, got) {
				t.Fatal("memory is not reached any more")
			}
			if !bytes.Equal(got, b.bytes) {
				return false
			}
		}
		return true
	}
	files, failed := openFiles(t), 0
	for n := 1; ; n++ {
		cudatest.PassedProcess(0)
		list, err := from.Lend()
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		cudatest.PassedProcess(1)
		cudatest.FailPassed(n)
		got, err := to.Fetch(list)
		cudatest.FailPassed(0)
		if p, m, r, wrong := cudatest.PassedCounts(); p != pieces || m != mapped || r != reserved || wrong != 0 {
			t.Fatalf("call %d fails: %d pieces are here, %d were; %d mappings, %d; %d reservations, %d; %d calls made no sense", n, p, pieces, m, mapped, r, reserved, wrong)
		}
		if have := openFiles(t); have != files {
			t.Fatalf("call %d fails: %d files are open, %d were", n, have, files)
		}
		if !same(0) {
			t.Fatalf("call %d fails: the memory is not what it was", n)
		}
		if err != nil {
			failed++
			from.Keep()
			continue
		}
		if !same(1) || got < 7<<20 {
			t.Errorf("%d bytes were read, and are not those", got)
		}
		break
	}
	if failed < 10 {
		t.Errorf("%d calls could fail", failed)
	}
	to.close(t)
	from.close(t)
}

// TestFetchOfOtherMemory: what came holds an allocation, whole, or nothing is read; a table of
// whatever numbers reads nothing from outside of what came.
func TestFetchOfOtherMemory(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := newPassed(t, 0)
	const size = 3 << 20
	at := from.alloc(t, size, 0)
	to := newPassed(t, 1)
	to.alloc(t, size, at)
	files := openFiles(t)
	for what, change := range map[string]func(l []driver.Lent) []driver.Lent{
		"nothing":              func(l []driver.Lent) []driver.Lent { driver.CloseLent(l); return nil },
		"elsewhere":            func(l []driver.Lent) []driver.Lent { l[0].Addr += 2 << 20; return l },
		"at the end":           func(l []driver.Lent) []driver.Lent { l[0].Addr = 1<<64 - 2<<20; return l },
		"of another device":    func(l []driver.Lent) []driver.Lent { l[0].Dev = 1; return l },
		"of none":              func(l []driver.Lent) []driver.Lent { l[0].Dev = 1 << 31; return l },
		"less than it is":      func(l []driver.Lent) []driver.Lent { l[0].Size = 2 << 20; return l },
		"more than it is":      func(l []driver.Lent) []driver.Lent { l[0].Size = 1 << 30; return l },
		"more than there is":   func(l []driver.Lent) []driver.Lent { l[0].Size = 1<<64 - 1; return l },
		"of no bytes, besides": func(l []driver.Lent) []driver.Lent { return append(l, driver.Lent{Addr: at + 1<<30, File: -1}) },
		"no file":              func(l []driver.Lent) []driver.Lent { driver.CloseLent(l); l[0].File = -1; return l },
	} {
		cudatest.PassedProcess(0)
		list, err := from.Lend()
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		from.Keep()
		cudatest.PassedProcess(1)
		if n, err := to.Fetch(change(list)); err == nil {
			t.Errorf("%s: %d bytes were read", what, n)
		}
		if have := openFiles(t); have != files {
			t.Fatalf("%s: %d files are open, %d were", what, have, files)
		}
	}
	to.close(t)
	from.close(t)
}
