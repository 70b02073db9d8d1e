package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/shm"
	"causeway/remote/tcp"
)

// A session whose guest is on another host moves from GPU server to GPU server by its guest's end,
// over the streams that this has to both: the worker here writes what it is made of when the
// guest's end says that it stands still, and keeps it until the stream ends, which says that the
// other worker has it, or until it is to go on after all. So the servers need not know of each
// other, and what travels is under a lease's keys.

// arrival is a session that comes by its guest's end.
type arrival struct {
	carrier *tcp.Carrier
	state   io.ReadCloser
}

// asCarrier keeps a nil pointer from becoming a carrier.
func asCarrier[C remote.Carrier](c C, err error) (remote.Carrier, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// errStaysHere: no session of a lease that is not migratable can be described for its host's end,
// or made of what that says.
var errStaysHere = errors.New("the lease's sessions stay at their server: it is not migratable")

// arrivalOf is the session that a carrier brings; false: it begins.
func arrivalOf(c remote.Carrier) (arrival, bool) {
	t, ok := c.(*tcp.Carrier)
	if !ok {
		return arrival{}, false
	}
	r, ok := t.Arrival()
	return arrival{t, r}, ok
}

// routineLeave has the session described whenever its guest's end wants to go elsewhere.
func (s *starter) routineLeave(w *Worker, c *tcp.Carrier) {
	var ahead farAhead
	for {
		select {
		case r := <-c.Rounds():
			if r.Made() {
				s.outlined(w, r)
				continue
			}
			did, err := s.round(w, &ahead, r)
			if err != nil {
				ahead = farAhead{}
				s.log.Warn("memory does not go ahead of the session", "error", err)
			}
			_ = r.End(did, err) // a guest's end that is gone needs no answer
		case <-ahead.over:
			ahead = farAhead{}
		case l := <-c.Leaves():
			went := ahead
			ahead = farAhead{}
			if err := s.leave(w, c, l, &went); err != nil && !errors.Is(err, errEnded) {
				s.log.Warn("the session does not go to another server", "error", err)
				_ = l.End(err)
			}
		case <-w.ended:
			return
		}
	}
}

// mayLeave says why no session of this worker's can.
func (s *starter) mayLeave() error {
	if s.lasting == nil || s.alone { // nobody of theirs would have it go
		return errors.New("sessions over such a connection stay where they are")
	}
	if !s.cfg.Migratable {
		return errStaysHere
	}
	return nil
}

// leave writes the session, less what went ahead, and has it stand until it is known where it goes
// on. An error says why it was not written, and that it goes on.
func (s *starter) leave(w *Worker, c *tcp.Carrier, l *tcp.Leaving, went *farAhead) error {
	if err := s.mayLeave(); err != nil {
		return err
	}
	if l.Ahead() && went.send == nil {
		return errNoCopy
	}
	ctx, cancel := context.WithTimeout(context.Background(), quiesceForMove)
	defer cancel()
	select {
	case <-l.Empty():
	case <-l.Stays():
		return tcp.ErrStays
	case <-w.ended:
		return errEnded
	case <-ctx.Done():
		return fmt.Errorf("%w: a call is going on", errBusy)
	}
	var failed error
	err := w.onLoop(func() error {
		if failed = w.writeTo(ctx, l, s.warm, went); failed == nil {
			s.log.Info("session stands still for another server")
			select {
			case <-l.Stays():
			case <-c.Done():
			case <-w.ctx.Done():
			}
			w.guestMu.Unlock()
		}
		w.graphs.renew()
		return nil
	})
	return cmp.Or(err, failed)
}

// writeTo has the session stand, and writes what it is made of. Without an error guestMu is held,
// and all of it was written. It runs on the consumer.
func (w *Worker) writeTo(ctx context.Context, l *tcp.Leaving, warm bool, went *farAhead) error {
	if err := w.movable(false); err != nil {
		return err
	}
	if err := w.quietBeside(ctx, inVainLeast); err != nil {
		// What the guest would call back with is not sent.
		return err
	}
	if err := w.awaitReplies(ctx, w.watch.busy); err != nil {
		return err
	}
	w.guestMu.Lock()
	h := &handover{out: state.NewWriter(l)}
	h.send = went.rest(w, l, h.out, warm)
	err := w.writeAll(h, w.carrier.(*tcp.Carrier), warm)
	if err == nil {
		err = l.End(nil)
	}
	if err != nil {
		w.guestMu.Unlock()
	}
	return err
}

// quietBeside waits until the GPU is idle; errHostFunction: it is kept from that by functions of
// the guest's, for so long at a stretch.
func (w *Worker) quietBeside(ctx context.Context, patience time.Duration) error {
	quiet, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go w.routineInVain(quiet, giveUp, patience)
	if err := w.session.Quiesce(quiet); err != nil {
		return fmt.Errorf("wait for the GPU: %w", cmp.Or(hostFunction(quiet), err))
	}
	return nil
}

// hostFunction is errHostFunction if that ended a wait.
func hostFunction(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errHostFunction) {
		return errHostFunction
	}
	return nil
}

