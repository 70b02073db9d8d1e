package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// slowMessage is how long a message may take without a warning. QEMU waits for a reply while it
// holds the lock that its virtual CPUs need for each access to a device: a guest's CPU stands still
// for as long.
const slowMessage = 100 * time.Millisecond

// conn is one front end. Its fields belong to its goroutine.
type conn struct {
	mem   *Memory
	dev   Device
	log   *slog.Logger
	sock  *net.UnixConn
	done  chan struct{} // closed when everything of the front end is gone
	hears func(connected bool)
	logs  func()
	other Mirror

	features  uint64 // acknowledged
	protocol  uint64 // acknowledged
	rings     []vring
	transfer  *transfer
	maxQueues int
}

func newConn(s *Server, sock *net.UnixConn) *conn {
	n := s.dev.Queues()
	return &conn{mem: s.mem, dev: s.dev, log: s.log, sock: sock, done: make(chan struct{}), hears: s.hears, logs: s.logs, other: s.other, rings: make([]vring, n), maxQueues: n}
}

// routine serves the front end until it disconnects, breaks the protocol, or ctx ends.
func (c *conn) routine(ctx context.Context) {
	defer close(c.done)
	stop := context.AfterFunc(ctx, func() { _ = c.sock.Close() })
	defer stop()
	c.log.Info("front end connected")
	c.hears(true)
	c.other.Connected(c.sock)
	err := c.serve(ctx)
	c.teardown()
	c.hears(false)
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
		c.log.Info("front end disconnected")
	} else {
		c.log.Error("front end dropped", "error", err)
	}
}

// serve answers messages. If this process ends while the front end is there, the mirror keeps what
// it knows of it.
func (c *conn) serve(ctx context.Context) (err error) {
	defer func() {
		if ctx.Err() == nil {
			c.other.Gone()
		}
	}()
	r := newReader(c.sock)
	for {
		m, err := r.next()
		if err != nil {
			return err
		}
		c.other.Message(append(bytes.Clone(r.hdr[:]), m.payload...), m.fds)
		out, err := c.dispatch(m)
		m.closeFDs()
		if err != nil {
			return err
		}
		if out != nil {
			if _, err := c.sock.Write(out); err != nil {
				return fmt.Errorf("reply to %v: %w", m.id, err)
			}
		}
		c.other.Answered()
	}
}

// dispatch runs m's row and returns the reply to send, if any. An error ends the connection.
func (c *conn) dispatch(m *message) ([]byte, error) {
	wantAck := m.flags&flagNeedReply != 0 && c.protocol&ProtocolReplyAck != 0
	r, err := m.check(c.protocol)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	payload, err := r.handler(c, m)
	level, took := slog.LevelDebug, time.Since(began)
	if took > slowMessage {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "vhost-user", "message", r.name, "descriptors", len(m.fds), "took", took)
	switch {
	case err != nil && wantAck && r.reply == replyNone:
		// The front end asked to be told, and decides itself what follows.
		c.log.Error("message refused", "message", r.name, "error", err)
		return m.encode(u64Payload(1)), nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", r.name, err)
	case r.reply == replyAlways:
		return m.encode(payload), nil
	case wantAck:
		return m.encode(u64Payload(0)), nil
	}
	return nil, nil
}

// teardown undoes everything the front end set up, in the order in which users of a thing precede
// the thing.
func (c *conn) teardown() {
	if c.transfer != nil {
		c.transfer.abort()
	}
	if l, ok := c.dev.(Leaver); ok {
		l.Leave()
	}
	for i := range c.rings {
		c.stop(i)
	}
	c.dev.Disconnect()
	for i := range c.rings {
		c.rings[i].close()
	}
	c.mem.logging.Store(false)
	c.mem.setLog(nil)
	_ = c.mem.set(nil)
	_ = c.sock.Close()
}

func (c *conn) nothing(*message) ([]byte, error) { return nil, nil }

func (c *conn) getFeatures(*message) ([]byte, error) { return u64Payload(Features), nil }

func (c *conn) setFeatures(m *message) ([]byte, error) {
	f := m.u64(0)
	if bad := f &^ Features; bad != 0 {
		return nil, fmt.Errorf("features %#x were not offered: %w", bad, ErrProtocol)
	}
	begins := f&FeatureLogAll != 0 && c.features&FeatureLogAll == 0 && slices.ContainsFunc(c.rings, func(v vring) bool { return v.running })
	c.features = f
	c.mem.logging.Store(f&FeatureLogAll != 0)
	if begins {
		c.logs()
	}
	for i := range c.rings {
		c.update(i)
	}
	return nil, nil
}

func (c *conn) getProtocolFeatures(*message) ([]byte, error) {
	return u64Payload(ProtocolFeatures), nil
}

func (c *conn) setProtocolFeatures(m *message) ([]byte, error) {
	f := m.u64(0)
	if bad := f &^ ProtocolFeatures; bad != 0 {
		return nil, fmt.Errorf("protocol features %#x were not offered: %w", bad, ErrProtocol)
	}
	c.protocol = f
	return nil, nil
}

func (c *conn) getQueueNum(*message) ([]byte, error) { return u64Payload(uint64(c.maxQueues)), nil }

func (c *conn) getMaxMemSlots(*message) ([]byte, error) { return u64Payload(MaxRegions), nil }

func (c *conn) resetDevice(*message) ([]byte, error) {
	for i := range c.rings {
		c.stop(i)
		c.rings[i].enabled = false
	}
	c.dev.Reset()
	return nil, nil
}

// setLogBase installs the dirty log. QEMU waits for the reply.
func (c *conn) setLogBase(m *message) ([]byte, error) {
	l, err := mapDirtyLog(m.fds[0], m.u64(0), m.u64(8))
	if err != nil {
		return nil, err
	}
	c.mem.setLog(l)
	return u64Payload(0), nil
}
