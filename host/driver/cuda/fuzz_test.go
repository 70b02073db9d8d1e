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
		runtime.LockOSThread() // the worker goroutine
		defer runtime.UnlockOSThread()
		host := drivertest.NewHost()
		host.OnCallBack = func(uint64, cuda.Result) {}
		s := &session{
			fn: &lib.fn, lib: lib, warm: &warmth{version: 13000, devices: make([]deviceInfo, 2)}, host: host, opt: driver.Options{MemoryLimit: 1 << 30},
			out: newBuffer(4096), limit: 1 << 30, threads: map[threadKey]*stream{}, legacy: map[uint32]*stream{}, allocs: map[uint64]uint64{},
			regions: map[uint32]uint64{},
		}
		s.watch = newWatcher(s)
		s.lanes.init()
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s.dropRegistrations() // otherwise the end of the process does
		}()
		var d wire.Dispatcher
		le := binary.LittleEndian
		for n := 0; len(records) >= wire.RecordSize && n < 64; n++ {
			size := max(wire.RecordSize, min(int(le.Uint32(records)), len(records)))
			c := wire.Call{Op: wire.Op(le.Uint16(records[4:])), Ctx: le.Uint32(records[16:]), Thread: le.Uint32(records[20:]), Seq: 1, Replier: silent{}}
			clear(s.out.bytes()) // what the driver does not answer is 0
			s.Before(c.Op, false)
			if _, _, err := d.Dispatch(gate{s}, &c, records[:size], nil); err != nil {
				return // the worker ends the session
			}
			records = records[size:]
		}
	})
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
