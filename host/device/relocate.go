package device

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/inventory"
	"causeway/host/limit"
	"causeway/host/schedule"
	"causeway/host/worker/link"
)

/*
A virtual GPU that moves to another GPU of its host takes its sessions along one by one: each is
rebuilt by a worker on the other GPU as it would be on the same one, its memory copied in rounds
while it runs. What can be known to be wrong is found before anything is copied. New programs open
on the other GPU from the moment on at which the first session is about to move; if one cannot,
those that have moved go back.
*/

// Errors of Relocate.
var (
	ErrRelocating = errors.New("this virtual GPU is being moved already")
	ErrElsewhere  = errors.New("not movable there")
)

// Times of a relocation.
const (
	judgeLimit   = 5 * time.Second // for the sessions to say whether they can move
	settleLimit  = 10 * time.Second
	settlePause  = 20 * time.Millisecond
	returnsLimit = 5 * time.Minute // for those that have moved to go back
)

// errSettling says that a session is about to start, or to let go of its guest's memory.
var errSettling = errors.New("it is about to start, or to stand")

// progress is how far a relocation is. Device.mu guards it.
type progress struct {
	done, of int
	rounds   int // of memory that goes ahead
	held     int // hundredths of the time
	last     api.CopyRound
	// Sessions are rehearsed at another GPU server, and done says how many have been.
	rehearsing bool
}

// Relocate moves all sessions to another GPU of this host, and has new ones open there. With an
// error the virtual GPU is where it was.
func (d *Device) Relocate(ctx context.Context, c api.Relocation) (api.Relocated, error) {
	if !d.relocating.TryLock() {
		return api.Relocated{}, ErrRelocating
	}
	defer d.relocating.Unlock()
	if d.opts.Elsewhere == nil {
		return api.Relocated{}, fmt.Errorf("%w: this device knows no other GPU", ErrElsewhere)
	}
	if c.Remote != "" {
		return api.Relocated{}, fmt.Errorf("%w: GPU servers are causewayd's to ask", ErrElsewhere)
	}
	if c.Throttle {
		return api.Relocated{}, fmt.Errorf("%w: programs are held back on their way to another GPU server alone, not to a GPU of this host", ErrElsewhere)
	}
	from := d.place()
	to, err := d.opts.Elsewhere(ctx, from, c)
	if err != nil {
		return api.Relocated{}, err
	}
	begin := time.Now()
	n, err := d.relocate(ctx, from, to)
	if err != nil {
		to.leave()
		d.log.Warn("virtual GPU stays", "at", from.UUID, "instead_of", to.UUID, "error", err)
		return api.Relocated{}, err
	}
	from.leave()
	did := api.Relocated{GPU: to.GPU, UUID: to.UUID, Sessions: n, Nanos: uint64(time.Since(begin))}
	d.log.Info("virtual GPU moved", "from", from.UUID, "to", to.UUID, "sessions", n, "took", time.Since(begin).Round(time.Millisecond))
	return did, nil
}

func (p *Place) leave() {
	if p.Leave != nil {
		p.Leave()
	}
}

func (d *Device) relocate(ctx context.Context, from, to *Place) (int, error) {
	if err := d.mayRelocate(ctx, to); err != nil {
		return 0, err
	}
	d.telling.Lock() // limits do not change while nobody knows whose scheduler holds them
	defer d.telling.Unlock()
	var there *schedule.Membership
	var err error
	if to.Scheduler != nil {
		if there, err = to.Scheduler(d.Limits()); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrElsewhere, err)
		}
	}
	here := d.sit(to, there)
	defer func() {
		d.mu.Lock()
		d.relocation = progress{}
		d.mu.Unlock()
	}()
	n, err := d.moveSessions(ctx, to, there)
	if err == nil {
		here.Close()
		return n, nil
	}
	d.sit(from, here)
	back, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnsLimit)
	defer cancel()
	if _, failed := d.moveSessions(back, from, here); failed != nil {
		err = fmt.Errorf("%w; and not all programs that had moved came back: %w", err, failed)
	}
	there.Close()
	return 0, err
}

// sit has new sessions open at a place, and returns the membership at the one before.
func (d *Device) sit(at *Place, member *schedule.Membership) (was *schedule.Membership) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.countKept(at)
	was, d.at, d.member = d.member, at, member
	return was
}

