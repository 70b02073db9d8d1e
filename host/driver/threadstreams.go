package driver

// StreamMemory is what a driver keeps of a stream, in bytes of the host's memory (16.4 KB on an
// H200, 580).
const StreamMemory = 16 << 10

// HostMemory is implemented by a Host that has a budget of host memory for what a session keeps
// without an operation that makes it: the default streams of the guest's threads. Worker goroutine.
type HostMemory interface {
	// ReserveHost books n bytes. False: there is no room for them, and nothing has changed.
	ReserveHost(n uint64) bool
	ReleaseHost(n uint64)
}

// ReserveStream books a stream of a thread, if the host has a budget.
func ReserveStream(h Host) bool {
	b, ok := h.(HostMemory)
	return !ok || b.ReserveHost(StreamMemory)
}

// ReleaseStreams gives n back.
func ReleaseStreams(h Host, n int) {
	if b, ok := h.(HostMemory); ok {
		b.ReleaseHost(uint64(n) * StreamMemory)
	}
}

// How many default streams of threads a session has before one that is spare goes to another
// thread, and how many that are kept are looked at for that, each of which may be a question to the
// driver.
const (
	EnoughThreads = 128
	looks         = 32
)

// ThreadStreams are the threads of a guest that have default streams of their own. Nobody says when
// a thread ends, and a program may have any number of them one after another, so a stream that is
// idle, and was not used since it was last looked at, goes to a thread that has none: what is to be
// seen of a stream without work is that of any other. If the thread that had it lives, it gets
// another in the same way. S is a stream.
type ThreadStreams[K comparable, S any] struct {
	keys []K
	hand int
}

// Add notes a thread that has got a stream.
func (t *ThreadStreams[K, S]) Add(k K) { t.keys = append(t.keys, k) }

// Keys are the threads that have streams.
func (t *ThreadStreams[K, S]) Keys() []K { return t.keys }

// Forget forgets threads whose streams are gone.
func (t *ThreadStreams[K, S]) Forget(gone func(K) bool) {
	keep := t.keys[:0]
	for _, k := range t.keys {
		if !gone(k) {
			keep = append(keep, k)
		}
	}
	t.keys, t.hand = keep, 0
}

// Look is what a stream is found to be when one is wanted for another thread.
type Look int

// Spare is idle, and was not used since it was last looked at. Recent was: it is none now, and to
// find that out takes no time. Kept has work, or may not go to another thread.
const (
	Spare Look = iota
	Recent
	Kept
)

// Take takes a stream that is spare out of those that threads have, which next has from now on; the
// caller gives it to that. all: however long that takes.
func (t *ThreadStreams[K, S]) Take(streams map[K]S, next K, all bool, look func(K, S) Look) (st S, ok bool) {
	left := looks
	if all {
		left = 2 * len(t.keys)
	}
	for range 2 * len(t.keys) {
		t.hand = (t.hand + 1) % len(t.keys)
		k := t.keys[t.hand]
		switch look(k, streams[k]) {
		case Spare:
			t.keys[t.hand], st = next, streams[k]
			delete(streams, k)
			return st, true
		case Kept:
			if left--; left == 0 {
				return st, false
			}
		}
	}
	return st, false
}
