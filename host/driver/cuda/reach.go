package cuda

import (
	"causeway/cuda"
	"causeway/host/driver"
)

// reach tells by a device's attributes how its kernels reach the host's memory.
func (d *deviceInfo) reach() driver.Reach {
	switch {
	case d.Attrs[cuda.DeviceAttrPageableMemoryAccessUsesHostPageTables] != 0:
		return driver.ReachATS
	case d.Attrs[cuda.DeviceAttrPageableMemoryAccess] != 0:
		return driver.ReachHMM
	}
	return driver.ReachNone
}

// permitted is a driver.ReachError if a device may not be opened for a guest.
func (w *warmth) permitted(o driver.Options) error {
	for i := range w.devices {
		d := &w.devices[i]
		if r := d.reach(); r != driver.ReachNone && !o.ReachWorker {
			return &driver.ReachError{Device: cStringOf(d.Name[:]), Reach: r}
		}
	}
	return nil
}
