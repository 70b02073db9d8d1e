package schedule

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/schedule/page"
	"causeway/remote/sys"
)

// openSession maps what came with a request. It takes over the files, also when it fails.
func openSession(files []int) (*session, error) {
	if len(files) != 3 {
		sys.CloseAll(files)
		return nil, fmt.Errorf("%w: %d files where grant, usage and bell are due", ErrRequest, len(files))
	}
	x := &session{bell: files[2]}
	err := x.mapPages(files[0], files[1])
	sys.CloseAll(files[:2])
	if err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

func (x *session) mapPages(grant, usage int) (err error) {
	if x.grant, err = sys.MapPage(grant, true); err != nil {
		return err
	}
	if x.g, err = page.NewGrant(x.grant); err != nil {
		return err
	}
	if x.usage, err = sys.MapPage(usage, true); err != nil {
		// page.Usage is made of words that could be written
		return err
	}
	x.u, err = page.NewUsage(x.usage)
	return err
}

// close unmaps.
func (x *session) close() {
	sys.UnmapPage(x.grant)
	sys.UnmapPage(x.usage)
	_ = unix.Close(x.bell)
}

// create makes a session's pages, its grant open, and its bell.
func (x *Session) create() (err error) {
	size := os.Getpagesize()
	if x.files[0], x.grant, err = sys.NewPage("grant", size, 0); err != nil {
		return err
	}
	if x.files[1], x.usage, err = sys.NewPage("usage", size, unix.F_SEAL_SEAL); err != nil {
		return err
	}
	if x.g, err = page.NewGrant(x.grant); err != nil {
		return err
	}
	if x.u, err = page.NewUsage(x.usage); err != nil {
		return err
	}
	x.g.Set(page.Open, 0)
	// The worker gets a descriptor that only reads, of a file that other users cannot open anew.
	if err = unix.Fchmod(x.files[0], 0o600); err != nil {
		return fmt.Errorf("grant page: %w", err)
	}
	if x.grantRO, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", x.files[0]), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("grant page for reading: %w", err)
	}
	if x.files[2], err = sys.NewEvent(); err != nil {
		return fmt.Errorf("bell: %w", err)
	}
	return nil
}

// Files are what the session's worker is to get: the grant, to be mapped for reading, the usage,
// and the bell. They stay the session's.
func (x *Session) Files() (grant, usage, bell int) { return x.grantRO, x.files[1], x.files[2] }

// Use is what the session's worker says of its GPU time, and whether it stands still for want of a
// grant now.
func (x *Session) Use() (busy, waited time.Duration, waiting bool) {
	return time.Duration(x.u.Busy.Load() & (1<<63 - 1)), time.Duration(x.u.Waited.Load() & (1<<63 - 1)), x.u.Waiting.Load() != 0
}

// Close takes the session from the scheduler. Its worker has ended; one that lives goes on
// unhindered. Use is not called any more. A nil session is none.
func (x *Session) Close() {
	if x == nil {
		return
	}
	x.once.Do(func() {
		s := x.of
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sessions, x.id)
		s.sendLocked(&request{Op: opRemove, Session: x.id}, nil)
		x.g.Set(page.Open, 0)
		x.release()
	})
}

func (x *Session) release() {
	sys.UnmapPage(x.grant)
	sys.UnmapPage(x.usage)
	for _, fd := range append(x.files[:], x.grantRO) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
