package worker

import (
	"fmt"
	"hash/maphash"
	"slices"

	"causeway/cuda/wire"
)

// recorder keeps, for every live object, the requests that made it what it is: how another process can rebuild it. Requests
// of an object that is gone drop out, and so do those of the objects that went with it. Long bytes (images) are kept once,
// however many requests carry them. The consumer owns it.
type recorder struct {
	clock   uint64
	objects map[objectKey]*object
	blobs   blobStore
	scratch []byte
}

// objectKey names an object: ids of most kinds come from one number space, addresses of memory from another.
type objectKey struct {
	space wire.Kind // KindNone, or a kind whose objects are numbered by themselves
	id    uint64
}

func keyOf(kind wire.Kind, id uint64) objectKey {
	switch kind {
	case wire.KindMem, wire.KindRegion, wire.KindSession:
		return objectKey{kind, id}
	}
	return objectKey{id: id}
}

type object struct {
	key      objectKey
	create   *entry
	mods     []*entry
	mark     *entry // the last request that marks it: an event's record
	retains  int    // primary contexts
	parents  []*object
	children map[*object]struct{}
}

// entry is one request in replayable form.
type entry struct {
	order  uint64
	rec    []byte
	placed []uint64
	blobs  []uint32
}

// maxMods bounds the modifications kept for one object; repeated ones replace each other and do not count.
const maxMods = 1 << 16

func newRecorder() *recorder {
	return &recorder{
		objects: map[objectKey]*object{},
		blobs:   blobStore{byHash: map[content]uint32{}, byID: map[uint32]*storedBlob{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}},
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
	return e, err
}

func header(c *wire.Call) wire.Header { return wire.Header{Ctx: c.Ctx, Thread: c.Thread} }

// note follows a request that succeeded and has an effect.
func (r *recorder) note(c *wire.Call, info *wire.OpInfo, a wire.Args, reply []byte) error {
	if info.Effect == wire.Destroys || info.Effect == wire.Marks {
		return r.noteShort(c, info, a, reply)
	}
	e, err := r.entry(c, a)
	if err != nil {
		return fmt.Errorf("record %s: %w", info.Name, err)
	}
	id, ok := info.ObjectOf(e.rec, reply, c.Ctx)
	if !ok {
		r.release(e)
		return nil
	}
	key := keyOf(info.Kind, id)
	o := r.objects[key]
	switch {
	case info.Effect == wire.Retains && o != nil:
		o.retains++
		o.mods = append(o.mods, e)
	case info.Effect == wire.Retains || info.Effect == wire.Creates:
		if o != nil { // the guest used an id again: what it named went with something else
			r.drop(o)
		}
		o = &object{key: key, create: e, retains: 1, children: map[*object]struct{}{}}
		r.objects[key] = o
		r.adopt(o, c, info)
	case o == nil: // an object that was not made by a request, such as a current context of id 0
		r.release(e)
	default:
		return r.modify(o, info, e)
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
	switch info.Kind {
	case wire.KindSession, wire.KindRegion, wire.KindCtx, wire.KindMemhandle, wire.KindResv, wire.KindMapping: // belong to no context
	default:
		if c.Ctx != 0 {
			add(uint64(c.Ctx))
		}
	}
	for i := range info.Refs {
		ref := &info.Refs[i]
		if ref.New || ref.Kind == wire.KindStream {
			continue
		}
		if id, ok := ref.Read(o.create.rec); ok {
			add(uint64(id))
		}
	}
}

// noteShort follows a request that is short and often comes: it is encoded into memory that stays.
func (r *recorder) noteShort(c *wire.Call, info *wire.OpInfo, a wire.Args, reply []byte) error {
	rec, err := wire.AppendRecord(r.scratch[:0], header(c), a)
	if err != nil {
		return fmt.Errorf("record %s: %w", info.Name, err)
	}
	r.scratch = rec
	id, ok := info.ObjectOf(rec, reply, c.Ctx)
	o := r.objects[keyOf(info.Kind, id)]
	switch {
	case !ok || o == nil:
	case info.Effect == wire.Destroys:
		r.drop(o)
	default:
		if o.mark == nil {
			o.mark = &entry{}
		}
		o.mark.order = r.clock
		r.clock++
		o.mark.rec, r.scratch = rec, o.mark.rec
	}
	return nil
}

func (r *recorder) modify(o *object, info *wire.OpInfo, e *entry) error {
	switch info.Effect {
	case wire.Releases:
		if o.retains--; o.retains <= 0 {
			r.drop(o)
			r.release(e)
			return nil
		}
	case wire.Resets:
		r.dropChildren(o)
	}
	if i := slices.IndexFunc(o.mods, func(m *entry) bool { return info.Supersedes(e.rec, m.rec) }); i >= 0 {
		r.release(o.mods[i])
		o.mods = slices.Delete(o.mods, i, i+1)
	}
	if len(o.mods) >= maxMods {
		return fmt.Errorf("object %d was modified more than %d times", o.key.id, maxMods)
	}
	o.mods = append(o.mods, e)
	return nil
}

// drop forgets an object and everything that went with it.
func (r *recorder) drop(o *object) {
	if r.objects[o.key] != o {
		return
	}
	delete(r.objects, o.key)
	for _, p := range o.parents {
		delete(p.children, o)
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
	e.blobs = nil
}

// entries returns everything in the order in which it happened. The caller only reads.
func (r *recorder) entries() []*entry {
	var es []*entry
	for _, o := range r.objects {
		es = append(es, o.create)
		es = append(es, o.mods...)
		if o.mark != nil {
			es = append(es, o.mark)
		}
	}
	slices.SortFunc(es, func(a, b *entry) int {
		if a.order < b.order {
			return -1
		}
		return 1
	})
	return es
}

// content stands for bytes within one process: 128 bits that nobody outside can aim at, for a tenth of a cryptographic sum's time.
type content [2]uint64

// blobStore keeps long bytes by content.
type blobStore struct {
	next   uint32
	byHash map[content]uint32
	byID   map[uint32]*storedBlob
	seeds  [2]maphash.Seed
}

type storedBlob struct {
	bytes []byte
	hash  content
	refs  int
}

// keep stores p, which must not change any more, or finds it.
func (s *blobStore) keep(p []byte) uint32 {
	hash := content{maphash.Bytes(s.seeds[0], p), maphash.Bytes(s.seeds[1], p)}
	if id, ok := s.byHash[hash]; ok {
		s.byID[id].refs++
		return id
	}
	s.next++
	s.put(s.next, p, hash)
	return s.next
}

func (s *blobStore) put(id uint32, p []byte, hash content) {
	s.byHash[hash] = id
	s.byID[id] = &storedBlob{bytes: p, hash: hash, refs: 1}
}

func (s *blobStore) release(id uint32) {
	b := s.byID[id]
	if b == nil {
		return
	}
	if b.refs--; b.refs == 0 {
		delete(s.byHash, b.hash)
		delete(s.byID, id)
	}
}

// Take implements wire.BlobSource for replays: the bytes stay.
func (s *blobStore) Take(id, size uint32) ([]byte, bool) {
	b := s.byID[id]
	if b == nil || uint64(len(b.bytes)) != uint64(size) {
		return nil, false
	}
	return b.bytes, true
}
