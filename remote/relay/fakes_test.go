package relay

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
)

// pausing is a stream of a test, which can stand still: what came stays in it meanwhile.
type pausing struct {
	mu      sync.Mutex
	changed *sync.Cond
	in, out []byte
	held    bool
	closed  bool
	did     []byte // h: Hold, r: Release, c: Close
	fail    error  // of Hold
	writes  error
	full    bool      // nobody reads it: who writes waits until it is closed
	stuck   bool      // somebody does
	at      time.Time // deadline
	endless func()    // called before the deadline is taken away
}

func newPausing() *pausing {
	p := &pausing{}
	p.changed = sync.NewCond(&p.mu)
	return p
}

func (p *pausing) say(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in = append(p.in, b...)
	p.changed.Broadcast()
}

func (p *pausing) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.in) == 0 && !p.held && !p.closed {
		p.changed.Wait()
	}
	switch {
	case p.closed:
		return 0, io.EOF
	case p.held:
		return 0, resume.ErrHeld
	}
	n := copy(b, p.in)
	p.in = p.in[n:]
	p.changed.Broadcast()
	return n, nil
}

func (p *pausing) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = p.full
	p.changed.Broadcast()
	for p.full {
		if p.closed {
			return 0, net.ErrClosed
		}
		p.changed.Wait()
	}
	p.out = append(p.out, b...)
	p.changed.Broadcast()
	return len(b), p.writes
}

func (p *pausing) do(what byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, what)
	p.held, p.closed = what == 'h' || p.held && what != 'r', p.closed || what == 'c'
	p.changed.Broadcast()
}

func (p *pausing) Hold() error  { p.do('h'); return p.fail }
func (p *pausing) Release()     { p.do('r') }
func (p *pausing) Close() error { p.do('c'); return nil }
func (p *pausing) SetReadDeadline(at time.Time) error {
	if p.endless != nil && at.IsZero() {
		p.endless()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = at
	return nil
}

// acts is what was done with it so far.
func (p *pausing) acts() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.did)
}

// sent is what was written to it so far.
func (p *pausing) sent() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// await waits until something holds of the stream.
func (p *pausing) await(f func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !f() {
		p.changed.Wait()
	}
}

// fakeFork is a branch of a test.
type fakeFork struct {
	*pausing
	backlog atomic.Uint64
	ready   func(ctx context.Context) error
	fills   error
}

func (f *fakeFork) Backlog() uint64                 { return f.backlog.Load() }
func (f *fakeFork) Ready(ctx context.Context) error { return f.ready(ctx) }
func (f *fakeFork) Fill(h frame.Header, fill func(p []byte, at int) error) error {
	p := make([]byte, h.Len)
	if err := fill(p, 0); err != nil {
		return err
	}
	_, _ = f.Write(append(h.Append(nil), p...))
	return f.fills
}

// fakeGuest is a guest process of a test, all of it.
type fakeGuest struct {
	remote.Ring
	mu      sync.Mutex
	changed *sync.Cond
	state   uint32
	words   map[uint32]uint32
	records []remote.Incoming
	mem     []byte // of region 1
	watch   remote.Watcher
	rung    chan struct{}
	done    chan struct{}
	err     error
	broken  error // of its ring
	mute    error // of its bell
}

func newGuest() *fakeGuest {
	g := &fakeGuest{words: map[uint32]uint32{}, mem: make([]byte, 1<<20), rung: make(chan struct{}, 1), done: make(chan struct{})}
	g.changed = sync.NewCond(&g.mu)
	return g
}

func (g *fakeGuest) Next(in *remote.Incoming) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.records) == 0 {
		return false, g.broken
	}
	*in = g.records[0]
	return true, nil
}

func (g *fakeGuest) Advance() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records = g.records[1:]
	return false
}

func (g *fakeGuest) Poll(int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.records) > 0
}

func (g *fakeGuest) SetState(s uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = s
}

// What a server may say besides, which the tests do not look at.
func (g *fakeGuest) SetSticky(uint32)            {}
func (g *fakeGuest) SetConsole(uint32)           {}
func (g *fakeGuest) Reply(*remote.Outgoing) bool { return false }

func (g *fakeGuest) Complete(word, value uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.words[word] = value
	g.changed.Broadcast()
}

func (g *fakeGuest) awaitWord(word, value uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.words[word] != value {
		g.changed.Wait()
	}
}

// word and lastState are what the guest sees.
func (g *fakeGuest) word(n uint32) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.words[n]
}

func (g *fakeGuest) lastState() uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

func (g *fakeGuest) submit(b []byte) {
	g.mu.Lock()
	g.records = append(g.records, remote.Incoming{Bytes: b, Flags: remote.RecordReply})
	g.mu.Unlock()
	g.bell().Ring()
}

type guestBell struct{ g *fakeGuest }

func (g *fakeGuest) bell() guestBell { return guestBell{g} }
func (b guestBell) Wait(ctx context.Context) error {
	if b.g.mute != nil {
		return b.g.mute
	}
	select {
	case <-b.g.rung:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (b guestBell) Ring() {
	select {
	case b.g.rung <- struct{}{}:
	default:
	}
}
func (guestBell) Wake(uint32) {}

type guestMem struct{ g *fakeGuest }

func (guestMem) Await(context.Context, uint32) (remote.Declared, error) {
	return remote.Declared{VA: 0x1000, Size: remote.Region0Size}, nil
}
func (m guestMem) ReadAt(_ uint32, p []byte, off uint64) error {
	return m.at(p, off, func(mem []byte) { copy(p, mem) })
}
func (m guestMem) WriteAt(_ uint32, p []byte, off uint64) error {
	return m.at(p, off, func(mem []byte) { copy(mem, p) })
}
func (m guestMem) at(p []byte, off uint64, do func(mem []byte)) error {
	if size := uint64(len(m.g.mem)); off > size || uint64(len(p)) > size-off {
		return remote.ErrOutOfBounds
	}
	do(m.g.mem[off:])
	return nil
}
func (m guestMem) Watch(w remote.Watcher) { m.g.watch = w }

// fakeCarrier is the way to a fakeGuest.
type fakeCarrier struct {
	remote.Carrier
	g *fakeGuest
}

func (c fakeCarrier) Ring() remote.Ring          { return c.g }
func (c fakeCarrier) Memory() remote.GuestMemory { return guestMem{c.g} }
func (c fakeCarrier) Doorbell() remote.Doorbell  { return c.g.bell() }
func (c fakeCarrier) Done() <-chan struct{}      { return c.g.done }
func (c fakeCarrier) Err() error                 { return c.g.err }

var quietLog = slog.New(slog.DiscardHandler)

// newRun is a session between a guest and a stream, with region 1 of the guest, that runs. ended
// says how it does.
func newRun(ctx context.Context) (s *Session, g *fakeGuest, conn *pausing, ended chan error) {
	g, conn, ended = newGuest(), newPausing(), make(chan error, 1)
	s = newSession(fakeCarrier{g: g}, conn, "gpu1", quietLog)
	s.regions.sizes[1] = uint64(len(g.mem))
	go func() { ended <- s.Run(ctx) }()
	return s, g, conn, ended
}

var _ Lasting = (*pausing)(nil)
var _ frame.Branch = (*fakeFork)(nil)
