package worker

import (
	"slices"

	"causeway/cuda/wire"
)

// noteMade records what an operation has brought about besides what it is for, in front of it.
func (r *recorder) noteMade(c *wire.Call) error {
	if err := r.noteInstances(c); err != nil {
		return err
	}
	return r.noteLocals(c)
}

// noteInstances records what an operation has brought into being of libraries in contexts, as a
// launch leaves nothing else to rebuild, but the variables that its kernel may have changed since
// must be where they were.
func (r *recorder) noteInstances(c *wire.Call) error {
	for i := range c.Instances {
		in := &c.Instances[i]
		made := wire.Call{Op: wire.OpLibraryInstance, Ctx: in.Ctx, Thread: c.Thread, Placed: in.Placed}
		if err := r.note(&made, made.Op.Info(), &wire.LibraryInstanceArgs{Library: in.Library}, nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// vacated has a library's requests place nothing where an instance of it that is gone had its
// variables: it was made by one of them, a context took it over, and since that has ended anything
// may lie there.
func (o *object) vacated(placed []uint64) {
	if len(placed) == 0 {
		return
	}
	for _, e := range append([]*entry{o.create}, o.mods...) {
		if slices.Equal(e.placed, placed) {
			e.placed = nil
		}
	}
}

// keepInstance reserves what recording an instance of so many variables takes; what it takes is
// booked when the operation is over, and this given back then.
func (w *Worker) keepInstance(variables int) bool {
	const record = 2 * wire.RecordSize // its header, one number, and what rounds a record off
	fee := toll(wire.OpLibraryInstance.Info(), record) + 8*uint64(variables)
	if !w.host.reserve(fee) {
		return false
	}
	w.instanceFee += fee
	return true
}
