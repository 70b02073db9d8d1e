package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/api"
	"causeway/host/fleet/claim"
)

/*
Claims that bind to no node. Where such a claim is used its pods say, in the order in which they
came to it: the host keeps the lease of the pod's node that has it, and lets the node of a pod that
came later take it over, with the VM. It says itself when the lease has moved; the controller moves
it only when the one that has it has no pod any more.
*/

// ErrPods says that it is not known where the pods of a claim are.
var ErrPods = errors.New("where the claim's pods run is not known")

// errNotYet: none of them has a node.
var errNotYet = &unanswered{errors.New("no pod of the claim has a node yet")}

// place is where a pod is.
type place struct {
	node string
	sure bool // it stays there
	err  error
}

// lookAgain is when pods are asked for again that have no node yet.
const lookAgain = 500 * time.Millisecond

// locate finds the nodes of the pods of claims that bind to none, each pod until it has one, and of
// several each time. The answer is when to look again; 0: no matter when.
func (k *Keeper) locate(ctx context.Context) (again time.Duration) {
	at := map[types.UID]place{}
	defer func() { k.at = at }()
	if !k.Host.Moves {
		return 0
	}
	for _, c := range k.Cluster.Claims(claim.PoolOf(k.Host.Name)) {
		if _, bound := claim.NodeOf(c.Status.Allocation); bound {
			continue
		}
		// Of two pods one may end at any moment, and is in the list still, or again:
		// kube-controller-manager takes out pods that have ended, and puts in such as are bound.
		alone := len(c.Status.ReservedFor) == 1
		for _, u := range c.Status.ReservedFor {
			if u.APIGroup != "" || u.Resource != "pods" {
				continue
			}
			p := k.at[u.UID]
			if !p.sure || !alone {
				p.node, p.sure, p.err = k.Cluster.NodeOf(ctx, c.Namespace, u.Name, u.UID)
			}
			if p.err != nil && (k.at[u.UID].err == nil || k.at[u.UID].err.Error() != p.err.Error()) {
				k.Log.Error("a pod of a claim is not found", "claim", c.Namespace+"/"+c.Name, "pod", u.Name, "error", p.err,
					"remedy", "hosts with `moves: true` take the rights of causeway-fleet-moves.yaml")
				k.Cluster.Warn(claim.ID{Namespace: c.Namespace, Name: c.Name, UID: c.UID}, errors.Join(ErrPods, p.err))
			}
			if !p.sure {
				again = lookAgain
			}
			at[u.UID] = p
		}
	}
	return again
}

// had is what the host keeps of a device already; nil: nothing.
func (k *Keeper) had(v *api.Reservation) *api.Reservation {
	for i := range k.state.Reserved {
		if r := &k.state.Reserved[i].Reservation; r.Key() == v.Key() && r.ID == v.ID {
			return r
		}
	}
	return nil
}

// hostsOf are the node that is to have a claim's lease, and the one that may take it over, if there
// is one.
func (k *Keeper) hostsOf(c *resourceapi.ResourceClaim, had *api.Reservation) (host, heir string, err error) {
	if node, bound := claim.NodeOf(c.Status.Allocation); bound {
		return node, "", nil
	}
	if !k.Host.Moves && had == nil {
		return "", "", ErrNode
	}
	var nodes []string
	for _, u := range c.Status.ReservedFor {
		p := k.at[u.UID]
		if p.err != nil { // whoever it is may have the lease
			err = &unanswered{errors.Join(ErrPods, p.err)}
		}
		if p.node != "" {
			nodes = append(nodes, p.node)
		}
	}
	switch {
	case had != nil && (err != nil || len(nodes) == 0):
		return had.Host, had.Heir, nil
	case err != nil:
		return "", "", err
	case len(nodes) == 0:
		return "", "", errNotYet
	}
	last := -1 // the last pod of the node that has it: one that came after may have it next
	if had != nil {
		for i, n := range nodes {
			if n == had.Host {
				last = i
			}
		}
	}
	if last < 0 {
		last = 0
	}
	host = nodes[last]
	if next := slices.IndexFunc(nodes[last:], func(n string) bool { return n != host }); next > 0 {
		heir = nodes[last+next]
	}
	return host, heir, nil
}
