package cuda

import (
	"encoding/binary"

	"causeway/cuda"
)

const knownAttributes = 192 // room in DeviceInfo

// deviceInfo is wire.DeviceInfo as this package fills it.
type deviceInfo struct {
	Name               [256]byte
	Uuid, UuidV2       [16]byte
	TotalMem           uint64
	PciBusId           [16]byte
	AttrCount, Compute uint32
	_                  uint64
	AttrValid          [32]byte
	Attrs              [knownAttributes]int32
}

func (d *deviceInfo) append(b []byte) []byte {
	b, _ = binary.Append(b, binary.LittleEndian, d)
	return b
}

// deviceInfo asks the driver everything that a guest may want to know of a device. Attributes are numbered without
// gaps from 1; those that the driver does not know answer INVALID_VALUE and are marked so.
func (l *lib) deviceInfo(ordinal int) (deviceInfo, cuda.Result) {
	var d deviceInfo
	f, out := &l.fn, newBuffer(512)
	defer out.free()
	if res := f.cuDeviceGet.call(out.addr(), uint64(ordinal)); res != cuda.Success {
		return d, res
	}
	dev := uint64(*out.i32(0))
	if res := f.cuDeviceGetName.call(out.addr(), 256, dev); res != cuda.Success {
		return d, res
	}
	copy(d.Name[:255], out.bytes())
	if res := f.cuDeviceGetUuid.call(out.addr(), dev); res != cuda.Success {
		return d, res
	}
	copy(d.Uuid[:], out.bytes())
	d.UuidV2 = d.Uuid
	if f.cuDeviceGetUuid_v2.call(out.addr(), dev) == cuda.Success {
		copy(d.UuidV2[:], out.bytes())
	}
	if res := f.cuDeviceTotalMem_v2.call(out.addr(), dev); res != cuda.Success {
		return d, res
	}
	d.TotalMem = *out.u64(0)
	if res := f.cuDeviceGetPCIBusId.call(out.addr(), 16, dev); res != cuda.Success {
		return d, res
	}
	copy(d.PciBusId[:15], out.bytes())
	for i := 1; i < knownAttributes; i++ {
		if f.cuDeviceGetAttribute.call(out.addr(), uint64(i), dev) != cuda.Success {
			continue
		}
		d.Attrs[i] = *out.i32(0)
		d.AttrValid[i/8] |= 1 << (i % 8)
		d.AttrCount = uint32(i + 1)
	}
	const major, minor = 75, 76
	d.Compute = uint32(d.Attrs[major]*10 + d.Attrs[minor])
	l.settleAtomics(ordinal, &d)
	return d, cuda.Success
}

// compute is the highest compute capability among the session's devices, as major*10 + minor.
func (s *session) compute() int {
	sm := 0
	for i := range s.devices {
		sm = max(sm, int(s.devices[i].Compute))
	}
	return sm
}
