package worker

import (
	"fmt"

	"causeway/cuda/wire"
)

// noteCount counts how often an object is retained that is there already. Its last release drops
// it. done: there was one.
func (r *recorder) noteCount(c *wire.Call, info *wire.OpInfo, a wire.Args) (done bool, err error) {
	rec, err := wire.AppendRecord(r.scratch[:0], header(c), a)
	if err != nil {
		return false, fmt.Errorf("record %s: %w", info.Name, err)
	}
	r.scratch = rec
	id, _ := info.ObjectOf(rec, nil, c.Ctx)
	o := r.objects[keyOf(info.Kind, id)]
	switch {
	case o == nil:
		return info.Effect == wire.Releases, nil
	case info.Effect == wire.Retains:
		if r.alive(o) {
			o.retains++
			r.charge(o.create, retainBytes)
		}
	case o.retains == 1:
		r.drop(o)
	default:
		o.retains--
		r.host.release(retainBytes)
		o.create.cost -= retainBytes
	}
	return true, nil
}

// alive reports whether a primary context is retained already. One that was reset is not: it is as
// it was when it was first retained.
func (r *recorder) alive(o *object) bool {
	reset := func(op wire.Op) bool { return op.Info().Effect == wire.Resets }
	if !r.dropMods(o, reset) {
		return true
	}
	r.host.release(uint64(o.retains-1) * retainBytes)
	o.create.cost -= uint64(o.retains-1) * retainBytes
	o.retains = 1
	return false
}
