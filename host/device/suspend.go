package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

/*
A session that is suspended has no worker, and nothing on the GPU: its worker was parked, wrote the session into memory of this process, as for a VM
that is saved, and ended. The guest notices nothing: it renews its leases, and rings the doorbell when its program wants something. Then, or when somebody
asks, another worker makes the session of what was written, and goes on as after any park.
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
	Bytes    uint64 `json:"bytes"` // of host memory that hold them; Resume: that held them
}

// Suspend ends the workers of all running sessions until their programs go on. Those that work meanwhile stay, and are named in the error.
func (d *Device) Suspend(ctx context.Context) (Suspended, error) {
	return d.eachStored(ctx, (*session).suspend)
}

// Resume brings all suspended sessions back.
func (d *Device) Resume(ctx context.Context) (Suspended, error) {
	return d.eachStored(ctx, (*session).resume)
}

// eachStored is eachSession for what tells how many bytes hold a session.
func (d *Device) eachStored(ctx context.Context, f func(*session) (uint64, error)) (Suspended, error) {
	var bytes atomic.Uint64
	n, err := d.eachSession(func(s *session) error {
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
	return Suspended{n, bytes.Load()}, err
}

// named is an error that says whose it is.
func (s *session) named(err error) error {
	return fmt.Errorf("session %d, %s: %w", s.id, s.peer(), err)
}

// suspend runs on routine. With an error the session goes on.
func (s *session) suspend() (uint64, error) {
	s.mu.Lock()
	if s.state != running {
		s.mu.Unlock()
		return 0, errState
	}
	s.state, s.rang = parking, false
	s.mu.Unlock()
	begin := time.Now()
	if err := s.park(parkLimit, parkLimit, parkLimit); err != nil {
		return 0, err
	}
	n, err := s.store(false)
	if err != nil {
		s.sendRegions() // or a lease that comes
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

// store writes a parked session into memory and ends its worker. working: also if its program has submitted more.
func (s *session) store(working bool) (uint64, error) {
	s.mu.Lock()
	p, st := s.proc, s.state
	s.mu.Unlock()
	if st != parked || p == nil {
		return 0, errGone
	}
	fd, err := unix.MemfdCreate("causeway-session", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("memory for the session: %w", err)
	}
	f := os.NewFile(uintptr(fd), "session")
	n, waiting, err := s.export(f, p, false)
	if err == nil && waiting && !working {
		err = errWork
	}
	s.mu.Lock()
	if err == nil && s.state != parked {
		err = errGone
	}
	if err != nil {
		s.mu.Unlock()
		return 0, errors.Join(err, f.Close())
	}
	s.state, s.stored, s.storedBytes, s.proc = suspended, f, uint64(n), nil
	s.mu.Unlock()
	p.Kill()
	s.yield(p)
	return uint64(n), nil
}

// resume runs on routine: the session is parked then, and goes on when all its pages are lent.
func (s *session) resume() (uint64, error) {
	s.mu.Lock()
	f, size, st, bell := s.stored, s.storedBytes, s.state, s.bell
	s.mu.Unlock()
	if st != suspended {
		return 0, errState
	}
	err := s.adopt(whole(f))
	s.mu.Lock()
	p := s.proc
	if err == nil && s.state != suspended {
		err = errGone
	}
	if err != nil {
		s.proc = nil
	} else {
		s.state, s.stored, s.storedBytes = parked, nil, 0
		for _, r := range s.regions {
			r.changed = true
		}
	}
	if bell >= 0 && bell != s.bell {
		_ = unix.Close(bell) // adopt made another
	}
	s.mu.Unlock()
	if err != nil {
		if p != nil {
			p.Kill()
		}
		s.yield(p)
		return 0, err
	}
	_ = f.Close()
	s.sendRegions()
	return size, nil
}

// whole reads a stored session from its beginning.
func whole(stored *os.File) io.Reader { return io.NewSectionReader(stored, 0, math.MaxInt64) }

// goOn brings a suspended session back for its program, as often as it takes: the GPU may have no room for it now.
func (s *session) goOn(again time.Duration) {
	s.do(func() {
		_, err := s.resume()
		if err != nil && !errors.Is(err, errState) && !errors.Is(err, errGone) {
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
