package node

import (
	"cmp"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"causeway/host/fleet/publish"
)

// How often the kubelet hears how the GPUs are, and after which time without a word it takes them
// for unknown.
const (
	healthEvery   = 10 * time.Second
	healthTimeout = time.Minute
)

// NodeWatchResources implements the kubelet's DRAResourceHealth, until it hangs up or the driver
// ends: the kubelet shows in a pod's status how its GPUs are.
func (d *Driver) NodeWatchResources(_ *v1alpha1.NodeWatchResourcesRequest, to v1alpha1.DRAResourceHealth_NodeWatchResourcesServer) error {
	t := time.NewTicker(healthEvery)
	defer t.Stop()
	for {
		if err := to.Send(&v1alpha1.NodeWatchResourcesResponse{Devices: append(d.health(time.Now()), d.farHealth(to.Context(), time.Now())...)}); err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-to.Context().Done():
			return nil
		}
	}
}

// health is how the GPUs are, as they were published last.
func (d *Driver) health(now time.Time) []*v1alpha1.DeviceHealth {
	var list []*v1alpha1.DeviceHealth
	for _, dev := range d.Devices() {
		h := &v1alpha1.DeviceHealth{
			Device:          &v1alpha1.DeviceIdentifier{PoolName: cmp.Or(d.Pool, d.Node), DeviceName: dev.Name},
			LastUpdatedTime: now.Unix(), HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		}
		h.Health, h.Message = healthOf(&dev)
		list = append(list, h)
	}
	return list
}

// healthOf: a GPU that an operator drained is as well as before.
func healthOf(d *resourceapi.Device) (v1alpha1.HealthStatus, string) {
	for _, t := range d.Taints {
		switch {
		case t.Key == publish.TaintUnreachable:
			return v1alpha1.HealthStatus_UNKNOWN, "the node's causewayd does not answer"
		case t.Key == publish.TaintDrained && t.Value == publish.DrainedFault:
			return v1alpha1.HealthStatus_UNHEALTHY, "the GPU's driver reports a fault: `causeway gpus` on the node says which"
		}
	}
	return v1alpha1.HealthStatus_HEALTHY, ""
}
