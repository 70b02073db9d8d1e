package worker

import (
	"slices"

	"causeway/cuda"
	"causeway/cuda/wire"
)

/*
How much local memory a context has had decides where a driver puts what is made behind each change of it. So all of these steps count, the limits of the stack that were set among them, and not the last alone: but only
as long as something lives that was made between one and the next.
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

// stepsLeast is how many steps of a context are kept without being looked through.
const stepsLeast = 16

// step adds one to a context, and has those go that nothing needs when there are twice as many as were needed last.
func (r *recorder) step(o *object, e *entry) {
	e.step = true
	o.mods = append(o.mods, e)
	var steps []*entry
	for _, m := range o.mods {
		if m.step {
			steps = append(steps, m)
		}
	}
	if len(steps) < max(stepsLeast, 2*o.steps) {
		return
	}
	gone := r.idleSteps(steps)
	o.steps = len(steps) - len(gone)
	o.mods = slices.DeleteFunc(o.mods, func(m *entry) bool {
		if _, is := gone[m]; !is {
			return false
		}
		r.release(m)
		return true
	})
}

// idleSteps are those between which and the next nothing was made that lives, but for the last one of each operation, which is how the context is.
func (r *recorder) idleSteps(steps []*entry) map[*entry]struct{} {
	made := make([]uint64, 0, len(r.objects))
	for _, o := range r.objects {
		made = append(made, o.create.order)
	}
	slices.Sort(made)
	gone, last := map[*entry]struct{}{}, map[wire.Op]bool{}
	for i := len(steps) - 1; i >= 0; i-- {
		_, op, _ := wire.ParseHeader(steps[i].rec)
		if !last[op] {
			last[op] = true
			continue
		}
		at, _ := slices.BinarySearch(made, steps[i].order)
		if at == len(made) || made[at] > steps[i+1].order {
			gone[steps[i]] = struct{}{}
		}
	}
	return gone
}
