package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
)

/*
A virtual GPU whose programs run on a GPU server goes to another one, with all of them. Their memory
goes ahead while they run (divertahead.go). Then each program's relay has the other server get its
session, and stands; when all have, new ones are kept waiting, those that began meanwhile follow,
and this process decides, once for all of them: from then on it starts relays with the other lease,
whatever becomes of single programs. Before, all go on where they were. A relay that does not follow
the decision is ended, so that no program is where the others are not: its program gets an error,
and what came of it is said.
*/

// ErrDiverting says that programs are on their way to another GPU server.
var ErrDiverting = errors.New("its programs are on their way to another GPU server")

// Times of a move to another server, but for that of a session, which depends on what it has.
const (
	followLimit = time.Minute      // for a relay to follow what was decided
	standsLimit = 20 * time.Second // for a program that does not lend its memory to lend it again
	divertLook  = 200 * time.Millisecond
	openPasses  = 3 // over those that have begun meanwhile, while others may begin
)

// errStands: what its server still has to tell it has no place.
var errStands = errors.New("its program stands, stopped or with its VM: continue it")

// turn is a move to another server. Device.mu guards it.
type turn struct {
	to     *link.Relay   // nil: none is under way
	shut   chan struct{} // closed when sessions may begin again; nil: they may
	begins int           // sessions that are beginning
	calm   chan struct{} // closed when none is; nil: nobody waits for that
}

// Divert has all programs go on at another GPU server, and has new ones begin there. With an error
// all are where they were, but for those that it names.
func (d *Device) Divert(ctx context.Context, c api.Diversion) (api.Relocated, error) {
	if !d.relocating.TryLock() {
		return api.Relocated{}, ErrRelocating
	}
	defer d.relocating.Unlock()
	began := time.Now()
	t, err := d.beginTurn(c)
	if err != nil {
		return api.Relocated{}, err
	}
	defer d.endTurn()
	log := d.log.With("from", t.from.Worker.Relay.Server, "to", c.To.Server, "lease", c.To.Lease)
	log.Info("programs are to go to another GPU server")
	if err := t.move(ctx); err != nil {
		log.Warn("programs stay at their GPU server", "error", err)
		return api.Relocated{}, err
	}
	did := api.Relocated{GPU: t.to.GPU, UUID: t.to.UUID, Sessions: t.went, Lost: t.lost, Nanos: uint64(time.Since(began)), Rounds: t.rounds, Ahead: t.wentAhead, Held: t.held, Stood: uint64(t.stood)}
	log.Info("programs go on at another GPU server", "sessions", t.went, "lost", t.lost, "took", time.Since(began).Round(time.Millisecond), "rounds", t.rounds, "ahead", t.wentAhead, "held_back", t.held, "stood", t.stood.Round(time.Millisecond))
	return did, nil
}

// beginTurn notes a move, unless it is known to be none.
func (d *Device) beginTurn(c api.Diversion) (*turning, error) {
	under, ahead := d.mem.Logging(), d.out.Load() != nil
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.at.Worker.Relay
	switch {
	case at == nil:
		return nil, fmt.Errorf("%w: its GPU is on this host", ErrElsewhere)
	case c.To.Lease.IsZero() || len(c.Addresses) == 0:
		return nil, fmt.Errorf("%w: no lease of a GPU server", ErrElsewhere)
	case c.To.Lease == at.Lease:
		return nil, fmt.Errorf("%w: it has that lease", ErrElsewhere)
	case c.To.GPU != d.at.GPU:
		return nil, fmt.Errorf("%w: the GPU of %s is a %s, and its programs have a %s", ErrElsewhere, c.To.Server, c.To.GPU, d.at.GPU)
	case d.hand.heir != "":
		return nil, fmt.Errorf("%w: the host %s may take over its lease with its VM: wait for the VM's migration, or end it", ErrElsewhere, d.hand.heir)
	case under || ahead:
		return nil, fmt.Errorf("%w: its VM is being migrated, or saved: wait for that, or end it", ErrElsewhere)
	}
	to := *d.at
	to.UUID = c.To.UUID
	to.Worker.Relay = &link.Relay{Server: c.To.Server, Addresses: c.Addresses, Lease: c.To.Lease, Identity: c.Identity}
	if d.opts.FarMachine != nil {
		to.Machine = d.opts.FarMachine(c.To)
	}
	d.turn.to = to.Worker.Relay
	return &turning{
		d: d, from: d.at, to: &to, throttle: c.Throttle, decided: make(chan struct{}),
		leaves: map[*session]workerProcess{}, begun: map[*session]workerProcess{}, gone: map[workerProcess]bool{},
		asked: map[*session]bool{}, plain: map[*session]bool{}, tried: map[*session]bool{},
	}, nil
}

