package worker

import (
	"fmt"

	"causeway/cuda/wire"
)

// mark is the last request that marks an object, an event's record, and what it is the encoding of:
// a program records the same event on the same stream time and again.
type mark struct {
	entry
	header wire.Header
	args   wire.EventRecordArgs
}

// recentMarks is how many objects are found without a search that were marked lately.
const recentMarks = 8

// noteMark remembers the last mark of an object, without allocating in the long run.
func (r *recorder) noteMark(c *wire.Call, a wire.Args) (err error) {
	m, ok := a.(*wire.EventRecordArgs)
	if !ok {
		return fmt.Errorf("record %v: it names nothing that it marks", c.Op)
	}
	o := r.toMark(m.Marked())
	if o == nil {
		return nil
	}
	h := header(c)
	switch {
	case o.mark == nil:
		o.mark = &mark{}
	case o.mark.args == *m && o.mark.header == h:
		o.mark.order = r.clock
		r.clock++
		return nil
	}
	o.mark.order, o.mark.header, o.mark.args = r.clock, h, *m
	r.clock++
	o.mark.rec, err = wire.AppendRecord(o.mark.rec[:0], h, a)
	return err
}

// toMark is the object of a number, nil if there is none.
func (r *recorder) toMark(id wire.ID) *object {
	key := objectKey{id: uint64(id)}
	if o := r.marked[id%recentMarks]; o != nil && o.key == key {
		return o
	}
	o := r.objects[key]
	r.marked[id%recentMarks] = o
	return o
}

// notToMark forgets an object that leaves the record.
func (r *recorder) notToMark(o *object) {
	if at := &r.marked[o.key.id%recentMarks]; *at == o {
		*at = nil
	}
}
