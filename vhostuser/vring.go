package vhostuser

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// vring is what the front end said about one ring. A ring runs while it has everything it needs and
// is enabled; it stops when it is disabled, asked for its base, reset or disconnected.
type vring struct {
	size    int
	hasAddr bool
	addr    ringAddr
	base    uint16
	enabled bool
	running bool

	kick, call, err *EventFD
}

// ringAddr holds front-end addresses, except log, which is guest-physical.
type ringAddr struct {
	flags                  uint32
	desc, used, avail, log uint64
}

func (v *vring) close() {
	v.kick.Close()
	v.call.Close()
	v.err.Close()
}

// ring looks a ring up by the peer's number.
func (c *conn) ring(index uint32) (int, *vring, error) {
	if uint64(index) >= uint64(len(c.rings)) {
		return 0, nil, fmt.Errorf("ring %d of %d: %w", index, len(c.rings), ErrProtocol)
	}
	return int(index), &c.rings[index], nil
}

// config translates the ring's addresses.
func (c *conn) config(v *vring) (QueueConfig, error) {
	cfg := QueueConfig{
		Size: v.size, Base: v.base,
		EventIdx:     c.features&FeatureEventIdx != 0,
		IndirectDesc: c.features&FeatureIndirectDesc != 0,
		LogUsed:      c.features&FeatureLogAll != 0 && v.addr.flags&vringAddLog != 0,
		LogAddr:      v.addr.log,
		Kick:         v.kick, Call: v.call, Err: v.err,
	}
	for _, a := range []struct {
		name string
		user uint64
		gpa  *uint64
	}{{"descriptor table", v.addr.desc, &cfg.Desc}, {"available ring", v.addr.avail, &cfg.Avail}, {"used ring", v.addr.used, &cfg.Used}} {
		gpa, err := c.mem.UserToGPA(a.user, 1)
		if err != nil {
			return cfg, fmt.Errorf("%s: %w", a.name, err)
		}
		*a.gpa = gpa
	}
	return cfg, nil
}

// start runs ring i if it is complete. A ring that cannot run is the guest's mistake: the front end
// hears of it through the error eventfd, and by the reply if it asked for one.
func (c *conn) start(i int) error {
	v := &c.rings[i]
	// Without VHOST_USER_F_PROTOCOL_FEATURES rings have no enabled state.
	enabled := v.enabled || c.features&FeatureProtocolFeatures == 0
	if v.running || !enabled || v.kick == nil || v.size == 0 || !v.hasAddr {
		return nil
	}
	cfg, err := c.config(v)
	if err == nil {
		err = c.dev.StartQueue(i, cfg)
	}
	if err != nil {
		v.err.Signal()
		return fmt.Errorf("start ring %d: %w", i, err)
	}
	v.running = true
	return nil
}

// tryStart is start for messages whose sender cannot learn of a failure without losing the
// connection.
func (c *conn) tryStart(i int, m *message) error {
	err := c.start(i)
	if err != nil && m.flags&flagNeedReply == 0 {
		c.log.Error("ring stays stopped", "ring", i, "error", err)
		return nil
	}
	return err
}

func (c *conn) stop(i int) {
	if v := &c.rings[i]; v.running {
		v.base = c.dev.StopQueue(i)
		v.running = false
	}
}

// update passes a changed eventfd or log setting to a running ring.
func (c *conn) update(i int) {
	v := &c.rings[i]
	if !v.running {
		return
	}
	if cfg, err := c.config(v); err == nil {
		c.dev.UpdateQueue(i, cfg)
	}
}

func (c *conn) setVringNum(m *message) ([]byte, error) {
	i, v, err := c.ring(m.u32(0))
	if err != nil {
		return nil, err
	}
	n := m.u32(4)
	if n == 0 || n > 32768 || n&(n-1) != 0 {
		return nil, fmt.Errorf("ring %d: size %d is not a power of two up to 32768: %w", i, n, ErrProtocol)
	}
	if v.running && int(n) != v.size {
		return nil, fmt.Errorf("ring %d: new size while it runs: %w", i, ErrProtocol)
	}
	v.size = int(n)
	return nil, c.tryStart(i, m)
}

