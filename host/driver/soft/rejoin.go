package soft

import (
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
)

// What others share with a session is awaited when the session is rebuilt: its addresses are taken,
// without memory, and its names. Rejoin puts what is shared there, once their sessions share it
// again under the tokens that they had.

var _ driver.Companion = (*session)(nil)

// Shared implements driver.Companion.
func (s *session) Shared() error {
	if s.offers.Any() || len(s.Foreign()) > 0 {
		return errShared
	}
	return nil
}

var errShared = errors.New("memory or events are shared with another process: it moves with the whole VM only")

// Foreign implements driver.Companion.
func (s *session) Foreign() (list []driver.ShareToken) {
	for _, o := range s.opened {
		list = append(list, o.token)
	}
	for _, p := range s.mems {
		if p.foreign {
			list = append(list, p.token)
		}
	}
	for _, e := range s.events {
		if e.token != (driver.ShareToken{}) {
			list = append(list, e.token)
		}
	}
	for _, p := range s.pools {
		if p.imported {
			list = append(list, p.token)
		}
	}
	return list
}

// has reports whether a pool is one that the guest knows.
func (s *session) has(p *pool) bool {
	for _, x := range s.pools {
		if x == p {
			return true
		}
	}
	return false
}

// tokenOf is a token as it travels.
func tokenOf(b []byte) (t driver.ShareToken, ok bool) {
	if len(b) != len(t) {
		return t, false
	}
	return driver.ShareToken(b), true
}

// places is where the memory lies, for the record: the addresses around it, and itself.
func (o *opened) places(to []uint64) []uint64 {
	return append(to, o.in.base, uint64(len(o.in.mem)), o.a.lo, o.a.size, uint64(o.a.device))
}

// awaitOpened takes the addresses of another session's memory.
func (s *session) awaitOpened(c *wire.Call, g *gpuContext, b []byte) (*opened, cuda.Result) {
	token, ok := tokenOf(b)
	at, placed := c.Places(5)
	if !ok || !placed {
		return nil, cuda.ErrorInvalidValue
	}
	base, length, ptr, size, dev := at[0], at[1], at[2], at[3], at[4]
	switch {
	case base%vmmUnit != 0, length%vmmUnit != 0, length == 0, length > windowSize:
		return nil, cuda.ErrorInvalidValue
	case ptr < base, ptr-base >= pageSize, size == 0, size > length-(ptr-base), dev >= uint64(len(s.gpus)):
		return nil, cuda.ErrorInvalidValue
	}
	in, ok := reserveWindow(base, length)
	if !ok {
		return nil, cuda.ErrorOutOfMemory
	}
	lo := ptr - base
	o := &opened{in: in, token: token, ctx: s.ctxs[c.Ctx]}
	o.a = s.space.foreign(in.mem[lo:lo+size:lo+size], int(dev), g, ipcMemory)
	s.keepOpened(o)
	return o, cuda.Success
}

// awaitPhysical is another session's memory of MemCreate.
func (s *session) awaitPhysical(c *wire.Call, b []byte) (*physical, cuda.Result) {
	token, ok := tokenOf(b)
	at, placed := c.Places(2)
	if !ok || !placed {
		return nil, cuda.ErrorUnknown
	}
	dev := int(int64(at[1]))
	if at[0] == 0 || at[0]%vmmUnit != 0 || dev != notShown && at[1] >= uint64(len(s.gpus)) {
		return nil, cuda.ErrorUnknown
	}
	return &physical{size: at[0], device: dev, foreign: true, token: token}, cuda.Success
}

// Rejoin implements driver.Companion.
func (s *session) Rejoin() error {
	for _, p := range s.pools {
		if p.imported {
			from, f, dev, res := s.redeem(sharePool, p.token[:], cuda.ErrorUnknown)
			if _ = f.close(); res != cuda.Success || dev != p.device {
				return fmt.Errorf("a pool of another process: %w", lacking(res))
			}
			p.owner = from.Session
		}
	}
	for ptr, o := range s.opened {
		if res := s.rejoinOpened(o); res != cuda.Success {
			return fmt.Errorf("memory of another process at %#x: %w", ptr, res)
		}
	}
	for id, p := range s.mems {
		if !p.foreign {
			continue
		}
		if res := s.rejoinPhysical(p); res != cuda.Success {
			return fmt.Errorf("memory %d of another process: %w", id, res)
		}
	}
	for id, e := range s.events {
		if e.token == (driver.ShareToken{}) {
			continue
		}
		sh, res := s.redeemEvent(e.token[:])
		if res != cuda.Success {
			return fmt.Errorf("event %d of another process: %w", id, res)
		}
		e.shared = sh
	}
	return nil
}

// lacking is why something is not what it was.
func lacking(res cuda.Result) error {
	if res == cuda.Success {
		return errors.New("it is another")
	}
	return res
}

// rejoinOpened maps a part of a file where it was.
func (s *session) rejoinOpened(o *opened) cuda.Result {
	kind := byte(shareMemory)
	if o.of != nil {
		kind = sharePointer
	}
	p, f, dev, res := s.redeem(kind, o.token[:], cuda.ErrorMapFailed)
	if res != cuda.Success {
		return res
	}
	from := p.Offset &^ (pageSize - 1)
	length := (p.Offset - from + p.Size + pageSize - 1) &^ (pageSize - 1)
	switch {
	case f == nil:
		return cuda.ErrorMapFailed
	case p.Offset-from != o.a.lo-o.in.base, p.Size != o.a.size, dev != o.a.device, o.of != nil && p.Session != o.of.owner,
		length > f.size-from, f.mapAt(o.in.mem[:length], from) != nil:
		_ = f.close()
		return cuda.ErrorMapFailed
	}
	o.file, o.from = f, p
	return cuda.Success
}

// rejoinPhysical maps memory of MemCreate wherever it was mapped.
func (s *session) rejoinPhysical(p *physical) cuda.Result {
	of, f, dev, res := s.redeemPhysical(p.token[:])
	if res != cuda.Success {
		return res
	}
	if of.Size != p.size || dev != p.device {
		_ = f.close()
		return cuda.ErrorUnknown
	}
	p.file = f
	for _, m := range s.mappings {
		if m.of == p && f.mapAt(m.mem, 0) != nil {
			return cuda.ErrorMapFailed
		}
	}
	return cuda.Success
}
