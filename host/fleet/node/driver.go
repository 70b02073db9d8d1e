package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	"tags.cncf.io/container-device-interface/specs-go"

	"causeway/host/api"
	"causeway/host/fleet/cdi"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/publish"
)

// Causewayd is what the driver asks of the node's causewayd. *api.Client is one.
type Causewayd interface {
	publish.Causewayd
	// Ensure has a vGPU ready, or says what is in the way.
	Ensure(ctx context.Context, w api.Wish) (api.VGPU, error)
	Release(ctx context.Context, vm, name string, unused bool) error
}

// Driver serves the kubelet. Its fields are not changed once it does.
type Driver struct {
	// By its own word: all is implemented that there is now.
	v1alpha1.UnimplementedDRAResourceHealthServer

	Node      string
	Pool      string // of the node's GPUs; "": Node's own
	RunDir    string // causewayd's
	Causewayd Causewayd
	CDI       cdi.Dir
	Libraries cdi.Libraries
	// Cluster and Pods tell of claims, and which a container has; nil: nobody does, and it is not
	// looked at.
	Cluster Cluster
	Pods    Pods
	// Devices are the node's as they were published last.
	Devices func() []resourceapi.Device
	// Refused hears of each claim that cannot be prepared, to tell who looks at it; may be nil.
	Refused func(c claim.ID, why error)
	// Fatal hears of what no repetition cures.
	Fatal func(error)
	Log   *slog.Logger

	mu     sync.Mutex // serialises the kubelet's calls and fencing
	remote remoteDevices
}

var (
	_ kubeletplugin.DRAPlugin          = (*Driver)(nil)
	_ v1alpha1.DRAResourceHealthServer = (*Driver)(nil)
)

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, c := range claims {
		devices, err := d.prepare(ctx, c)
		if err != nil {
			id := claim.ID{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
			d.Log.Warn("a claim is not prepared", "claim", id, "uid", c.UID, "error", err)
			if d.Refused != nil {
				d.Refused(id, err)
			}
		}
		results[c.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return results, nil
}

// prepare has the vGPUs of a claim ready. What it made of a claim that fails goes again: a claim
// that is not prepared is not taken back either.
func (d *Driver) prepare(ctx context.Context, rc *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	c, err := claim.Read(rc)
	if err != nil {
		return nil, err
	}
	if err := d.checkCollisions(ctx, rc, c); err != nil {
		return nil, err
	}
	gpus, err := d.gpusOf(ctx, c)
	if err != nil {
		return nil, err
	}
	before, err := d.vgpusOf(ctx, rc.UID)
	if err != nil {
		return nil, err
	}
	edits, devices := map[string]specs.ContainerEdits{}, []kubeletplugin.Device{}
	for i := range c.Devices() {
		dev := &c.Devices()[i]
		var v api.VGPU
		if v, err = d.Causewayd.Ensure(ctx, c.Wish(dev, gpus[i])); err == nil {
			edits[dev.Name], err = d.edits(dev, &v)
		}
		if err != nil {
			err = fmt.Errorf("vGPU %s on %s: %w", dev.Name, dev.Device, err)
			break
		}
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{dev.Request}, PoolName: dev.Pool, DeviceName: dev.Device, ShareID: dev.ShareID,
			CDIDeviceIDs: []string{cdi.DeviceID(rc.UID, dev.Name)},
		})
	}
	if err == nil {
		err = d.CDI.Write(cdi.Claim{Namespace: rc.Namespace, Name: rc.Name, UID: rc.UID, Shares: sharesOf(rc)}, edits)
	}
	if err != nil {
		return nil, errors.Join(err, d.undo(ctx, rc.UID, before))
	}
	d.remote.note(rc.UID, c.Devices())
	d.Log.Info("claim prepared", "claim", c.ID(), "uid", rc.UID, "devices", len(devices))
	return devices, nil
}

// gpusOf finds the GPUs of a claim's devices, by UUID.
func (d *Driver) gpusOf(ctx context.Context, c *claim.Claim) ([]string, error) {
	list, err := d.Causewayd.GPUs(ctx)
	if err != nil {
		return nil, fmt.Errorf("the node's GPUs: %w", err)
	}
	var ids []string
	for i := range c.Devices() {
		id, err := publish.Find(list, d.Node, &c.Devices()[i])
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// vgpusOf are the names of the vGPUs that causewayd has of a claim.
func (d *Driver) vgpusOf(ctx context.Context, uid types.UID) ([]string, error) {
	all, err := d.Causewayd.VGPUs(ctx)
	if err != nil {
		return nil, fmt.Errorf("the node's vGPUs: %w", err)
	}
	var names []string
	for i := range all {
		if all[i].Spec.VM == claim.VM(uid) {
			names = append(names, all[i].Spec.Name)
		}
	}
	return names, nil
}

// edits are what a device adds to containers.
func (d *Driver) edits(dev *claim.Device, v *api.VGPU) (specs.ContainerEdits, error) {
	if dev.Parameters.Serves == claim.VirtualMachine {
		return cdi.VM(v.Socket, dev.Parameters.Folder, dev.Name), nil
	}
	if !v.Spec.Programs { // an older causewayd leaves out what it does not know of
		return specs.ContainerEdits{}, errors.New("the node's causewayd is too old to serve containers: install the version of causeway-dra")
	}
	if err := d.Libraries.Check(); err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("libraries for containers: %w", err)
	}
	return d.Libraries.Container(v.Spec.ProgramsPath(d.RunDir)), nil
}

// undo releases what causewayd has of a claim and had not before.
func (d *Driver) undo(ctx context.Context, uid types.UID, before []string) error {
	ctx = context.WithoutCancel(ctx) // that may be why it failed
	now, err := d.vgpusOf(ctx, uid)
	for _, name := range now {
		if !slices.Contains(before, name) {
			err = errors.Join(err, d.release(ctx, uid, name))
		}
	}
	return err
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	results := make(map[types.UID]error, len(claims))
	for _, c := range claims {
		err := d.unprepare(ctx, c.UID)
		if err != nil {
			d.Log.Warn("a claim is not taken back", "claim", c.String(), "uid", c.UID, "error", err)
		} else {
			d.Log.Info("claim taken back", "claim", c.String(), "uid", c.UID)
		}
		results[c.UID] = err
	}
	return results, nil
}

// unprepare ends all that a claim has. The kubelet asks when its pods' containers have ended:
// whoever is connected still is none of them.
func (d *Driver) unprepare(ctx context.Context, uid types.UID) error {
	names, err := d.vgpusOf(ctx, uid)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, d.release(ctx, uid, name))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the file stays, so that the claim is found again
	}
	d.remote.forget(uid)
	return d.CDI.Remove(uid)
}

// release ends a vGPU. That it is gone is no error.
func (d *Driver) release(ctx context.Context, uid types.UID, name string) error {
	err := d.Causewayd.Release(ctx, claim.VM(uid), name, false)
	var e *api.Error
	if errors.As(err, &e) && e.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// HandleError implements kubeletplugin.DRAPlugin: what the API server will never take, somebody has
// to look at.
func (d *Driver) HandleError(_ context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.Log.Warn(strings.TrimSpace(msg), "error", err)
		return
	}
	d.Fatal(fmt.Errorf("%s: %w", strings.TrimSpace(msg), err))
}
