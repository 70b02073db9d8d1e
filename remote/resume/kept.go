package resume

// keptChunk is how much memory is taken at a time, and keptFree how many chunks are kept for what comes next.
const (
	keptChunk = 64 << 10
	keptFree  = 16
)

// kept is the end of what was sent: the bytes [start, end) of the stream.
type kept struct {
	start, end uint64
	chunks     [][]byte
	skip       int // bytes of chunks[0] before start
	free       [][]byte
	pin        uint64 // what lies at or behind this position is being read, and its memory is not used again while it is; noPin: nothing
}

const noPin = ^uint64(0)

// size is how many bytes are kept.
func (k *kept) size() uint64 { return k.end - k.start }

// add keeps a copy.
func (k *kept) add(p []byte) {
	k.end += uint64(len(p))
	for len(p) > 0 {
		last := len(k.chunks) - 1
		if last < 0 || len(k.chunks[last]) == keptChunk {
			k.chunks = append(k.chunks, k.chunk())
			last++
		}
		c := k.chunks[last]
		n := copy(c[len(c):keptChunk], p)
		k.chunks[last], p = c[:len(c)+n], p[n:]
	}
}

func (k *kept) chunk() []byte {
	if n := len(k.free); n > 0 {
		c := k.free[n-1]
		k.free = k.free[:n-1]
		return c[:0]
	}
	return make([]byte, 0, keptChunk)
}

// drop forgets what lies before a position, from start to end.
func (k *kept) drop(to uint64) {
	k.skip += int(to - k.start)
	k.start = to
	for len(k.chunks) > 0 && k.skip >= len(k.chunks[0]) {
		if k.start < k.end || len(k.chunks[0]) == keptChunk {
			again := k.unpinned()
			k.skip -= len(k.chunks[0])
			if again && len(k.free) < keptFree {
				k.free = append(k.free, k.chunks[0])
			}
			k.chunks[0] = nil
			k.chunks = k.chunks[1:]
			continue
		}
		if !k.unpinned() {
			k.skip, k.chunks = 0, nil
			return
		}
		k.skip, k.chunks[0] = 0, k.chunks[0][:0] // it has room
		return
	}
	if len(k.chunks) == 0 {
		k.chunks = nil
	}
}

// unpinned reports whether nothing of the oldest chunk is being read.
func (k *kept) unpinned() bool {
	return k.start-uint64(k.skip)+uint64(len(k.chunks[0])) <= k.pin
}

// take appends the bytes from a position on to list, up to most of them, and pins them.
func (k *kept) take(list [][]byte, from, most uint64) (_ [][]byte, n uint64) {
	k.pin = from
	skip := uint64(k.skip) + from - k.start
	for _, c := range k.chunks {
		if skip >= uint64(len(c)) {
			skip -= uint64(len(c))
			continue
		}
		b := c[skip:]
		if skip = 0; uint64(len(b)) > most-n {
			b = b[:most-n]
		}
		if list, n = append(list, b), n+uint64(len(b)); n == most {
			break
		}
	}
	return list, n
}
