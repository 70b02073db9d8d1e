// Command hollow measures a control plane with hosts that are not there: nodes with GPUs, as
// causeway-dra publishes them, and pods with claims, which it sets running once they are bound. It
// prints how long that took, what of GPU memory is left where no claim fits any more, and what it
// cost the API server. scripts/fleet.sh --scale runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

const (
	driver = "gpu.causeway.dev"
	gpuGiB = 141
	atOnce = 16
	// It is over when no claim has been placed for so long.
	mostStill = 3 * time.Minute
	// What a crowded API server has no time for is asked for again so often.
	mostTries = 20
)

// mix is what claims ask for, in GiB, in turn: half are small.
var mix = []int{10, 40, 20, 80, 10, 20, 40, 10}

type sim struct {
	client              kubernetes.Interface
	hosts, gpus, claims int
	scheduler           string

	mu      sync.Mutex
	created map[string]time.Time
	took    []time.Duration
	running atomic.Int64
}

func main() {
	s := &sim{created: map[string]time.Time{}}
	kubeconfig := flag.String("kubeconfig", "", "")
	flag.IntVar(&s.hosts, "hosts", 500, "")
	flag.IntVar(&s.gpus, "gpus", 8, "of each host")
	flag.IntVar(&s.claims, "claims", 5000, "")
	flag.StringVar(&s.scheduler, "scheduler", "default-scheduler", "profile")
	flag.Parse()
	if err := s.run(context.Background(), *kubeconfig); err != nil {
		log.Fatal(err)
	}
}

func (s *sim) run(ctx context.Context, kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	if s.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	begin := time.Now()
	if err := s.each(s.hosts, func(i int) error { return s.host(ctx, i) }); err != nil {
		return err
	}
	log.Printf("%d hosts of %d GPUs: %v", s.hosts, s.gpus, time.Since(begin).Round(time.Millisecond))
	if err := s.templates(ctx); err != nil {
		return err
	}
	if err := s.kubelets(ctx); err != nil {
		return err
	}
	before, err := s.costs(ctx)
	if err != nil {
		return err
	}
	begin = time.Now()
	if err := s.each(s.claims, func(i int) error { return s.pod(ctx, i) }); err != nil {
		return err
	}
	made := time.Since(begin)
	for last, since := int64(-1), time.Now(); last < int64(s.claims) && time.Since(since) < mostStill; time.Sleep(50 * time.Millisecond) {
		if n := s.running.Load(); n != last {
			last, since = n, time.Now()
		}
	}
	all := time.Since(begin)
	after, err := s.costs(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	slices.Sort(s.took)
	n := len(s.took)
	s.mu.Unlock()
	if n == 0 {
		return fmt.Errorf("no pod runs after %v", all)
	}
	fmt.Printf("%s: %d of %d claims placed on %d hosts x %d GPUs in %.1f s (made in %.1f s): %.0f/s, half within %.1f s, 99 of 100 within %.1f s\n",
		s.scheduler, n, s.claims, s.hosts, s.gpus, all.Seconds(), made.Seconds(), float64(n)/all.Seconds(), s.took[n/2].Seconds(), s.took[n*99/100].Seconds())
	if err := s.stranded(ctx); err != nil {
		return err
	}
	fmt.Printf("API server: %s\n", after.less(before, s.claims))
	return nil
}

// each does f for 0 to n-1, several at once.
func (s *sim) each(n int, f func(int) error) error {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	todo := make(chan int)
	for range atOnce {
		wg.Go(func() {
			for i := range todo {
				if err := f(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	for i := range n {
		todo <- i
	}
	close(todo)
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// patiently does what a crowded API server may have no time for now. What it has done all the same
// is done.
func patiently(do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err == nil || try > 1 && apierrors.IsAlreadyExists(err) {
			return nil
		}
		if try == mostTries || !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err) && !apierrors.IsServiceUnavailable(err) {
			return err
		}
		time.Sleep(time.Second)
	}
}

// create has the API server make something, patiently.
func create[T any](ctx context.Context, do func(context.Context, T, metav1.CreateOptions) (T, error), what T) error {
	return patiently(func() error {
		_, err := do(ctx, what, metav1.CreateOptions{})
		return err
	})
}

func (s *sim) host(ctx context.Context, i int) error {
	name := fmt.Sprintf("sim-%04d", i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}
	if err := create(ctx, s.client.CoreV1().Nodes().Create, n); err != nil {
		return err
	}
	room := corev1.ResourceList{"cpu": resource.MustParse("128"), "memory": resource.MustParse("1128Gi"), "pods": resource.MustParse("250")}
	set := func() error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Status.Allocatable, n.Status.Capacity = room, room
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		_, err = s.client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
		return err
	}
	if err := patiently(func() error { return retry.RetryOnConflict(retry.DefaultRetry, set) }); err != nil {
		return err
	}
	return create(ctx, s.client.ResourceV1().ResourceSlices().Create, s.slice(name))
}

func (s *sim) slice(host string) *resourceapi.ResourceSlice {
	all, least, none, most := resource.MustParse(fmt.Sprint(gpuGiB, "Gi")), resource.MustParse("1Mi"), resource.MustParse("0"), resource.MustParse("100")
	shared, path := true, "local"
	spec := resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &host, Pool: resourceapi.ResourcePool{Name: host, Generation: 1, ResourceSliceCount: 1}}
	for g := range s.gpus {
		uuid, model := fmt.Sprintf("GPU-%s-%d", host, g), "NVIDIA H200"
		spec.Devices = append(spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", g), AllowMultipleAllocations: &shared,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"host": {StringValue: &host}, "path": {StringValue: &path}, "uuid": {StringValue: &uuid}, "model": {StringValue: &model}},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				"memory":  {Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &all, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Step: &least, Max: &all}}},
				"compute": {Value: most, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &none, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &none, Max: &most}}}}})
	}
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: host}, Spec: spec}
}

