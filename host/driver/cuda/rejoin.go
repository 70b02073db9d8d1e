package cuda

import (
	"errors"
	"fmt"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/driver/cuda/bind"
)

// What others share with a session is awaited when the session is rebuilt: its addresses are taken,
// with nothing behind them, and its names. Rejoin puts what is shared there, once their sessions
// share it again under the tokens that they had.

var _ driver.Companion = (*session)(nil)

var errShared = errors.New("memory or events are shared with another process: it moves with the whole VM only")

// Shared implements driver.Companion.
func (s *session) Shared() error {
	if s.offers.Any() || len(s.opened) > 0 || s.sharesPools() || len(s.Foreign()) > 0 {
		return errShared
	}
	return nil
}

// Foreign implements driver.Companion.
func (s *session) Foreign() (list []driver.ShareToken) {
	for _, o := range s.opened {
		if o.page != nil {
			list = append(list, o.page.token)
		}
	}
	for _, p := range s.mems.m {
		if p.foreign {
			list = append(list, p.token)
		}
	}
	for _, e := range s.events.m {
		if e.token != (driver.ShareToken{}) {
			list = append(list, e.token)
		}
	}
	return list
}

// tokenOf is a token as it travels.
func tokenOf(b []byte) (t driver.ShareToken, ok bool) {
	if len(b) != len(t) {
		return t, false
	}
	return driver.ShareToken(b), true
}

// awaitPage takes the addresses of another session's memory.
func (s *session) awaitPage(c *wire.Call, name []byte, kind byte) (*opened, cuda.Result) {
	token, ok := tokenOf(name)
	at, placed := c.Places(5)
	if !s.arenas.on || !ok || !placed {
		return nil, cuda.ErrorInvalidValue
	}
	v := pageOffer{All: at[1], Offset: at[2], Size: at[3]}
	if !v.possible() || at[4] >= uint64(len(s.devices)) || !ofChoice(at[0]&^(rangeSize-1)) {
		return nil, cuda.ErrorInvalidValue
	}
	in, res := s.rangeOf(uint32(at[4]), at[0])
	if res != cuda.Success {
		c.Because("%d GiB of addresses around %#x are not free", rangeSize>>30, at[0])
		return nil, res
	}
	in.next = &backed{}
	err := in.AllocAt(at[0], v.All)
	in.next = nil
	if err != nil {
		c.Because("%d bytes of another process at %#x: %v", v.All, at[0], err)
		return nil, resultOf(err)
	}
	o := s.keepPage(c, in, at[0], v)
	o.page.token, o.page.kind, o.page.awaited = token, kind, true
	return o, cuda.Success
}

// awaitPhysical is another session's memory of MemCreate.
func (s *session) awaitPhysical(c *wire.Call, a *wire.MemImportArgs) cuda.Result {
	token, ok := tokenOf(a.Token)
	at, placed := c.Places(2)
	if !ok || !placed || at[0] == 0 || at[1] >= uint64(len(s.devices)) {
		return cuda.ErrorUnknown
	}
	return s.mems.add(a.Memhandle, &physical{size: at[0], foreign: true, token: token, awaited: true})
}

// awaitEvent is another session's event.
func (s *session) awaitEvent(c *wire.Call, a *wire.IpcOpenEventHandleArgs) cuda.Result {
	token, ok := tokenOf(a.Token)
	if !ok {
		return cuda.ErrorMapFailed
	}
	return s.events.add(a.Event, &event{ctx: c.Ctx, token: token, awaited: true})
}

// later is what a device may do with the mapping when there is memory.
func (m *mapping) later(dev, flags uint32) {
	if m.access == nil {
		m.access = map[uint32]uint32{}
	}
	m.access[dev] = flags
}

// Rejoin implements driver.Companion.
func (s *session) Rejoin() error {
	for ptr, o := range s.opened {
		if o.page == nil || !o.page.awaited {
			continue
		}
		if err := s.rejoinPage(&o); err != nil {
			return fmt.Errorf("memory of another process at %#x: %w", ptr, err)
		}
	}
	for id, p := range s.mems.m {
		if !p.awaited {
			continue
		}
		if err := s.rejoinPhysical(p); err != nil {
			return fmt.Errorf("memory %d of another process: %w", id, err)
		}
	}
	for id, e := range s.events.m {
		if !e.awaited {
			continue
		}
		res := s.useContext(e.ctx)
		if res == cuda.Success {
			res = s.importEvent(e, e.token[:])
		}
		if res != cuda.Success {
			return fmt.Errorf("event %d of another process: %w", id, res)
		}
		e.awaited = false
	}
	return nil
}

var errAnother = errors.New("it is not what it was")

// rejoinPage maps memory of another session's ranges where it was.
func (s *session) rejoinPage(o *opened) error {
	blob, fd, ok := s.redeem(o.page.kind, o.page.token[:], opaqueSize)
	defer closeFile(fd)
	if !ok || fd < 0 {
		return driver.ErrNotShared
	}
	x := o.page
	if v, ok := decodePage(blob); !ok || v != (pageOffer{o.at.Value() - x.at, o.size, x.all}) {
		return errAnother
	}
	p, dev, res := s.importPage(fd)
	if res != cuda.Success {
		return res
	}
	if dev != o.dev {
		x.in.free(p)
		return errAnother
	}
	p, err := x.in.mapAt(x.at, x.all, p)
	if err == nil {
		x.in.pages[x.at], x.awaited = p, false
	}
	return err
}

// rejoinPhysical maps memory of MemCreate wherever it was mapped.
func (s *session) rejoinPhysical(p *physical) error {
	size := p.size
	if _, res := s.importPhysical(p, p.token[:]); res != cuda.Success {
		return res
	}
	if p.awaited = false; p.size != size {
		return errAnother
	}
	for _, m := range s.mappings.m {
		if m.of != p {
			continue
		}
		if res := s.drv.MemMap(m.mem, m.offset, p.handle, 0); res != cuda.Success {
			return res
		}
		for dev, flags := range m.access {
			if res := s.drv.MemSetAccess(m.mem, []bind.MemAccessDesc{{Location: onDevice(dev), Flags: flags}}); res != cuda.Success {
				return res
			}
		}
		m.access = nil
	}
	return nil
}