// mayRelocate finds what would be in the way, as far as it can be known before.
func (d *Device) mayRelocate(ctx context.Context, to *Place) error {
	if d.out.Load() != nil {
		return fmt.Errorf("%w: its memory is being sent to another host: wait for the VM's migration, or end it", ErrElsewhere)
	}
	if to.CheckMemory != nil {
		if err := to.CheckMemory(limit.Memory(d.Limits().Memory)); err != nil {
			return fmt.Errorf("%w: %w", ErrElsewhere, err)
		}
	}
	if err := to.room(ctx, d.budget.Used()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, judgeLimit)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, s := range d.all() {
		wg.Go(func() {
			if err := s.mayMove(ctx, link.Probe{OtherModel: to.OtherModel}); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("%w: session %d, %w", ErrElsewhere, s.id, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// room says whether so much memory is free there. Nobody tells of software GPUs.
func (p *Place) room(ctx context.Context, need uint64) error {
	if p.Machine == nil || need == 0 {
		return nil
	}
	r, err := p.Machine(ctx)
	if err != nil {
		return fmt.Errorf("%w: how GPU %s is cannot be told: %w", ErrElsewhere, p.UUID, err)
	}
	if len(r.Devices) == 0 {
		return fmt.Errorf("%w: GPU %s is not shown", ErrElsewhere, p.UUID)
	}
	if free := r.Devices[0].MemoryFree; free != inventory.Unknown64 && free < need {
		return fmt.Errorf("%w: its programs use %d bytes, and GPU %s has %d free: end something there, or lower what they use", ErrElsewhere, need, p.UUID, free)
	}
	return nil
}

// moveSessions moves those that are not there yet, all at the same time.
func (d *Device) moveSessions(ctx context.Context, to *Place, member *schedule.Membership) (int, error) {
	d.mu.Lock()
	d.relocation = progress{of: len(d.sessions)}
	d.mu.Unlock()
	return d.eachSession(func(s *session) error {
		err := s.relocate(ctx, to, member)
		d.mu.Lock()
		d.relocation.done++
		d.mu.Unlock()
		if err != nil && !errors.Is(err, errState) && !errors.Is(err, errGone) {
			return s.named(err)
		}
		return err
	})
}

// relocate moves one session. It runs on routine; one that is about to become something else is
// looked at again.
func (s *session) relocate(ctx context.Context, to *Place, member *schedule.Membership) error {
	for end := time.Now().Add(settleLimit); ; {
		s.mu.Lock()
		st, at := s.state, s.at
		s.mu.Unlock()
		switch {
		case st == running && at != to:
			return s.relocateRunning(ctx, to, member)
		case st == parked && at != to:
			return s.relocateParked()
		case (st == opening || st == starting || st == parking) && at != nil && at != to:
			if time.Now().After(end) || ctx.Err() != nil {
				return errSettling
			}
			if err := s.aside(ctx, settlePause); err != nil {
				return err
			}
		default: // there is nothing to move: what is suspended comes back there
			return errState
		}
	}
}

// aside has routine do a job that waits, or nothing for a while.
func (s *session) aside(ctx context.Context, pause time.Duration) error {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case job := <-s.jobs:
		job()
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.over:
		return errGone
	}
	return nil
}

func (s *session) relocateRunning(ctx context.Context, to *Place, member *schedule.Membership) error {
	var next *schedule.Session
	if member != nil {
		var err error
		if next, err = member.Add(); err != nil && s.dev.Limits().Cap != 0 {
			return err
		} else if err != nil {
			s.log.Warn("session without a place at the scheduler", "error", err)
		}
	}
	s.mu.Lock()
	if s.res == nil {
		s.mu.Unlock()
		next.Close()
		return errGone
	}
	was, old := s.at, s.res.scheduled
	s.at, s.res.scheduled = to, next
	s.mu.Unlock()
	err := s.rebuild(ctx, true)
	s.mu.Lock()
	if s.res != nil {
		if err == nil {
			s.res.before.add(old)
		} else {
			s.at, s.res.scheduled = was, old
			old = next
		}
	}
	s.mu.Unlock()
	old.Close()
	return err
}

// relocateParked puts a session away that has no pages of its guest, and has it come back on its
// new place.
func (s *session) relocateParked() error {
	kept, err := newStored("", 0)
	if err != nil {
		return err
	}
	n, err := s.store(kept, true)
	if err != nil {
		return err
	}
	s.log.Info("session put away to be moved", "bytes", n)
	s.mu.Lock()
	again := !s.reviving
	s.reviving = true
	s.mu.Unlock()
	if again {
		s.goOn(resumeAgain)
	}
	return nil
}