func template(gib int) string { return fmt.Sprintf("sim-%dg", gib) }

func (s *sim) templates(ctx context.Context) error {
	for _, gib := range slices.Compact(slices.Sorted(slices.Values(mix))) {
		t := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: template(gib)}}
		t.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "causeway",
			Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(fmt.Sprint(gib, "Gi"))}}}}}
		if err := create(ctx, s.client.ResourceV1().ResourceClaimTemplates("default").Create, t); err != nil {
			return err
		}
	}
	return nil
}

func (s *sim) pod(ctx context.Context, i int) error {
	name, gib := fmt.Sprintf("sim-%05d", i), mix[i%len(mix)]
	from := template(gib)
	s.mu.Lock()
	s.created[name] = time.Now()
	s.mu.Unlock()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{SchedulerName: s.scheduler,
		// What a host has no kubelet for is not evicted from it.
		Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "vgpu", ResourceClaimTemplateName: &from}},
		Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "vgpu"}},
			Requests: corev1.ResourceList{"cpu": *resource.NewMilliQuantity(int64(gib)*100, resource.DecimalSI), "memory": resource.MustParse(fmt.Sprint(gib, "Gi"))}}}}}}
	return create(ctx, s.client.CoreV1().Pods("default").Create, p)
}

// kubelets set pods running that are bound.
func (s *sim) kubelets(ctx context.Context) error {
	f := informers.NewSharedInformerFactory(s.client, 0)
	bound := make(chan *corev1.Pod, s.claims+atOnce)
	seen := map[string]bool{}
	see := func(o any) {
		if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" && p.Status.Phase == corev1.PodPending && !seen[p.Name] {
			seen[p.Name] = true
			bound <- p.DeepCopy()
		}
	}
	if _, err := f.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }}); err != nil {
		return err
	}
	f.Start(ctx.Done())
	f.WaitForCacheSync(ctx.Done())
	for range atOnce {
		go func() {
			for p := range bound {
				s.mu.Lock()
				s.took = append(s.took, time.Since(s.created[p.Name]))
				s.mu.Unlock()
				p.Status.Phase = corev1.PodRunning
				err := patiently(func() error {
					_, err := s.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
					return err
				})
				if err != nil {
					log.Print(err)
				}
				s.running.Add(1)
			}
		}()
	}
	return nil
}

// stranded prints what is left of GPUs that are in use, by what would still fit there.
func (s *sim) stranded(ctx context.Context) error {
	list, err := s.client.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	used, hosts := map[string]int64{}, map[string]bool{}
	var claimed int64
	for i := range list.Items {
		a := list.Items[i].Status.Allocation
		if a == nil {
			continue
		}
		for _, r := range a.Devices.Results {
			q := r.ConsumedCapacity["memory"]
			used[r.Pool+"/"+r.Device] += q.Value() >> 30
			hosts[r.Pool] = true
			claimed += q.Value() >> 30
		}
	}
	var left, lost int64
	for gpu := range maps.Keys(used) {
		if used[gpu] > gpuGiB {
			return fmt.Errorf("%s has claims of %d GiB, and %d GiB of memory", gpu, used[gpu], gpuGiB)
		}
		left += gpuGiB - used[gpu]
		if gpuGiB-used[gpu] < int64(slices.Min(mix)) {
			lost += gpuGiB - used[gpu]
		}
	}
	fmt.Printf("%d GiB claimed on %d GPUs of %d hosts; of what is left of these GPUs %d GiB take further claims, and %d GiB (%.1f %% of all of them) are stranded: no claim is so small\n",
		claimed, len(used), len(hosts), left-lost, lost, 100*float64(lost)/float64(int64(len(used))*gpuGiB))
	return nil
}