func (d *Device) endTurn() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turn.shut != nil {
		close(d.turn.shut)
	}
	d.turn.to, d.turn.shut, d.turn.calm = nil, nil, nil
	d.relocation = progress{}
}

// shut has no session begin until endTurn, and waits for those that do.
func (d *Device) shut(ctx context.Context) error {
	d.mu.Lock()
	d.turn.shut, d.turn.calm = make(chan struct{}), make(chan struct{})
	calm := d.turn.calm
	if d.turn.begins == 0 {
		close(calm)
		d.turn.calm = nil
	}
	d.mu.Unlock()
	select {
	case <-calm:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// entering waits until a session may begin; the function says that it has its worker, or none.
func (s *session) entering() (func(), error) {
	d := s.dev
	for {
		d.mu.Lock()
		shut := d.turn.shut
		if shut == nil {
			d.turn.begins++
			d.mu.Unlock()
			return d.entered, nil
		}
		d.mu.Unlock()
		select {
		case <-shut:
		case <-s.hurry:
			return nil, errGone
		case <-s.over:
			return nil, errGone
		}
	}
}

func (d *Device) entered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.turn.begins--; d.turn.begins == 0 && d.turn.calm != nil {
		close(d.turn.calm)
		d.turn.calm = nil
	}
}

// turning is who moves the programs.
type turning struct {
	d        *Device
	from, to *Place

	mu sync.Mutex
	// Whose relays were asked, and may have their sessions at both servers.
	leaves map[*session]workerProcess
	asked  map[*session]bool // all that ever were, to stand
	plain  map[*session]bool // whose memory does not go ahead
	// Who was rehearsed there, as far as that can be.
	tried map[*session]bool
	begun map[*session]workerProcess // whose relays were told of the other server for rounds
	lost  int                        // that ended with an error
	gone  map[workerProcess]bool     // which are counted there, or ended as programs do
	went  int                        // valid when all have followed

	// move's.
	throttle  bool          // programs are held back that change memory as fast as it is sent
	held      int           // for how many hundredths of the time they are
	rounds    int           // in which memory went ahead
	wentAhead uint64        // bytes
	stood     time.Duration // how long sessions stood at most

	goes    bool          // set before decided is closed
	decided chan struct{} // sessions that have not begun at any server wait for it
}

func (t *turning) move(ctx context.Context) error {
	err := t.rehearse(ctx)
	if err == nil {
		err = t.ahead(ctx)
	}
	stands := time.Now()
	if err == nil {
		err = t.gather(ctx)
	}
	if err == nil {
		t.d.opts.Reached("deciding")
		err = ctx.Err() // whoever asked is gone, and takes it that nothing has moved
	}
	if err == nil {
		t.d.mu.Lock()
		t.d.at, t.goes = t.to, true
		t.d.mu.Unlock()
	}
	close(t.decided)
	err = errors.Join(err, t.settle())
	t.stood = time.Since(stands)
	return err
}

// gather has all sessions be at the other server, too.
func (t *turning) gather(ctx context.Context) error {
	for range openPasses {
		if n, err := t.pass(ctx, false); err != nil || n == 0 {
			if err != nil {
				return err
			}
			break
		}
	}
	if err := t.d.shut(ctx); err != nil {
		return err
	}
	_, err := t.pass(ctx, true)
	return err
}

// pass has the sessions that were not asked yet go there, and returns how many those were. last:
// none begins any more, and who has not begun at the server waits for what is decided.
func (t *turning) pass(outer context.Context, last bool) (n int, err error) {
	ctx, cancel := context.WithCancelCause(outer)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, s := range t.d.all() {
		t.mu.Lock()
		known := t.asked[s]
		t.mu.Unlock()
		if known {
			continue
		}
		wg.Go(func() {
			asked, failed := t.leave(ctx, s, last)
			mu.Lock()
			defer mu.Unlock()
			if asked {
				n++
			}
			if failed != nil && !errors.Is(failed, errGone) {
				if err == nil { // the others end with it
					err = s.named(failed)
				}
				cancel(failed)
			}
		})
	}
	wg.Wait()
	if outer.Err() != nil {
		err = context.Cause(outer)
	}
	return n, err
}

// leave has one session be at the other server, too.
func (t *turning) leave(ctx context.Context, s *session, last bool) (asked bool, err error) {
	p, err := t.leaver(ctx, s, last)
	if p == nil || err != nil {
		return false, err
	}
	t.mu.Lock()
	t.leaves[s] = p
	t.asked[s] = true
	t.d.progress(0, len(t.asked))
	t.mu.Unlock()
	t.d.opts.Reached("diverting")
	err = t.divert(ctx, s, p)
	if t.ended(p, err) {
		t.mu.Lock()
		delete(t.leaves, s)
		t.mu.Unlock()
		err = nil
	}
	if err == nil {
		t.d.progress(1, 0)
	}
	return true, err
}

// ended reports whether a relay is gone, with its program or by a fault: there is nothing then that
// could be anywhere. err is what became of a question.
func (t *turning) ended(p workerProcess, err error) bool {
	if errors.Is(err, spawn.ErrEnded) { // its process is about to be
		select {
		case <-p.Done():
		case <-time.After(followLimit):
		}
	}
	select {
	case <-p.Done():
	default:
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.gone[p] && p.Err() != nil {
		t.lost++
	}
	t.gone[p] = true
	return true
}

// progress counts sessions that are taken care of, of so many.
func (d *Device) progress(done, of int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.relocation.done += done
	d.relocation.of = max(d.relocation.of, of)
}

// settle has all that were asked follow what was decided. The error names those of which it is not
// known whether they go on, where nothing has moved.
func (t *turning) settle() error {
	t.mu.Lock()
	list := slices.Collect(maps.Keys(t.leaves))
	t.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, s := range list {
		wg.Go(func() {
			went, err := t.follow(s, t.leaves[s])
			mu.Lock()
			defer mu.Unlock()
			if went {
				t.went++
			}
			if err != nil {
				errs = append(errs, s.named(fmt.Errorf("whether it goes on where it was is not known: %w", err)))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// follow has one session follow. One that should be at the other server, and is not, ends.
func (t *turning) follow(s *session, p workerProcess) (went bool, err error) {
	t.d.opts.Reached("settling")
	ctx, cancel := context.WithTimeout(context.Background(), followLimit)
	defer cancel()
	err = p.Settle(ctx, t.to.Worker.Relay.Lease, t.goes)
	if t.ended(p, err) {
		return false, nil
	}
	if !t.goes {
		return false, err
	}
	s.mu.Lock()
	s.at = t.to
	s.mu.Unlock()
	if err != nil {
		s.fail(fmt.Errorf("it does not go on at the GPU server %s, where its vGPU is now: %w", t.to.Worker.Relay.Server, err))
		t.mu.Lock()
		t.lost++
		t.mu.Unlock()
		return false, nil
	}
	return true, nil
}

// leases are by which lease programs go, and to which they are on their way; zero: none.
func (d *Device) leasesLocked() (now, next remote.LeaseID) {
	if r := d.at.Worker.Relay; r != nil {
		now = r.Lease
	}
	if d.turn.to != nil {
		next = d.turn.to.Lease
	}
	return now, next
}
