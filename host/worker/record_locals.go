package worker

import (
	"cmp"
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

// step adds one to a context, and has those go that nothing needs any more. There are few: one for
// each kernel that needs more than any before.
func (r *recorder) step(o *object, e *entry) {
	e.step = true
	o.mods = append(o.mods, e)
	var steps []*entry
	for _, m := range o.mods {
		if m.step {
			steps = append(steps, m)
		}
	}
	needed := r.neededSteps(steps)
	o.mods = slices.DeleteFunc(o.mods, func(m *entry) bool {
		if !m.step || needed[m] {
			return false
		}
		r.release(m)
		return true
	})
}

// neededSteps are those of a context, which are in order, that something was made behind that
// lives, and ahead of the next, and the last one of each operation, which is how the context is.
func (r *recorder) neededSteps(steps []*entry) map[*entry]bool {
	needed, last := map[*entry]bool{}, map[wire.Op]bool{}
	for _, m := range slices.Backward(steps) {
		if _, op, _ := wire.ParseHeader(m.rec); !last[op] {
			last[op], needed[m] = true, true
		}
	}
	if len(needed) == len(steps) {
		return needed
	}
	for _, o := range r.objects {
		at, _ := slices.BinarySearchFunc(steps, o.create.order, func(m *entry, made uint64) int { return cmp.Compare(m.order, made) })
		if at > 0 {
			needed[steps[at-1]] = true
		}
	}
	return needed
}