func (w *Worker) writeAll(h *handover, c *tcp.Carrier, warm bool) error {
	if op, waits := w.unanswered(); waits {
		return fmt.Errorf("%s is still waiting for its answer", op)
	}
	snap, err := w.snapshot()
	if err != nil {
		return err
	}
	snap.Warm, snap.Virtiofs = warm, &virtiofsState{Head: w.ring.Head(), Regions: declaredOf(c)}
	if err := h.send.Still(h.out); err != nil {
		return err
	}
	_, err = h.sendSession(w, snap, nil)
	return err
}

// declaredOf are the regions of a guest's end, in order.
func declaredOf(c *tcp.Carrier) (list []shm.RegionState) {
	all := c.Declared()
	for _, id := range slices.Sorted(maps.Keys(all)) {
		d := all[id]
		list = append(list, shm.RegionState{ID: id, VA: d.VA, Size: d.Size})
	}
	return list
}

// refusedLimit is how long a guest's end may take to go whose session does not come to be.
const refusedLimit = 10 * time.Second

// arrive makes the session that comes, answers, and runs it.
func (s *starter) arrive(ctx context.Context, a arrival) error {
	runtime.LockOSThread() // as in adopt
	came := make(chan struct{})
	if s.cfg.Tied {
		go s.routineParent(a, came)
	}
	if a.carrier.Rehearsal() {
		defer close(came)
		return s.rehearsed(a)
	}
	w, err := s.arrived(a)
	close(came)
	_ = a.state.Close() // what is left of a session that does not come to be is passed over
	if err != nil {
		err = fmt.Errorf("a session from another server: %w", err)
		return errors.Join(err, a.answerLast(uint32(unix.EIO), err.Error()))
	}
	err = a.carrier.Welcome(0, "")
	w.guestMu.Unlock()
	if err != nil {
		return errors.Join(fmt.Errorf("welcome: %w", err), w.close())
	}
	return s.run(ctx, w)
}

// parentEach is how often a worker in which a session comes looks whether its parent is gone.
const parentEach = 250 * time.Millisecond

// routineParent gives a session up that comes to a worker whose parent is gone: until it has come
// nobody follows the link, and its guest's end takes as long as it likes.
func (s *starter) routineParent(a arrival, came <-chan struct{}) {
	t := time.NewTicker(parentEach)
	defer t.Stop()
	for !s.link.Gone() {
		select {
		case <-t.C:
		case <-came:
			return
		}
	}
	s.log.Info("the session that comes is given up: its parent is gone")
	_ = a.state.Close()
}

// answerLast answers, and leaves it to the guest's end to go.
func (a arrival) answerLast(status uint32, text string) error {
	err := a.carrier.Welcome(status, text)
	select {
	// Until its other end has read that: what it has sent meanwhile would have the connection
	// reset.
	case <-a.carrier.Done():
	case <-time.After(refusedLimit):
	}
	return errors.Join(err, a.carrier.Close())
}

