package worker

import (
	"slices"
	"testing"

	"causeway/cuda/wire"
)

// TestDropOfOneThatIsGone: who ends an object that another has taken the place of ends that one
// alone.
func TestDropOfOneThatIsGone(t *testing.T) {
	r := newRecorder(&hostMemory{})
	key := objectKey{id: 7}
	made := func() *object { return &object{key: key, create: &entry{}, children: map[*object]struct{}{}} }
	old, next := made(), made()
	below := &object{key: objectKey{id: 8}, create: &entry{}, children: map[*object]struct{}{}, parents: []*object{next}}
	next.children[below] = struct{}{}
	r.objects[key], r.objects[below.key] = next, below
	if r.drop(old); r.objects[key] != next || r.objects[below.key] != below {
		t.Errorf("%d objects are left", len(r.objects))
	}
	if r.drop(next); len(r.objects) != 0 {
		t.Errorf("%d objects are left", len(r.objects))
	}
}

// TestOutlivesItsStream: what was made in a stream's order is not the stream's, and does not end
// with it; what was made in a context is.
func TestOutlivesItsStream(t *testing.T) {
	info := wire.OpMemAllocAsync.Info()
	if !slices.ContainsFunc(info.Refs, func(r wire.Ref) bool { return r.Kind == wire.KindStream }) {
		t.Fatalf("%s names no stream: %+v", info.Name, info.Refs)
	}
	r := newRecorder(&hostMemory{})
	const ctx, stream = 100, 101
	for _, id := range []uint64{ctx, stream} {
		key := objectKey{id: id}
		r.objects[key] = &object{key: key, create: &entry{}, children: map[*object]struct{}{}}
	}
	rec, err := wire.AppendRecord(nil, wire.Header{Ctx: ctx}, &wire.MemAllocAsyncArgs{Stream: stream, Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	o := &object{create: &entry{rec: rec}, children: map[*object]struct{}{}}
	r.adopt(o, &wire.Call{Op: wire.OpMemAllocAsync, Ctx: ctx}, info)
	if len(o.parents) != 1 || o.parents[0].key.id != ctx {
		t.Errorf("it goes with %d others", len(o.parents))
	}
}

// TestFeeOfAnInstance: what is reserved for the record of a library's instance is what that takes
// in the end, by its variables.
func TestFeeOfAnInstance(t *testing.T) {
	for _, n := range []int{0, 1, 7, 1000} {
		h := &hostMemory{}
		w := &Worker{host: h, record: newRecorder(h)}
		if !w.keepInstance(n) || w.instanceFee != h.used {
			t.Fatalf("%d variables: %d of %d bytes are reserved", n, h.used, w.instanceFee)
		}
		h.release(w.instanceFee)
		c := &wire.Call{Instances: []wire.Instance{{Ctx: 1, Library: 2, Placed: make([]uint64, n)}}}
		if err := w.record.noteInstances(c); err != nil {
			t.Fatal(err)
		}
		if h.used != w.instanceFee {
			t.Errorf("%d variables: %d bytes are reserved, and %d taken", n, w.instanceFee, h.used)
		}
	}
}

// TestStands: a request can be done again while all that it names is what it named; what it makes
// itself need not be there.
func TestStands(t *testing.T) {
	r := newRecorder(&hostMemory{})
	rec, err := wire.AppendRecord(nil, wire.Header{}, &wire.CtxCreateArgs{Ctx: 70})
	if err != nil {
		t.Fatal(err)
	}
	if !r.stands(&entry{order: 5, rec: rec}) {
		t.Error("what makes a context")
	}
	if rec, err = wire.AppendRecord(nil, wire.Header{}, &wire.EventRecordArgs{Event: 71, Stream: 72}); err != nil {
		t.Fatal(err)
	}
	at := func(id, order uint64) {
		r.objects[objectKey{id: id}] = &object{key: objectKey{id: id}, create: &entry{order: order}, children: map[*object]struct{}{}}
	}
	at(71, 3)
	if r.stands(&entry{order: 5, rec: rec}) {
		t.Error("its stream is gone")
	}
	at(72, 4)
	if !r.stands(&entry{order: 5, rec: rec}) {
		t.Error("all is there")
	}
	at(72, 6)
	if r.stands(&entry{order: 5, rec: rec}) {
		t.Error("another stream has its stream's place")
	}
}
