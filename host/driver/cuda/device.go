package cuda

import (
	"encoding/binary"

	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
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

// describe asks the driver everything that a guest may want to know of a device. Attributes are
// numbered without gaps from 1; those that the driver does not know answer INVALID_VALUE and are
// marked so.
func describe(d *bind.Driver, ordinal uint32) (deviceInfo, cuda.Result) {
	var info deviceInfo
	dev, res := d.DeviceGet(int32(ordinal))
	if res != cuda.Success {
		return info, res
	}
	if res := d.DeviceGetName(info.Name[:255], dev); res != cuda.Success {
		return info, res
	}
	var id bind.Uuid
	if res := d.DeviceGetUuid(&id, dev); res != cuda.Success {
		return info, res
	}
	info.Uuid, info.UuidV2 = id.Bytes, id.Bytes
	if d.DeviceGetUuidV2(&id, dev) == cuda.Success {
		info.UuidV2 = id.Bytes
	}
	if info.TotalMem, res = d.DeviceTotalMem(dev); res != cuda.Success {
		return info, res
	}
	if res := d.DeviceGetPCIBusId(info.PciBusId[:15], dev); res != cuda.Success {
		return info, res
	}
	for i := uint32(1); i < knownAttributes; i++ {
		v, res := d.DeviceGetAttribute(i, dev)
		if res != cuda.Success {
			continue
		}
		info.Attrs[i] = v
		info.AttrValid[i/8] |= 1 << (i % 8)
		info.AttrCount = i + 1
	}
	info.Compute = uint32(info.Attrs[cuda.DeviceAttrComputeCapabilityMajor]*10 + info.Attrs[cuda.DeviceAttrComputeCapabilityMinor])
	settleAtomics(d, ordinal, &info)
	return info, cuda.Success
}

// compute is the highest compute capability among the session's devices, as major*10 + minor.
func (s *session) compute() int {
	sm := 0
	for i := range s.devices {
		sm = max(sm, int(s.devices[i].Compute))
	}
	return sm
}
