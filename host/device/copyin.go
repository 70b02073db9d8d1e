package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/virtio/fs"
)

// copyIn is the memory of sessions that comes ahead of their VM. Each has a worker already, which
// holds what came until the session does.
type copyIn struct {
	mu      sync.Mutex
	conn    io.Closer // nil: none is open
	to      *toSource // what is told over it
	began   time.Time
	total   uint64
	streams map[uint32]*arrival
	order   *copyOrder
	expiry  *time.Timer
}

// Times of a destination.
const (
	// silentLimit is how long a source may say nothing at all, or not read an answer.
	silentLimit = 30 * time.Second
	// claimLimit is how long what was sealed waits for the state of its VM when the connection has
	// ended.
	claimLimit = moveLimit
	// leaveLimit is how long the sessions of a VM that has just gone, or of an earlier pre-copy,
	// may take to end: on a crowded host one with much memory took five seconds. A source waits for
	// longer (helloLimit).
	leaveLimit = 6 * time.Second
	leaveLook  = 10 * time.Millisecond
)

var errNoVM = errors.New("no VM is awaited here")

// deadliner is a connection that can be bounded in time.
type deadliner interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// timely bounds how long a source may not read what it is told.
type timely struct{ conn io.Writer }

// Write implements io.Writer.
func (t timely) Write(b []byte) (int, error) {
	if c, ok := t.conn.(deadliner); ok {
		_ = c.SetWriteDeadline(time.Now().Add(silentLimit))
	}
	return t.conn.Write(b)
}

// CopyFrom takes memory of sessions that comes ahead of them over conn, which it takes over, until
// that ends. What was not sealed then is gone.
func (d *Device) CopyFrom(ctx context.Context, conn io.ReadWriteCloser) error {
	to := &toSource{w: timely{conn}}
	defer to.end()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	first, err := firstCopyFrame(conn)
	if err == nil && first.kind == copyJoin {
		return d.joins(conn, first.body)
	}
	if err == nil {
		err = d.in.begin(d, conn, to)
	}
	if err != nil {
		return errors.Join(err, answer(to, copyRefused, 0, err))
	}
	err = d.copyFrom(conn, to, first)
	if !errors.Is(err, io.EOF) {
		_ = answer(to, copyRefused, 0, err)
	}
	n := d.in.ended()
	d.log.Info("pre-copy from another host has ended", "sessions_kept", n, "bytes", d.in.total, "reason", err)
	return err
}

// open makes conn the connection, if there is none.
func (in *copyIn) open(conn io.Closer) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.conn == nil {
		in.conn = conn
		return true
	}
	return false
}

