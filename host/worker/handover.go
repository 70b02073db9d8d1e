package worker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
	"causeway/remote/sys"
)

// handover is the stream between a worker and its successor: between two of one host first rounds
// of memory, while the session goes on, and descriptors; then, as between hosts, a snapshot and
// memory; then, again of one host only, how either side ended.
type handover struct {
	conn *net.UnixConn
	out  *state.Writer
	in   *state.Reader
	send *precopy.Sender
	recv *precopy.Receiver
	win  *window // for both; nil: there is none
	idle bool    // nothing may come for as long as the other end wants

	elsewhere bool // the successor is on another GPU, which may read memory of this one
}

// handoverLimit bounds one step of a peer that has hung.
const handoverLimit = 2 * time.Minute

// newHandover takes over the stream. most is how many bytes of host memory may be kept of what
// comes.
func newHandover(stream int, most uint64) (*handover, error) {
	conn, err := sys.UnixConn(stream, "stream to the other worker")
	if err != nil {
		return nil, err
	}
	h := &handover{conn: conn, send: precopy.NewSender(), recv: precopy.NewReceiver(most, maxRanges)}
	h.out, h.in = state.NewWriter(h), state.NewReader(h, most)
	return h, nil
}

// Read implements io.Reader, with a limit for a peer that hangs.
func (h *handover) Read(b []byte) (int, error) {
	limit := time.Now().Add(handoverLimit)
	if h.idle {
		limit = time.Time{}
	}
	_ = h.conn.SetReadDeadline(limit)
	return h.conn.Read(b)
}

// Write implements io.Writer.
func (h *handover) Write(b []byte) (int, error) {
	_ = h.conn.SetWriteDeadline(time.Now().Add(handoverLimit))
	return h.conn.Write(b)
}

// What a worker says to its successor first of all: how its driver was started, which has to be the
// same there for addresses to be.
const (
	begunCold = 1 + iota // for its session
	begunWarm            // ahead of any
)

// announce has the successor start its driver, and waits for it: the session goes on meanwhile.
func (h *handover) announce(warm bool) error {
	b := [1]byte{begunCold}
	if warm {
		b[0] = begunWarm
	}
	if _, err := h.Write(b[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(h, b[:]); err != nil {
		return fmt.Errorf("the other worker does not get ready: %w", err)
	}
	return nil
}

// getReady is announce's other side.
func (h *handover) getReady(warmUp func()) error {
	var b [1]byte
	if _, err := io.ReadFull(h, b[:]); err != nil {
		return fmt.Errorf("the other worker says nothing: %w", err)
	}
	if b[0] == begunWarm {
		warmUp()
	}
	_, err := h.Write(b[:])
	return err
}

func (h *handover) close() {
	_ = h.conn.Close()
	h.win.close()
}

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

// maxRanges is how many allocations a session may have that is copied while it runs.
const maxRanges = 1 << 20

// precopyPause is how long what is left of a session's memory may take to copy when its program
// stands still; precopyRounds, after how many rounds that is no aim any more.
const (
	precopyPause  = 50 * time.Millisecond
	precopyRounds = 12
)

// sendRounds copies the memory of a session that goes on meanwhile. Nothing of the stream may have
// been written or read ahead: descriptors follow.
func (h *handover) sendRounds(ctx context.Context, s driver.Session, log *slog.Logger) error {
	b := bufio.NewWriterSize(h, 256<<10)
	pace := precopy.Pace{Pause: precopyPause, Most: precopyRounds}
	p, ok := s.(driver.Precopier)
	if _, lends := s.(driver.Lender); lends {
		ok = false // the memory itself goes
	}
	for n := 1; ok; n++ {
		begin := time.Now()
		r, err := h.send.Round(ctx, p.ExportRunning, b)
		if err == nil {
			err = b.Flush()
		}
		if err != nil {
			return err
		}
		took := time.Since(begin)
		log.Info("memory copied while the session runs", "round", n, "looked_at", r.Looked, "sent", r.Sent, "took", took)
		ok = pace.Next(r, took)
	}
	return errors.Join(h.send.Still(b), b.Flush())
}

// sendSession sends a session that stands still. lender: memory was lent, and the other side says
// whether it takes it.
func (h *handover) sendSession(w *Worker, snap *snapshot, lender driver.Lender) (precopy.Round, error) {
	snap.write(h.out)
	if lender != nil {
		if err := h.out.Flush(); err != nil {
			return precopy.Round{}, err
		}
		why, err := h.receiveLentVerdict()
		if err != nil {
			return precopy.Round{}, err
		}
		if why != nil {
			h.copied(w, why)
			lender.Keep()
		}
	}
	r, err := h.send.Last(context.Background(), w.session.ExportMemory, h.out)
	if err != nil {
		return r, fmt.Errorf("memory: %w", err)
	}
	return r, h.out.Flush()
}

// receiveMemory fills what was allocated again.
func (h *handover) receiveMemory(w *Worker) error {
	return h.recv.Last(context.Background(), h.in.Rest(), w.session.ImportMemory)
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

// refusal is what the other side said, if it refused and did not wait for the rest, else err.
func (h *handover) refusal(err error) error {
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	if said := h.receiveVerdict(); said != nil {
		return fmt.Errorf("successor: %w", said)
	}
	return err
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
