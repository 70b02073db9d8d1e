package soft

import (
	"causeway/cuda"
	"causeway/cuda/wire"
)

// maxObjects bounds the handles of one kind that a guest process may hold.
const maxObjects = 1 << 20

// table finds objects of one kind by the numbers that the guest picked. An absent number means
// nothing else than that.
type table[T any] map[wire.ID]T

// put gives a new object its number.
func (t table[T]) put(id wire.ID, v T) cuda.Result {
	if len(t) >= maxObjects {
		return cuda.ErrorOutOfMemory
	}
	if _, used := t[id]; used || id <= wire.StreamPerThread {
		return cuda.ErrorInvalidHandle
	}
	t[id] = v
	return cuda.Success
}

// deleteIf forgets objects.
func (t table[T]) deleteIf(gone func(T) bool) {
	for id, v := range t {
		if gone(v) {
			delete(t, id)
		}
	}
}
