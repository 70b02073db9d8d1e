package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/pool"
)

// Errors of a device.
var (
	ErrGone   = errors.New("the GPU host has no such GPU any more")
	ErrNode   = errors.New("the allocation names no node")
	ErrSilent = errors.New("the GPU host does not answer")
)

// errOldNews: what is known of a claim is not so any more, which its watch will say.
var errOldNews = errors.New("the claim has another allocation by now")

// wants are the devices that a claim has of the host.
func (k *Keeper) wants(c *resourceapi.ResourceClaim) (list []want) {
	if c.Status.Allocation == nil {
		return nil
	}
	read, err := claim.Read(c)
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if r.Pool != claim.PoolOf(k.Host.Name) || !claim.OnNetwork(r) {
			continue
		}
		w := want{claim: c, result: r, err: err}
		w.r = api.Reservation{VM: claim.VM(c.UID), Of: c.Namespace + "/" + c.Name}
		if err == nil {
			w.r, w.err = k.reservation(c, read, r)
		}
		list = append(list, w)
	}
	return list
}

// reservation is what the host is asked to keep for a device.
func (k *Keeper) reservation(c *resourceapi.ResourceClaim, read *claim.Claim, r *resourceapi.DeviceRequestAllocationResult) (api.Reservation, error) {
	v := api.Reservation{VM: claim.VM(c.UID), Of: c.Namespace + "/" + c.Name}
	at := slices.IndexFunc(read.Devices(), func(d claim.Device) bool {
		return d.Pool == r.Pool && d.Device == r.Device && d.Request == r.Request && (d.ShareID == nil) == (r.ShareID == nil) && (d.ShareID == nil || *d.ShareID == *r.ShareID)
	})
	if at < 0 || r.ShareID == nil {
		return v, fmt.Errorf("%w: the device %s is not shared", claim.ErrClaim, r.Device)
	}
	d := &read.Devices()[at]
	v.Name, v.ID, v.Memory, v.Share = d.Name, string(*r.ShareID), d.Memory, d.Share()
	had := k.had(&v)
	var err error
	if v.Host, v.Heir, err = k.hostsOf(c, had); err != nil {
		return v, err
	}
	if had != nil {
		v.Moved = had.Moved
	}
	for i := range k.state.GPUs {
		if pool.DeviceName(&k.state.GPUs[i].GPU) == r.Device {
			v.GPU = k.state.GPUs[i].ID
			return v, v.Check()
		}
	}
	if had != nil { // a GPU that fell off the bus: what runs may go on
		return *had, nil
	}
	if !k.known || k.silent != nil {
		return v, &unanswered{ErrSilent}
	}
	return v, fmt.Errorf("%w: %s of %s", ErrGone, strings.TrimSuffix(r.Device, "-net"), k.Host.Name)
}

// over reports whether no claim has a reservation, by the API server's word of this moment.
func (k *Keeper) over(ctx context.Context, r *api.Reservation) (bool, error) {
	namespace, name, ok := strings.Cut(r.Of, "/")
	uid, of := claim.UIDOf(r.VM)
	if !ok || !of {
		return true, nil
	}
	c, err := k.Cluster.Claim(ctx, namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, err
	case c.UID != uid || c.Status.Allocation == nil:
		return true, nil
	}
	return !slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(d resourceapi.DeviceRequestAllocationResult) bool {
		return d.Pool == claim.PoolOf(k.Host.Name) && d.ShareID != nil && string(*d.ShareID) == r.ID
	}), nil
}

// current: a claim has a device by the API server's word of this moment, where the host keeps
// another allocation of that claim, which ends if this one takes its place. What is known of claims
// may be old, also of a controller that has just begun and was told by an API server that lags
// behind others.
func (k *Keeper) current(ctx context.Context, w *want) error {
	if !slices.ContainsFunc(k.state.Reserved, func(r api.Reserved) bool { return r.Key() == w.r.Key() && r.ID != w.r.ID }) {
		return nil
	}
	over, err := k.over(ctx, &w.r)
	if err == nil && over {
		err = errOldNews
	}
	if err != nil {
		return &unanswered{err}
	}
	return nil
}

// ready says in a claim that its device has a lease.
func (k *Keeper) ready(ctx context.Context, w *want) error {
	data := claim.Lease{Server: k.Address, GPU: w.r.GPU, Epoch: k.epoch()}
	text := fmt.Sprintf("%s keeps %v of the GPU %s for the node %s", k.Host.Name, w.r.Memory, w.r.GPU, w.r.Host)
	if w.r.Heir != "" {
		text += ", and for the node " + w.r.Heir + " if the VM moves there"
	}
	if s := claim.StatusOf(w.claim, w.result); s != nil && s.Data != nil {
		c := apimeta.FindStatusCondition(s.Conditions, claim.LeaseReady)
		if had, err := claim.ParseLease(s.Data.Raw); err == nil && had.Server == data.Server && had.GPU == data.GPU && c != nil && c.Status == metav1.ConditionTrue && c.Message == text {
			return nil
		}
	}
	raw, err := data.Data()
	if err != nil {
		return err
	}
	return k.write(ctx, w, func(s *resourceapi.AllocatedDeviceStatus) {
		s.Data = raw
		apimeta.RemoveStatusCondition(&s.Conditions, claim.LeaseRefused)
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: claim.LeaseReady, Status: metav1.ConditionTrue, Reason: "Reserved", Message: text})
	})
}

