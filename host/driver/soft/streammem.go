package soft

import (
	"time"

	"causeway/cuda"
	"causeway/cuda/wire"
)

// word finds the memory of a stream memory operation; width is 4 or 8.
func (s *session) word(addr uint64, width uint32) ([]byte, cuda.Result) {
	if width != 4 && width != 8 || addr%uint64(width) != 0 {
		return nil, cuda.ErrorInvalidValue
	}
	mem, ok := s.space.bytes(addr, uint64(width))
	if !ok {
		return nil, cuda.ErrorInvalidValue
	}
	return mem, cuda.Success
}

// StreamWriteValue stores a word in stream order.
func (s *session) StreamWriteValue(c *wire.Call, a *wire.StreamWriteValueArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	mem, res := s.word(a.Addr, a.Width)
	if res != cuda.Success {
		return res
	}
	if a.Flags&^cuda.StreamWriteValueNoMemoryBarrier != 0 {
		return cuda.ErrorInvalidValue
	}
	value := a.Value
	return s.do(st, 0, func() cuda.Result {
		storeWord(mem, value)
		return cuda.Success
	})
}

// StreamWaitValue holds a stream until a word satisfies a condition.
func (s *session) StreamWaitValue(c *wire.Call, a *wire.StreamWaitValueArgs) cuda.Result {
	st, res := s.stream(c, a.Stream)
	if res != cuda.Success {
		return res
	}
	mem, res := s.word(a.Addr, a.Width)
	if res != cuda.Success {
		return res
	}
	flags := a.Flags &^ cuda.StreamWaitValueFlush // all writes are visible here
	if flags > cuda.StreamWaitValueNor {
		return cuda.ErrorInvalidValue
	}
	value, width := a.Value, a.Width
	if width == 4 {
		value = uint64(uint32(value))
	}
	s.enqueue(st, &task{run: func() cuda.Result {
		s.await(func() bool { return satisfies(loadWord(mem), value, width, flags) })
		return cuda.Success
	}}, s.before(st))
	return cuda.Success
}

// satisfies judges the value v in memory against the wanted one.
func satisfies(v, want uint64, width, flags uint32) bool {
	switch flags {
	case cuda.StreamWaitValueEq:
		return v == want
	case cuda.StreamWaitValueAnd:
		return v&want != 0
	case cuda.StreamWaitValueNor:
		if width == 4 {
			return uint32(^(v | want)) != 0
		}
		return ^(v | want) != 0
	}
	if width == 4 { // cyclic
		return int32(uint32(v)-uint32(want)) >= 0
	}
	return int64(v-want) >= 0
}

// await polls until ok, more and more slowly, or until the session ends.
func (s *session) await(ok func() bool) {
	for pause := 2 * time.Microsecond; !ok(); pause = min(2*pause, time.Millisecond) {
		select {
		case <-s.running.Done():
			return
		case <-time.After(pause):
		}
	}
}
