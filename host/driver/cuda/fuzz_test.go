package cuda

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/cudatest"
	"causeway/host/driver/drivertest"
)

// FuzzOperations gives a session on a driver that agrees to everything records as a guest could send them, one behind the other:
// nothing that they say may make the worker read or write where it must not. Its seeds are those of the software GPU.
func FuzzOperations(f *testing.F) {
	dir := filepath.Join("..", "soft", "testdata", "fuzz", "FuzzOperations")
	list, err := os.ReadDir(dir)
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range list {
		f.Add(seed(f, filepath.Join(dir, e.Name())))
	}
	lib := &lib{}
	fill(reflect.ValueOf(&lib.fn).Elem())
	f.Fuzz(func(t *testing.T, records []byte) {
		s := agreeing(t, lib, drivertest.NewHost())
		var d wire.Dispatcher
		le := binary.LittleEndian
		for n := 0; len(records) >= wire.RecordSize && n < 64; n++ {
			size := max(wire.RecordSize, min(int(le.Uint32(records)), len(records)))
			c := wire.Call{Op: wire.Op(le.Uint16(records[4:])), Ctx: le.Uint32(records[16:]), Thread: le.Uint32(records[20:]), Seq: 1, Replier: silent{}}
			clear(s.out.bytes()) // what the driver does not answer is 0
			s.Before(c.Op, false)
			if _, _, err := d.Dispatch(s, &c, records[:size], nil); err != nil {
				return // the worker ends the session
			}
			records = records[size:]
			if n := s.budget.Used(); n != s.used+s.pooling.spare {
				t.Fatalf("%d bytes booked after operation %d, for %d in use and %d that pools hold", n, c.Op, s.used, s.pooling.spare)
			}
		}
	})
}

// agreeing is a session on a driver that agrees to everything, until the test ends.
func agreeing(t *testing.T, lib *lib, host *drivertest.Host) *session {
	runtime.LockOSThread() // the worker goroutine
	host.OnCallBack = func(uint64, cuda.Result) {}
	s := &session{
		fn: &lib.fn, lib: lib, warm: &warmth{version: 13000, devices: make([]deviceInfo, 2)}, host: host, opt: driver.Options{MemoryLimit: 1 << 30},
		out: newBuffer(4096), budget: driver.Options{MemoryLimit: 1 << 30}.Memory(), threads: map[threadKey]*stream{}, legacy: map[uint32]*stream{}, allocs: map[uint64]allocation{},
		regions: map[uint32]registration{},
	}
	s.watch = newWatcher(s)
	s.lanes.init()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s.letGo(func(uint32) bool { return true }) // otherwise the end of the process does
		runtime.UnlockOSThread()
	})
	return s
}

// TestImagesStay: the image of a library stays held when managed variables put another in its place. Pins that are lost end the
// process at a garbage collection.
func TestImagesStay(t *testing.T) {
	lib := &lib{}
	fill(reflect.ValueOf(&lib.fn).Elem())
	host := drivertest.NewHost()
	host.Regions[1] = driver.Region{ID: 1, Kind: wire.RegionPinned, VA: 0x6a0000000000, Size: 4096, Mem: make([]byte, 4096)}
	s := agreeing(t, lib, host)
	container := make([]byte, 32) // without entries
	copy(container, "\x50\xed\x55\xba\x01\x00\x10\x00\x10")
	c, id := &wire.Call{}, uint32(5)
	if res := s.LibraryLoad(c, &wire.LibraryLoadArgs{Library: id, Image: container}, &wire.LibraryLoadReply{}); res != cuda.Success {
		t.Fatal(res)
	}
	if im, _ := s.images.get(id); im.pin == nil {
		t.Fatal("the container is not pinned")
	}
	text := []byte(".version 6.4\n.target sm_75\n.address_size 64\n.global .attribute(.managed) .align 4 .u32 x = 5;\n")
	s.keepSource(owner{library: true, id: id}, traitsOf(text, 75).managed, nil)
	var r wire.LibraryManageReply
	if res := s.LibraryManage(c, &wire.LibraryManageArgs{Library: id, Region: 1}, &r); res != cuda.Success || r.Size == 0 {
		t.Fatal(res, r.Size)
	}
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // finalizers run
	}
	if len(s.retired) != 1 {
		t.Errorf("%d images are held for the driver", len(s.retired))
	}
}

// silent takes answers.
type silent struct{}

func (silent) Reply(_, _ uint32, _ cuda.Result, _ []byte) {}
func (silent) GPUDone(uint32) (uintptr, bool)             { return 0, false }
func (silent) WakeSlot(_, _ uint32)                       {}

// fill sets all entry points of a struct.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.Struct {
			fill(f)
			continue
		}
		*(*entry)(unsafe.Pointer(f.UnsafeAddr())) = entry(cudatest.Agreeing(v.Type().Field(i).Name))
	}
}

// seed reads a seed file that holds one argument.
func seed(f *testing.F, path string) []byte {
	f.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "[]byte(")
	s, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(text), ")"))
	if err != nil {
		f.Fatalf("%s: %v", path, err)
	}
	return []byte(s)
}
