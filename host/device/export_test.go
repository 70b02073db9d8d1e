package device

import (
	"context"

	"causeway/host/worker/link"
)

// Uses asks the workers what they use.
func (d *Device) Uses(ctx context.Context) (list []link.Use, err error) {
	for _, w := range d.measurable() {
		u, err := w.Measure(ctx)
		if err != nil {
			return nil, err
		}
		list = append(list, u)
	}
	return list, nil
}

// Departs hears of VMs that leave.
func (d *Device) Departs() <-chan struct{} { return d.departs }

// Handed says why the programs cannot leave this host with their VM now.
func (d *Device) Handed() error { return d.handed() }

// ErrHanding says that this is not known yet.
var ErrHanding = errHanding
