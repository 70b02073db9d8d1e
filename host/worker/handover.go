package worker

import (
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"causeway/remote/sys"
)

// handover is the stream between a worker and its successor, which are the same program: first the descriptors, then a
// snapshot, then memory, then one byte each way.
type handover struct {
	conn *net.UnixConn
	enc  *gob.Encoder
	dec  *gob.Decoder
}

// handoverLimit bounds one step of a peer that has hung.
const handoverLimit = 2 * time.Minute

// newHandover takes over the stream.
func newHandover(stream int) (*handover, error) {
	conn, err := sys.UnixConn(stream, "stream to the other worker")
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(handoverLimit))
	return &handover{conn: conn, enc: gob.NewEncoder(conn), dec: gob.NewDecoder(conn)}, nil
}

func (h *handover) close() { _ = h.conn.Close() }

// fileBatch is how many descriptors one byte of the stream carries.
const fileBatch = 200

// sendFiles sends descriptors: their number, then batches.
func (h *handover) sendFiles(files []int) error {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(files)))
	if _, err := h.conn.Write(n[:]); err != nil {
		return err
	}
	for len(files) > 0 {
		k := min(len(files), fileBatch)
		if err := sys.SendPacket(h.conn, []byte{1}, files[:k]); err != nil {
			return err
		}
		files = files[k:]
	}
	return nil
}

// maxHandoverFiles bounds what a successor accepts.
const maxHandoverFiles = 16384

func (h *handover) receiveFiles() (files []int, err error) {
	defer func() {
		if err != nil {
			sys.CloseAll(files)
			files = nil
		}
	}()
	var b [4]byte
	if _, err := io.ReadFull(h.conn, b[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(b[:])
	if n > maxHandoverFiles {
		return nil, fmt.Errorf("%d descriptors", n)
	}
	oob := make([]byte, sys.RightsRoom(fileBatch))
	for uint32(len(files)) < n {
		_, oobn, _, _, err := h.conn.ReadMsgUnix(b[:1], oob)
		if err != nil {
			return files, err
		}
		fds, err := sys.Rights(oob[:oobn])
		if err != nil {
			return files, err
		}
		if len(fds) == 0 {
			return files, io.ErrUnexpectedEOF
		}
		files = append(files, fds...)
	}
	return files, nil
}

// memoryHeader precedes the bytes of one allocation; the last has size 0.
type memoryHeader struct{ Addr, Size uint64 }

// memoryPart is how the bytes of an allocation are cut.
const memoryPart = 1 << 20

func (h *handover) sendMemory(addr, size uint64, r io.Reader) error {
	if err := h.enc.Encode(memoryHeader{addr, size}); err != nil {
		return err
	}
	buf := make([]byte, min(size, memoryPart))
	for size > 0 {
		part := buf[:min(size, memoryPart)]
		if _, err := io.ReadFull(r, part); err != nil {
			return fmt.Errorf("export of %#x: %w", addr, err)
		}
		if err := h.enc.Encode(part); err != nil {
			return err
		}
		_ = h.conn.SetDeadline(time.Now().Add(handoverLimit))
		size -= uint64(len(part))
	}
	return nil
}

// memoryReader delivers the bytes of one allocation.
type memoryReader struct {
	h    *handover
	left uint64
	buf  []byte
}

// Read implements io.Reader.
func (m *memoryReader) Read(p []byte) (int, error) {
	if len(m.buf) == 0 {
		if m.left == 0 {
			return 0, io.EOF
		}
		m.buf = nil
		if err := m.h.dec.Decode(&m.buf); err != nil {
			return 0, err
		}
		if len(m.buf) == 0 || uint64(len(m.buf)) > m.left {
			return 0, io.ErrUnexpectedEOF
		}
		_ = m.h.conn.SetDeadline(time.Now().Add(handoverLimit))
		m.left -= uint64(len(m.buf))
	}
	n := copy(p, m.buf)
	m.buf = m.buf[n:]
	return n, nil
}

// verdict is how either side ends: an empty text agrees.
type verdict struct{ Error string }

func (h *handover) sendVerdict(err error) error {
	v := verdict{}
	if err != nil {
		v.Error = err.Error()
	}
	return h.enc.Encode(v)
}

func (h *handover) receiveVerdict() error {
	var v verdict
	if err := h.dec.Decode(&v); err != nil {
		return fmt.Errorf("the other worker ended: %w", err)
	}
	if v.Error != "" {
		return errors.New(v.Error)
	}
	return nil
}
