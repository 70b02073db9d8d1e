package vhostuser

import (
	"context"
	"fmt"
	"net"
)

// A Mirror hears what a front end says, on the connection's goroutine, which must not wait long for
// it: QEMU does too.
type Mirror interface {
	// Connected hands over nothing: the socket stays the connection's.
	Connected(sock *net.UnixConn)
	// Message is one message with its header, before the device hears of it. Both are the caller's.
	Message(raw []byte, fds []int)
	// Answered says that its reply, if it has one, was sent.
	Answered()
	// Gone says that the front end is, not that this process ends while it is there.
	Gone()
}

type noMirror struct{}

func (noMirror) Connected(*net.UnixConn) {}
func (noMirror) Message([]byte, []int)   {}
func (noMirror) Answered()               {}
func (noMirror) Gone()                   {}

// Resumable is a Device that can go on with a ring that another process has left.
type Resumable interface {
	Device
	// ResumeQueue is StartQueue for such a ring, whose Base is not where it stands. At most once
	// for each, before StartQueue.
	ResumeQueue(index int, cfg QueueConfig) error
}

// Standby knows what a Mirror heard, in another process, and serves the front end in its place when
// that process has ended. One goroutine calls its methods.
type Standby struct {
	srv  *Server
	conn *conn // nil: no front end
	dev  *asleep
	owed []byte // reply to the last message, until it was answered
}

// NewStandby makes one for dev, which must have been built on mem and hears nothing before
// TakeOver.
func NewStandby(mem *Memory, dev Resumable, o Options) *Standby {
	a := &asleep{Resumable: dev, rings: map[int]QueueConfig{}}
	return &Standby{srv: NewServer(mem, a, o), dev: a}
}

// Connected takes over sock.
func (s *Standby) Connected(sock *net.UnixConn) {
	s.Gone()
	s.conn = newConn(s.srv, sock)
}

// Message takes over fds.
func (s *Standby) Message(raw []byte, fds []int) {
	m := &message{fds: fds}
	defer m.closeFDs()
	if s.conn == nil || len(raw) < headerSize {
		return
	}
	m.id, m.flags, m.payload = MessageID(le.Uint32(raw)), le.Uint32(raw[4:]), raw[headerSize:]
	out, err := s.conn.dispatch(m)
	if err != nil { // the one that serves finds the same
		s.srv.log.Debug("message refused", "error", err)
	}
	s.owed = out
}

// Answered says that nothing is owed to the front end.
func (s *Standby) Answered() { s.owed = nil }

// Gone forgets the front end.
func (s *Standby) Gone() {
	if s.conn != nil {
		s.conn.teardown()
		s.conn, s.owed = nil, nil
	}
}

// TakeOver serves the front end, if there is one, until it has gone or ctx ends.
func (s *Standby) TakeOver(ctx context.Context) error {
	c := s.conn
	if c == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = c.sock.Close() })
	defer stop()
	defer s.Gone()
	if err := s.dev.wake(); err != nil {
		return err
	}
	if s.owed != nil {
		if _, err := c.sock.Write(s.owed); err != nil {
			return fmt.Errorf("a reply that was owed: %w", err)
		}
	}
	return c.serve(ctx)
}

// asleep is a device that only remembers its rings until it wakes.
type asleep struct {
	Resumable
	rings map[int]QueueConfig
	awake bool
}

// StartQueue implements Device.
func (a *asleep) StartQueue(index int, cfg QueueConfig) error {
	if a.awake {
		return a.Resumable.StartQueue(index, cfg)
	}
	a.rings[index] = cfg
	return nil
}

// UpdateQueue implements Device.
func (a *asleep) UpdateQueue(index int, cfg QueueConfig) {
	if a.awake {
		a.Resumable.UpdateQueue(index, cfg)
		return
	}
	a.rings[index] = cfg
}

// StopQueue implements Device.
func (a *asleep) StopQueue(index int) uint16 {
	if a.awake {
		return a.Resumable.StopQueue(index)
	}
	cfg := a.rings[index]
	delete(a.rings, index)
	return cfg.Base
}

// Reset implements Device.
func (a *asleep) Reset() {
	if a.awake {
		a.Resumable.Reset()
	}
}

// Disconnect implements Device.
func (a *asleep) Disconnect() {
	if a.awake {
		a.Resumable.Disconnect()
	}
	clear(a.rings)
}

// wake goes on with the rings.
func (a *asleep) wake() error {
	a.awake = true
	for i, cfg := range a.rings {
		if err := a.ResumeQueue(i, cfg); err != nil {
			return fmt.Errorf("ring %d does not go on: %w", i, err)
		}
	}
	return nil
}
