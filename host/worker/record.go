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
	init    *entry
	objects map[objectKey]*object
	regions map[uint32]*entry
	blobs   blobStore
}

// objectKey names an object: ids of all kinds come from one number space, addresses of memory from another.
type objectKey struct {
	memory bool
	id     uint64
}

type object struct {
	key      objectKey
	create   *entry
	mods     []*entry
	recorded *entry // events: the last EventRecord
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
		objects: map[objectKey]*object{}, regions: map[uint32]*entry{},
		blobs: blobStore{byHash: map[content]uint32{}, byID: map[uint32]*storedBlob{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}},
	}
}

func (r *recorder) initialised() bool { return r.init != nil }

func (r *recorder) keepInit(c *wire.Call, a wire.Args) {
	// The arguments came out of one record, so they fit into one again.
	r.init, _ = r.entry(c, a)
}

func (r *recorder) keepRegion(c *wire.Call, a *wire.RegionAddArgs) {
	r.regions[a.Region], _ = r.entry(c, a)
}

func (r *recorder) dropRegion(id uint32) { delete(r.regions, id) }

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
	if info.Effect == wire.Destroys {
		return r.noteDestroy(c, info, a, reply)
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
	key := objectKey{info.Kind == wire.KindMem, id}
	o := r.objects[key]
	switch {
	case c.Op == wire.OpPrimaryCtxRetain && o != nil:
		o.retains++
		o.mods = append(o.mods, e)
	case info.Effect == wire.Creates:
		if o != nil { // the guest used an id again: what it named went with something else
			r.drop(o)
		}
		o = &object{key: key, create: e, children: map[*object]struct{}{}}
		r.objects[key] = o
		r.adopt(o, c, info)
		if c.Op == wire.OpPrimaryCtxRetain {
			o.retains = 1
		}
	case o == nil: // an object that was not made by a request, such as a current context of id 0
		r.release(e)
	default:
		return r.modify(o, c.Op, e)
	}
	return nil
}

// adopt makes o go with everything that its request names, and with its context.
func (r *recorder) adopt(o *object, c *wire.Call, info *wire.OpInfo) {
	add := func(id uint64) {
		if p := r.objects[objectKey{false, id}]; p != nil && p != o {
			p.children[o] = struct{}{}
			o.parents = append(o.parents, p)
		}
	}
	switch info.Kind {
	case wire.KindCtx, wire.KindMemhandle, wire.KindResv, wire.KindMapping: // belong to no context
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

func (r *recorder) noteDestroy(c *wire.Call, info *wire.OpInfo, a wire.Args, reply []byte) error {
	// Requests that destroy are short: encode, look, forget.
	rec, err := wire.AppendRecord(nil, header(c), a)
	if err != nil {
		return fmt.Errorf("record %s: %w", info.Name, err)
	}
	if id, ok := info.ObjectOf(rec, reply, c.Ctx); ok {
		if o := r.objects[objectKey{info.Kind == wire.KindMem, id}]; o != nil {
			r.drop(o)
		}
	}
	return nil
}

func (r *recorder) modify(o *object, op wire.Op, e *entry) error {
	switch op {
	case wire.OpPrimaryCtxRelease:
		if o.retains--; o.retains <= 0 {
			r.drop(o)
			r.release(e)
			return nil
		}
	case wire.OpPrimaryCtxReset:
		r.dropChildren(o)
	}
	if n := supersedes(op); n >= 0 {
		for i, m := range o.mods {
			if sameStart(m.rec, e.rec, n) {
				r.release(m)
				o.mods = slices.Delete(o.mods, i, i+1)
				break
			}
		}
	}
	if len(o.mods) >= maxMods {
		return fmt.Errorf("object %d was modified more than %d times", o.key.id, maxMods)
	}
	o.mods = append(o.mods, e)
	return nil
}

// supersedes returns how many bytes of the arguments name what the operation sets; a later request that agrees in them
// replaces an earlier one. -1: requests add up.
func supersedes(op wire.Op) int {
	switch op {
	case wire.OpFuncSetAttribute, wire.OpPoolSetAttribute, wire.OpMemSetAccess: // object, attribute or device
		return 8
	case wire.OpCtxSetLimit, wire.OpFuncSetCacheConfig: // limit; object
		return 4
	case wire.OpPrimaryCtxSetFlags: // context, device
		return 8
	}
	return -1
}

// sameStart compares two requests of the same size: operation, and n bytes of arguments.
func sameStart(a, b []byte, n int) bool {
	end := wire.RecordSize + n
	return len(a) == len(b) && len(a) >= end && [2]byte(a[4:6]) == [2]byte(b[4:6]) &&
		string(a[wire.RecordSize:end]) == string(b[wire.RecordSize:end])
}

// noteEventRecord remembers that an event was recorded, without allocating in the long run.
func (r *recorder) noteEventRecord(c *wire.Call, a *wire.EventRecordArgs) {
	o := r.objects[objectKey{false, uint64(a.Event)}]
	if o == nil {
		return
	}
	if o.recorded == nil {
		o.recorded = &entry{}
	}
	o.recorded.order = r.clock
	r.clock++
	o.recorded.rec, _ = wire.AppendRecord(o.recorded.rec[:0], header(c), a)
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
	if r.init != nil {
		es = append(es, r.init)
	}
	for _, e := range r.regions {
		es = append(es, e)
	}
	for _, o := range r.objects {
		es = append(es, o.create)
		es = append(es, o.mods...)
		if o.recorded != nil {
			es = append(es, o.recorded)
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
