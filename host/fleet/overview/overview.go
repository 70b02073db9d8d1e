package overview

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"causeway/host/fleet/claim"
)

// Cluster is what is read of the API server. All namespaces is "".
type Cluster interface {
	Nodes(ctx context.Context) ([]corev1.Node, error)
	Slices(ctx context.Context) ([]resourceapi.ResourceSlice, error)
	Classes(ctx context.Context) ([]resourceapi.DeviceClass, error)
	Claims(ctx context.Context, namespace string) ([]resourceapi.ResourceClaim, error)
	Pods(ctx context.Context, namespace string) ([]corev1.Pod, error)
	Events(ctx context.Context, namespace string) ([]corev1.Event, error)
}

// Fleet is what there is.
type Fleet struct {
	Nodes  []Node  `json:"nodes"`
	Claims []Claim `json:"claims"`
	Moves  []Move  `json:"moves"`
	// Lacking are pods that wait for claims that are not there: Kubernetes itself says nothing of
	// those.
	Lacking []Lacking `json:"lacking,omitempty"`
	// Unread says what was not to be read, and why: the rest stands.
	Unread []string `json:"unread,omitempty"`
}

// Node is one with GPUs of Causeway's.
type Node struct {
	Name string `json:"name"`
	// Ready, NotReady, Gone: slices name it, and there is no such Node; Network: a GPU host that is
	// no Node
	State string   `json:"state"`
	Notes []string `json:"notes,omitempty"` // draining, cordoned
	GPUs  []GPU    `json:"gpus"`

	host bool // its GPUs are offered by the fleet's controller
}

// Away: no new pod comes to the node now.
func (n *Node) Away() bool { return n.State == NotReady || n.State == Gone || len(n.Notes) > 0 }

// States of nodes.
const (
	Ready    = "Ready"
	NotReady = "NotReady"
	Gone     = "Gone"
)

// nodeOf is the node, or the GPU host, whose pool that is.
func nodeOf(pool string) string {
	if host, is := claim.HostOf(pool); is {
		return host
	}
	return pool
}

// GPU is a device that a node offers.
type GPU struct {
	Device  string `json:"device"`
	Model   string `json:"model"`
	Memory  uint64 `json:"memory"`  // bytes for claims
	Claimed uint64 `json:"claimed"` // bytes that claims have
	Compute uint64 `json:"compute"` // hundredths of its time that claims were promised
	Claims  int    `json:"claims"`
	// Taints keep new claims away, each as "drained=fault".
	Taints []string `json:"taints,omitempty"`
}

// Free are bytes that a new claim could have.
func (g *GPU) Free() uint64 {
	if len(g.Taints) > 0 {
		return 0
	}
	return g.Memory - min(g.Memory, g.Claimed)
}

// Claim is one for Causeway's GPUs.
type Claim struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Created   time.Time `json:"created"`
	State     string    `json:"state"`
	Memory    string    `json:"memory"`  // as it was asked for; "all": not named
	Compute   string    `json:"compute"` // likewise; "0": not named
	Parts     []Part    `json:"vgpus,omitempty"`
	Pods      []string  `json:"pods,omitempty"` // that have it, or wait with it
	Why       string    `json:"why,omitempty"`  // it waits, or is refused
}

// Part is a vGPU of a claim.
type Part struct {
	Node    string `json:"node"`
	Device  string `json:"device"`
	Memory  uint64 `json:"memory"`
	Compute uint64 `json:"compute"`
	// Sessions is whether programs of a VM have any with it, Lease how it stands with that of a GPU
	// of another host.
	Sessions string `json:"sessions,omitempty"`
	Lease    string `json:"lease,omitempty"`
}

// States of claims.
const (
	Waiting   = "Waiting"   // nothing is allocated to it
	Allocated = "Allocated" // it has its GPU, and no pod has it any more
	InUse     = "InUse"     // pods have it
	Refused   = "Refused"   // it was allocated, and its node does not serve it
	Leaving   = "Leaving"   // it is deleted and not gone yet
)

