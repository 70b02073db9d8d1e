package soft

import "causeway/host/driver"

var _ driver.Meter = (*session)(nil)

// MemoryUse implements driver.Meter: the bytes that live allocations take.
func (s *session) MemoryUse() []driver.DeviceUse {
	by := make([]uint64, len(s.gpus))
	for _, e := range *s.space.intervals.Load() {
		if d := e.a.device; d >= 0 && d < len(by) {
			by[d] += e.a.size
		}
	}
	var list []driver.DeviceUse
	for i, n := range by {
		if n > 0 {
			list = append(list, driver.DeviceUse{UUID: s.gpus[i].uuid, Bytes: n})
		}
	}
	return list
}
