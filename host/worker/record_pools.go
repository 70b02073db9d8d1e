package worker

import (
	"fmt"

	"causeway/cuda/wire"
)

// outlived notes the end of an object that others of its making outlive: memory of a pool that was
// destroyed stays until it is freed. The pool stays in the record for as long, to be made and
// destroyed again where that was, by a key of its own: its number may be another's by then. false:
// nothing outlives it.
func (r *recorder) outlived(o *object, c *wire.Call, info *wire.OpInfo, a wire.Args) (bool, error) {
	if !outlivable(info) || len(o.children) == 0 {
		return false, nil
	}
	e, err := r.entry(c, a)
	if err != nil {
		return false, fmt.Errorf("record %s: %w", info.Name, err)
	}
	delete(r.objects, o.key)
	o.key = objectKey{space: wire.KindPool, id: e.order}
	r.objects[o.key] = o
	o.mods = append(o.mods, e)
	o.ended = true
	return true, nil
}

// outlivable says of an operation that what was made of the object that it destroys stays.
func outlivable(info *wire.OpInfo) bool {
	return info.Effect == wire.Destroys && info.Kind == wire.KindPool
}

// replayable says whether an operation can be part of a record: whatever else a session's state
// from elsewhere asks for is not done.
func replayable(info *wire.OpInfo) bool {
	switch info.Effect {
	case wire.Creates, wire.Retains, wire.Modifies, wire.Resets, wire.Marks:
		return true
	}
	return outlivable(info)
}
