package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"causeway/host/device/sealed"
	"causeway/host/worker/link"
)

/*
A session that is suspended has no worker, and nothing on the GPU: its worker was parked, wrote the
session into memory of this process, or a file, as for a VM that is saved, and ended. The guest
notices nothing: it renews its loans, and rings the doorbell when its program wants something.
Then, or when somebody asks, another worker makes the session of what was written, and goes on as
after any park.
*/

// errWork says that a session is no candidate for suspension: its program has just given it work.
var errWork = errors.New("its program works")

// resumeAgain is when a session whose GPU has no room looks again, first and at most.
const (
	resumeAgain = 250 * time.Millisecond
	resumeLate  = 4 * time.Second
)

// Suspended is what Suspend and Resume did.
type Suspended struct {
	Sessions int    `json:"sessions"`
	Bytes    uint64 `json:"bytes"` // that hold them; Resume: that held them
	// Folder is where; empty: in the host's memory.
	Folder string `json:"folder,omitempty"`
}

// Suspension says which sessions are meant, and where they are to be kept.
type Suspension struct {
	Session uint64 `json:"session,omitempty"` // its number; 0: all
	// To is a folder for files that hold them; empty: that of the device's options, or the host's
	// memory. Resume ignores it.
	To string `json:"to,omitempty"`
	// Away: for others' sake, also if the program works. What it held counts for the limit, and it
	// comes back by itself when there is room.
	Away bool `json:"away,omitempty"`
}

// storage is how a session is put away.
type storage struct {
	folder string
	away   bool // for others' sake, also if its program has submitted more
}

// Suspend ends the workers of all running sessions until their programs go on. Those that work
// meanwhile stay, and are named in the error.
func (d *Device) Suspend(ctx context.Context, what Suspension) (Suspended, error) {
	to := storage{folder: cmp.Or(what.To, d.opts.SuspendTo), away: what.Away}
	did, err := d.eachStored(ctx, what.Session, func(s *session) (uint64, error) { return s.suspend(to) })
	did.Folder = to.folder
	return did, err
}

// Resume brings all suspended sessions back.
func (d *Device) Resume(ctx context.Context, what Suspension) (Suspended, error) {
	return d.eachStored(ctx, what.Session, (*session).resume)
}

// ErrNoSession says that there is no session of a number.
var ErrNoSession = errors.New("no such session")

// eachStored is eachSession for what tells how many bytes hold a session.
func (d *Device) eachStored(ctx context.Context, only uint64, f func(*session) (uint64, error)) (Suspended, error) {
	var bytes atomic.Uint64
	if only != 0 && !slices.ContainsFunc(d.all(), func(s *session) bool { return s.id == only }) {
		return Suspended{}, fmt.Errorf("%w: %d", ErrNoSession, only)
	}
	n, err := d.eachSession(func(s *session) error {
		if only != 0 && s.id != only {
			return errState
		}
		if err := ctx.Err(); err != nil {
			return s.named(err)
		}
		n, err := f(s)
		if err != nil {
			return s.named(err)
		}
		bytes.Add(n)
		return nil
	})
	return Suspended{Sessions: n, Bytes: bytes.Load()}, err
}

// named is an error that says whose it is.
func (s *session) named(err error) error {
	return fmt.Errorf("session %d, %s: %w", s.id, s.peer(), err)
}

