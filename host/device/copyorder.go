package device

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// copyOrder is the order of what comes over the connections of a pre-copy.
type copyOrder struct {
	d       *Device
	answers io.Writer // of the first connection
	key     []byte
	most    int // connections

	mu    sync.Mutex
	cond  *sync.Cond
	conns []io.Closer
	next  uint64
	busy  bool // somebody does what the one before says
	waits []uint64
	ended error
}

func newCopyOrder(d *Device, answers io.Writer, key []byte, most int) *copyOrder {
	t := &copyOrder{d: d, answers: answers, key: key, most: most, next: 1}
	t.cond = sync.NewCond(&t.mu)
	return t
}

// firstCopyFrame reads what a connection begins with.
func firstCopyFrame(conn io.Reader) (copyFrame, error) {
	await(conn)
	f, err := readCopyFrame(conn, make([]byte, mostCopyData))
	if err == nil && f.kind != copyHello && f.kind != copyJoin {
		err = fmt.Errorf("%w: kind %d for a beginning", errCopyFrame, f.kind)
	}
	return f, err
}

// await bounds how long a source may say nothing.
func await(conn io.Reader) {
	if c, ok := conn.(deadliner); ok {
		_ = c.SetReadDeadline(time.Now().Add(silentLimit))
	}
}

// copyFrom follows a source, whose hello came. It returns when nothing of any connection is
// followed any more.
func (d *Device) copyFrom(conn io.ReadCloser, to io.Writer, hello copyFrame) error {
	h, err := readHello(hello.body)
	if err == nil {
		err = d.fits(h)
	}
	if err != nil {
		return err
	}
	d.log.Info("memory comes ahead of a VM", "connections", h.Connections)
	t := newCopyOrder(d, to, h.Join, h.Connections)
	t.conns = append(t.conns, conn)
	d.in.mu.Lock()
	d.in.order = t
	d.in.mu.Unlock()
	if err := answer(to, copyWelcome, 0, nil); err != nil {
		return err
	}
	t.end(t.follow(conn))
	return t.wait()
}

// joins follows another connection.
func (d *Device) joins(conn io.ReadWriteCloser, key []byte) error {
	d.in.mu.Lock()
	t := d.in.order
	d.in.mu.Unlock()
	err := t.admit(conn, key)
	if err != nil {
		return errors.Join(err, answer(timely{conn}, copyRefused, 0, err))
	}
	if err = answer(timely{conn}, copyWelcome, 0, nil); err == nil {
		err = t.follow(conn)
	}
	t.end(err)
	return err
}

// admit takes a connection that knows the key.
func (t *copyOrder) admit(conn io.Closer, key []byte) error {
	if t == nil {
		return fmt.Errorf("%w: it joins none", errCopyOver)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended != nil:
		return fmt.Errorf("%w: %w", errCopyOver, t.ended)
	case len(t.key) != tokenSize || subtle.ConstantTimeCompare(t.key, key) != 1:
		return fmt.Errorf("%w: it joins another", errCopyFrame)
	case len(t.conns) >= t.most:
		return fmt.Errorf("%w: more than %d connections", errCopyFrame, t.most)
	}
	t.conns = append(t.conns, conn)
	return nil
}

// follow does what frames of one connection say, each when it is next.
func (t *copyOrder) follow(conn io.Reader) error {
	buf, room := make([]byte, mostCopyData), make([]byte, mostCopyData)
	for last := uint64(0); ; {
		await(conn)
		if err := t.over(); err != nil { // whose deadline is not to be put off
			return err
		}
		f, err := readCopyFrame(conn, buf)
		if err != nil {
			return err
		}
		if f.kind == copyPing {
			continue
		}
		if !ofStreams(f.kind) || f.seq <= last {
			return fmt.Errorf("%w: kind %d of number %d behind %d", errCopyFrame, f.kind, f.seq, last)
		}
		last = f.seq
		if err := f.unpack(room); err != nil {
			return err
		}
		if err := t.take(f); err != nil {
			return err
		}
	}
}

// take waits until a frame is next, and does what it says.
func (t *copyOrder) take(f copyFrame) error {
	t.mu.Lock()
	t.waits = append(t.waits, f.seq)
	for t.ended == nil && (t.busy || f.seq > t.next) {
		if !t.busy && len(t.waits) == len(t.conns) && slices.Min(t.waits) > t.next {
			// Nobody is left who could bring it.
			t.endLocked(fmt.Errorf("%w: frame %d comes over no connection", errCopyFrame, t.next))
			break
		}
		t.cond.Wait()
	}
	i := slices.Index(t.waits, f.seq)
	t.waits = slices.Delete(t.waits, i, i+1)
	if t.ended == nil && f.seq < t.next {
		t.mu.Unlock()
		return fmt.Errorf("%w: frame %d comes twice", errCopyFrame, f.seq)
	}
	if t.ended != nil {
		t.mu.Unlock()
		return t.ended
	}
	t.busy = true
	t.mu.Unlock()
	err := t.d.follows(t.answers, f)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy = false
	t.next++
	t.cond.Broadcast()
	if err != nil {
		t.endLocked(err) // before anybody else is next
	}
	return err
}

func (t *copyOrder) over() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// end ends all connections; the first reason counts.
func (t *copyOrder) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(err)
}

func (t *copyOrder) endLocked(err error) {
	if t.ended != nil {
		return
	}
	t.ended = err
	t.cond.Broadcast()
	for _, c := range t.conns[1:] { // the first still says why
		_ = c.Close()
	}
	if d, ok := t.conns[0].(deadliner); ok {
		_ = d.SetReadDeadline(time.Now())
	}
}

// wait returns when nobody does what a frame says, nor will.
func (t *copyOrder) wait() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.busy {
		t.cond.Wait()
	}
	return t.ended
}
