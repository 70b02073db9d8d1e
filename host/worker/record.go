package worker

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"

	"causeway/cuda/wire"
	"causeway/remote"
)

// recorder keeps, for every live object, the requests that made it what it is: how another process
// can rebuild it. Requests of an object that is gone drop out, and so do those of the objects that
// went with it. Long bytes (images) are kept once, however many requests carry them. The consumer
// owns it.
type recorder struct {
	clock   uint64
	objects map[objectKey]*object
	marked  [recentMarks]*object // each at its number modulo recentMarks: toMark
	blobs   blobStore
	scratch []byte
	host    *hostMemory // in which everything recorded is booked
	steps   int         // of contexts' local memory, that are kept
	sweepAt int         // with how many of them those are looked for that nothing needs
}

// objectKey names an object: ids of most kinds come from one number space, addresses of memory from
// another.
type objectKey struct {
	space wire.Kind // KindNone, or a kind whose objects are numbered by themselves
	id    uint64
}

func keyOf(kind wire.Kind, id uint64) objectKey {
	switch kind {
	case wire.KindMem, wire.KindRegion, wire.KindSession, wire.KindPeer, wire.KindInstance:
		return objectKey{kind, id}
	}
	return objectKey{id: id}
}

// keyIn is keyOf for an object that a request names in a context: access to a peer is that
// context's own, as is code of a library.
func keyIn(ctx wire.ID, kind wire.Kind, id uint64) objectKey {
	if kind == wire.KindPeer || kind == wire.KindInstance {
		id |= uint64(ctx) << 32
	}
	return keyOf(kind, id)
}

type object struct {
	key      objectKey
	create   *entry
	mods     []*entry
	mark     *mark // nil: nothing has marked it
	retains  int   // primary contexts: how often create is to be made
	ended    bool  // it was destroyed, and its children were not: mods end with that
	parents  []*object
	children map[*object]struct{}
}

// entry is one request in replayable form.
type entry struct {
	order  uint64
	rec    []byte
	placed []uint64
	blobs  []uint32
	cost   uint64 // in the budget of host memory
	step   bool   // of a context's local memory
}

// What an entry takes besides its bytes: itself, and of an object what this process and a driver
// keep to know it.
const (
	entryBytes  = 256
	objectBytes = 1024
	retainBytes = 8 // one more of a primary context
)

// toll is the most that recording a request of n bytes takes, without those that were sent ahead.
// What gives back takes none: it must not be refused.
func toll(info *wire.OpInfo, n int) uint64 {
	switch info.Effect {
	case wire.Creates, wire.Retains:
		return objectBytes + 2*uint64(n)
	case wire.Modifies:
		return entryBytes + 2*uint64(n)
	}
	return 0
}

func newRecorder(h *hostMemory) *recorder {
	return &recorder{
		host: h, objects: map[objectKey]*object{},
		blobs: blobStore{host: h, byHash: map[content]uint32{}, byID: map[uint32]*storedBlob{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}},
	}
}

func (r *recorder) initialised() bool { return r.objects[keyOf(wire.KindSession, 0)] != nil }

// entry encodes a request.
func (r *recorder) entry(c *wire.Call, a wire.Args) (*entry, error) {
	e := &entry{order: r.clock, placed: slices.Clone(c.Placed)}
	r.clock++
	enc := wire.Encoder{Blob: func(p []byte) (uint32, error) {
		id := r.blobs.keep(p)
		e.blobs = append(e.blobs, id)
		return id, nil
	}}
	var err error
	e.rec, err = enc.Record(nil, header(c), a)
	r.charge(e, entryBytes+uint64(len(e.rec))+8*uint64(len(e.placed)))
	return e, err
}

// charge books n more bytes for an entry, until its release.
func (r *recorder) charge(e *entry, n uint64) {
	r.host.book(n)
	e.cost += n
}

func header(c *wire.Call) wire.Header { return wire.Header{Ctx: c.Ctx, Thread: c.Thread} }

