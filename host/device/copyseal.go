package device

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"causeway/host/worker/link"
)

// seal ends the rounds of a session that stands still and is about to be saved. It returns the
// token by which the other host knows what it has of the session's memory, or nil: all memory goes
// with the state, because none went ahead, or some of it was lost, or the state may not go to that
// host. It runs on routine.
func (s *session) seal(p workerProcess) []byte {
	o := s.dev.out.Load()
	if o == nil {
		return nil
	}
	if !s.dev.mem.Logging() { // no VM moves live without: this state may be for a file
		s.log.Info("the VM is saved while a pre-copy is under way: its state has all memory")
		return nil
	}
	o.mu.Lock()
	x := o.streams[s]
	o.mu.Unlock()
	if x == nil || x.proc != p || x.why() != nil {
		return nil
	}
	begin := time.Now()
	ctx, cancel := context.WithTimeout(o.over, sealLimit)
	defer cancel()
	if err := o.seal(ctx, x); err != nil {
		s.log.Warn("what went ahead of the session's memory is of no use: all of it goes with the state", "error", err)
		go o.forget(s, x) // the other side may have gone silent, and this one stands
		return nil
	}
	s.log.Info("session's memory went ahead", "rounds", x.rounds, "bytes", x.wrote, "sealed_in", time.Since(begin).Round(time.Millisecond))
	return x.token[:]
}

func (o *copyOut) seal(ctx context.Context, x *outStream) error {
	o.hasten()
	x.order.Lock()
	over := x.sealed
	x.sealed = true
	err := x.proc.Send(link.CutCopy{})
	x.order.Unlock()
	if over || err != nil {
		return fmt.Errorf("%w: %w", errCopyOver, err)
	}
	// Whatever waits for the other host, a round too, ends with the connection.
	stop := context.AfterFunc(ctx, func() {
		o.end(fmt.Errorf("%w: the other host is silent", errCopyOver))
		_ = x.conn.Close()
	})
	defer stop()
	x.busy.Lock()
	defer x.busy.Unlock()
	if x.wrote == 0 { // a round that was cut is worth something
		return fmt.Errorf("%w: before anything was sent", errCopyOver)
	}
	sum, err := x.drained(ctx)
	if err != nil {
		return err
	}
	b := binary.LittleEndian.AppendUint64(nil, x.wrote)
	if err := o.write(copySeal, x.id, binary.LittleEndian.AppendUint32(b, sum)); err != nil {
		return err
	}
	select {
	case err = <-x.answer:
	case <-ctx.Done():
		err = fmt.Errorf("the other host does not say that it has it: %w", ctx.Err())
	}
	return err
}

// drained waits until all that the worker wrote was sent, and returns its sum.
func (x *outStream) drained(ctx context.Context) (uint32, error) {
	for {
		x.mu.Lock()
		sent, sum, moved, failed := x.sent, x.sum, x.moved, x.failed
		x.mu.Unlock()
		switch {
		case failed != nil:
			return 0, failed
		case sent == x.wrote:
			return sum, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, fmt.Errorf("%d of %d bytes sent: %w", sent, x.wrote, ctx.Err())
		}
	}
}
