package remote

import (
	"context"
	"math"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote/sys"
)

/*
Of a Go process's threads one at most waits for its connections. If that finds bytes of one it goes
on with the goroutine that reads them, and nobody waits for the others until some thread has nothing
to do; and of goroutines that are made runnable together the first has one thread woken, which wakes
the next when it runs. Of four connections that bring a part of a copy each, three stood for as long
as the first was being decrypted (170 of a MiB's 930 us on an H100), and the last of four that were
to answer was woken 130 us late. So where cores are plenty, who takes part in copies sleeps in the
kernel, on a thread of its own, for a while behind the last time that there was something to do.
*/

const (
	awakeFor  = 250 * time.Millisecond // behind the last time
	awakeEach = 5 * time.Millisecond   // is slept at a time: ends and deadlines are seen in between
)

// awakePlaces is how many goroutines of a session sleep in the kernel at most, for each of its
// connections for copies: who reads it, who answers by it, who sends.
const awakePlaces = 3

// AwakePlaces is how many goroutines of a session with so many connections for copies sleep in the
// kernel, on a machine with so many cores. Each holds one of the runtime's places (GOMAXPROCS) for
// up to 10 ms, so a process that has such a session needs as many more.
func AwakePlaces(connections, cores int) int {
	if cores < plentyCores {
		return 0
	}
	return connections * awakePlaces
}

// Awake reads a connection that brings its part of what several bring at a time. One goroutine
// reads.
type Awake struct {
	reader
	came time.Time // last
	none bool      // nothing has come within awakeEach
	look func(fd uintptr) bool
}

// NewAwake is for a connection with a descriptor of the kernel's, on a machine with so many cores.
// Where those are few, and for other connections: nil.
func NewAwake(c net.Conn, cores int) *Awake {
	r, ok := newReader(c, cores)
	if !ok {
		return nil
	}
	a := &Awake{reader: r}
	a.look = a.looks
	return a
}

// Read implements io.Reader, with the connection's deadline, which it may see awakeEach late, and
// with errors as the connection's own Read has.
func (a *Awake) Read(p []byte) (int, error) {
	for {
		n, err := a.read(p, a.look)
		if !a.none {
			return n, err
		}
		a.none = false
	}
}

// looks reports whether there is something, an error or an end included, or the connection is to be
// asked whether it still stands; if not the runtime has the goroutine sleep until there may be.
func (a *Awake) looks(fd uintptr) bool {
	for waited := false; ; waited = true {
		if a.n, a.err = unix.Read(int(fd), a.p); a.err != unix.EAGAIN && a.err != unix.EINTR {
			a.came = time.Now()
			return true
		}
		switch {
		case waited:
			a.n, a.err, a.none = 0, nil, true
			return true
		case time.Since(a.came) > awakeFor:
			return false
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(awakeEach/time.Millisecond))
	}
}

// Alarm is a bell within a process: who waits for it sleeps in the kernel. It is of no effect until
// Use.
type Alarm struct {
	used    atomic.Bool
	rung    atomic.Uint32
	sleeper atomic.Int32 // how many
}

// Use has it be of effect.
func (a *Alarm) Use() { a.used.Store(true) }

// Used reports whether it is.
func (a *Alarm) Used() bool { return a.used.Load() }

// Sleepers is how many wait for it at the moment.
func (a *Alarm) Sleepers() int { return int(a.sleeper.Load()) }

// Ring wakes one of those who wait, if any does, behind what makes its came true.
func (a *Alarm) Ring() { a.wake(1) }

// RingAll wakes all of them: they wait for different things.
func (a *Alarm) RingAll() { a.wake(math.MaxInt32) }

func (a *Alarm) wake(n int32) {
	a.rung.Add(1)
	if a.sleeper.Load() > 0 {
		sys.FutexWakeSome(&a.rung, n)
	}
}

// Await sleeps until came is true, or for as long as is worth while: whoever waits beyond that
// waits for something else than the alarm.
func (a *Alarm) Await(ctx context.Context, came func() bool) {
	if !a.used.Load() {
		return
	}
	for start := time.Now(); ; {
		seen := a.rung.Load()
		if came() || ctx.Err() != nil || time.Since(start) > awakeFor {
			return
		}
		a.sleeper.Add(1)
		sys.FutexWait(&a.rung, seen, awakeEach)
		a.sleeper.Add(-1)
	}
}
