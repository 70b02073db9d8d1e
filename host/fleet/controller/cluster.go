package controller

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
	"causeway/host/fleet/claim"
	"causeway/host/fleet/pool"
)

// byPool indexes claims by the pools of their devices.
const byPool = "pool"

// cluster is the API server: what is known of claims and slices, and what is asked of it now.
type cluster struct {
	client kubernetes.Interface
	events record.EventRecorder
	claims cache.SharedIndexInformer
	slices cache.SharedIndexInformer
	nodes  atomic.Pointer[nodes]
}

// nodes are what nodes' own drivers say.
type nodes struct {
	gpus map[string][]string // by the UUIDs of what they say they offer
	runs map[string]bool
}

// newCluster makes one that is not started; changed hears of pools of which a claim has or had a
// device.
func newCluster(client kubernetes.Interface, events record.EventRecorder, changed func(pool string)) (*cluster, error) {
	c := &cluster{client: client, events: events}
	c.nodes.Store(&nodes{})
	c.claims = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim)).Resource().V1().ResourceClaims().Informer()
	ours := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, claim.Driver).String()
	}
	c.slices = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim), informers.WithTweakListOptions(ours)).Resource().V1().ResourceSlices().Informer()
	if err := c.claims.AddIndexers(cache.Indexers{byPool: func(o any) ([]string, error) { return poolsOf(o), nil }}); err != nil {
		return nil, err
	}
	tell := func(list ...any) {
		for _, o := range list {
			if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = d.Obj
			}
			for _, p := range poolsOf(o) {
				changed(p)
			}
		}
	}
	if _, err := c.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { tell(o) }, DeleteFunc: func(o any) { tell(o) }, UpdateFunc: func(was, o any) { tell(was, o) },
	}); err != nil {
		return nil, err
	}
	_, err := c.slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.look() }, DeleteFunc: func(any) { c.look() }, UpdateFunc: func(any, any) { c.look() },
	})
	return c, err
}

// slim leaves out who has written what, which is half of an object.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// poolsOf are the pools of the controller's kind of which a claim has devices over the network,
// each once.
func poolsOf(o any) (list []string) {
	c, ok := o.(*resourceapi.ResourceClaim)
	if !ok || c.Status.Allocation == nil {
		return nil
	}
	seen := map[string]bool{}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if claim.OnNetwork(r) && !seen[r.Pool] {
			seen[r.Pool] = true
			list = append(list, r.Pool)
		}
	}
	return list
}

// look notes what nodes' slices say.
func (c *cluster) look() {
	n := &nodes{gpus: map[string][]string{}, runs: map[string]bool{}}
	for _, o := range c.slices.GetStore().List() {
		s, ok := o.(*resourceapi.ResourceSlice)
		if !ok || s.Spec.NodeName == nil {
			continue
		}
		n.runs[*s.Spec.NodeName] = true
		for i := range s.Spec.Devices {
			if a := s.Spec.Devices[i].Attributes["uuid"].StringValue; a != nil {
				n.gpus[*a] = append(n.gpus[*a], *s.Spec.NodeName)
			}
		}
	}
	for _, list := range n.gpus {
		slices.Sort(list)
	}
	c.nodes.Store(n)
}

// start begins to hear, and returns when all is known that there was.
func (c *cluster) start(ctx context.Context) error {
	go c.claims.RunWithContext(ctx)
	go c.slices.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), c.claims.HasSynced, c.slices.HasSynced) {
		return fmt.Errorf("claims and slices are not heard of: %w", context.Cause(ctx))
	}
	c.look()
	return nil
}

// Claims implements lease.Cluster, as the rest does.
func (c *cluster) Claims(pool string) (list []*resourceapi.ResourceClaim) {
	objects, err := c.claims.GetIndexer().ByIndex(byPool, pool)
	if err != nil {
		return nil
	}
	for _, o := range objects {
		list = append(list, o.(*resourceapi.ResourceClaim))
	}
	return list
}

// Claim is one as it is now.
func (c *cluster) Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	return c.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// NodeOf is where a pod is, or is about to be: the scheduler nominates the node before it waits for
// the lease.
func (c *cluster) NodeOf(ctx context.Context, namespace, name string, uid types.UID) (node string, sure bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	p, err := c.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && (p.UID != uid || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed):
		// It is over, and the claim will say so.
		return "", true, nil
	case err != nil:
		return "", false, err
	case p.Spec.NodeName != "":
		return p.Spec.NodeName, true, nil
	}
	return p.Status.NominatedNodeName, false, nil
}

// Update writes a claim's status.
func (c *cluster) Update(ctx context.Context, rc *resourceapi.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	_, err := c.client.ResourceV1().ResourceClaims(rc.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
	return err
}

// reason is that of events, as causeway-dra has it.
const reason = "CausewayRefused"

// Warn makes an event of a claim.
func (c *cluster) Warn(id claim.ID, why error) {
	c.events.Event(&corev1.ObjectReference{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim", Namespace: id.Namespace, Name: id.Name, UID: id.UID}, corev1.EventTypeWarning, reason, why.Error())
}

// Elsewhere are the GPUs that nodes say they offer.
func (c *cluster) Elsewhere() map[string][]string { return c.nodes.Load().gpus }

// DriverRuns: a node's driver has a slice there while it runs; the kubelet removes it 30 s after.
func (c *cluster) DriverRuns(node string) bool { return c.nodes.Load().runs[node] }

// published are the GPUs of a host as an earlier controller has offered them.
func (c *cluster) published(host string) (list []api.FleetGPU) {
	for _, o := range c.slices.GetStore().List() {
		s, ok := o.(*resourceapi.ResourceSlice)
		if !ok || s.Spec.NodeName != nil || s.Spec.Pool.Name != claim.PoolOf(host) {
			continue
		}
		for i := range s.Spec.Devices {
			if g, ok := pool.GPUOf(&s.Spec.Devices[i]); ok {
				list = append(list, g)
			}
		}
	}
	return list
}

// owner is whose the slices are: with the controller's namespace they go, for without a controller
// nobody takes them away. nil: it may not be read, and they stay.
func (c *cluster) owner(ctx context.Context, namespace string, log *slog.Logger) *resourceslice.Owner {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	n, err := c.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		log.Warn("what the fleet offers will not go with the controller's namespace: apply causeway-fleet.yaml of this version", "namespace", namespace, "error", err)
		return nil
	}
	return &resourceslice.Owner{APIVersion: "v1", Kind: "Namespace", Name: n.Name, UID: n.UID}
}

// settle is how long changes are gathered before they are published.
const settle = 200 * time.Millisecond
