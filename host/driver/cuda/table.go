package cuda

import "causeway/cuda"

// table holds the objects of one kind under the ids that the guest picked. Ids come from a hostile
// process: bounded, looked up, never trusted as an index.
type table[T any] struct {
	m      map[uint32]T
	recent [recents]found[T] // the latest of hot, each at its id modulo recents
}

// found is an object and its id, which is in the table; id 0: none.
type found[T any] struct {
	id uint32
	v  T
}

const recents = 8

func (t *table[T]) get(id uint32) (T, bool) {
	v, ok := t.m[id]
	return v, ok
}

// hot is get for what every launch asks: a program names the same few time and again. It is the
// worker goroutine's.
func (t *table[T]) hot(id uint32) (T, bool) {
	f := &t.recent[id%recents]
	if f.id == id && id != 0 {
		return f.v, true
	}
	return t.look(id, f)
}

func (t *table[T]) look(id uint32, f *found[T]) (T, bool) {
	v, ok := t.m[id]
	if ok {
		*f = found[T]{id, v}
	}
	return v, ok
}

// drop forgets an object. All that leaves the table does so here.
func (t *table[T]) drop(id uint32) {
	delete(t.m, id)
	t.forget(id)
}

// set stores an object in the place of another.
func (t *table[T]) set(id uint32, v T) {
	t.m[id] = v
	t.forget(id)
}

func (t *table[T]) forget(id uint32) {
	if f := &t.recent[id%recents]; f.id == id {
		*f = found[T]{}
	}
}

// put stores an object under a fresh id; false if the id is taken or the table is full.
func (t *table[T]) put(id uint32, v T) bool {
	if t.m == nil {
		t.m = map[uint32]T{}
	}
	if _, taken := t.m[id]; taken || id == 0 || len(t.m) >= maxObjects {
		return false
	}
	t.m[id] = v
	return true
}

// add is put with the result of an operation that does nothing else.
func (t *table[T]) add(id uint32, v T) cuda.Result {
	if !t.put(id, v) {
		return cuda.ErrorInvalidHandle
	}
	return cuda.Success
}

// keep is add of what holds a handle of the driver's, which goes back if there is no place for it.
func keep[T, H any](list *table[T], id uint32, v T, handle H, drop func(H) cuda.Result) cuda.Result {
	res := list.add(id, v)
	if res != cuda.Success {
		drop(handle)
	}
	return res
}

// end has the driver end an object, which is forgotten then; one that the driver keeps stays.
func end[T any](s *session, list *table[T], id uint32, destroy func(T) cuda.Result) (T, cuda.Result) {
	v, ok := list.get(id)
	if !ok {
		return v, cuda.ErrorInvalidValue
	}
	res := s.note(destroy(v))
	if res == cuda.Success {
		list.remove(id)
	}
	return v, res
}

func (t *table[T]) remove(id uint32) (T, bool) {
	v, ok := t.m[id]
	t.drop(id)
	return v, ok
}
