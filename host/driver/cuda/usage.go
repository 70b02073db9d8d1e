package cuda

import (
	"causeway/cuda"
	"causeway/host/driver"
)

var _ driver.Meter = (*session)(nil)

// MemoryUse implements driver.Meter. With several devices the driver says where each allocation
// lies; what is no address of its own is booked on the first.
func (s *session) MemoryUse() []driver.DeviceUse {
	if len(s.devices) == 0 {
		return nil
	}
	s.settlePools()
	by := make([]uint64, len(s.devices))
	rest := s.used
	if len(s.devices) > 1 {
		for _, m := range s.allocs {
			size := m.size
			ordinal, res := s.drv.AttributeOf(cuda.PointerAttrDeviceOrdinal, m.at)
			if res != cuda.Success {
				continue
			}
			if n := int(int32(ordinal)); n >= 0 && n < len(by) && size <= rest {
				by[n] += size
				rest -= size
			}
		}
	}
	by[0] += rest
	var list []driver.DeviceUse
	for i, n := range by {
		if n > 0 {
			list = append(list, driver.DeviceUse{UUID: s.devices[i].Uuid, Bytes: n})
		}
	}
	return list
}
