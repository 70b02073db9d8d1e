package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

// remoteDevices are the devices of other hosts that claims have here, by which their vGPUs are
// known to the kubelet.
type remoteDevices struct {
	mu sync.Mutex
	// Of claims that are prepared; none: the claim has no such device.
	has map[types.UID][]claim.Device
}

func (f *remoteDevices) note(uid types.UID, devices []claim.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.has == nil {
		f.has = map[types.UID][]claim.Device{}
	}
	f.has[uid] = slices.DeleteFunc(slices.Clone(devices), func(d claim.Device) bool { return !d.Network })
}

func (f *remoteDevices) forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.has, uid)
}

func (f *remoteDevices) of(uid types.UID) ([]claim.Device, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, known := f.has[uid]
	return list, known
}

// farHealth is how the GPUs of other hosts are that claims have here, as this node's causewayd
// reaches them.
func (d *Driver) farHealth(ctx context.Context, now time.Time) []*v1alpha1.DeviceHealth {
	ctx, cancel := context.WithTimeout(ctx, healthEvery/2)
	defer cancel()
	d.learn(ctx)
	vgpus, err := d.Causewayd.VGPUs(ctx)
	by := map[[2]string]*v1alpha1.DeviceHealth{}
	var list []*v1alpha1.DeviceHealth
	for _, uid := range d.remote.claims() {
		devices, _ := d.remote.of(uid)
		for i := range devices {
			dev := &devices[i]
			is, why := reach(vgpus, err, claim.VM(uid), dev.Name)
			h := by[[2]string{dev.Pool, dev.Device}]
			if h == nil {
				h = &v1alpha1.DeviceHealth{Device: &v1alpha1.DeviceIdentifier{PoolName: dev.Pool, DeviceName: dev.Device},
					LastUpdatedTime: now.Unix(), HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second), Health: is, Message: why}
				by[[2]string{dev.Pool, dev.Device}] = h
				list = append(list, h)
			} else if worse(is, h.Health) { // of two leases of one GPU the kubelet has one word
				h.Health, h.Message = is, why
			}
		}
	}
	return list
}

func (f *remoteDevices) claims() []types.UID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []types.UID
	for uid, devices := range f.has {
		if len(devices) > 0 {
			list = append(list, uid)
		}
	}
	slices.Sort(list)
	return list
}

// learn reads the claims that were prepared before this driver began, each once.
func (d *Driver) learn(ctx context.Context) {
	if d.Cluster == nil {
		return
	}
	files, _ := d.CDI.Claims() // what is none of ours says nothing here
	for _, c := range files {
		if _, known := d.remote.of(c.UID); known {
			continue
		}
		rc, err := d.Cluster.Claim(ctx, c.Namespace, c.Name)
		if err != nil || rc.UID != c.UID {
			continue
		}
		if read, err := claim.Read(rc); err == nil {
			d.remote.note(c.UID, read.Devices())
		}
	}
}

// reach says how a vGPU on a GPU server is reached.
func reach(vgpus []api.VGPU, silent error, vm, name string) (v1alpha1.HealthStatus, string) {
	if silent != nil {
		return v1alpha1.HealthStatus_UNKNOWN, "the node's causewayd does not answer"
	}
	at := slices.IndexFunc(vgpus, func(v api.VGPU) bool { return v.Spec.VM == vm && v.Spec.Name == name })
	if at < 0 || vgpus[at].Upstream == nil {
		return v1alpha1.HealthStatus_UNKNOWN, "the node's causewayd does not say how its GPU server is reached"
	}
	up := vgpus[at].Upstream
	switch {
	case up.Lost:
		return v1alpha1.HealthStatus_UNHEALTHY, strings.TrimSuffix(fmt.Sprintf("the lease of %s has ended: %s", up.Server, up.Error), ": ")
	case up.Error != "":
		return v1alpha1.HealthStatus_UNHEALTHY, fmt.Sprintf("the GPU server %s: %s", up.Server, up.Error)
	}
	return v1alpha1.HealthStatus_HEALTHY, ""
}

// worse: unhealthy is worse than not known, and that than healthy.
func worse(a, b v1alpha1.HealthStatus) bool {
	rank := map[v1alpha1.HealthStatus]int{v1alpha1.HealthStatus_UNHEALTHY: 2, v1alpha1.HealthStatus_UNKNOWN: 1}
	return rank[a] > rank[b]
}
