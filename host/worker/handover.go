package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"causeway/host/worker/state"
	"causeway/remote/sys"
)

// handover is the stream between a worker and its successor: between two of one host first the descriptors, then, as between hosts, a snapshot
// and memory, then, again of one host only, how either side ended.
type handover struct {
	conn *net.UnixConn
	out  *state.Writer
	in   *state.Reader
}

// handoverLimit bounds one step of a peer that has hung.
const handoverLimit = 2 * time.Minute

// newHandover takes over the stream. most is how many bytes of host memory may be kept of what comes.
func newHandover(stream int, most uint64) (*handover, error) {
	conn, err := sys.UnixConn(stream, "stream to the other worker")
	if err != nil {
		return nil, err
	}
	h := &handover{conn: conn}
	h.out, h.in = state.NewWriter(h), state.NewReader(h, most)
	return h, nil
}

// Read implements io.Reader, with a limit for a peer that hangs.
func (h *handover) Read(b []byte) (int, error) {
	_ = h.conn.SetReadDeadline(time.Now().Add(handoverLimit))
	return h.conn.Read(b)
}

// Write implements io.Writer.
func (h *handover) Write(b []byte) (int, error) {
	_ = h.conn.SetWriteDeadline(time.Now().Add(handoverLimit))
	return h.conn.Write(b)
}

func (h *handover) close() { _ = h.conn.Close() }

// fileBatch is how many descriptors one byte of the stream carries.
const fileBatch = 200

// sendFiles sends descriptors: their number, then batches.
func (h *handover) sendFiles(files []int) error {
	var n [4]byte
	binary.LittleEndian.PutUint32(n[:], uint32(len(files)))
	if _, err := h.Write(n[:]); err != nil {
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
	if _, err := io.ReadFull(h, b[:]); err != nil {
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

// sendMemory sends one allocation: its address, its size, which is 0 behind the last, and its bytes.
func (h *handover) sendMemory(addr, size uint64, r io.Reader) error {
	h.out.U64(addr)
	h.out.U64(size)
	h.out.Copy(r, size)
	return h.out.Err()
}

// sendSession sends a session that stands still.
func (h *handover) sendSession(w *Worker, snap *snapshot) error {
	snap.write(h.out)
	if err := w.session.ExportMemory(h.sendMemory); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	h.out.U64(0)
	h.out.U64(0)
	return h.out.Flush()
}

// receiveMemory fills what was allocated again.
func (h *handover) receiveMemory(w *Worker) error {
	for {
		addr, size := h.in.U64(), h.in.U64()
		if err := h.in.Err(); err != nil || size == 0 {
			return err
		}
		if err := w.session.ImportMemory(addr, size, h.in.Stream(size)); err != nil {
			return fmt.Errorf("memory at %#x: %w", addr, err)
		}
	}
}

// maxVerdict is how many bytes of an error's text travel.
const maxVerdict = 4096

// sendVerdict is how either side ends: an empty text agrees.
func (h *handover) sendVerdict(err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	h.out.Bytes([]byte(text[:min(len(text), maxVerdict)]))
	return h.out.Flush()
}

func (h *handover) receiveVerdict() error {
	text := h.in.Bytes(maxVerdict)
	if err := h.in.Err(); err != nil {
		return fmt.Errorf("the other worker ended: %w", err)
	}
	if len(text) != 0 {
		return errors.New(string(text))
	}
	return nil
}
