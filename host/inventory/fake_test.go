package inventory

import (
	"encoding/binary"
	"fmt"
)

// fakeLibrary is a management library with n GPUs, of which each knows its identity, memory, one process and its power; the rest
// is not supported. Handles are 100 + index.
type fakeLibrary struct {
	n     int
	fails map[string]Return
	calls map[string]int
}

func newFake(n int) *fakeLibrary {
	return &fakeLibrary{n: n, fails: map[string]Return{}, calls: map[string]int{}}
}

func (f *fakeLibrary) Call(entry string, args ...any) Return {
	f.calls[entry]++
	if r, ok := f.fails[entry]; ok {
		return r
	}
	switch entry {
	case "nvmlInit_v2", "nvmlShutdown":
		return Success
	case "nvmlDeviceGetCount_v2":
		return put32(args[0], uint32(f.n))
	case "nvmlDeviceGetHandleByIndex_v2":
		binary.LittleEndian.PutUint64(args[1].([]byte), 100+args[0].(uint64))
		return Success
	case "nvmlSystemGetDriverVersion":
		return putText(args[0], "580.1.2")
	case "nvmlSystemGetCudaDriverVersion_v2":
		return put32(args[0], 13000)
	}
	return f.device(entry, args)
}

func (f *fakeLibrary) device(entry string, args []any) Return {
	h, ok := args[0].(uint64)
	if !ok || h < 100 || h >= uint64(100+f.n) {
		return InvalidArgument
	}
	i := uint32(h - 100)
	le := binary.LittleEndian
	switch entry {
	case "nvmlDeviceGetName":
		return putText(args[1], "Fake GPU")
	case "nvmlDeviceGetUUID":
		return putText(args[1], fakeUUID(i))
	case "nvmlDeviceGetPciInfo_v3":
		b := args[1].([]byte)
		le.PutUint32(b[20:], i+1)
		return Success
	case "nvmlDeviceGetMemoryInfo_v2":
		b := args[1].([]byte)
		if le.Uint32(b) != 40|2<<24 {
			return 25
		}
		le.PutUint64(b[8:], 1000)
		le.PutUint64(b[16:], 50)
		le.PutUint64(b[24:], 700)
		return Success
	case "nvmlDeviceGetPowerUsage":
		return put32(args[1], 1000*(i+1))
	case "nvmlDeviceGetMigMode":
		put32(args[1], 1)
		return put32(args[2], 1)
	case "nvmlDeviceGetComputeRunningProcesses_v3":
		b := args[2].([]byte)
		le.PutUint32(b, 4000+i)
		le.PutUint64(b[8:], 200)
		return put32(args[1], 1)
	case "nvmlDeviceGetP2PStatus":
		return put32(args[3], uint32(args[2].(uint64)))
	}
	return f.links(entry, i, args)
}

// links: link 0 leads to a switch, link 1 of GPU 0 to GPU 1, link 2 to a device that is nobody's here.
func (f *fakeLibrary) links(entry string, i uint32, args []any) Return {
	if len(args) < 3 {
		return NotSupported
	}
	n, ok := args[1].(uint64)
	if !ok || n > 2 {
		return NotSupported
	}
	switch entry {
	case "nvmlDeviceGetNvLinkState":
		return put32(args[2], 1)
	case "nvmlDeviceGetNvLinkRemoteDeviceType":
		return put32(args[2], map[uint64]uint32{0: 2}[n])
	case "nvmlDeviceGetNvLinkCapability":
		return put32(args[3], uint32(args[2].(uint64)&1))
	case "nvmlDeviceGetNvLinkRemotePciInfo_v2":
		bus := map[uint64]uint32{0: 0x80, 1: 2 - i, 2: 0x70}[n]
		binary.LittleEndian.PutUint32(args[2].([]byte)[20:], bus)
		return Success
	}
	return NotSupported
}

func fakeUUID(i uint32) string { return fmt.Sprintf("GPU-0000000%d-0000-0000-0000-000000000000", i+1) }

func put32(to any, v uint32) Return {
	binary.LittleEndian.PutUint32(to.([]byte), v)
	return Success
}

func putText(to any, s string) Return {
	copy(to.([]byte), s+"\x00")
	return Success
}
