package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// batchMost is how much of the ring goes in one frame: enough that a write's cost is shared, little
// enough that the server's worker begins meanwhile.
const batchMost = 128 << 10

// chunk is how much of a READ's answer is one frame: what is copied from guest memory is sent while
// it is in the processor's caches.
const chunk = 128 << 10

// out is what is sent to the server.
type out struct {
	mu   sync.Mutex
	conn frame.Stream
	buf  []byte
}

// write sends a whole frame, whose header is filled in.
func (o *out) write(f []byte, h frame.Header) error {
	h.Len = uint32(len(f) - frame.HeaderSize)
	h.Put(f)
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := o.conn.Write(f)
	return err
}

// send sends a small frame.
func (o *out) send(h frame.Header, payload []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.Len = uint32(len(payload))
	o.buf = append(h.Append(o.buf[:0]), payload...)
	_, err := o.conn.Write(o.buf)
	return err
}

// pump consumes the guest's ring. It owns its OS thread.
func (s *Session) pump(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := s.back(ctx); err != nil { // a session that stood still may be parked again
		return err
	}
	s.ring.SetState(remote.WorkerPolling)
	idle := remote.NewFarIdle(s.ring, s.bell, s.pending.Load)
	for ctx.Err() == nil {
		if s.pending.Swap(false) {
			if err := s.aside(ctx); err != nil {
				return err
			}
		}
		if s.held.share.Load() > 0 {
			if rest := s.held.rest(time.Now()); rest > 0 {
				if err := s.atNetwork(ctx, func() error { return s.awaitTurn(ctx, rest) }); err != nil {
					return err
				}
				continue
			}
		}
		full, err := s.gather()
		if err != nil {
			return fmt.Errorf("%w: %w", errLocal, err)
		}
		switch {
		case len(s.batch) > frame.HeaderSize:
			err = s.atNetwork(ctx, s.push)
		case full:
			err = s.atNetwork(ctx, func() error { return s.awaitRoom(ctx) })
		case !idle.Spin(idle.Patience()):
			if err = idle.Sleep(ctx); err != nil && ctx.Err() == nil {
				err = fmt.Errorf("%w: %w", errLocal, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Records for whose answer nobody waits leave with what follows them at once, often one for whose
// answer somebody does: it would stand behind a write of theirs, and wake the server a second time.
// So often, and each time for so many pauses, is looked for it: a microsecond or two.
const (
	holds     = 2
	holdPolls = 24
)

// gather takes the records that wait, as many as the server's mirror and a frame have room for.
// full: there are more.
func (s *Session) gather() (full bool, err error) {
	held, awaited := 0, false
	s.batch = s.batch[:frame.HeaderSize]
	room := min(remote.RingSize-(s.sent-s.head.Load()), s.held.most())
	var r remote.Incoming
	for {
		ok, err := s.ring.Next(&r)
		if !ok && err == nil && len(s.batch) > frame.HeaderSize && !awaited && held < holds {
			if held++; s.ring.Poll(holdPolls) {
				continue
			}
		}
		if !ok || err != nil {
			return false, err
		}
		if n := uint64(len(s.batch) - frame.HeaderSize + len(r.Bytes)); n > room && (n > uint64(len(r.Bytes)) || n > remote.RingSize-(s.sent-s.head.Load())) {
			return true, nil
		}
		s.batch = append(s.batch, r.Bytes...)
		awaited = awaited || r.Flags&remote.RecordReply != 0
		if s.ring.Advance() {
			s.bell.Wake(remote.SlotCount)
		}
	}
}

// push sends what gather took, and ahead of it what its records may name.
func (s *Session) push() error {
	if err := s.sendRegions(); err != nil {
		return err
	}
	from := s.sent
	s.sent += uint64(len(s.batch) - frame.HeaderSize)
	s.given.Store(s.sent) // the server may answer before write returns
	if err := s.out.write(s.batch, frame.Header{Kind: frame.Ring, Arg: from}); err != nil {
		return lost(err)
	}
	s.held.passed(s.sent-from, time.Now)
	return nil
}

// awaitRoom waits until the server's head has moved, or there is something else to do.
func (s *Session) awaitRoom(ctx context.Context) error {
	select {
	case <-s.room:
	case <-s.poked:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// aside does what waits beside the ring.
func (s *Session) aside(ctx context.Context) error {
	if err := s.atNetwork(ctx, s.sendRegions); err != nil {
		return err
	}
	if err := s.stand(ctx); err != nil {
		return err
	}
	return s.depart(ctx)
}

// sendRegions sends word of regions that came and went.
func (s *Session) sendRegions() error {
	for {
		change, ok, err := s.regions.next()
		if err != nil {
			return fmt.Errorf("%w: %w", errLocal, err)
		}
		if !ok {
			break
		}
		if change.back {
			if err := s.grant(change.id); err != nil {
				return lost(err)
			}
			continue
		}
		h, payload := frame.Header{Kind: frame.RegionEnd, Arg: uint64(change.id)}, []byte(nil)
		if change.size != 0 {
			h.Kind = frame.Region
			payload = remote.FormatHello(remote.Hello{Type: remote.MsgRegion, Region: change.id, Va: change.va, Size: change.size}, "")
		}
		if err = s.out.send(h, payload); err == nil {
			err = s.told(change)
		}
		if err != nil {
			return lost(err)
		}
	}
	if err := s.regrant(); err != nil {
		return lost(err)
	}
	return nil
}

// read is a READ of the server's that waits for its answer.
type read struct {
	id uint64
	frame.Extent
}

// mostReads is how many READs may wait: a session of 64 GiB in flight.
const mostReads = 4096

// serve answers READs over a stream, in their order. away, which may be nil, says that it cannot:
// errAway then, with a READ that is not begun in l.
func (s *Session) serve(ctx context.Context, l *lane, reads <-chan read, away func() bool) error {
	var buf []byte
	for {
		if l.answering == nil {
			if l.sleep != nil {
				l.sleep(ctx)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case r := <-reads:
				l.answering = &r
			}
			if away != nil && away() {
				return errAway
			}
		}
		if buf == nil {
			buf = make([]byte, frame.HeaderSize+chunk)
		}
		if err := s.answer(&l.out, l.answering, buf); err != nil {
			return err
		}
		l.answering = nil
	}
}

// errRefused says that a READ is refused.
var errRefused = errors.New("the guest has no such memory")

// answer sends the bytes of one READ. What lies in no declared region is refused, also if the
// region goes meanwhile.
func (s *Session) answer(to *out, r *read, buf []byte) error {
	h := frame.Header{Kind: frame.Data, Arg: r.id}
	filler, _ := to.conn.(frame.Filler)
	for ok := s.regions.has(r.Extent); r.Size > 0 || !ok; {
		n := min(r.Size, chunk)
		if filler != nil && ok {
			h.Len = uint32(n)
			err := filler.Fill(h, func(p []byte, at int) error {
				err := s.touch(func() error { return s.mem.ReadAt(r.Region, p, r.Offset+uint64(at)) })
				if err != nil && !errors.Is(err, errStill) {
					ok, err = false, errRefused
				}
				return err
			})
			if err != nil && ok {
				return lost(err)
			}
			if ok {
				r.Offset, r.Size = r.Offset+n, r.Size-n
				continue
			}
		}
		f := buf[:frame.HeaderSize+n]
		if ok {
			err := s.touch(func() error { return s.mem.ReadAt(r.Region, f[frame.HeaderSize:], r.Offset) })
			if ok = err == nil; errors.Is(err, errStill) {
				return err
			}
		}
		if !ok {
			h.Flags = frame.Refused
			f, r.Size = buf[:frame.HeaderSize], 0
		}
		if err := to.write(f, h); err != nil {
			return lost(err)
		}
		if !ok {
			return nil
		}
		r.Offset, r.Size = r.Offset+n, r.Size-n
	}
	return nil
}
