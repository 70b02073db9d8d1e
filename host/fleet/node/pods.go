package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// PodResources is where a kubelet whose folder is the usual one says what its pods have.
const PodResources = "/var/lib/kubelet/pod-resources/kubelet.sock"

// Pods tells which claims containers of this node's pods have.
type Pods interface {
	// Containers are a pod's that run beside one another; ErrNoPod: this node has none of that
	// name.
	Containers(ctx context.Context, namespace, pod string) ([]Container, error)
}

// Container is one of a pod, and its claims by name, that of its extended resources included.
type Container struct {
	Name   string
	Claims []string
}

// ErrNoPod says that the node has no such pod.
var ErrNoPod = errors.New("no such pod on this node")

// Kubelet asks the node's kubelet, by its socket, of which it answers to root. So causeway-dra's
// token needs no right to read pods, which Kubernetes does not have for those of one node alone.
type Kubelet struct{ conn *grpc.ClientConn }

var _ Pods = (*Kubelet)(nil)

// mostAnswer bounds what is read of the kubelet, and askTime how long that may take.
const (
	mostAnswer = 4 << 20
	askTime    = 5 * time.Second
)

// NewKubelet asks at a socket. Nothing is connected yet: the kubelet may start afterwards, and
// anew.
func NewKubelet(socket string) (*Kubelet, error) {
	again := backoff.DefaultConfig
	// A kubelet that starts anew asks at once.
	again.BaseDelay, again.MaxDelay = 100*time.Millisecond, time.Second
	c, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: askTime}))
	if err != nil {
		return nil, fmt.Errorf("the kubelet's pod resources: %w", err)
	}
	return &Kubelet{c}, nil
}

// Close ends the connection.
func (k *Kubelet) Close() error { return k.conn.Close() }

// Containers implements Pods. The kubelet knows a pod's claims before it has them prepared, and
// leaves out init containers that end.
func (k *Kubelet) Containers(ctx context.Context, namespace, pod string) ([]Container, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	r, err := podresources.NewPodResourcesListerClient(k.conn).Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: namespace, PodName: pod}, grpc.WaitForReady(true))
	if code := status.Code(err); code == codes.NotFound || code == codes.Unknown && strings.Contains(err.Error(), "not found") { // 1.36 has no code for it
		return nil, ErrNoPod
	}
	if err != nil {
		return nil, fmt.Errorf("the kubelet's pod resources (%s): %w", k.conn.Target(), err)
	}
	var list []Container
	for _, c := range r.GetPodResources().GetContainers() {
		next := Container{Name: c.GetName()}
		for _, d := range c.GetDynamicResources() {
			if d.GetClaimNamespace() == namespace {
				next.Claims = append(next.Claims, d.GetClaimName())
			}
		}
		list = append(list, next)
	}
	return list, nil
}
