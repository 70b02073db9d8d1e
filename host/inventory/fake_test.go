package inventory

import (
	"encoding/binary"
	"fmt"
)

// fakeLibrary is a management library with n GPUs, of which each knows its identity, memory, one
// process and its power; the rest is not supported. Handles are 100 + index.
type fakeLibrary struct {
	n     int
	fails map[string]Return
	calls map[string]int

	events     []fakeEvent // that wait
	registered int
	ecc        uint64
	lost       map[uint32]bool
}

// fakeEvent is what a device reports.
type fakeEvent struct{ device, kind, data uint64 }

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
	if r, ok := f.watched(entry, args); ok {
		return r
	}
	return f.device(entry, args)
}

// watched is the part of the library that watches: one event set, 7.
func (f *fakeLibrary) watched(entry string, args []any) (Return, bool) {
	le := binary.LittleEndian
	switch entry {
	case "nvmlEventSetCreate":
		le.PutUint64(args[0].([]byte), 7)
		return Success, true
	case "nvmlDeviceGetSupportedEventTypes":
		le.PutUint64(args[1].([]byte), 0xff)
		return Success, true
	case "nvmlDeviceRegisterEvents":
		if args[1] != uint64(eventXID|eventDoubleBit) || args[2] != uint64(7) {
			return InvalidArgument, true
		}
		f.registered++
		return Success, true
	case "nvmlEventSetWait_v2":
		if args[0] != uint64(7) || args[2] != uint64(0) {
			return InvalidArgument, true
		}
		if len(f.events) == 0 {
			return Return(10), true
		}
		b, e := args[1].([]byte), f.events[0]
		le.PutUint64(b, 100+e.device)
		le.PutUint64(b[8:], e.kind)
		le.PutUint64(b[16:], e.data)
		f.events = f.events[1:]
		return Success, true
	}
	return f.mig(entry, args)
}

// mig: device 0 has a slice, number 1, whose handle is 900.
func (f *fakeLibrary) mig(entry string, args []any) (Return, bool) {
	switch {
	case entry == "nvmlDeviceGetMaxMigDeviceCount":
		return put32(args[1], 7), true
	case entry == "nvmlDeviceGetMigDeviceHandleByIndex":
		if args[0] != uint64(100) || args[1] != uint64(1) {
			return Return(6), true // NVML_ERROR_NOT_FOUND
		}
		binary.LittleEndian.PutUint64(args[2].([]byte), 900)
		return Success, true
	case len(args) < 2 || args[0] != uint64(900):
		return 0, false
	case entry == "nvmlDeviceGetUUID":
		return putText(args[1], "MIG-a"), true
	case entry == "nvmlDeviceGetGpuInstanceId":
		return put32(args[1], 3), true
	case entry == "nvmlDeviceGetComputeInstanceId":
		return put32(args[1], 0), true
	case entry == "nvmlDeviceGetName":
		return putText(args[1], "Fake GPU MIG 1g.18gb"), true
	case entry == "nvmlDeviceGetMemoryInfo":
		binary.LittleEndian.PutUint64(args[1].([]byte), 180)
		return Success, true
	}
	return NotSupported, true
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
		if f.lost[i] {
			return gpuIsLost
		}
		if le.Uint32(b) != 40|2<<24 {
			return 25
		}
		le.PutUint64(b[8:], 1000)
		le.PutUint64(b[16:], 50)
		le.PutUint64(b[24:], 700)
		return Success
	case "nvmlDeviceGetTotalEccErrors": // device, kind, counter, &count
		if f.ecc == 0 || len(args) < 4 {
			return NotSupported
		}
		le.PutUint64(args[3].([]byte), f.ecc)
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

// links: link 0 leads to a switch, link 1 of GPU 0 to GPU 1, link 2 to a device that is nobody's
// here.
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
