package resume

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeWay is a connection of a test, which says what was done with it.
type fakeWay struct {
	net.Conn
	mu       sync.Mutex
	sent     []byte
	fail     error // of what is written
	reads    chan func(p []byte) (int, error)
	ended    bool // an end of file is the other end's word
	aborts   int
	closes   int
	deadline time.Time // of reads
}

func newWay() *fakeWay { return &fakeWay{reads: make(chan func([]byte) (int, error), 8)} }

func (w *fakeWay) WriteAll(list [][]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, b := range list {
		w.sent = append(w.sent, b...)
	}
	return w.fail
}

func (w *fakeWay) Read(p []byte) (int, error) {
	f, ok := <-w.reads
	if !ok {
		return 0, net.ErrClosed
	}
	return f(p)
}

// fails fails a read.
func (w *fakeWay) fails(err error) { w.reads <- func([]byte) (int, error) { return 0, err } }

func (w *fakeWay) SetReadDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deadline = t
	return nil
}

func (w *fakeWay) SetDeadline(t time.Time) error    { return w.SetReadDeadline(t) }
func (w *fakeWay) SetWriteDeadline(time.Time) error { return nil }
func (w *fakeWay) Ended() bool                      { return w.ended }

func (w *fakeWay) Abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.aborts++
}

func (w *fakeWay) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closes++
	return nil
}

// counts are how often it was aborted and closed.
func (w *fakeWay) counts() [2]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return [2]int{w.aborts, w.closes}
}

// poked reports whether somebody was told to look, and has it be told no more.
func poked(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// away runs something, and reports whether it has ended when nobody has anything to do any more.
// Within synctest.
func away(f func()) (ended func() bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// TestWritersWait: who writes waits where the window is full, for a connection that is far behind
// and for a budget that has nothing, and not for anything else; within a frame only for a
// connection.
func TestWritersWait(t *testing.T) {
	const n = 1000
	full := func(c *Conn) { c.kept.end = c.window }
	far := func(c *Conn) { c.up, c.kept.end = newWay(), ahead-n+1 }
	for name, x := range map[string]struct {
		set   func(c *Conn)
		kept  int // of what is written; the rest waits
		wake  func(c *Conn)
		after int
	}{
		"just room":               {func(c *Conn) { c.kept.end = c.window - n }, n, nil, 0},
		"a byte too many":         {func(c *Conn) { c.kept.end = c.window - n + 1 }, 0, func(c *Conn) { c.kept.start++ }, n},
		"still full":              {full, 0, func(c *Conn) { c.kept.start = n - 1 }, 0},
		"within a frame":          {func(c *Conn) { full(c); c.wrote.left = 2 * n }, n, nil, 0},
		"a frame ends":            {func(c *Conn) { full(c); c.wrote.left = 400 }, 400, func(c *Conn) { c.kept.start = n }, n},
		"a byte of a frame":       {func(c *Conn) { full(c); c.wrote.left = 1 }, 1, func(c *Conn) { c.kept.start = n }, n},
		"held":                    {func(c *Conn) { full(c); c.hold.on = true }, n, nil, 0},
		"is held":                 {full, 0, func(c *Conn) { c.hold.on = true }, n},
		"a connection just ahead": {func(c *Conn) { c.up, c.kept.end = newWay(), ahead-n }, n, nil, 0},
		"far behind":              {far, 0, func(c *Conn) { c.sent = ahead/2 + 1 }, n},
		"not worth waking":        {far, 0, func(c *Conn) { c.sent = ahead / 2 }, 0},
		"far within a frame":      {func(c *Conn) { far(c); c.wrote.left = 2 * n }, 0, func(c *Conn) { c.sent = ahead/2 + 1 }, n},
		"a connection is lost":    {far, 0, func(c *Conn) { c.up = nil }, n},
		"it takes nothing":        {func(c *Conn) { far(c); c.mute = c.up }, n, nil, 0},
		"no budget":               {func(c *Conn) { c.kept.budget = &budget{limit: keptChunk - 1} }, 0, func(c *Conn) { c.kept.budget = &budget{limit: keptChunk}; c.kept.refused = time.Time{} }, n},
		"no budget in a frame":    {func(c *Conn) { c.kept.budget = &budget{limit: keptChunk - 1}; c.wrote.left = 2 * n }, n, nil, 0},
		"it ends":                 {full, 0, func(c *Conn) { c.err = ErrLost }, -1},
		"it has ended":            {func(c *Conn) { c.err = ErrLost }, -1, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := bareConn(digest{}, minute)
				x.set(c)
				begin := c.kept.end
				var wrote int
				var err error
				ended := away(func() { wrote, err = c.Write(make([]byte, n)) })
				check := func(want int) {
					t.Helper()
					switch is := ended(); {
					case want < 0:
						if !is || wrote != 0 || !errors.Is(err, ErrLost) {
							t.Errorf("%d bytes are written, %v: %v", wrote, is, err)
						}
					case is != (want == n) || is && (wrote != n || err != nil) || c.kept.end != begin+uint64(want):
						t.Errorf("%d bytes are kept, it has ended: %v, with %d, %v; want %d", c.kept.end-begin, is, wrote, err, want)
					}
				}
				if check(x.kept); x.wake != nil {
					c.mu.Lock()
					x.wake(c)
					c.changed.Broadcast()
					c.mu.Unlock()
					check(x.after)
				}
				c.end(ErrLost)
				ended()
			})
		})
	}
}

