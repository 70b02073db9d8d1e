package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// ErrProtocol says that the front end sent something outside the protocol. The connection ends.
var ErrProtocol = errors.New("vhost-user protocol error")

var le = binary.LittleEndian

// message is one received message. Descriptors that its handler does not take are closed after it.
type message struct {
	id      MessageID
	flags   uint32
	payload []byte // valid until the next message
	fds     []int
}

// takeFD moves the first descriptor to the caller, or returns -1.
func (m *message) takeFD() int {
	if len(m.fds) == 0 {
		return -1
	}
	fd := m.fds[0]
	m.fds = m.fds[1:]
	return fd
}

func (m *message) closeFDs() {
	for _, fd := range m.fds {
		_ = unix.Close(fd)
	}
	m.fds = nil
}

// u64 and u32 read the payload, whose size the dispatcher checked against the table.
func (m *message) u64(off int) uint64 { return le.Uint64(m.payload[off:]) }
func (m *message) u32(off int) uint32 { return le.Uint32(m.payload[off:]) }

// reader is the receiving half of a connection, with its buffers.
type reader struct {
	sock    *net.UnixConn
	hdr     [headerSize]byte
	payload [maxPayload]byte
	oob     []byte
}

func newReader(sock *net.UnixConn) *reader {
	return &reader{sock: sock, oob: make([]byte, unix.CmsgSpace(4*maxFDs))}
}

// next reads one message. Descriptors travel with the header; the kernel discards others.
func (r *reader) next() (*message, error) {
	n, oobn, flags, _, err := r.sock.ReadMsgUnix(r.hdr[:], r.oob)
	m := &message{}
	if oobn > 0 {
		m.fds, _ = sys.Rights(r.oob[:oobn]) // what cannot be read is missing, which check finds
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && flags&(unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("more than %d descriptors: %w", maxFDs, ErrProtocol)
	}
	if err == nil && n < headerSize {
		_, err = io.ReadFull(r.sock, r.hdr[n:])
	}
	if err == nil {
		err = r.decode(m)
	}
	if err != nil {
		m.closeFDs()
		return nil, err
	}
	return m, nil
}

func (r *reader) decode(m *message) error {
	m.id, m.flags = MessageID(le.Uint32(r.hdr[0:])), le.Uint32(r.hdr[4:])
	size := le.Uint32(r.hdr[8:])
	if m.flags&flagVersionMask != flagVersion || m.flags&flagReply != 0 {
		return fmt.Errorf("message %d has flags %#x: %w", m.id, m.flags, ErrProtocol)
	}
	if size > maxPayload {
		return fmt.Errorf("message %d announces %d bytes: %w", m.id, size, ErrProtocol)
	}
	m.payload = r.payload[:size]
	if _, err := io.ReadFull(r.sock, m.payload); err != nil {
		return fmt.Errorf("message %d: payload: %w", m.id, err)
	}
	return nil
}

// check applies the table's policy to m.
func (m *message) check(acked uint64) (row, error) {
	r, ok := messages[m.id]
	switch {
	case !ok:
		return row{}, fmt.Errorf("message %d is not supported: %w", m.id, ErrProtocol)
	case r.needs&^acked != 0:
		return row{}, fmt.Errorf("%s without its protocol feature: %w", r.name, ErrProtocol)
	case r.size >= 0 && len(m.payload) != r.size:
		return row{}, fmt.Errorf("%s has %d bytes, not %d: %w", r.name, len(m.payload), r.size, ErrProtocol)
	case len(m.fds) < r.minFDs || len(m.fds) > r.maxFDs:
		return row{}, fmt.Errorf("%s has %d descriptors: %w", r.name, len(m.fds), ErrProtocol)
	}
	return r, nil
}

// encode builds a reply to m.
func (m *message) encode(payload []byte) []byte {
	b := make([]byte, headerSize, headerSize+len(payload))
	le.PutUint32(b[0:], uint32(m.id))
	le.PutUint32(b[4:], flagVersion|flagReply)
	le.PutUint32(b[8:], uint32(len(payload)))
	return append(b, payload...)
}

func u64Payload(v uint64) []byte { return le.AppendUint64(nil, v) }
