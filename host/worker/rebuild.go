package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"causeway/cuda"
	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/precopy"
	"causeway/host/worker/state"
	"causeway/remote"
	"causeway/remote/shm"
	"causeway/remote/sys"
)

// mover is a carrier that another process can go on with.
type mover interface {
	// Freeze stops receiving, Thaw starts again.
	Freeze() error
	Thaw()
	// describe fills in its part of a snapshot and returns the descriptors that go with it.
	describe(*snapshot) ([]int, error)
}

// unixMover makes a mover of shm.Unix.
type unixMover struct{ *shm.Unix }

func (u unixMover) describe(s *snapshot) ([]int, error) {
	state, files, err := u.State()
	s.Unix = &state
	return files, err
}

func (w *Worker) mover() (mover, error) {
	switch c := w.carrier.(type) {
	case *shm.Unix:
		return unixMover{c}, nil
	case *virtiofs:
		return c, nil
	}
	return nil, errors.New("a session over this carrier cannot move")
}

// localMost bounds what a worker keeps of a session from another of the same host, which is as much
// as that one was allowed.
const localMost = 1 << 40

// quiesceForMove is how long the GPU may take to finish before a session moves; betweenTries, how
// long functions of the guest's have the consumer to themselves.
const (
	quiesceForMove = 30 * time.Second
	betweenTries   = 20 * time.Millisecond
)

// rebuild moves the session to the process at the other end of the stream. If that fails the
// session goes on here.
func (s *starter) rebuild(w *Worker, m link.Rebuild) error {
	h, err := newHandover(m.Successor.FD(), localMost)
	if err != nil {
		return s.link.Send(rebuilt(err))
	}
	defer h.close()
	h.elsewhere = m.Elsewhere
	// Before anything is copied; move asks again.
	failed, err := w.askMovable(context.Background(), false)
	if err == nil && failed == nil {
		failed = h.announce(s.warm)
	}
	if err == nil && failed == nil {
		failed = h.openWindow()
	}
	if err == nil && failed == nil {
		err = w.onLoop(func() error { h.win.pin(w.session, s.log); return nil })
		defer func() { _ = w.onLoop(func() error { h.win.unpin(); return nil }) }()
	}
	if err == nil && failed == nil {
		failed = h.refusal(h.sendRounds(context.Background(), w.session, s.log))
	}
	if err == nil && failed == nil {
		failed, err = s.moveBeside(w, h)
	}
	if failed != nil {
		s.log.Warn("session did not move", "error", failed)
		return s.link.Send(rebuilt(failed))
	}
	return err
}

// moveBeside has the consumer move the session. A function of the guest's that a stream waits for
// may want the consumer before it returns, as one does that touches managed memory: it goes on
// between tries, of which each waits for longer than the last, as others may just take their time.
func (s *starter) moveBeside(w *Worker, h *handover) (failed, err error) {
	late := time.Now().Add(quiesceForMove)
	for patience := inVainLeast; ; patience *= 2 {
		err = w.onLoop(func() error {
			begin := time.Now()
			var last precopy.Round
			if last, failed = w.move(h, late, patience); failed != nil {
				w.graphs.renew()
				return nil
			}
			// Said here, because the process ends with the consumer.
			s.log.Info("session moved", "pause", time.Since(begin).Round(time.Microsecond), "bytes", last.Sent)
			return errors.Join(errMoved, s.link.Send(rebuilt(nil)))
		})
		if err != nil || !errors.Is(failed, errHostFunction) || time.Now().After(late) {
			return failed, err
		}
		select {
		case <-time.After(betweenTries):
		case <-w.ended:
			return errEnded, nil
		}
	}
}

func rebuilt(err error) link.Rebuilt { return link.Rebuilt{Status: link.StatusOf(unix.EIO, err)} }

// move exports everything and waits for the successor to agree. The GPU may take until late, and
// functions of the guest's patience, to be done. It runs on the consumer. After nil this process
// must not touch guest memory any more.
func (w *Worker) move(h *handover, late time.Time, patience time.Duration) (last precopy.Round, err error) {
	m, err := w.mover()
	if err != nil {
		return last, err
	}
	if err := w.movable(false); err != nil {
		return last, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), late)
	defer cancel()
	if err := w.quietBeside(ctx, patience); err != nil {
		return last, err
	}
	if err := w.awaitReplies(ctx, w.watch.busy); err != nil {
		return last, err
	}
	if err := m.Freeze(); err != nil {
		return last, fmt.Errorf("freeze the carrier: %w", err)
	}
	w.guestMu.Lock()
	defer func() {
		if err != nil {
			w.guestMu.Unlock() // moved: whoever waits for it waits for the end of the process
			m.Thaw()
		}
	}()
	snap, err := w.snapshot()
	if err != nil {
		return last, err
	}
	files, err := m.describe(snap)
	if err != nil {
		return last, fmt.Errorf("describe the carrier: %w", err)
	}
	if err := h.sendFiles(files); err != nil {
		return last, fmt.Errorf("descriptors: %w", h.refusal(err))
	}
	lender, err := h.lend(w)
	if err != nil {
		return last, fmt.Errorf("lent memory: %w", h.refusal(err))
	}
	if lender != nil {
		defer func() {
			if err != nil {
				lender.Keep()
			}
		}()
	}
	if last, err = h.sendSession(w, snap, lender); err != nil {
		return last, fmt.Errorf("session: %w", h.refusal(err))
	}
	if err := h.receiveVerdict(); err != nil {
		return last, fmt.Errorf("successor: %w", err)
	}
	return last, h.sendVerdict(nil)
}

