package resume

import (
	"errors"
	"fmt"
	"time"
)

// A Budget bounds the memory in which streams keep what they sent. Its methods may be called from
// any goroutine, and wait for nothing.
type Budget interface {
	// Reserve books bytes, or none; false: more would be booked than there is, and nothing has
	// changed.
	Reserve(n uint64) bool
	// Book books them whatever the limit is.
	Book(n uint64)
	// Release gives back what was booked either way.
	Release(n uint64)
}

// ErrBudget says that a stream cannot have what it needs at least to be sent again after its
// connection is lost.
var ErrBudget = errors.New("the budget of host memory (--host-memory) has no room for what a remote session keeps to be sent again")

// keptLeast is how many chunks a stream has from its beginning to its end: with them it goes on
// however little is left, as the other end acknowledges before they are full (ackEach, two chunks
// that are not whole, and a part with its header). More are booked when they are needed. keptAgain
// is when a budget that had no room is asked again.
const (
	keptLeast = ackEach/keptChunk + part/keptChunk + 6
	keptAgain = 100 * time.Millisecond
)

// keptChunk is how much memory is taken at a time, and keptFree how many chunks are kept for what
// comes next.
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
	// Somebody fills what grow gave, of which so many bytes lie behind those of the last chunk.
	growing bool
	tail    int
	budget  Budget // nil: none
	have    int    // chunks in memory
	booked  int    // chunks, no less than have but for what was booked without a budget
	// Of them, those that were not asked for: before more is kept that can wait, the budget has
	// room for them, or they are given back.
	owed    int
	refused time.Time
	// What lies at or behind this position is being read, and its memory is not used again while it
	// is; noPin: nothing.
	pin uint64
}

const noPin = ^uint64(0)

// size is how many bytes are kept.
func (k *kept) size() uint64 { return k.end - k.start }

// begin has the least booked.
func (k *kept) begin(b Budget) error {
	if b == nil {
		return nil
	}
	if !b.Reserve(keptLeast * keptChunk) {
		return fmt.Errorf("%w: %d bytes", ErrBudget, keptLeast*keptChunk)
	}
	k.budget, k.booked = b, keptLeast
	return nil
}

// wants is how many chunks must be booked so that n bytes can be kept.
func (k *kept) wants(n int) int {
	if last := len(k.chunks) - 1; last >= 0 {
		n -= keptChunk - len(k.chunks[last])
	}
	return max(k.have+max((n+keptChunk-1)/keptChunk, 0)-len(k.free)-k.booked, 0)
}

// fits reports whether n bytes more can be kept, and books room for them if there is none. now:
// they have to be.
func (k *kept) fits(n int, now bool) bool {
	more := k.wants(n)
	bytes := uint64(more) * keptChunk
	switch {
	case k.budget == nil || more == 0 && (now || k.owed == 0):
		return true
	case now:
		k.budget.Book(bytes)
		k.owed += more
	case time.Since(k.refused) < keptAgain:
		return false
	case !k.budget.Reserve(bytes): // not of 0 bytes either, while more is booked than it has
		k.refused = time.Now()
		return false
	default:
		k.owed = 0
	}
	k.booked += more
	return true
}

// gone gives up so many chunks.
func (k *kept) gone(n int) {
	k.have -= n
	if over := k.booked - max(k.have, keptLeast); k.budget != nil && over > 0 {
		k.budget.Release(uint64(over) * keptChunk)
		k.booked -= over
		k.owed = min(k.owed, k.booked-keptLeast)
	}
}

// finish gives back all that is booked. Nothing is kept from then on.
func (k *kept) finish() {
	if k.budget != nil {
		k.budget.Release(uint64(k.booked) * keptChunk)
		k.budget, k.booked = nil, 0
	}
}

// grow appends room for n bytes more to list, which whoever asks fills, and has added then, before
// anything else is.
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
	if !filled {
		if k.tail > 0 {
			list = list[1:]
		}
		k.gone(len(list))
	}
	k.growing, k.tail = false, 0
}

func (k *kept) chunk() []byte {
	if n := len(k.free); n > 0 {
		c := k.free[n-1]
		k.free = k.free[:n-1]
		return c[:0]
	}
	k.have++
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
			if again && k.owed == 0 && len(k.free) < keptFree {
				k.free = append(k.free, k.chunks[0])
			} else {
				k.gone(1) // once whoever reads it has read it
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
			k.gone(1)
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
