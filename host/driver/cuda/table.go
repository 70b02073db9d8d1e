package cuda

import "causeway/cuda"

// table holds the objects of one kind under the ids that the guest picked. Ids come from a hostile
// process: bounded, looked up, never trusted as an index.
type table[T any] struct{ m map[uint32]T }

func (t *table[T]) get(id uint32) (T, bool) {
	v, ok := t.m[id]
	return v, ok
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
	delete(t.m, id)
	return v, ok
}