// write changes what a claim's status says of a device, if the claim has it still.
func (k *Keeper) write(ctx context.Context, w *want, change func(*resourceapi.AllocatedDeviceStatus)) error {
	c, err := k.Cluster.Claim(ctx, w.claim.Namespace, w.claim.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c = c.DeepCopy()
	if c.UID != w.claim.UID || c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver == w.result.Driver && r.Pool == w.result.Pool && r.Device == w.result.Device && (r.ShareID == nil) == (w.result.ShareID == nil) && (r.ShareID == nil || *r.ShareID == *w.result.ShareID)
	}) {
		return nil // it was taken back meanwhile
	}
	s := claim.StatusOf(c, w.result)
	if s == nil {
		n := resourceapi.AllocatedDeviceStatus{Driver: w.result.Driver, Pool: w.result.Pool, Device: w.result.Device}
		if w.result.ShareID != nil {
			id := string(*w.result.ShareID)
			n.ShareID = &id
		}
		c.Status.Devices = append(c.Status.Devices, n)
		s = &c.Status.Devices[len(c.Status.Devices)-1]
	}
	before := s.DeepCopy()
	change(s)
	if same(before, s) {
		return nil
	}
	return k.Cluster.Update(ctx, c)
}

func same(a, b *resourceapi.AllocatedDeviceStatus) bool {
	return fmt.Sprint(a.Conditions, a.Data) == fmt.Sprint(b.Conditions, b.Data)
}

// Times of refusals: a GPU is known to get no claims for that long before one is refused, else the
// scheduler would choose it again at once; and one claim is not refused more often.
const (
	taintFirst = time.Second
	mostWait   = 10 * time.Second
)

// refuse says in a claim why its device has no lease. One whose pod is bound keeps the device, and
// hears that its lease is not there.
func (k *Keeper) refuse(ctx context.Context, w *want, why error) time.Duration {
	if passes(why) && !k.lost() {
		return time.Second
	}
	if k.lost() {
		why = fmt.Errorf("%w for %v: %w", ErrSilent, k.Patience, k.silent)
	}
	if s := claim.StatusOf(w.claim, w.result); s != nil && apimeta.IsStatusConditionTrue(s.Conditions, claim.LeaseReady) {
		if !k.lost() { // what it has there may go on
			k.lose(ctx, w, why)
		}
		return 0
	} else if s != nil && (apimeta.IsStatusConditionTrue(s.Conditions, claim.LeaseRefused) || apimeta.IsStatusConditionFalse(s.Conditions, claim.LeaseReady)) {
		return 0 // the scheduler takes it back, or it has been told
	}
	now := k.Now()
	if !errors.Is(why, claim.ErrClaim) && w.r.GPU != "" && !k.lost() {
		since, is := k.refused[w.r.GPU]
		if !is {
			since = now
			if k.refused == nil {
				k.refused = map[string]time.Time{}
			}
			k.refused[w.r.GPU] = now
		}
		if left := taintFirst - now.Sub(since); left > 0 {
			return left
		}
		k.refused[w.r.GPU] = now
	}
	uid := string(w.claim.UID)
	if last, is := k.lastRefused[uid]; is {
		if left := mostWait - now.Sub(last); left > 0 {
			return left
		}
	}
	why = fmt.Errorf("GPU host %s: %w", k.Host.Name, why)
	err := k.write(ctx, w, func(s *resourceapi.AllocatedDeviceStatus) {
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: claim.LeaseRefused, Status: metav1.ConditionTrue, Reason: "Refused", Message: short(why)})
	})
	if err != nil {
		k.Log.Warn("a claim is not told that it is refused yet", "claim", w.r.Of, "error", err)
		return time.Second
	}
	if k.lastRefused == nil {
		k.lastRefused = map[string]time.Time{}
	}
	k.lastRefused[uid] = now
	k.count(ActRefused)
	k.Log.Warn("a claim is refused", "claim", w.r.Of, "error", why)
	k.Cluster.Warn(claim.ID{Namespace: w.claim.Namespace, Name: w.claim.Name, UID: w.claim.UID}, why)
	return 0
}

// lose says that a lease is not there which a claim had.
func (k *Keeper) lose(ctx context.Context, w *want, why error) {
	why = fmt.Errorf("GPU host %s has the lease no more, and gives no other: %w", k.Host.Name, why)
	err := k.write(ctx, w, func(s *resourceapi.AllocatedDeviceStatus) {
		apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: claim.LeaseReady, Status: metav1.ConditionFalse, Reason: "Lost", Message: short(why)})
	})
	if err != nil {
		k.Log.Warn("a claim is not told that its lease is lost yet", "claim", w.r.Of, "error", err)
		return
	}
	k.count(ActLost)
	k.Cluster.Warn(claim.ID{Namespace: w.claim.Namespace, Name: w.claim.Name, UID: w.claim.UID}, why)
}

// short is an error as a condition may have it.
func short(err error) string {
	const most = 1000
	s := err.Error()
	return s[:min(len(s), most)]
}
