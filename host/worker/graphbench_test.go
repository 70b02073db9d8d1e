package worker

import (
	"fmt"
	"testing"

	"causeway/cuda/wire"
)

// BenchmarkGraphs puts what programs do with graphs beside the same without anything kept of them:
// a token of a language model (capture, update, destroy), a graph that is made executable and
// ended, one whose node is changed, and a launch.
func BenchmarkGraphs(b *testing.B) {
	const nodes = 20
	for _, kept := range []bool{false, true} {
		b.Run(fmt.Sprintf("kept=%v", kept), func(b *testing.B) {
			s := newSoft(b)
			if !kept {
				s.w.graphs.keeper = nil
			}
			incs := make([]uint32, nodes)
			s.captured(aGraph, incs...)
			s.must(softCtx, &wire.GraphListArgs{Graph: aGraph, Names: ids(func() (list []wire.ID) {
				for i := range wire.ID(nodes) {
					list = append(list, bExec+1+i)
				}
				return list
			}()...)})
			s.instantiate(anExec, aGraph)
			b.Run("token", func(b *testing.B) {
				s.captured(bGraph, incs...)
				s.instantiate(bExec, bGraph)
				for i := 0; b.Loop(); i++ {
					old, next := bGraph, cGraph
					if i%2 == 1 {
						old, next = next, old
					}
					s.must(softCtx, &wire.GraphDestroyArgs{Graph: old})
					s.captured(next, incs...)
					s.must(softCtx, &wire.GraphExecUpdateArgs{Exec: bExec, Graph: next})
				}
				s.must(softCtx, &wire.GraphExecDestroyArgs{Exec: bExec})
				_ = s.do(softCtx, &wire.GraphDestroyArgs{Graph: bGraph})
				_ = s.do(softCtx, &wire.GraphDestroyArgs{Graph: cGraph})
			})
			b.Run("instantiate", func(b *testing.B) {
				for b.Loop() {
					s.must(softCtx, &wire.GraphInstantiateArgs{Exec: bExec, Graph: aGraph}, &wire.GraphExecDestroyArgs{Exec: bExec})
				}
			})
			if kept {
				b.Run("describe", func(b *testing.B) {
					for b.Loop() {
						if _, err := s.w.graphs.describe(aGraph); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			b.Run("change", func(b *testing.B) {
				p := s.kernel(softMix, 0, 1)
				for b.Loop() {
					s.must(softCtx, &wire.GraphExecNodeSetParamsArgs{Exec: anExec, Node: bExec + 3, Type: wire.NodeKernel, Params: p})
				}
			})
			b.Run("launch", func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					s.must(softCtx, &wire.GraphLaunchArgs{Exec: anExec, Stream: softStream})
					if i%64 == 0 {
						s.sync()
					}
				}
				s.sync()
			})
			s.close()
		})
	}
}
