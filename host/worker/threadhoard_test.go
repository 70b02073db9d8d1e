package worker_test

import (
	"encoding/binary"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// TestHostMemoryOfThreads: default streams of threads are in the budget of host memory, and those
// of threads that have no work do not fill it.
func TestHostMemoryOfThreads(t *testing.T) {
	cfg := unixConfig
	cfg.GPU, cfg.HostMemory, cfg.LogLevel = "soft", 4<<20, "ERROR"
	g := hoarder(t, cfg)
	as := func(thread uint32, a wire.Args) wire.Args {
		g.Thread = thread
		return a
	}
	sync := func(i int) wire.Args {
		return as(uint32(i+1), &wire.StreamSynchronizeArgs{Stream: uint32(wire.StreamPerThread)})
	}
	for i := range 2000 {
		call(t, g, cuda.Success, sync(i), nil)
	}
	policy := binary.LittleEndian.AppendUint32(make([]byte, 0, 64), 1)[:64]
	n := until(t, g, 1000, func(i int) wire.Args {
		return as(uint32(i+10000), &wire.StreamSetAttributeArgs{Target: uint32(wire.StreamPerThread), Attr: cuda.LaunchAttrSynchronizationPolicy, Value: policy})
	})
	if t.Logf("%d threads' streams with attributes in 4 MiB", n); n < 50 || n > 256 {
		t.Errorf("%d threads' streams with attributes in 4 MiB", n)
	}
	call(t, g, cuda.Success, as(1, &wire.CtxSynchronizeArgs{}), nil)
	call(t, g, cuda.Success, &wire.PrimaryCtxResetArgs{}, nil)
	for i := range 100 { // none stays booked
		call(t, g, cuda.Success, &wire.StreamCreateArgs{Stream: uint32(20000 + i), Flags: 1}, nil)
	}
}
