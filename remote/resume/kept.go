package resume

// keptChunk is how much memory is taken at a time, and keptFree how many chunks are kept for what comes next.
const (
	keptChunk = 64 << 10
	keptFree  = 48
)

// kept is the end of what was sent: the bytes [start, end) of the stream.
type kept struct {
	start, end uint64
	chunks     [][]byte
	skip       int // bytes of chunks[0] before start
	free       [][]byte
	growing    bool // somebody fills what grow gave, of which so many bytes lie behind those of the last chunk
	tail       int
	pin        uint64 // what lies at or behind this position is being read, and its memory is not used again while it is; noPin: nothing
}

const noPin = ^uint64(0)

// size is how many bytes are kept.
func (k *kept) size() uint64 { return k.end - k.start }

// grow appends room for n bytes more to list, which whoever asks fills, and has added then, before anything else is.
func (k *kept) grow(list [][]byte, n int) [][]byte {
	k.growing = true
	if last := len(k.chunks) - 1; n > 0 && last >= 0 && len(k.chunks[last]) < keptChunk {
		c := k.chunks[last]
		k.tail = min(n, keptChunk-len(c))
		list, n = append(list, c[len(c):len(c)+k.tail]), n-k.tail
	}
	for n > 0 {
		c := k.chunk()[:min(n, keptChunk)]
		list, n = append(list, c), n-len(c)
	}
	return list
}

// added adds what grow gave room for; nothing of it, if it was not filled.
func (k *kept) added(list [][]byte, filled bool) {
	if filled && k.tail > 0 {
		c := &k.chunks[len(k.chunks)-1]
		*c = (*c)[:len(*c)+k.tail]
		k.end, list = k.end+uint64(k.tail), list[1:]
	}
	for i := 0; filled && i < len(list); i++ {
		k.chunks, k.end = append(k.chunks, list[i]), k.end+uint64(len(list[i]))
	}
	k.growing, k.tail = false, 0
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
		if k.growing {
			return // behind the chunk's bytes
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
