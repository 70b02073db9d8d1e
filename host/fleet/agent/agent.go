package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"causeway/host/api"
	"causeway/host/fleet/publish"
)

// Errors of a host and its pods.
var (
	ErrForeign  = errors.New("the node is not this agent's")
	ErrGone     = errors.New("somebody has deleted the node")
	ErrDomain   = errors.New("the pod names no domain: annotation " + DomainKey)
	ErrNoDomain = errors.New("no such domain")
	ErrWaits    = errors.New("the pod's claims are not allocated to it yet")
	ErrNotOurs  = errors.New("this node runs no containers: it has vGPUs for domains of libvirt (docs/KUBERNETES.md)")
	ErrForbid   = errors.New("domains of this host are not for pods of this namespace (--namespaces)")
	ErrServes   = errors.New("the claim is for a container, and this node has none: use the class causeway-libvirt, or parameters with serves: vm")
	ErrTwice    = errors.New("the claim's vGPU is another pod's, for another domain")
	ErrRenamed  = errors.New("the pod names another domain than the one that has its vGPU: a pod is for one domain, make another pod for another")
	ErrLost     = errors.New("the vGPU's device process has ended")
)

// Causewayd is what the agent asks of the host's causewayd. *api.Client is one.
type Causewayd interface {
	publish.Causewayd
	Ensure(ctx context.Context, w api.Wish) (api.VGPU, error)
	Release(ctx context.Context, vm, name string, unused bool) error
}

// Agent looks after the pods of its node.
type Agent struct {
	Client kubernetes.Interface
	Node   string
	// Namespaces are those whose pods may name domains; none: all.
	Namespaces []string
	Causewayd  Causewayd
	Domains    Domains
	Records    Dir
	Events     record.EventRecorder
	Log        *slog.Logger

	pods  cache.SharedIndexInformer
	queue workqueue.TypedRateLimitingInterface[string]

	noting sync.Mutex // of two pods with one claim the first has it
	mu     sync.Mutex
	// By pods' keys, of the pod and its claims: why it is not served, as the last event has it.
	reported map[string]map[types.UID]string
	domains  map[string]*turn // a domain's description has one writer
}

// Times.
const (
	firstRetry = time.Second
	mostRetry  = 15 * time.Second
	lookAgain  = time.Minute // at pods that run
	workers    = 4           // a guest that does not let go keeps one busy
)

// Run serves pods until ctx ends.
func (a *Agent) Run(ctx context.Context) error {
	a.reported, a.domains = map[string]map[types.UID]string{}, map[string]*turn{}
	a.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, mostRetry))
	defer a.queue.ShutDown()
	mine := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.Node).String()
	}
	a.pods = informers.NewSharedInformerFactoryWithOptions(a.Client, lookAgain, informers.WithTweakListOptions(mine)).Core().V1().Pods().Informer()
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil {
			a.queue.Add(key)
		}
	}
	if _, err := a.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, DeleteFunc: add, UpdateFunc: func(_, o any) { add(o) }}); err != nil {
		return err
	}
	go a.pods.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), a.pods.HasSynced) {
		return nil // ctx has ended
	}
	if err := a.queueLeft(); err != nil {
		a.Log.Error("what this host has of claims is not known in full", "error", err)
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				key, end := a.queue.Get()
				if end {
					return
				}
				a.reconcile(ctx, key)
			}
		})
	}
	<-ctx.Done()
	a.queue.ShutDown()
	wg.Wait()
	return nil
}

// turn is who may change a domain. It is kept while somebody has it or waits for it: anybody's pod
// can name any domain.
type turn struct {
	sync.Mutex
	users int // under the agent's mu
}

// alone has a domain for whoever calls, until the answer is called.
func (a *Agent) alone(domain string) (free func()) {
	a.mu.Lock()
	t := a.domains[domain]
	if t == nil {
		t = &turn{}
		a.domains[domain] = t
	}
	t.users++
	a.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		a.mu.Lock()
		defer a.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(a.domains, domain)
		}
	}
}

// queueLeft has pods looked at that are gone and of which this host has something still.
func (a *Agent) queueLeft() error {
	list, err := a.Records.All()
	for i := range list {
		a.queue.Add(list[i].Namespace + "/" + list[i].Pod)
	}
	return err
}

func (a *Agent) reconcile(ctx context.Context, key string) {
	defer a.queue.Done(key)
	err := a.Look(ctx, key)
	switch {
	case err == nil:
		a.queue.Forget(key)
	case ctx.Err() == nil:
		a.Log.Warn("a pod is looked at again", "pod", key, "error", err)
		a.queue.AddRateLimited(key)
	}
}

// Look brings what the host has to what a pod says, once. An error is one that may pass.
func (a *Agent) Look(ctx context.Context, key string) error {
	o, there, err := a.pods.GetStore().GetByKey(key)
	if err != nil {
		return err
	}
	var pod *corev1.Pod
	if there {
		pod = o.(*corev1.Pod).DeepCopy()
	}
	// What is left of a pod that had this name before, or that somebody deleted by force, goes
	// first.
	if err := a.takeBackOthers(ctx, key, pod); err != nil {
		a.warn(pod, err)
		return err
	}
	if pod == nil {
		a.forget(key)
		return nil
	}
	switch {
	case pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return a.end(ctx, pod)
	case len(pod.Spec.ResourceClaims) == 0:
		return a.notOurs(ctx, pod)
	}
	return a.serve(ctx, pod)
}

// warn says on a pod why it is not served, once for each reason.
func (a *Agent) warn(pod *corev1.Pod, why error) {
	if pod != nil {
		a.report(pod, pod, pod.UID, why)
	}
}

// report says it on the pod or on a claim of its, and remembers it as long as there is the pod.
func (a *Agent) report(pod *corev1.Pod, object runtime.Object, uid types.UID, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.reported[a.describe(pod)]
	if of == nil {
		of = map[types.UID]string{}
		a.reported[a.describe(pod)] = of
	}
	if of[uid] != why.Error() {
		of[uid] = why.Error()
		a.Events.Event(object, corev1.EventTypeWarning, reason, why.Error())
	}
}

// reason is that of events, as causeway-dra has it.
const reason = "CausewayRefused"

// forget has what comes be said anew: the pod is served, or is gone.
func (a *Agent) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.reported, key)
}

// notOurs: a pod that a controller makes would be made again and again if it failed, and waits
// instead; another one fails.
func (a *Agent) notOurs(ctx context.Context, pod *corev1.Pod) error {
	a.warn(pod, ErrNotOurs)
	if metav1.GetControllerOf(pod) != nil || pod.Status.Phase != corev1.PodPending {
		return nil
	}
	return a.fail(ctx, pod, ErrNotOurs)
}

// passes reports whether what kept a pod from its vGPU may be otherwise later, with nothing changed
// in the pod or its claim.
func passes(err error) bool {
	for _, final := range final {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

// describe is a pod's key.
func (a *Agent) describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s/%s", pod.Namespace, pod.Name)
}
