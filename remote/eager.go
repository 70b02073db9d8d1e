package remote

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

// Eager reads a connection on which the next bytes come soon behind the last: it looks for them for
// a moment before it sleeps, as the consumer of a ring does, and learns as that does how long is
// worth while. What waking a thread takes is then spared where an answer is a round trip away. One
// goroutine reads.
type Eager struct {
	reader
	patience
	slept time.Time // since when the Read under way sleeps; zero: it does not
	look  func(fd uintptr) bool
}

// NewEager is for a connection with a descriptor of the kernel's, on a machine with so many cores.
// Where those are few whoever is waited for needs the one that looking takes, and there is none:
// nil, as for other connections.
func NewEager(c net.Conn, cores int) *Eager {
	r, ok := newReader(c, cores)
	if !ok {
		return nil
	}
	e := &Eager{reader: r, patience: patience{spin: spinFirst}}
	e.look = e.looks
	return e
}

// Read implements io.Reader, with the connection's deadline, and with errors as its own Read has.
func (e *Eager) Read(p []byte) (int, error) {
	e.slept = time.Time{}
	return e.read(p, e.look)
}

// looks reports whether there is something, an error or an end included; if not the runtime has the
// goroutine sleep until there may be.
func (e *Eager) looks(fd uintptr) bool {
	if !e.slept.IsZero() {
		e.patience.slept(time.Since(e.slept))
	}
	var start time.Time
	for {
		if e.n, e.err = unix.Read(int(fd), e.p); e.err != unix.EAGAIN && e.err != unix.EINTR {
			return true
		}
		now := time.Now()
		switch {
		case !e.slept.IsZero(): // woken for nothing
			e.slept = now
			return false
		case start.IsZero():
			start = now
		case now.Sub(start) >= e.Patience():
			e.slept = now
			return false
		}
		for range pollPauses {
			sys.Pause()
		}
	}
}
