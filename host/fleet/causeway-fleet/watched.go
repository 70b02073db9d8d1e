package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"causeway/host/fleet/overview"
)

// watched is the API server as it is told what changes, for whoever looks all the time: it lists
// nothing twice. Of objects it keeps what an overview needs.
type watched struct {
	client                                        kubernetes.Interface
	nodes, slices, classes, claims, pods, warning *kind
}

var _ overview.Cluster = (*watched)(nil)

// kind is one kind of objects.
type kind struct {
	informer cache.SharedIndexInformer
	mu       sync.Mutex
	err      error // why it is not there
}

// watch begins to watch; it goes on until ctx ends.
func watch(ctx context.Context, client kubernetes.Interface) (*watched, error) {
	all := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(lighten))
	warnings := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(lighten),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "type=" + corev1.EventTypeWarning }))
	w := &watched{client: client}
	var errs []error
	add := func(i cache.SharedIndexInformer) *kind {
		k := &kind{informer: i}
		errs = append(errs, i.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.err = err
		}))
		return k
	}
	w.nodes, w.pods = add(all.Core().V1().Nodes().Informer()), add(all.Core().V1().Pods().Informer())
	w.slices, w.classes = add(all.Resource().V1().ResourceSlices().Informer()), add(all.Resource().V1().DeviceClasses().Informer())
	w.claims, w.warning = add(all.Resource().V1().ResourceClaims().Informer()), add(warnings.Core().V1().Events().Informer())
	all.Start(ctx.Done())
	warnings.Start(ctx.Done())
	return w, errors.Join(errs...)
}

// lighten leaves of an object what an overview needs: a fleet has many pods.
func lighten(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	if p, ok := o.(*corev1.Pod); ok {
		p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, ResourceClaims: p.Spec.ResourceClaims}
		p.Status = corev1.PodStatus{Phase: p.Status.Phase, ResourceClaimStatuses: p.Status.ResourceClaimStatuses}
	}
	return o, nil
}

// read is the fleet. That the API server is there is asked each time: what is kept says nothing of
// that.
func (w *watched) read(ctx context.Context) (*overview.Fleet, error) {
	if err := w.client.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error(); err != nil {
		return nil, fmt.Errorf("the API server: %w", err)
	}
	return overview.Read(ctx, w, "")
}

// errNotYet says that a kind has not been listed yet.
var errNotYet = errors.New("not read yet")

func kept[T any](k *kind, wanted func(*T) bool) ([]T, error) {
	if !k.informer.HasSynced() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.err != nil {
			return nil, k.err
		}
		return nil, errNotYet
	}
	var list []T
	for _, o := range k.informer.GetStore().List() {
		if t, ok := o.(*T); ok && (wanted == nil || wanted(t)) {
			list = append(list, *t)
		}
	}
	return list, nil
}

func in[T any](namespace string, of func(*T) string) func(*T) bool {
	return func(t *T) bool { return namespace == "" || of(t) == namespace }
}

// Nodes implements overview.Cluster, as the rest does.
func (w *watched) Nodes(context.Context) ([]corev1.Node, error) {
	return kept[corev1.Node](w.nodes, nil)
}

// Slices are all drivers'.
func (w *watched) Slices(context.Context) ([]resourceapi.ResourceSlice, error) {
	return kept[resourceapi.ResourceSlice](w.slices, nil)
}

// Classes are all drivers'.
func (w *watched) Classes(context.Context) ([]resourceapi.DeviceClass, error) {
	return kept[resourceapi.DeviceClass](w.classes, nil)
}

// Claims are all drivers'.
func (w *watched) Claims(_ context.Context, namespace string) ([]resourceapi.ResourceClaim, error) {
	return kept(w.claims, in(namespace, func(c *resourceapi.ResourceClaim) string { return c.Namespace }))
}

// Pods are those that name claims.
func (w *watched) Pods(_ context.Context, namespace string) ([]corev1.Pod, error) {
	return kept(w.pods, func(p *corev1.Pod) bool {
		return len(p.Spec.ResourceClaims) > 0 && (namespace == "" || p.Namespace == namespace)
	})
}

// Events are the warnings of a namespace.
func (w *watched) Events(_ context.Context, namespace string) ([]corev1.Event, error) {
	return kept(w.warning, in(namespace, func(e *corev1.Event) string { return e.Namespace }))
}
