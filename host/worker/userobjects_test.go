package worker

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"testing"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/worker/state"
)

// TestUserObjectsByChance: references of the guest's own and of its graphs are counted one by one,
// and come along when the session moves.
func TestUserObjectsByChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	s := newSoft(t)
	const objects = 3
	guest := map[wire.ID]uint64{}
	for i := range wire.ID(objects) {
		s.must(softCtx, &wire.UserObjectCreateArgs{Object: anObject + 10 + i, ID: uint64(77 + i), Count: 1, Flags: 1})
		guest[anObject+10+i] = 1
	}
	of := map[wire.ID]map[wire.ID]uint32{}
	graphs := []wire.ID{aGraph, bGraph}
	for _, g := range graphs {
		s.must(softCtx, &wire.GraphCreateArgs{Graph: g})
		of[g] = map[wire.ID]uint32{}
	}
	for step := range 600 {
		o, g, n := anObject+10+wire.ID(rng.IntN(objects)), graphs[rng.IntN(len(graphs))], 1+rng.Uint32N(3)
		switch rng.IntN(7) {
		case 0:
			s.must(softCtx, &wire.UserObjectCountArgs{Object: o, Count: n})
			guest[o] += uint64(n)
		case 1:
			if guest[o] > uint64(n) {
				s.must(softCtx, &wire.UserObjectCountArgs{Object: o, Count: n, Release: 1})
				guest[o] -= uint64(n)
			}
		case 2:
			s.must(softCtx, &wire.GraphUserObjectArgs{Graph: g, Object: o, Count: n})
			of[g][o] += n
		case 3:
			if guest[o] > uint64(n) {
				s.must(softCtx, &wire.GraphUserObjectArgs{Graph: g, Object: o, Count: n, Flags: 1})
				of[g][o], guest[o] = of[g][o]+n, guest[o]-uint64(n)
			}
		case 4, 5:
			if n = min(n, of[g][o]); n > 0 {
				s.must(softCtx, &wire.GraphUserObjectArgs{Graph: g, Object: o, Count: n, Flags: rng.Uint32N(2), Release: 1})
				if of[g][o] -= n; of[g][o] == 0 {
					delete(of[g], o)
				}
			}
		default:
			if rng.IntN(8) == 0 {
				s = s.moved()
			}
		}
		for id, u := range s.w.graphs.objects.list() {
			if u.guest != guest[id] {
				t.Fatalf("step %d: the guest has %d references to %d, counted are %d", step, guest[id], id, u.guest)
			}
		}
		for _, g := range graphs {
			if l := s.w.graphs.live[g]; !maps.Equal(l.users, of[g]) {
				t.Fatalf("step %d: graph %d has %v, counted are %v", step, g, of[g], l.users)
			}
		}
	}
	for o, n := range guest { // what the driver says
		s.must(softCtx, &wire.UserObjectCountArgs{Object: o, Count: uint32(n), Release: 1})
	}
	for _, g := range graphs {
		for o, n := range of[g] {
			s.want(cuda.Success, &wire.GraphUserObjectArgs{Graph: g, Object: o, Count: n, Release: 1}, nil)
		}
	}
	if s.sync(); len(s.w.graphs.objects.list()) != 0 {
		t.Errorf("%v are left", s.w.graphs.objects.list())
	}
	s.close()
}

// TestUserObjectsOfNestedGraphs: who owns objects through a graph inside another, or through a copy
// of one that has some inside, cannot be told: such a session stays, until the objects, or the
// graphs, are gone.
func TestUserObjectsOfNestedGraphs(t *testing.T) {
	const object, inner, copied, outer = anObject + 10, bGraph + 50, bGraph + 51, bGraph + 52
	retain := &wire.GraphUserObjectArgs{Graph: inner, Object: object, Count: 1}
	for what, nest := range map[string]func(s *softSession) (graphs []wire.ID){
		"retained by a graph inside another": func(s *softSession) []wire.ID {
			s.node(aGraph, aNode, wire.NodeGraph, (&wire.ChildNode{Graph: bGraph}).Append(nil))
			s.want(cuda.Success, &wire.GraphNodeGetParamsArgs{Node: aNode, Fresh: inner}, new(wire.GraphNodeGetParamsReply))
			s.must(softCtx, retain)
			return []wire.ID{aGraph}
		},
		"retained by a copy of what is inside another": func(s *softSession) []wire.ID {
			s.node(aGraph, aNode, wire.NodeGraph, (&wire.ChildNode{Graph: bGraph}).Append(nil))
			s.want(cuda.Success, &wire.GraphNodeGetParamsArgs{Node: aNode, Fresh: inner}, new(wire.GraphNodeGetParamsReply))
			s.must(softCtx, &wire.GraphCreateArgs{Graph: outer})
			s.must(softCtx, retain)
			s.node(outer, bNode, wire.NodeGraph, (&wire.ChildNode{Graph: inner}).Append(nil))
			return []wire.ID{aGraph, outer}
		},
		"retained before it went inside another": func(s *softSession) []wire.ID {
			s.must(softCtx, &wire.GraphUserObjectArgs{Graph: bGraph, Object: object, Count: 1})
			s.node(aGraph, aNode, wire.NodeGraph, (&wire.ChildNode{Graph: bGraph}).Append(nil))
			return []wire.ID{aGraph}
		},
		"a copy of a graph that has some inside": func(s *softSession) []wire.ID {
			s.must(softCtx, &wire.GraphUserObjectArgs{Graph: bGraph, Object: object, Count: 1})
			s.node(aGraph, aNode, wire.NodeGraph, (&wire.ChildNode{Graph: bGraph}).Append(nil))
			s.must(softCtx, &wire.GraphCloneArgs{Graph: copied, Original: aGraph})
			return []wire.ID{aGraph, copied}
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newSoft(t)
			s.must(softCtx, &wire.GraphCreateArgs{Graph: aGraph})
			s.must(softCtx, &wire.GraphCreateArgs{Graph: bGraph})
			s = s.moved() // nothing is in its way yet
			s.must(softCtx, &wire.UserObjectCreateArgs{Object: object, ID: 77, Count: 1, Flags: 1})
			s = s.moved()
			for left := nest(s); len(left) > 0; left = left[1:] {
				if _, err := s.tryMove(); err == nil {
					t.Fatalf("it moves with %d such graphs", len(left))
				}
				s.must(softCtx, &wire.GraphDestroyArgs{Graph: left[0]})
			}
			s = s.moved()
			s.close()
		})
	}
}

// TestReferencesOfAState: what a state says of references is what a driver can count, for each
// billion of them is a call of the driver's.
func TestReferencesOfAState(t *testing.T) {
	for n, ok := range map[uint64]bool{1: true, 1 << 32: true, 1<<32 + 1: false, 1<<64 - 1: false} {
		var b bytes.Buffer
		w := state.NewWriter(&b)
		(&graphsState{objects: []objectState{{id: 1, destructor: 2, flags: 1, guest: n}}}).write(w)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		r := state.NewReader(&b, 1<<20)
		if readGraphs(r); (r.Err() == nil) != ok {
			t.Errorf("%d references: %v", n, r.Err())
		}
	}
}
