package worker

import "hash/maphash"

// content stands for bytes within one process: 128 bits that nobody outside can aim at, for a tenth
// of a cryptographic sum's time.
type content [2]uint64

// blobStore keeps long bytes by content.
type blobStore struct {
	next   uint32
	byHash map[content]uint32
	byID   map[uint32]*storedBlob
	seeds  [2]maphash.Seed
	host   *hostMemory
	last   summed
}

// summed is the content of the bytes that were asked for last: who loads an image asks twice.
type summed struct {
	p    []byte
	hash content
}

func (s *blobStore) sum(p []byte) content {
	if l := &s.last; len(p) == 0 || len(l.p) != len(p) || &l.p[0] != &p[0] {
		s.last = summed{p, content{maphash.Bytes(s.seeds[0], p), maphash.Bytes(s.seeds[1], p)}}
	}
	return s.last.hash
}

// forget lets go of the bytes of sum, which must not change while it knows them.
func (s *blobStore) forget() { s.last = summed{} }

// same is p as it is stored, or p.
func (s *blobStore) same(p []byte) []byte {
	if len(p) == 0 || len(s.byID) == 0 {
		return p
	}
	if id, ok := s.byHash[s.sum(p)]; ok {
		return s.byID[id].bytes
	}
	return p
}

type storedBlob struct {
	bytes []byte
	hash  content
	refs  int
}

// keep stores p, which must not change any more, or finds it.
func (s *blobStore) keep(p []byte) uint32 {
	hash := s.sum(p)
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
	s.host.book(uint64(len(p)))
}

func (s *blobStore) release(id uint32) {
	b := s.byID[id]
	if b == nil {
		return
	}
	if b.refs--; b.refs == 0 {
		delete(s.byHash, b.hash)
		delete(s.byID, id)
		s.host.release(uint64(len(b.bytes)))
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
