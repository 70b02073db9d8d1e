package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// Names by which pods say that they are for such a node, and for which domain.
const (
	// Mark is the Node's label, with the value "true", and its taint (NoSchedule): no pod comes
	// that does not want a node without containers.
	Mark = "causeway.dev/agent"
	// DomainKey is the annotation of a pod that names the domain, as libvirt on that host calls it.
	DomainKey = "causeway.dev/domain"
)

// Times of a Node. A node whose Lease is not renewed for 40 s (the API server's default) is
// NotReady.
const (
	leaseFor   = 40 * time.Second
	leaseEvery = 10 * time.Second
	askTime    = 8 * time.Second
	mostPods   = 250
)

// leaseNamespace is where Kubernetes looks for the Leases of nodes.
const leaseNamespace = "kube-node-lease"

// Node is this host in the cluster.
type Node struct {
	Client  kubernetes.Interface
	Name    string
	Version string
	Address string // by which people find the host; "": none is named
	Log     *slog.Logger
	now     func() time.Time
}

func (n *Node) time() metav1.Time {
	if n.now != nil {
		return metav1.NewTime(n.now())
	}
	return metav1.Now()
}

// Register has the Node be there, and returns it. One that another made, which has not the taint,
// is refused: pods with containers would come.
func (n *Node) Register(ctx context.Context) (*corev1.Node, error) {
	nodes := n.Client.CoreV1().Nodes()
	have, err := nodes.Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if have, err = nodes.Create(ctx, n.object(), metav1.CreateOptions{}); err == nil {
			n.Log.Info("this host is a node of the cluster now", "node", n.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("register the node %s: %w", n.Name, err)
	}
	if have.Labels[Mark] != "true" || !tainted(have) {
		return nil, fmt.Errorf("%w: %s has not the label and the taint %s: it is a kubelet's, where causeway-dra serves pods; give this agent another --node", ErrForeign, n.Name, Mark)
	}
	return have, n.Beat(ctx)
}

func tainted(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == Mark && t.Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	}
	return false
}

func (n *Node) object() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", Mark: "true"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: Mark, Effect: corev1.TaintEffectNoSchedule}}},
	}
}

// status: of cpu and memory there is nothing, so a pod that wants to run something does not fit,
// whatever it tolerates.
func (n *Node) status(s *corev1.NodeStatus) {
	room := corev1.ResourceList{
		corev1.ResourcePods: *resource.NewQuantity(mostPods, resource.DecimalSI), corev1.ResourceCPU: resource.MustParse("0"), corev1.ResourceMemory: resource.MustParse("0"),
	}
	s.Capacity, s.Allocatable = room, room.DeepCopy()
	s.NodeInfo.KubeletVersion, s.NodeInfo.OperatingSystem, s.NodeInfo.Architecture = "causeway-agent "+n.Version, "linux", "amd64"
	s.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}}
	if n.Address != "" {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.Address})
	}
	now := n.time()
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "CausewayAgent", Message: "causeway-fleet agent serves vGPUs of domains here",
		LastHeartbeatTime: now, LastTransitionTime: now}
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == ready.Type {
			if c.Status == ready.Status {
				ready.LastTransitionTime = c.LastTransitionTime
			}
			*c = ready
			return
		}
	}
	s.Conditions = append(s.Conditions, ready)
}

// Beat says once that the host is there: by its Lease, and by the Node's status where that says
// something else.
func (n *Node) Beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := n.renew(ctx); err != nil {
		return fmt.Errorf("the node's Lease: %w", err)
	}
	// Others write to a Node, too: the cluster's controllers have taints of their own for one that
	// is new.
	return retry.RetryOnConflict(retry.DefaultRetry, func() error { return n.ready(ctx) })
}

// ready has the Node's status say that it is, where it says something else.
func (n *Node) ready(ctx context.Context) error {
	have, err := n.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("the node %s: %w", n.Name, err)
	}
	if isReady(have) && have.Status.NodeInfo.KubeletVersion == "causeway-agent "+n.Version {
		return nil
	}
	n.status(&have.Status)
	if _, err = n.Client.CoreV1().Nodes().UpdateStatus(ctx, have, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("the status of the node %s: %w", n.Name, err)
	}
	return nil
}

func isReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (n *Node) renew(ctx context.Context) error {
	leases := n.Client.CoordinationV1().Leases(leaseNamespace)
	now, seconds := metav1.NewMicroTime(n.time().Time), int32(leaseFor/time.Second)
	have, err := leases.Get(ctx, n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Namespace: leaseNamespace},
			Spec: coordination.LeaseSpec{HolderIdentity: &n.Name, LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	have.Spec.HolderIdentity, have.Spec.LeaseDurationSeconds, have.Spec.RenewTime = &n.Name, &seconds, &now
	_, err = leases.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// RoutineBeat says so until ctx ends. It ends with ErrGone when somebody has deleted the Node.
func (n *Node) RoutineBeat(ctx context.Context) error {
	t := time.NewTicker(leaseEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		err := n.Beat(ctx)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w: %s", ErrGone, n.Name)
		}
		if err != nil && ctx.Err() == nil {
			n.Log.Warn("the cluster does not hear of this host", "error", err)
		}
	}
}