func (c *conn) setVringAddr(m *message) ([]byte, error) {
	i, v, err := c.ring(m.u32(0))
	if err != nil {
		return nil, err
	}
	a := ringAddr{flags: m.u32(4), desc: m.u64(8), used: m.u64(16), avail: m.u64(24), log: m.u64(32)}
	if v.running {
		// When a migration starts the message comes again, with the log flag.
		if a.desc != v.addr.desc || a.used != v.addr.used || a.avail != v.addr.avail {
			return nil, fmt.Errorf("ring %d: new addresses while it runs: %w", i, ErrProtocol)
		}
		v.addr = a
		c.update(i)
		return nil, nil
	}
	v.addr, v.hasAddr = a, true
	return nil, c.tryStart(i, m)
}

func (c *conn) setVringBase(m *message) ([]byte, error) {
	i, v, err := c.ring(m.u32(0))
	if err != nil {
		return nil, err
	}
	base := m.u32(4)
	if base > 0xffff || v.running {
		return nil, fmt.Errorf("ring %d: base %d while running=%v: %w", i, base, v.running, ErrProtocol)
	}
	v.base = uint16(base)
	return nil, nil
}

// getVringBase stops the ring. Requests in flight are completed by StopQueue, so that the next
// available entry is the whole state of the ring.
func (c *conn) getVringBase(m *message) ([]byte, error) {
	i, v, err := c.ring(m.u32(0))
	if err != nil {
		return nil, err
	}
	c.stop(i)
	// The front end sends both anew before the ring runs again.
	v.kick.Close()
	v.kick = nil
	v.hasAddr = false
	return le.AppendUint32(le.AppendUint32(nil, uint32(i)), uint32(v.base)), nil
}

func (c *conn) setVringEnable(m *message) ([]byte, error) {
	i, v, err := c.ring(m.u32(0))
	if err != nil {
		return nil, err
	}
	switch m.u32(4) {
	case 0:
		v.enabled = false
		c.stop(i)
		return nil, nil
	case 1:
		v.enabled = true
		return nil, c.tryStart(i, m)
	}
	return nil, fmt.Errorf("ring %d: enable %d: %w", i, m.u32(4), ErrProtocol)
}

// eventFD decodes SET_VRING_KICK, CALL and ERR: the ring's number, and its eventfd or nil.
func (c *conn) eventFD(m *message, name string) (int, *vring, *EventFD, error) {
	val := m.u64(0)
	i, v, err := c.ring(uint32(val & 0xff))
	if err != nil {
		return 0, nil, nil, err
	}
	if val&^(0xff|vringNoFD) != 0 || (val&vringNoFD != 0) != (len(m.fds) == 0) {
		return 0, nil, nil, fmt.Errorf("ring %d: value %#x with %d descriptors: %w", i, val, len(m.fds), ErrProtocol)
	}
	fd := m.takeFD()
	if fd < 0 {
		return i, v, nil, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFREG || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		_ = unix.Close(fd)
		return 0, nil, nil, fmt.Errorf("ring %d: the descriptor is not an eventfd: %w", i, ErrProtocol)
	}
	e, err := newEventFD(fd, name)
	return i, v, e, err
}

func (c *conn) setVringKick(m *message) ([]byte, error) {
	i, v, e, err := c.eventFD(m, "kick")
	if err != nil {
		return nil, err
	}
	c.stop(i) // a new kick for a running ring restarts it
	v.kick.Close()
	v.kick = e
	return nil, c.tryStart(i, m)
}

func (c *conn) setVringCall(m *message) ([]byte, error) {
	i, v, e, err := c.eventFD(m, "call")
	if err != nil {
		return nil, err
	}
	old := v.call
	v.call = e
	c.update(i)
	// The front end changes it when the guest masks its interrupt or unmasks it, and looks at the
	// old one before this message is read: what was completed by then may have been told to nobody.
	// One interrupt too many harms no driver.
	if v.running {
		e.Signal()
	}
	old.Close()
	return nil, nil
}

func (c *conn) setVringErr(m *message) ([]byte, error) {
	i, v, e, err := c.eventFD(m, "error")
	if err != nil {
		return nil, err
	}
	old := v.err
	v.err = e
	c.update(i)
	old.Close()
	return nil, nil
}
