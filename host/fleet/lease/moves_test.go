package lease

import (
	"errors"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"causeway/host/fleet/claim"
)

// unbound is a claim that binds to no node, held by these pods.
func unbound(name, share string, pods ...string) *resourceapi.ResourceClaim {
	c := allocated(name, "", share, 1024)
	c.Status.Allocation.NodeSelector.NodeSelectorTerms[0].MatchFields = nil
	return held(c, pods...)
}

func held(c *resourceapi.ResourceClaim, pods ...string) *resourceapi.ResourceClaim {
	c.Status.ReservedFor = nil
	for _, p := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID("uid-" + p)})
	}
	return c
}

// says wants what the host keeps for the claim, and what the claim says of it.
func (r *rig) says(t *testing.T, what, host, heir string) {
	t.Helper()
	r.pass(t)
	if len(r.s.state.Reserved) != 1 || r.s.state.Reserved[0].Host != host || r.s.state.Reserved[0].Heir != heir {
		t.Errorf("%s: %+v, want %s and %q", what, r.s.state.Reserved, host, heir)
		return
	}
	text := r.a.now[0].Status.Devices[0].Conditions[0].Message
	if !strings.Contains(text, "for the node "+host) || (heir != "") != strings.Contains(text, "for the node "+heir+" if the VM moves") {
		t.Errorf("%s: the claim says %q", what, text)
	}
}

// TestMoves: a claim that binds to no node is the node's whose pod came first; a pod that came
// later may take it over, and when it has, the first is not to have it again. And back, by another
// pod.
func TestMoves(t *testing.T) {
	r := newRig()
	r.Host.Moves = true
	r.a.pods = map[string]place{"one": {}}
	r.a.now = []*resourceapi.ResourceClaim{unbound("a", "s1", "one")}
	if again := r.pass(t); again == 0 || again > lookAgain || len(r.s.state.Reserved) != 0 {
		t.Fatalf("a pod without a node: again %v, %+v", again, r.s.state.Reserved)
	}
	r.is(t, "a", claim.LeaseRefused, false)
	r.a.pods["one"] = place{node: "node1"}
	r.says(t, "a pod that is about to be bound", "node1", "")
	r.a.pods["one"] = place{node: "node1", sure: true}
	r.pass(t)
	asked, writes := r.a.asked, r.a.writes
	r.says(t, "a bound pod", "node1", "")
	if r.a.asked != asked || r.a.writes != writes {
		t.Errorf("asked %d times more, wrote %d times more", r.a.asked-asked, r.a.writes-writes)
	}
	r.a.pods["two"] = place{node: "node2", sure: true}
	held(r.a.now[0], "one", "two")
	r.says(t, "two pods", "node1", "node2")
	// A migration that failed.
	held(r.a.now[0], "one")
	r.says(t, "the second is gone", "node1", "")
	r.a.pods["three"] = place{node: "node2", sure: true}
	held(r.a.now[0], "one", "three")
	r.says(t, "another try", "node1", "node2")
	// The host says that it has moved.
	h := &r.s.state.Reserved[0]
	h.Host, h.Heir, h.Moved = "node2", "", 1
	acts := map[string]int{}
	r.Counted = func(act string) { acts[act]++ }
	r.says(t, "it has moved", "node2", "")
	if acts[ActMoved] != 1 {
		t.Errorf("%v", acts)
	}
	r.a.pods["four"] = place{node: "node1", sure: true}
	held(r.a.now[0], "one", "three", "four")
	r.says(t, "and back, before the first pod is gone", "node2", "node1")
	// The pod that has it is gone before the host heard of the move.
	held(r.a.now[0], "four")
	r.says(t, "the last pod", "node1", "")
	if m := r.s.state.Reserved[0].Moved; m != 2 || len(r.s.ended) != 0 {
		t.Errorf("moved %d times, ended %v", m, r.s.ended)
	}
	held(r.a.now[0])
	r.says(t, "no pod", "node1", "")
	// One of two that has ended is none, wherever the list has it.
	r.a.pods["five"] = place{node: "node2", sure: true}
	held(r.a.now[0], "four", "five")
	r.says(t, "a fifth", "node1", "node2")
	r.a.pods["five"] = place{sure: true}
	r.says(t, "which has failed", "node1", "")
	writes = r.a.writes
	for _, pods := range [][]string{{"four"}, {"four", "five"}, {"four"}} {
		held(r.a.now[0], pods...)
		r.says(t, "and comes and goes", "node1", "")
	}
	if r.a.writes != writes {
		t.Errorf("%d writes for nothing", r.a.writes-writes)
	}
	// Another controller knows as much.
	held(r.a.now[0], "one", "four")
	r.Keeper = r.next()
	r.Host.Moves = true
	r.says(t, "another controller", "node1", "")
	r.a.now = nil
	r.pass(t)
	if len(r.s.state.Reserved) != 0 || r.s.left != 4<<30 {
		t.Errorf("%+v", r.s.state)
	}
}

// TestMovesBlind: a controller that may not read pods says so on the claim, once, and changes
// nothing of what there is; a host whose claims do not move refuses one that binds to no node.
func TestMovesBlind(t *testing.T) {
	r := newRig()
	r.Host.Moves = true
	forbidden := errors.New("pods is forbidden")
	r.a.pods = map[string]place{"one": {err: forbidden}}
	r.a.now = []*resourceapi.ResourceClaim{unbound("a", "s1", "one")}
	for range 3 {
		r.pass(t)
	}
	if len(r.s.state.Reserved) != 0 || len(r.a.said) != 1 || !strings.Contains(r.a.said[0], "pods is forbidden") {
		t.Fatalf("%+v, %v", r.s.state, r.a.said)
	}
	r.is(t, "a", claim.LeaseRefused, false)
	r.a.pods["one"] = place{node: "node1", sure: true}
	r.pass(t)
	held(r.a.now[0], "two", "one")
	r.a.pods["two"] = place{err: forbidden}
	r.says(t, "one of two is not known", "node1", "")
	r.Host.Moves = false
	r.says(t, "the host's claims move no more", "node1", "")
	r.a.now = []*resourceapi.ResourceClaim{unbound("b", "s2", "one")}
	r.pass(t)
	r.is(t, "b", claim.LeaseRefused, true)
}