// Key names a claim for people.
func (c *Claim) Key() string { return c.Namespace + "/" + c.Name }

// On says whether the claim has a GPU of a node.
func (c *Claim) On(node string) bool {
	return slices.ContainsFunc(c.Parts, func(p Part) bool { return p.Node == node })
}

// Read reads the fleet, and the claims of a namespace; "": of all. What a person may not read of
// the rest is said in Unread.
func Read(ctx context.Context, c Cluster, namespace string) (*Fleet, error) {
	slicesOf, err := c.Slices(ctx)
	if err != nil {
		return nil, fmt.Errorf("the fleet's GPUs (ResourceSlices): %w", err)
	}
	all, err := c.Claims(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	f := &Fleet{Nodes: []Node{}, Claims: []Claim{}}
	classes, err := c.Classes(ctx)
	f.lacks("which classes name Causeway's GPUs", err)
	pods, err := c.Pods(ctx, namespace)
	f.lacks("pods of claims", err)
	events, err := c.Events(ctx, namespace)
	f.lacks("why claims wait", err)
	nodes, err := c.Nodes(ctx)
	known := err == nil
	f.lacks("how nodes are", err)

	at := map[string]int{}
	for i := range slicesOf {
		f.offer(&slicesOf[i], at)
	}
	slices.SortFunc(f.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	byName := make(map[string]*corev1.Node, len(nodes))
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	for i := range f.Nodes {
		f.Nodes[i].judge(byName[f.Nodes[i].Name], known)
	}
	ours, about := classNames(classes), newIndex(f, pods, events)
	for i := range all {
		if isOurs(&all[i], ours) {
			f.claim(&all[i], about)
		}
	}
	f.Moves = moves(pods)
	f.Lacking = lacking(pods, all)
	slices.SortFunc(f.Claims, func(a, b Claim) int { return strings.Compare(a.Key(), b.Key()) })
	return f, ctx.Err()
}

func (f *Fleet) lacks(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Unread = append(f.Unread, what+": "+err.Error())
	}
}

// offer adds what a slice has; nodes says where each node is.
func (f *Fleet) offer(s *resourceapi.ResourceSlice, nodes map[string]int) {
	name, host := claim.HostOf(s.Spec.Pool.Name)
	if s.Spec.Driver != claim.Driver || s.Spec.NodeName == nil && !host {
		return
	}
	if s.Spec.NodeName != nil {
		name, host = *s.Spec.NodeName, false
	}
	at, there := nodes[name]
	if !there {
		at = len(f.Nodes)
		nodes[name] = at
		f.Nodes = append(f.Nodes, Node{Name: name, GPUs: []GPU{}})
	}
	f.Nodes[at].host = f.Nodes[at].host || host
	for i := range s.Spec.Devices {
		d := &s.Spec.Devices[i]
		g := GPU{Device: d.Name}
		if a, ok := d.Attributes["model"]; ok && a.StringValue != nil {
			g.Model = *a.StringValue
		}
		if q, ok := d.Capacity[claim.Memory]; ok && q.Value.Sign() > 0 {
			g.Memory = uint64(q.Value.Value())
		}
		for _, t := range d.Taints {
			text := strings.TrimPrefix(t.Key, claim.Driver+"/")
			if t.Value != "" {
				text += "=" + t.Value
			}
			g.Taints = append(g.Taints, text)
		}
		f.Nodes[at].GPUs = append(f.Nodes[at].GPUs, g)
	}
}

// judge says how a node is; nil: there is no such Node.
func (n *Node) judge(node *corev1.Node, known bool) {
	slices.SortFunc(n.GPUs, func(a, b GPU) int { return strings.Compare(a.Device, b.Device) })
	switch {
	case !known:
		n.State = "-"
		return
	case node == nil && n.host:
		n.State = Network
		return
	case node == nil:
		n.State = Gone
		return
	}
	n.State = NotReady
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			n.State = Ready
		}
	}
	if Drained(node) {
		n.Notes = append(n.Notes, "draining")
	}
	if node.Spec.Unschedulable {
		n.Notes = append(n.Notes, "cordoned")
	}
}