// begin makes conn the connection. What is left of an earlier one goes.
func (in *copyIn) begin(d *Device, conn io.Closer, to *toSource) error {
	for late := time.Now().Add(leaveLimit); !in.open(conn); time.Sleep(leaveLook) {
		// What an earlier one had on its way still comes.
		if time.Now().After(late) {
			return errCopyBusy
		}
	}
	in.unclaimed(nil)
	for late := time.Now().Add(leaveLimit); len(d.all()) > 0; time.Sleep(leaveLook) {
		if time.Now().After(late) {
			in.ended()
			return fmt.Errorf("%w: a VM with %d sessions is here", errElsewhere, len(d.all()))
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.to, in.streams, in.total, in.began = to, map[uint32]*arrival{}, 0, time.Now()
	return nil
}

// ended notes the end of the connection: what was not sealed goes, the rest waits a while. It
// returns how many wait.
func (in *copyIn) ended() int {
	in.unclaimed(func(a *arrival) bool { return !a.whole })
	in.mu.Lock()
	defer in.mu.Unlock()
	in.conn, in.to = nil, nil
	if len(in.streams) > 0 {
		in.expiry = time.AfterFunc(claimLimit, func() { in.unclaimed(nil) })
	}
	return len(in.streams)
}

// unclaimed ends the sessions for which no state came; nil: all.
func (in *copyIn) unclaimed(which func(*arrival) bool) {
	in.mu.Lock()
	var gone []*arrival
	for id, a := range in.streams {
		if which == nil || which(a) {
			gone = append(gone, a)
			delete(in.streams, id)
		}
	}
	if in.expiry != nil && len(in.streams) == 0 {
		in.expiry.Stop()
		in.expiry = nil
	}
	in.mu.Unlock()
	for _, a := range gone {
		a.end()
	}
}

// end ends a session that does not come.
func (a *arrival) end() {
	_ = a.conn.Close()
	a.s.fail(nil)
	a.s.Release()
}

// claim is the session whose memory came ahead under a token. An empty one is nobody's, and says
// that this VM's state has all memory.
func (in *copyIn) claim(token []byte, c fs.Caller) (*session, error) {
	if len(token) == 0 {
		in.unclaimed(func(a *arrival) bool { return !a.whole })
		return nil, nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for id, a := range in.streams {
		if !bytes.Equal(a.token[:], token) {
			continue
		}
		if !a.whole || a.s.caller != c {
			break
		}
		delete(in.streams, id)
		return a.s, nil
	}
	return nil, fmt.Errorf("%w: what went ahead of its memory did not come here, or is gone", errElsewhere)
}

func (in *copyIn) status() (api.Copy, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return api.Copy{Way: api.CopyIn, Since: in.began, Sessions: len(in.streams), Total: in.total}, in.conn != nil || len(in.streams) > 0
}

// follows does what a frame of a source says. What is wrong with one session is told, and the
// others' goes on.
func (d *Device) follows(to io.Writer, f copyFrame) error {
	d.in.mu.Lock()
	d.in.total += f.wire
	a := d.in.streams[f.stream]
	d.in.mu.Unlock()
	var err error
	switch {
	case f.kind == copyOpen:
		if a != nil || f.stream == 0 {
			return fmt.Errorf("%w: stream %d begins twice", errCopyFrame, f.stream)
		}
		if err = d.arrives(to, f); err == nil {
			return nil
		}
	case f.kind == copyData || f.kind == copySeal || f.kind == copyDrop:
		if a == nil && f.kind == copySeal {
			return answer(to, copyRefused, f.stream, errors.New("it is gone"))
		}
		if a == nil {
			return nil // it was refused, and the source does not know yet
		}
		switch f.kind {
		case copyData:
			err = a.take(f.body)
		case copySeal:
			if err = d.sealed(a, f.body); err == nil {
				return answer(to, copySealed, f.stream, nil)
			}
		default:
			d.in.unclaimed(func(x *arrival) bool { return x == a })
			return nil
		}
		if err == nil {
			return nil
		}
	default:
		return fmt.Errorf("%w: kind %d from a source", errCopyFrame, f.kind)
	}
	d.log.Warn("memory of a session is not taken ahead", "stream", f.stream, "error", err)
	if a != nil {
		d.in.unclaimed(func(x *arrival) bool { return x == a })
	}
	return answer(to, copyRefused, f.stream, err)
}

// arrives makes a session whose worker starts its driver, says so to the source, and waits for what
// comes ahead.
func (d *Device) arrives(to io.Writer, f copyFrame) error {
	n := func(i int) uint32 { return binary.LittleEndian.Uint32(f.body[tokenSize+4*i:]) }
	base, flags := binary.LittleEndian.Uint64(f.body[tokenSize+3*4:]), binary.LittleEndian.Uint32(f.body[tokenSize+3*4+8:])
	if flags&^rehearses != 0 {
		return fmt.Errorf("%w: flags %#x", errCopyFrame, flags)
	}
	if base != 0 && !link.ValidBase(base) {
		return fmt.Errorf("%w: mappings that begin at %#x", errCopyFrame, base)
	}
	opened, errno := d.Open(fs.Caller{UID: n(0), GID: n(1), PID: n(2)})
	if errno != 0 {
		return fmt.Errorf("%w: %w", errElsewhere, errno)
	}
	s := opened.(*session)
	a, err := askRoutine(s, func() (*arrival, error) {
		s.base, s.rehearses = base, flags == rehearses
		err := s.expect(true)
		if err == nil {
			copy(s.arrival.token[:], f.body)
		}
		return s.arrival, err
	})
	if err != nil {
		s.fail(nil)
		s.Release()
		return err
	}
	d.in.mu.Lock()
	d.in.streams[f.stream] = a
	d.in.mu.Unlock()
	go d.routineReady(to, f.stream, a)
	return nil
}

// routineReady tells the source when a session's worker is ready for it.
func (d *Device) routineReady(to io.Writer, stream uint32, a *arrival) {
	<-a.ready
	if a.err == nil && a.s.rehearses {
		d.routineRehearsal(to, stream, a)
		return
	}
	if a.err == nil {
		a.s.log.Info("session is awaited", "worker", a.proc.PID(), "started_in", a.took.Round(time.Millisecond))
		_ = answer(to, copyReady, stream, nil) // a source that is gone needs none
		return
	}
	d.in.unclaimed(func(x *arrival) bool { return x == a })
	_ = answer(to, copyRefused, stream, a.err)
}

// take gives the worker what came.
func (a *arrival) take(b []byte) error {
	if a.whole {
		return fmt.Errorf("%w: data behind the seal", errCopyFrame)
	}
	if _, err := (patient{a.conn}).Write(b); err != nil {
		if a.s.rehearses { // routineRehearsal says why
			return nil
		}
		// The worker says why it takes no more. A session that ends meanwhile may still be asking
		// it.
		said, gone := askRoutine(a.s, func() (error, error) { return a.adopted(), nil })
		if gone != nil {
			return err
		}
		return said
	}
	a.sum = crc32.Update(a.sum, castagnoli, b)
	a.bytes += uint64(len(b))
	return nil
}

// sealed keeps a session for its VM's state, if that is awaited here.
func (d *Device) sealed(a *arrival, body []byte) error {
	n, sum := binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint32(body[8:])
	switch {
	case a.s.rehearses:
		return fmt.Errorf("%w: a rehearsal is sealed", errCopyFrame)
	case n != a.bytes || sum != a.sum:
		return fmt.Errorf("%w: %d bytes of sum %#x came, of %d of sum %#x", errCopyFrame, a.bytes, a.sum, n, sum)
	case !d.connected.Load():
		return errNoVM
	}
	d.in.mu.Lock()
	defer d.in.mu.Unlock()
	a.whole = true
	return nil
}

// toSource is what a source is told, until its connection ends.
type toSource struct {
	mu   sync.Mutex
	w    io.Writer
	over bool
}

// Write implements io.Writer: b is a whole frame.
func (t *toSource) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return 0, errCopyOver
	}
	return t.w.Write(b)
}

func (t *toSource) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// answer sends a frame to a source; err is its text.
func answer(to io.Writer, kind, stream uint32, err error) error {
	b := make([]byte, copyHeader)
	if err != nil {
		text := err.Error()
		b = append(b, text[:min(len(text), mostCopyText)]...)
	}
	_, err = to.Write(putCopyHeader(b, kind, stream, 0))
	return err
}