// suspend runs on routine. With an error the session goes on.
func (s *session) suspend(to storage) (uint64, error) {
	if err := s.fixed(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	if s.state == suspended && to.folder != "" && s.stored.folder != to.folder {
		was := s.stored
		s.mu.Unlock()
		return s.restow(was, to.folder)
	}
	if s.state != running {
		s.mu.Unlock()
		return 0, errState
	}
	held := s.heldLocked()
	s.mu.Unlock()
	kept, err := newStored(to.folder, held) // before anything stops
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	if s.state != running {
		s.mu.Unlock()
		kept.close()
		return 0, errState
	}
	s.state, s.rang = parking, false
	s.mu.Unlock()
	begin := time.Now()
	if err := s.park(parkLimit, parkLimit, silence-parkLimit); err != nil {
		kept.close()
		return 0, err
	}
	kept.away = to.away
	n, err := s.store(kept, to.away)
	if err != nil {
		s.mu.Lock()
		s.stays = time.Now().Add(staysFor)
		s.mu.Unlock()
		s.sendRegions() // or a loan that comes
		return 0, err
	}
	s.log.Info("session suspended", "bytes", n, "took", time.Since(begin).Round(time.Millisecond))
	s.mu.Lock()
	again := s.rang && !s.reviving
	s.reviving = s.reviving || again
	s.mu.Unlock()
	if again {
		s.goOn(resumeAgain)
	}
	return n, nil
}

// restow has a session that is suspended already lie in a folder. With an error it lies where it
// was.
func (s *session) restow(was *stored, folder string) (uint64, error) {
	kept, err := newStored(folder, was.size)
	if err != nil {
		return 0, err
	}
	from := was.read()
	err = kept.fill(func(w io.Writer) error {
		_, err := io.Copy(w, from)
		return err
	})
	err = errors.Join(err, from.Close())
	s.mu.Lock()
	if err == nil && s.stored != was { // its program has ended
		err = errGone
	}
	if err == nil {
		kept.gpu, kept.away = was.gpu, was.away
		s.stored = kept
	}
	s.mu.Unlock()
	if err != nil {
		kept.close()
		return 0, err
	}
	was.close()
	s.log.Info("a suspended session lies in a folder now", "folder", folder, "bytes", kept.size)
	return kept.size, nil
}

// heldLocked is what the session holds of the GPU's memory and the host's, which is the most that
// it takes to store.
func (s *session) heldLocked() uint64 {
	if s.res == nil {
		return 0
	}
	gpu, _ := s.dev.budget.Held(s.res.slot)
	host, _ := s.dev.host.Held(s.res.host)
	return gpu + host
}

// store writes a parked session into memory, or a file, which it takes over, and ends its worker.
// working: also if its program has submitted more.
func (s *session) store(kept *stored, working bool) (uint64, error) {
	s.mu.Lock()
	p, st := s.proc, s.state
	if s.res != nil {
		kept.gpu, _ = s.dev.budget.Held(s.res.slot)
	}
	s.mu.Unlock()
	if st != parked || p == nil {
		kept.close()
		return 0, errGone
	}
	waiting := false
	err := kept.fill(func(w io.Writer) (err error) {
		_, waiting, err = s.export(w, p, link.Export{Memory: passed(kept.memory)})
		return err
	})
	if err == nil && waiting && !working {
		err = errWork
	}
	s.mu.Lock()
	if err == nil && s.state != parked {
		err = errGone
	}
	if err != nil {
		s.mu.Unlock()
		kept.close()
		return 0, err
	}
	s.state, s.stored, s.proc = suspended, kept, nil
	s.rang = s.rang || waiting // nobody rings for what was there already
	s.mu.Unlock()
	if kept.away {
		s.dev.away(kept, true)
		s.dev.swapped(kept, true)
	}
	p.Kill()
	s.yield(p)
	return kept.size, nil
}

// resume runs on routine: the session is parked then, and goes on when all its pages are lent.
func (s *session) resume() (uint64, error) {
	s.mu.Lock()
	kept, st, bell := s.stored, s.state, s.bell
	s.mu.Unlock()
	if st != suspended {
		return 0, errState
	}
	if kept.away {
		s.dev.away(kept, false)
	}
	err := s.adopt(kept.stream())
	s.mu.Lock()
	p := s.proc
	if err == nil && s.state != suspended {
		err = errGone
	}
	if err != nil {
		s.proc = nil
	} else {
		s.state, s.stored = parked, nil
		for _, r := range s.regions {
			r.changed = true
		}
	}
	if bell != s.bell {
		bell.Close() // adopt made another
	}
	s.mu.Unlock()
	if err != nil {
		if p != nil {
			p.Kill()
		}
		s.yield(p)
		if kept.away {
			s.dev.away(kept, true)
		}
		if errors.Is(err, sealed.ErrAltered) { // nobody can bring it back
			s.fail(err)
		}
		return 0, err
	}
	s.dev.dropNeed(s)
	if kept.away {
		s.dev.swapped(kept, false)
	}
	s.sendRegions() // the program goes on while the host gets its memory back
	kept.close()
	return kept.size, nil
}

// goOn brings a suspended session back for its program, as often as it takes: the GPU may have no
// room for it now.
func (s *session) goOn(again time.Duration) {
	s.do(func() {
		if !s.mayComeBack() {
			return // but when there is room
		}
		_, err := s.resume()
		if err != nil && !errors.Is(err, errState) && !errors.Is(err, errGone) && !errors.Is(err, sealed.ErrAltered) {
			s.log.Warn("session is not resumed yet: its program waits", "error", err, "again_in", again)
			time.AfterFunc(again, func() { s.goOn(min(2*again, resumeLate)) })
			return
		}
		s.mu.Lock()
		s.reviving = false
		s.mu.Unlock()
		if err == nil {
			s.log.Info("session resumed")
		}
	})
}
