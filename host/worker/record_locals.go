package worker

import (
	"cmp"
	"math"
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

/*
How much local memory a context has had decides where a driver puts what is made behind each change
of it. So all of these steps count, the limits of the stack that were set among them, and not the
last alone: but only as long as something lives that was made between one and the next.
*/

// noteLocals records by how much contexts' local memory has grown.
func (r *recorder) noteLocals(c *wire.Call) error {
	for _, l := range c.Locals {
		made := wire.Call{Op: wire.OpLocalMemory, Ctx: l.Ctx, Thread: c.Thread}
		if err := r.note(&made, made.Op.Info(), &wire.LocalMemoryArgs{Bytes: l.Bytes}, nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// isStep reports whether a request changes a context's local memory.
func isStep(a wire.Args) bool {
	switch a := a.(type) {
	case *wire.LocalMemoryArgs:
		return true
	case *wire.CtxSetLimitArgs:
		return a.Limit == cuda.LimitStackSize
	}
	return false
}

// How many steps are kept that are not the last of their context, and when those that nothing needs
// are looked for. Each is done again where the session is made, and a driver compiles for it: a
// program that had as many as its memory allows would have its VM stand still for that. Without
// the oldest, variables that were placed behind them may come out elsewhere, which keeps the
// session where it is, by name.
const (
	mostSteps  = 1024
	sweepLeast = 64
	// mostLocals is how many may be LocalMemory in a session that comes: those, and one of each
	// context that a GPU has room for.
	mostLocals = 2 * mostSteps
)

// step adds one to a context. What is not needed goes when there are twice as many as at the last
// look, so that a look at all that there is costs each of them little.
func (r *recorder) step(o *object, e *entry) {
	e.step = true
	o.mods = append(o.mods, e)
	if r.steps++; r.steps >= max(sweepLeast, r.sweepAt) {
		r.sweepSteps()
	}
}

// sweepSteps has those steps go that nothing needs any more, and the oldest of too many.
func (r *recorder) sweepSteps() {
	if r.steps == 0 {
		return
	}
	needed := r.neededSteps()
	for _, o := range r.objects {
		o.mods = slices.DeleteFunc(o.mods, func(m *entry) bool {
			if !m.step || needed[m] {
				return false
			}
			r.release(m)
			return true
		})
	}
	r.sweepAt = 2 * r.steps
}

// neededSteps are those that something was made behind that lives, and ahead of the context's next,
// and the last one of each operation in a context, which is how that is.
func (r *recorder) neededSteps() map[*entry]bool {
	made := make([]uint64, 0, len(r.objects))
	for _, o := range r.objects {
		made = append(made, o.create.order)
	}
	slices.Sort(made)
	needed := map[*entry]bool{}
	var between []*entry
	for _, o := range r.objects {
		last, next := map[wire.Op]bool{}, uint64(math.MaxUint64)
		for _, m := range slices.Backward(o.mods) {
			if !m.step {
				continue
			}
			_, op, _ := wire.ParseHeader(m.rec)
			i, _ := slices.BinarySearch(made, m.order)
			switch {
			case !last[op]:
				last[op], needed[m] = true, true
			case i < len(made) && made[i] < next:
				needed[m] = true
				between = append(between, m)
			}
			next = m.order
		}
	}
	if more := len(between) - mostSteps; more > 0 {
		slices.SortFunc(between, func(a, b *entry) int { return cmp.Compare(a.order, b.order) })
		for _, m := range between[:more] {
			delete(needed, m)
		}
	}
	return needed
}
