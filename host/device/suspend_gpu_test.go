package device_test

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	gocontext "context"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/device"
	"causeway/host/inventory"
	"causeway/host/worker/link"
)

// bytesEnv is how much memory TestSuspendOnGPU has on the GPU of gpuEnv.
const bytesEnv = "CAUSEWAY_TEST_BYTES"

// TestSuspendOnGPU suspends and resumes a session with much memory, twice, and checks it: how long
// that takes is what it is for, on a machine with a GPU (CAUSEWAY_TEST_GPU=cuda
// CAUSEWAY_TEST_BYTES=34359738368).
func TestSuspendOnGPU(t *testing.T) {
	gpu, size := os.Getenv(gpuEnv), uint64(192*mib)
	if gpu == "" {
		gpu = "soft"
	}
	if text := os.Getenv(bytesEnv); text != "" {
		var err error
		if size, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	v := bootWith(t, func(o *device.Options) {
		o.Worker = link.Config{GPU: gpu, Devices: []int{0}, Migratable: true}
		o.Machine = func(gocontext.Context) (*inventory.Reading, error) { return nil, errors.New("not told") }
	})
	g := &onGPU{T: t, v: v}
	s := g.session()
	var m wire.MemAllocReply
	must(t, s, &wire.MemAllocArgs{Size: size}, &m)
	const parts = 16
	part := size / parts
	for i := range uint64(parts) { // the first is zeros
		must(t, s, &wire.MemsetArgs{Dst: m.Ptr + i*part, Element: 4, Value: uint32(i * 0x01020304), Width: part / 4, Height: 1, Stream: wire.StreamLegacy}, nil)
	}
	must(t, s, &wire.CtxSynchronizeArgs{}, nil)
	id, mem, res, err := s.AddRegion(0, wire.RegionPinned, mib)
	if err != nil || res != cuda.Success {
		t.Fatal(res, err)
	}
	word := uint32(0)
	check := func() {
		t.Helper()
		for i := range uint64(parts) {
			for _, at := range []uint64{i * part, i*part + part/2, (i+1)*part - mib} {
				word++
				must(t, s, &wire.CtxSynchronizeArgs{}, nil)
				if err := s.Send(&wire.MemcpyStagedArgs{Direction: 1, Region: id, Size: mib, Device: m.Ptr + at, Stream: wire.StreamLegacy, Word: 1, Value: word}); err != nil {
					t.Fatal(err)
				}
				must(t, s, &wire.CtxSynchronizeArgs{}, nil)
				for j, b := range mem {
					if want := byte(uint32(i*0x01020304) >> (8 * (j % 4))); b != want {
						t.Fatalf("byte %d of part %d is %d, not %d", at+uint64(j), i, b, want)
					}
				}
			}
		}
	}
	check()
	speed := func(d time.Duration) float64 { return float64(size) / 1e9 / d.Seconds() }
	for _, how := range []string{"asked to come back", "called by its program"} {
		time.Sleep(50 * time.Millisecond)
		begin := time.Now()
		did, err := v.device.Suspend(context(), device.Suspension{})
		gone := time.Since(begin)
		if err != nil || did.Sessions != 1 || did.Bytes < size*14/parts {
			t.Fatalf("%+v, %v", did, err)
		}
		if st := v.device.Status(); st.Memory != 0 || st.Sessions[0].State != "suspended" {
			t.Errorf("%+v", st)
		}
		begin = time.Now()
		if how == "asked to come back" { // that waits until the host's pages are given back, too
			if did, err := v.device.Resume(context(), device.Suspension{}); err != nil || did.Sessions != 1 {
				t.Fatalf("%+v, %v", did, err)
			}
		}
		must(t, s, &wire.CtxSynchronizeArgs{}, nil)
		back := time.Since(begin)
		t.Logf("%.2f GB: suspended in %.2f s (%.1f GB/s), %s, back in %.2f s (%.1f GB/s)", float64(size)/1e9, gone.Seconds(), speed(gone), how, back.Seconds(), speed(back))
		check()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