// arrived makes a session of what comes. guestMu is held: nothing of it may reach the guest ahead
// of the answer.
func (s *starter) arrived(a arrival) (_ *Worker, err error) {
	began := time.Now()
	w, h, snap, err := s.described(a)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.session.Close())
		}
	}()
	if err := a.carrier.Placed(); err != nil {
		return nil, err
	}
	if err := s.agrees(a.carrier, snap); err != nil {
		return nil, err
	}
	if err := w.carry(a.carrier); err != nil {
		return nil, err
	}
	w.guestMu.Lock()
	err = s.refill(w, h, snap)
	if err == nil {
		err = endsHere(h.in.Rest())
	}
	if err != nil {
		w.guestMu.Unlock()
		return nil, err
	}
	s.log.Info("session adopted from another server", "took", time.Since(began).Round(time.Millisecond))
	return w, nil
}

// described reads what a session is made of, and opens the GPU for it. The reader is where its
// memory comes.
func (s *starter) described(a arrival) (_ *Worker, _ *handover, _ *snapshot, err error) {
	if s.lasting == nil {
		return nil, nil, nil, errors.New("sessions come by a lease alone")
	}
	if !s.cfg.Migratable {
		return nil, nil, nil, errStaysHere
	}
	h := &handover{in: state.NewReader(a.state, cmp.Or(s.cfg.HostMemory, mostHeld))}
	h.recv = precopy.NewReceiver(cmp.Or(s.cfg.MemoryLimit, localMost), maxRanges)
	if warm := h.in.Bool(); h.in.Err() == nil && warm && !s.warm {
		s.warmUp() // as the other worker did: what a driver places depends on what it did before
	}
	if h.in.Err() != nil {
		return nil, nil, nil, h.in.Err()
	}
	b, err := s.gpu()
	if err != nil {
		return nil, nil, nil, err
	}
	w, err := s.comes(b, h)
	if err != nil {
		return nil, nil, nil, err
	}
	if s.cfg.Rehearsal { // no memory comes
		h.recv = precopy.NewReceiver(0, 0)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.session.Close())
		}
	}()
	if err := h.recv.Rounds(context.Background(), h.in.Rest()); err != nil {
		return nil, nil, nil, fmt.Errorf("memory ahead of it: %w", err)
	}
	snap, err := readSnapshot(h.in)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("snapshot: %w", err)
	}
	return w, h, snap, nil
}

// endsHere waits for the end of what comes: an answer ahead of that breaks a rule, as the guest's
// end may not have heard yet that it was all.
func endsHere(r io.Reader) error {
	_, err := io.ReadFull(r, make([]byte, 1))
	if errors.Is(err, io.EOF) {
		return nil
	}
	return cmp.Or(err, errors.New("more comes than a session"))
}

// agrees compares what the other server says of the guest with what its end has said.
func (s *starter) agrees(c *tcp.Carrier, snap *snapshot) error {
	l := snap.Virtiofs
	switch {
	case l == nil || len(l.Guest) != 0 || len(l.Pieces) != 0:
		return errors.New("it comes with guest memory")
	case snap.Warm && !s.warm:
		return errors.New("its driver was started in another way than this one")
	case l.Head != c.Ring().Head():
		return fmt.Errorf("it has consumed %d bytes of the ring, and goes on at %d", l.Head, c.Ring().Head())
	case !slices.Equal(l.Regions, declaredOf(c)):
		return errors.New("the guest has other regions than it had")
	}
	return nil
}

// refill rebuilds what the session is made of.
func (s *starter) refill(w *Worker, h *handover, snap *snapshot) error {
	defer s.listen(w, true)()
	if err := w.restore(snap); err != nil {
		return err
	}
	if err := w.host.fits(); err != nil {
		return err
	}
	if err := h.receiveMemory(w); err != nil {
		return err
	}
	if c, ok := w.session.(driver.Companion); ok {
		if err := c.Rejoin(); err != nil {
			return err
		}
	}
	if s.budget != nil {
		s.budget.Bring(false)
	}
	return nil
}