// note follows a request that succeeded and has an effect. extra is what a driver keeps of it, as
// long as it is recorded.
func (r *recorder) note(c *wire.Call, info *wire.OpInfo, a wire.Args, reply []byte, extra uint64) error {
	switch info.Effect {
	case wire.Destroys:
		return r.noteDestroy(c, info, a, reply)
	case wire.Marks:
		return r.noteMark(c, a)
	}
	if info.Effect == wire.Retains || info.Effect == wire.Releases {
		if done, err := r.noteCount(c, info, a); done || err != nil {
			return err
		}
	}
	if a, ok := a.(*wire.StreamCopyAttributesArgs); ok {
		return r.copyAttributes(c, a)
	}
	e, err := r.entry(c, a)
	if err != nil {
		return fmt.Errorf("record %s: %w", info.Name, err)
	}
	r.charge(e, extra+uint64(len(e.rec))) // a driver keeps a request's arguments, too
	id, ok := info.ObjectOf(e.rec, reply, c.Ctx)
	if !ok {
		r.release(e)
		return nil
	}
	key := keyIn(c.Ctx, info.Kind, id)
	o := r.objects[key]
	if o == nil && info.Kind == wire.KindStream && id <= uint64(wire.StreamPerThread) {
		// A stream that is always there goes with its context.
		o = r.objects[objectKey{id: uint64(c.Ctx)}]
	}
	switch {
	case info.Effect == wire.Retains || info.Effect == wire.Creates:
		if o != nil { // the guest used an id again: what it named went with something else
			r.drop(o)
		}
		r.charge(e, objectBytes-entryBytes)
		o = &object{key: key, create: e, retains: 1, children: map[*object]struct{}{}}
		r.objects[key] = o
		r.adopt(o, c, info)
	case o == nil: // an object that was not made by a request, such as a current context of id 0
		r.release(e)
	case isStep(a):
		r.step(o, e)
	default:
		r.modify(o, info, e)
	}
	return nil
}

// adopt makes o go with everything that its request names, and with its context.
func (r *recorder) adopt(o *object, c *wire.Call, info *wire.OpInfo) {
	add := func(id uint64) {
		if p := r.objects[objectKey{id: id}]; p != nil && p != o {
			p.children[o] = struct{}{}
			o.parents = append(o.parents, p)
		}
	}
	if c.Ctx != 0 && !ofNoContext(info.Kind) {
		add(uint64(c.Ctx))
	}
	for i := range info.Refs {
		ref := &info.Refs[i]
		if ref.Kind == wire.KindStream {
			continue
		}
		if id, ok := ref.Read(o.create.rec); ok {
			add(uint64(id))
		}
	}
}

// ofNoContext reports whether objects of a kind outlast the context that was current when they were
// made.
func ofNoContext(kind wire.Kind) bool {
	switch kind {
	case wire.KindSession, wire.KindRegion, wire.KindCtx, wire.KindMemhandle, wire.KindResv, wire.KindMapping, wire.KindLibrary, wire.KindKernel:
		return true
	}
	return false
}

func (r *recorder) noteDestroy(c *wire.Call, info *wire.OpInfo, a wire.Args, reply []byte) error {
	// Requests that destroy are short: encode, look, forget.
	rec, err := wire.AppendRecord(r.scratch[:0], header(c), a)
	if err != nil {
		return fmt.Errorf("record %s: %w", info.Name, err)
	}
	r.scratch = rec
	if id, ok := info.ObjectOf(rec, reply, c.Ctx); ok {
		if o := r.objects[keyIn(c.Ctx, info.Kind, id)]; o != nil {
			if stays, err := r.outlived(o, c, info, a); stays || err != nil {
				return err
			}
			r.drop(o)
		}
	}
	return nil
}

func (r *recorder) modify(o *object, info *wire.OpInfo, e *entry) {
	if info.Effect == wire.Resets {
		r.dropChildren(o)
		// Which are the device's.
		r.dropMods(o, func(op wire.Op) bool { return op != wire.OpPrimaryCtxSetFlags })
	}
	if info.Keyed { // others are not looked through: there may be many
		if i := slices.IndexFunc(o.mods, func(m *entry) bool { return info.Supersedes(e.rec, m.rec) }); i >= 0 {
			r.release(o.mods[i])
			o.mods = slices.Delete(o.mods, i, i+1)
		}
	}
	o.mods = append(o.mods, e)
}

// dropMods forgets changes of an object that were made by certain operations, and reports whether
// there were any.
func (r *recorder) dropMods(o *object, gone func(wire.Op) bool) bool {
	n := len(o.mods)
	o.mods = slices.DeleteFunc(o.mods, func(m *entry) bool {
		_, op, _ := wire.ParseHeader(m.rec)
		if !gone(op) {
			return false
		}
		r.release(m)
		return true
	})
	return len(o.mods) < n
}

