package drivertest

import "causeway/host/driver"

var _ driver.Meter = (*Session)(nil)

// MemoryUse implements driver.Meter: all memory is the Test GPU's, whose UUID ends in 1.
func (s *Session) MemoryUse() []driver.DeviceUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n uint64
	for _, b := range s.Memory {
		n += uint64(len(b))
	}
	return []driver.DeviceUse{{UUID: [16]byte{15: 1}, Bytes: n}}
}
