package worker

import (
	"encoding/binary"
	"fmt"
	"slices"

	"causeway/cuda/wire"
)

// copyAttributes has a stream's attributes be those of another, as they are now: that one may
// change or go.
func (r *recorder) copyAttributes(c *wire.Call, a *wire.StreamCopyAttributesArgs) error {
	holder := func(id wire.ID) *object {
		if id <= wire.StreamPerThread {
			id = c.Ctx
		}
		return r.objects[objectKey{id: uint64(id)}]
	}
	attributes := func(o *object, id wire.ID) (list []*wire.StreamSetAttributeArgs) {
		for _, m := range o.mods {
			if _, op, _ := wire.ParseHeader(m.rec); op == wire.OpStreamSetAttribute {
				if s, err := wire.Decode(op, m.rec, nil); err == nil && s.(*wire.StreamSetAttributeArgs).Target == id {
					list = append(list, s.(*wire.StreamSetAttributeArgs))
				}
			}
		}
		return list
	}
	from, to := holder(a.Source), holder(a.Target)
	if to == nil || a.Source == a.Target {
		return nil
	}
	to.mods = slices.DeleteFunc(to.mods, func(m *entry) bool {
		_, op, _ := wire.ParseHeader(m.rec)
		gone := op == wire.OpStreamSetAttribute && binary.LittleEndian.Uint32(m.rec[wire.RecordSize+op.Info().Object.Offset:]) == a.Target
		if gone {
			r.release(m)
		}
		return gone
	})
	if from == nil {
		return nil
	}
	set := wire.Call{Op: wire.OpStreamSetAttribute, Ctx: c.Ctx, Thread: c.Thread}
	for _, s := range attributes(from, a.Source) {
		e, err := r.entry(&set, &wire.StreamSetAttributeArgs{Target: a.Target, Attr: s.Attr, Value: s.Value})
		if err != nil {
			return fmt.Errorf("record %v: %w", c.Op, err)
		}
		r.modify(to, set.Op.Info(), e)
	}
	return nil
}
