package worker

import (
	"causeway/cuda"
)

// Bounds of bytes sent ahead (docs/PROTOCOL.md, Request).
const (
	maxBlobs     = 256
	maxBlobBytes = 1 << 30
	blobFirst    = 64 << 20 // allocated before the bytes are there: pages that nothing touches cost nothing
)

// blobs holds bytes arguments that were sent ahead of their operation. The consumer owns it.
type blobs struct {
	open  map[uint32]*blob
	bytes uint64 // promised by all open blobs
}

type blob struct {
	total uint64
	buf   []byte
}

func (b *blobs) init() { b.open = map[uint32]*blob{} }

// append adds part to a blob of total bytes, which the first part opens.
func (b *blobs) append(id uint32, total uint64, part []byte) cuda.Result {
	x := b.open[id]
	if x == nil {
		if total == 0 || total > maxBlobBytes || total > maxBlobBytes-b.bytes || len(b.open) >= maxBlobs {
			return cuda.ErrorOutOfMemory
		}
		x = &blob{total: total, buf: make([]byte, 0, min(total, blobFirst))}
		b.open[id] = x
		b.bytes += total
	}
	if total != x.total || uint64(len(part)) > x.total-uint64(len(x.buf)) {
		b.drop(id)
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
	return x.buf, true
}

func (b *blobs) drop(id uint32) {
	if x := b.open[id]; x != nil {
		b.bytes -= x.total
		delete(b.open, id)
	}
}
