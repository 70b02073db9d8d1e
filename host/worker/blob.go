package worker

import (
	"causeway/cuda"
)

// Bounds of bytes sent ahead (docs/PROTOCOL.md, Request).
const (
	maxBlobs     = 256
	maxBlobBytes = 1 << 30
)

// blobs holds bytes arguments that were sent ahead of their operation. The consumer owns it.
type blobs struct {
	open  map[uint32]*blob
	bytes uint64 // promised by all open blobs
	host  *hostMemory
	taken uint64           // bytes that the current request has taken, still in the budget
	last  map[uint32]*blob // those
}

type blob struct {
	total uint64
	buf   []byte
}

func (b *blobs) init(h *hostMemory) { b.open, b.host = map[uint32]*blob{}, h }

// append adds part to a blob of total bytes, which the first part opens.
func (b *blobs) append(id uint32, total uint64, part []byte) cuda.Result {
	x := b.open[id]
	if x == nil {
		if total == 0 || total > maxBlobBytes || total > maxBlobBytes-b.bytes || len(b.open) >= maxBlobs {
			return cuda.ErrorOutOfMemory
		}
		if !b.host.reserve(total) {
			return cuda.ErrorOutOfMemory
		}
		// At once: to grow would leave as much again behind as garbage.
		x = &blob{total: total, buf: make([]byte, 0, total)}
		b.open[id] = x
		b.bytes += total
	}
	if total != x.total || uint64(len(part)) > x.total-uint64(len(x.buf)) {
		b.drop(id)
		b.host.release(x.total)
		return cuda.ErrorInvalidValue
	}
	x.buf = append(x.buf, part...)
	return cuda.Success
}

// Take implements wire.BlobSource.
func (b *blobs) Take(id, size uint32) ([]byte, bool) {
	x := b.open[id]
	if x == nil || x.total != uint64(size) || uint64(len(x.buf)) != x.total {
		return nil, false
	}
	b.drop(id)
	b.taken += x.total
	if b.last == nil {
		b.last = map[uint32]*blob{}
	}
	b.last[id] = x
	return x.buf, true
}

// settle gives back what the current request took. What of it stays is booked by whoever keeps it.
func (b *blobs) settle() {
	if len(b.last) > 0 {
		b.settleTaken()
	}
}

func (b *blobs) settleTaken() {
	b.host.release(b.taken)
	b.taken = 0
	clear(b.last)
}

// putBack undoes what the current request took: it will come again.
func (b *blobs) putBack() {
	for id, x := range b.last {
		b.open[id] = x
		b.bytes += x.total
	}
	b.taken = 0
	clear(b.last)
}

func (b *blobs) drop(id uint32) {
	if x := b.open[id]; x != nil {
		b.bytes -= x.total
		delete(b.open, id)
	}
}