// drop forgets an object and everything that went with it.
func (r *recorder) drop(o *object) {
	if r.objects[o.key] != o {
		return
	}
	delete(r.objects, o.key)
	r.notToMark(o)
	for _, p := range o.parents {
		if o.key.space == wire.KindInstance {
			p.vacated(o.create.placed)
		}
		if delete(p.children, o); p.ended && len(p.children) == 0 {
			r.drop(p)
		}
	}
	r.dropChildren(o)
	r.release(o.create)
	for _, m := range o.mods {
		r.release(m)
	}
}

func (r *recorder) dropChildren(o *object) {
	for c := range o.children {
		r.drop(c)
	}
}

func (r *recorder) release(e *entry) {
	for _, id := range e.blobs {
		r.blobs.release(id)
	}
	r.host.release(e.cost)
	if e.step {
		r.steps--
	}
	e.blobs, e.cost, e.step = nil, 0, false
}

// entries returns everything in the order in which it happened, as it can be done again. The caller
// only reads.
func (r *recorder) entries() []*entry {
	r.sweepSteps()
	var es []*entry
	for _, o := range r.objects {
		create := r.created(o)
		for range o.retains {
			es = append(es, create)
		}
		for _, m := range o.mods {
			if o.ended || r.stands(m) { // else what it brought in is gone
				es = append(es, r.within(o, m))
			}
		}
		if o.mark != nil {
			es = append(es, r.standing(o))
		}
	}
	slices.SortStableFunc(es, func(a, b *entry) int { return cmp.Compare(a.order, b.order) })
	return es
}

// stands reports whether every object that a request names is still the one that it named: with
// another, or without, it cannot be done again.
func (r *recorder) stands(e *entry) bool {
	_, op, _ := wire.ParseHeader(e.rec)
	for i := range op.Info().Refs {
		ref := &op.Info().Refs[i]
		id, ok := ref.Read(e.rec)
		if !ok || ref.New || id <= wire.StreamPerThread { // none, or a stream that is always there
			continue
		}
		if o := r.objects[objectKey{id: uint64(id)}]; o == nil || o.create.order > e.order {
			return false
		}
	}
	return true
}

// created is the request that made an object, without the context that was current if that is gone:
// the object has outlived it.
func (r *recorder) created(o *object) *entry {
	ctx := binary.LittleEndian.Uint32(o.create.rec[remote.RecordCtxOffset:])
	if in := r.objects[objectKey{id: uint64(ctx)}]; ctx == 0 || in == o || in != nil && in.create.order < o.create.order {
		return o.create
	}
	e := &entry{order: o.create.order, rec: slices.Clone(o.create.rec), placed: o.create.placed}
	clear(e.rec[remote.RecordCtxOffset:][:4])
	return e
}

// within is a request about an object, in the context that was current, or if that is gone in the
// object's own, or in none: what was set of a kernel is its device's.
func (r *recorder) within(o *object, e *entry) *entry {
	ctx := binary.LittleEndian.Uint32(e.rec[remote.RecordCtxOffset:])
	if in := r.objects[objectKey{id: uint64(ctx)}]; ctx == 0 || in == o || in != nil && in.create.order < e.order {
		return e
	}
	return r.elsewhere(o, e)
}

// elsewhere is a request about an object in the context in which the object was made, if it is that
// one's.
func (r *recorder) elsewhere(o *object, e *entry) *entry {
	moved := &entry{order: e.order, rec: slices.Clone(e.rec), placed: e.placed}
	if _, op, _ := wire.ParseHeader(o.create.rec); ofNoContext(op.Info().Kind) {
		clear(moved.rec[remote.RecordCtxOffset:][:4])
	} else {
		copy(moved.rec[remote.RecordCtxOffset:][:4], o.create.rec[remote.RecordCtxOffset:])
	}
	return moved
}

// standing is the mark of an object. If the stream is gone that brought it, it has long passed:
// that of the object's own context will do.
func (r *recorder) standing(o *object) *entry {
	last := &o.mark.entry
	e := r.within(o, last)
	if e == last && r.stands(last) {
		return last
	}
	e = r.elsewhere(o, last)
	_, op, _ := wire.ParseHeader(e.rec)
	for _, ref := range op.Info().Refs {
		if ref.Kind == wire.KindStream {
			binary.LittleEndian.PutUint32(e.rec[wire.RecordSize+ref.Offset:], wire.StreamLegacy)
		}
	}
	return e
}
