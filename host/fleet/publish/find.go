package publish

import (
	"errors"
	"fmt"
	"slices"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// Errors of Find.
var (
	ErrDevice = errors.New("this node has no such GPU")
	ErrLease  = errors.New("the GPU is another host's, and its lease is not ready")
)

// Find is the GPU of a claim's device, by UUID, on a node that has these.
func Find(gpus []api.GPU, node string, dev *claim.Device) (string, error) {
	if dev.Network {
		if dev.Lease == nil {
			return "", fmt.Errorf("%w: device %q of the pool %q: is the fleet's controller (causeway-fleet controller) running?", ErrLease, dev.Device, dev.Pool)
		}
		return dev.Lease.GPU, nil
	}
	at := slices.IndexFunc(gpus, func(g api.GPU) bool { return DeviceName(&g) == dev.Device })
	if dev.Pool != node && dev.Pool != claim.PoolOf(node) || at < 0 {
		return "", fmt.Errorf("%w: device %q of the pool %q", ErrDevice, dev.Device, dev.Pool)
	}
	return gpus[at].ID, nil
}