// unanswered names a request that was not answered yet; false: there is none.
func (w *Worker) unanswered() (string, bool) {
	for i := range w.slots {
		s := &w.slots[i]
		s.mu.Lock()
		op, open := s.op, s.open
		s.mu.Unlock()
		if open {
			return op.String(), true
		}
	}
	return "", false
}

// awaitReplies returns when every request was answered, and whatever else is busy is so no more;
// the drivers' goroutines may be on their way.
func (w *Worker) awaitReplies(ctx context.Context, busy func() bool) error {
	for {
		if _, open := w.unanswered(); !open && !busy() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("a call is still waiting: %w", ctx.Err())
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// snapshot copies the session's own state. guestMu is held.
func (w *Worker) snapshot() (*snapshot, error) {
	graphs, err := w.graphs.state()
	if err != nil {
		return nil, fmt.Errorf("graphs: %w", err)
	}
	s := &snapshot{
		Sticky: w.sticky.Load(), Deferred: w.deferred.Load(), Graphs: graphs,
		Console: w.console.text, ConsoleErrs: w.console.errs, ConsoleLost: w.console.lost,
		More: map[uint32][]byte{}, Blobs: map[uint32]blobState{}, Images: map[uint32][]byte{},
	}
	s.Calls, s.Watch = w.calls.state(), w.watch.state()
	for i := range w.slots {
		if m := w.slots[i].more; m != nil {
			s.More[uint32(i)] = m
		}
	}
	for id, b := range w.blobs.open {
		s.Blobs[id] = blobState{b.total, b.buf}
	}
	for _, e := range w.record.entries() {
		s.Requests = append(s.Requests, request{e.rec, e.placed})
	}
	for id, b := range w.record.blobs.byID {
		s.Images[id] = b.bytes
	}
	return s, nil
}

// adopt takes a session over from another worker, at the other end of a stream, and runs it.
func (s *starter) adopt(ctx context.Context, stream int) error {
	// What the driver takes for current belongs to a thread: the consumer's, which this one
	// becomes.
	runtime.LockOSThread()
	h, err := newHandover(stream, localMost)
	if err != nil {
		return err
	}
	defer h.close()
	h.elsewhere = s.cfg.Elsewhere
	err = h.getReady(s.warmUp)
	if err == nil {
		err = h.takeWindow()
	}
	if err != nil {
		return errors.Join(err, s.link.Send(adopted(err)))
	}
	if err := s.awaitLent(); err != nil {
		return err
	}
	w, m, err := s.receive(ctx, h)
	if err != nil {
		err = errors.Join(err, h.sendVerdict(err))
		return errors.Join(err, s.link.Send(adopted(err)))
	}
	if err = h.sendVerdict(nil); err == nil {
		err = h.receiveVerdict()
	}
	if err != nil { // the other worker goes on with the session: leave guest memory alone
		return errors.Join(err, s.link.Send(adopted(err)))
	}
	m.Thaw()
	for _, b := range []*memory.Budget{s.budget, s.host} {
		if b != nil {
			b.Settle()
		}
	}
	if err := s.link.Send(adopted(nil)); err != nil {
		return err
	}
	s.log.Info("session adopted")
	return s.run(ctx, w)
}

func adopted(err error) link.Adopted { return link.Adopted{Status: link.StatusOf(unix.EIO, err)} }

// receive builds a session from what the other worker sends.
func (s *starter) receive(ctx context.Context, h *handover) (*Worker, mover, error) {
	b, err := s.gpu()
	if err != nil {
		return nil, nil, err
	}
	w, err := s.comes(b, h)
	if err != nil {
		return nil, nil, err
	}
	if err := h.recv.Rounds(ctx, h); err != nil {
		return nil, nil, fmt.Errorf("memory of the session that runs: %w", err)
	}
	files, err := h.receiveFiles()
	if err != nil {
		return nil, nil, fmt.Errorf("descriptors: %w", err)
	}
	lent, err := h.receiveLent()
	if err != nil {
		sys.CloseAll(files)
		return nil, nil, fmt.Errorf("lent memory: %w", err)
	}
	snap, err := readSnapshot(h.in)
	if err != nil {
		sys.CloseAll(files)
		driver.CloseLent(lent)
		return nil, nil, fmt.Errorf("snapshot: %w", err)
	}
	carrier, err := s.adoptCarrier(snap, files)
	if err == nil {
		err = w.carry(carrier)
	}
	if err != nil {
		driver.CloseLent(lent)
		return nil, nil, err
	}
	if err := h.restore(w, snap, lent); err != nil {
		return nil, nil, err
	}
	h.win.pin(w.session, s.log)
	err = h.receiveMemory(w)
	h.win.unpin()
	if err != nil {
		return nil, nil, err
	}
	m, err := w.mover()
	return w, m, err
}

func (s *starter) adoptCarrier(snap *snapshot, files []int) (remote.Carrier, error) {
	switch {
	case snap.Unix != nil:
		return asCarrier(shm.AdoptUnix(*snap.Unix, files))
	case snap.Virtiofs != nil:
		l, err := adoptVirtiofs(s.link, snap.Virtiofs, files)
		s.virtiofs = l
		return asCarrier(l, err)
	}
	sys.CloseAll(files)
	return nil, errors.New("snapshot names no carrier")
}

// restore makes the session again, with the memory that was lent.
func (h *handover) restore(w *Worker, snap *snapshot, lent []driver.Lent) (err error) {
	if len(lent) > 0 && !h.elsewhere {
		if err := h.borrow(w, lent); err != nil {
			return err
		}
	}
	w.host.move(true)
	err = w.restore(snap)
	w.host.move(false)
	if h.elsewhere && len(lent) > 0 {
		if err != nil {
			driver.CloseLent(lent)
			return err
		}
		return h.fetch(w, lent)
	}
	if l, ok := w.session.(driver.Lender); ok && err == nil {
		err = l.Borrowed()
	}
	return err
}

// restore replays the requests and puts the rest in place.
func (w *Worker) restore(s *snapshot) error {
	images := &blobStore{byID: map[uint32]*storedBlob{}}
	for id, b := range s.Images {
		images.byID[id] = &storedBlob{bytes: b}
	}
	for i := range s.Requests {
		if err := w.replay(&s.Requests[i], images); err != nil {
			return err
		}
	}
	if w.graphs.awaits(&s.Graphs) {
		w.graphs.late = &s.Graphs
	} else if err := w.graphs.restore(&s.Graphs); err != nil {
		return fmt.Errorf("graphs: %w", err)
	}
	w.sticky.Store(s.Sticky)
	w.deferred.Store(s.Deferred)
	w.console.text, w.console.errs, w.console.lost = s.Console, s.ConsoleErrs, s.ConsoleLost
	w.calls.restore(s.Calls)
	w.watch.restore(s.Watch)
	for i, m := range s.More {
		if i < remote.SlotCount {
			w.host.book(uint64(len(m)))
			w.slots[i].more = m
		}
	}
	for id, b := range s.Blobs {
		w.blobs.open[id] = &blob{b.Total, b.Bytes}
		w.blobs.bytes += b.Total
		w.host.book(b.Total)
	}
	return nil
}

// replay executes a recorded request again.
func (w *Worker) replay(r *request, images wire.BlobSource) error {
	hdr, op, err := wire.ParseHeader(r.Record)
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	info := op.Info()
	if info == nil {
		return fmt.Errorf("replay: unknown operation %d", op)
	}
	if !replayable(info) {
		return fmt.Errorf("%w: replay of %s, which no record has", state.ErrState, info.Name)
	}
	c := &w.call
	*c = wire.Call{Op: op, Ctx: hdr.Ctx, Thread: hdr.Thread, Replay: true, Placed: slices.Clone(r.Placed)}
	w.extra = 0
	w.replays.Store(true)
	payload, res, err := w.dispatch.Dispatch(w.front, c, r.Record, images)
	w.replays.Store(false)
	if err == nil && res != cuda.Success {
		err = res
	}
	if err != nil {
		return fmt.Errorf("replay %s: %w", info.Name, errors.Join(c.Reason(), err))
	}
	if w.count.to != nil && info.Counts == wire.CountsGuest { // nothing is counted twice
		w.count.more(w.dispatch.Args())
	}
	if err = w.record.noteMade(c); err != nil {
		return err
	}
	err = w.note(c, info, payload)
	w.record.blobs.forget()
	*c = wire.Call{}
	return err
}