// TestWhoSends: less than a copy is sent by who writes it, at once; a copy, and whatever lies
// behind one, by the routine, which is told.
func TestWhoSends(t *testing.T) {
	const n = 1000
	for _, kept := range []uint64{0, bulk - n - 1, bulk - n, bulk} {
		c, up := bareConn(digest{}, minute), newWay()
		c.up = up
		c.kept.grow(nil, 0)
		c.kept.added(c.kept.grow(nil, int(kept)), true)
		if _, err := c.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		want := 0
		if kept+n < bulk {
			want = int(kept) + n
		}
		if told := poked(c.due); len(up.sent) != want || told != (want == 0) {
			t.Errorf("behind %d bytes: %d are sent, want %d; the routine is told: %v", kept, len(up.sent), want, told)
		}
		if c.sending || want > 0 && c.kept.pin != noPin {
			t.Error("who sent has not left")
		}
	}
}

// TestBacklog: what is being encrypted and written is not sent yet, or who looks for a branch that
// has nothing to do finds the one that does most.
func TestBacklog(t *testing.T) {
	const n = 1000
	c, up := bareConn(digest{}, minute), newWay()
	c.up = up
	c.kept.added(c.kept.grow(nil, n), true)
	up.mu.Lock() // it takes nothing
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.mu.Lock()
		c.sendLocked(n)
		c.mu.Unlock()
	}()
	for sent := uint64(0); sent < n; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		sent = c.sent
		c.mu.Unlock()
	}
	if left := c.Backlog(); left != n {
		t.Errorf("%d bytes of %d are to be sent", left, n)
	}
	up.mu.Unlock()
	if <-done; c.Backlog() != 0 {
		t.Errorf("%d bytes are to be sent, of none", c.Backlog())
	}
}

// TestReadersHear: what comes of a connection, and how it ends, is told apart: its end by the
// other's word, its loss, a deadline, a hold, and bytes of one that is no more the stream's.
func TestReadersHear(t *testing.T) {
	timeout := &net.OpError{Op: "read", Err: timeoutError{}}
	for name, x := range map[string]struct {
		do   func(c *Conn, up *fakeWay)
		want error // nil: it waits for another connection
		lost bool
	}{
		"its word":                       {func(_ *Conn, up *fakeWay) { up.ended = true; up.fails(io.EOF) }, io.EOF, true},
		"its end":                        {func(_ *Conn, up *fakeWay) { up.fails(io.EOF) }, nil, true},
		"another error of one that ends": {func(_ *Conn, up *fakeWay) { up.ended = true; up.fails(io.ErrUnexpectedEOF) }, nil, true},
		"its deadline":                   {func(c *Conn, up *fakeWay) { c.until = time.Now(); up.fails(timeout) }, os.ErrDeadlineExceeded, false},
		"a deadline that is to come":     {func(c *Conn, up *fakeWay) { c.until = time.Now().Add(1); up.fails(timeout) }, nil, true},
		"a deadline that is no more":     {func(_ *Conn, up *fakeWay) { up.fails(timeout) }, nil, true},
		"another error at its deadline":  {func(c *Conn, up *fakeWay) { c.until = time.Now(); up.fails(io.ErrClosedPipe) }, nil, true},
		"a hold": {func(c *Conn, up *fakeWay) {
			up.reads <- func([]byte) (int, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.hold.on = true
				return 0, timeout
			}
		}, ErrHeld, false},
		"bytes of one that is lost": {func(c *Conn, up *fakeWay) {
			up.reads <- func(p []byte) (int, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.loseLocked(ErrLost)
				return copy(p, make([]byte, 100)), nil
			}
		}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, up := bareConn(digest{}, minute), newWay()
				c.up = up
				x.do(c, up)
				var n int
				var err error
				ended := away(func() { n, err = c.Read(make([]byte, 100)) })
				if is := ended(); is != (x.want != nil) || n != 0 || is && !errors.Is(err, x.want) {
					t.Errorf("it has ended: %v, with %d bytes, %v", is, n, err)
				}
				c.mu.Lock()
				if (c.up == nil) != x.lost || c.got != 0 {
					t.Errorf("the connection is %v; %d bytes came", c.up, c.got)
				}
				c.mu.Unlock()
				if n := up.counts(); name == "bytes of one that is lost" && n != [2]int{} {
					t.Errorf("what is no more the stream's is ended again: %v", n)
				}
				c.end(ErrLost)
				if !ended() {
					t.Error("it waits still")
				}
			})
		})
	}
}

// timeoutError is a deadline's.
type timeoutError struct{}

func (timeoutError) Error() string   { return "i/o timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
