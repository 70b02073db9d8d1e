package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"causeway/host/fleet/overview"
)

// access says how the API server is reached, by the rules of kubectl: --kubeconfig, $KUBECONFIG,
// ~/.kube/config, or as a pod is told.
type access struct{ kubeconfig, context, namespace string }

// connect makes the client, and says which namespace is meant where none is named.
func (a *access) connect() (*cluster, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: a.context}
	overrides.Context.Namespace = a.namespace
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	cfg, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) || errors.Is(err, clientcmd.ErrEmptyConfig) {
		return nil, "", fmt.Errorf("no cluster is known: give --kubeconfig FILE, or set KUBECONFIG, or have ~/.kube/config (%w)", err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("how the API server is reached: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("which namespace: %w", err)
	}
	cfg.UserAgent = "causeway-fleet/" + version
	// The server has its own fairness. The client's limit fails a call that it would let go after
	// the context's end, with an error of its own while the time is not up.
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	return &cluster{client}, namespace, err
}

// cluster is the API server.
type cluster struct{ client kubernetes.Interface }

var _ overview.Cluster = (*cluster)(nil)

// Nodes implements overview.Cluster, as the rest does.
func (c *cluster) Nodes(ctx context.Context) ([]corev1.Node, error) {
	l, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Slices are all drivers'.
func (c *cluster) Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
	l, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Classes are all drivers'.
func (c *cluster) Classes(ctx context.Context) ([]resourceapi.DeviceClass, error) {
	l, err := c.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Claims are all drivers'.
func (c *cluster) Claims(ctx context.Context, namespace string) ([]resourceapi.ResourceClaim, error) {
	l, err := c.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Pods are all of a namespace.
func (c *cluster) Pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	l, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// Events are the warnings of a namespace.
func (c *cluster) Events(ctx context.Context, namespace string) ([]corev1.Event, error) {
	l, err := c.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=" + corev1.EventTypeWarning})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

// create makes a claim.
func (c *cluster) create(ctx context.Context, rc *resourceapi.ResourceClaim) error {
	_, err := c.client.ResourceV1().ResourceClaims(rc.Namespace).Create(ctx, rc, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("there is a claim %s/%s already: use another name, or `kubectl -n %s delete resourceclaim %s`: %w", rc.Namespace, rc.Name, rc.Namespace, rc.Name, err)
	case err != nil:
		return fmt.Errorf("make the claim %s/%s: %w", rc.Namespace, rc.Name, err)
	}
	return nil
}

// setDrained gives a node overview.TaintDrain or takes it away; the answer is whether that changed
// anything.
func (c *cluster) setDrained(ctx context.Context, name string, on bool) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if changed = overview.SetDrained(n, on); !changed {
			return nil
		}
		_, err = c.client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return false, fmt.Errorf("there is no node %s: `causeway-fleet ls` lists those with GPUs: %w", name, err)
	case apierrors.IsForbidden(err):
		return false, fmt.Errorf("the node %s: it takes the right to update nodes: %w", name, err)
	case err != nil:
		return false, fmt.Errorf("the node %s: %w", name, err)
	}
	return changed, nil
}
