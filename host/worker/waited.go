package worker

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"causeway/cuda/wire"
)

// waited counts the requests whose reply a thread of the program awaited, by operation, where the
// log says so much. On a GPU server each costs its program a round trip of the link.
type waited []uint64

func newWaited(log *slog.Logger) waited {
	if !log.Enabled(context.Background(), slog.LevelInfo) {
		return nil
	}
	return make(waited, wire.OpCount+1)
}

// note counts one.
func (n waited) note(op wire.Op) {
	if n != nil {
		n[op]++
	}
}

// tell says how many there were of each, the most first.
func (n waited) tell(log *slog.Logger) {
	var ops []wire.Op
	for op := range n {
		if n[op] != 0 {
			ops = append(ops, wire.Op(op))
		}
	}
	if len(ops) == 0 {
		return
	}
	slices.SortFunc(ops, func(a, b wire.Op) int { return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b)) })
	counts := make([]any, 0, 2*len(ops))
	for _, op := range ops {
		counts = append(counts, op.Info().Name, n[op])
	}
	log.Info("requests that the program waited for", counts...)
}
