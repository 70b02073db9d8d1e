package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
	"causeway/remote/sys"
)

/*
A stream may have branches (frame.Branching), each over connections of its own. They are begun when
the server first moves as much as is worth one, so that a program which copies little has one
connection, and whichever is there answers the next READ of that size, with a goroutine of its own
for each: guest memory is copied, and TLS done, by as many cores as there are branches. Calls and
small READs stay on the session's first stream. WRITEs of branches are done as they come; what may
be about them stands behind a BEHIND frame on the first stream, which waits for them. A branch
without a connection begins nothing: while none has one, the first stream answers all.
*/

// wide is a session's branches.
type wide struct {
	want     int           // how many there may be
	reads    chan read     // which any of them answers
	rung     remote.Alarm  // and their alarm
	patience time.Duration // behindLimit

	mu    sync.Mutex
	asked bool
	list  []*branch
	start func(*branch) // has a branch's goroutines run; nil: the session stands still
}

// branch is one of them.
type branch struct {
	lane
	up    frame.Branch
	wrote atomic.Uint32 // WRITEs done
	moved chan struct{} // one place: wrote has
}

func newBranch(up frame.Branch) *branch {
	b := &branch{lane: newLane(up), up: up, moved: make(chan struct{}, 1)}
	b.in = bufio.NewReaderSize(&b.input, streamBuffer)
	return b
}

// widen begins the branches, the first time.
func (s *Session) widen() {
	w := &s.wide
	conn, ok := s.out.conn.(frame.Branching)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked || !ok || w.want == 0 {
		return
	}
	list, err := conn.Branch(w.want)
	if w.asked = !errors.Is(err, resume.ErrHeld) || len(list) > 0; err != nil && w.asked {
		s.log.Warn("copies have fewer connections to the GPU server", "server", s.server, "have", len(list), "wanted", w.want, "error", err)
	}
	for _, up := range list {
		b := newBranch(up)
		w.list = append(w.list, b)
		if w.start != nil {
			w.start(b)
		}
	}
}

// passWide has the branches passed on as long as the session is, those that come later too.
func (s *Session) passWide(ctx context.Context, wg *sync.WaitGroup, cancel context.CancelCauseFunc) {
	w := &s.wide
	w.mu.Lock()
	defer w.mu.Unlock()
	w.start = func(b *branch) {
		wg.Go(func() {
			if err := s.receiveBranch(b); errors.Is(err, remote.ErrProtocol) {
				cancel(lost(err)) // any other end is the session's, which its first stream tells
			}
		})
		wg.Go(func() {
			if err := s.serveBranch(ctx, b); errors.Is(err, remote.ErrProtocol) {
				cancel(err)
			}
		})
	}
	for _, b := range w.list {
		w.start(b)
	}
}

// pause has no branch start until passWide.
func (w *wide) pause() {
	w.mu.Lock()
	w.start = nil
	w.mu.Unlock()
}

// A branch that has more to send leaves READs to others that have not, as long as those are enough,
// for so many naps at most.
const (
	leaves = 10
	nap    = 50 * time.Microsecond
)

// asleep sleeps in the kernel for a while, where that is worth while, until a READ waits.
func (w *wide) asleep(ctx context.Context, b *branch) {
	if !frame.Awake(b.up) {
		return
	}
	w.rung.Use()
	for i := 0; i < leaves && b.up.Backlog() > 0 && len(w.reads) <= w.rung.Sleepers(); i++ {
		sys.Nap(nap)
	}
	w.rung.Await(ctx, func() bool { return len(w.reads) > 0 })
}

// serveBranch answers READs while the branch is connected.
func (s *Session) serveBranch(ctx context.Context, b *branch) error {
	b.sleep = func(ctx context.Context) { s.wide.asleep(ctx, b) }
	for first := true; ; first = false {
		if err := b.up.Ready(ctx); err != nil {
			if first && ctx.Err() == nil {
				s.log.Warn("a connection for copies is not made: they go by those that there are", "server", s.server, "error", err)
			}
			return err
		}
		if err := s.serve(ctx, &b.lane, s.wide.reads, b.away); !errors.Is(err, errAway) {
			return err
		}
		select {
		case s.queue(b.answering.Extent) <- *b.answering: // which another begins
			s.wide.rung.Ring()
			b.answering = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errAway says that a branch has lost its connection before it began a READ that it took.
var errAway = errors.New("the branch has no connection")

func (b *branch) away() bool { return b.up.Backlog() == frame.Away }

// connected reports whether a branch is.
func (w *wide) connected() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.list, func(b *branch) bool { return !b.away() })
}

// queue is where a READ waits for its answer.
func (s *Session) queue(e frame.Extent) chan read {
	if e.Size < frame.Bulk {
		return s.reads
	}
	s.widen()
	if s.wide.connected() {
		return s.wide.reads
	}
	return s.reads
}

// receiveBranch follows WRITEs to the branch's end.
func (s *Session) receiveBranch(b *branch) error {
	for {
		h, err := frame.ReadHeader(b.in)
		if err != nil {
			return err
		}
		b.undone = h.Append(b.undone[:0])
		if h.Kind != frame.Write || h.Flags != 0 {
			return remote.Violation("frame of type %d with flags %#x beside the first connection", h.Kind, h.Flags)
		}
		if err := s.writeFrame(&b.lane, h); err != nil {
			return err
		}
		b.undone = b.undone[:0]
		b.wrote.Add(1)
		select {
		case b.moved <- struct{}{}:
		default:
		}
	}
}

// How long a BEHIND waits for WRITEs of a branch that is connected and brings nothing, in so many
// looks; and for how many of them at most: more cannot be on their way, or wait to be done.
const (
	behindLimit = 30 * time.Second
	behindLooks = 10
	mostBehind  = (resume.BranchWindow + MostUnread) / (frame.HeaderSize + frame.ExtentSize)
)

// behindFrame waits for WRITEs of a branch, which what follows may be about. A server that
// announces what it does not send breaks a rule; a branch that has lost its connection has its own
// time for another.
func (s *Session) behindFrame(ctx context.Context, arg uint64) error {
	n, count := frame.Halves(arg)
	s.wide.mu.Lock()
	list := s.wide.list
	s.wide.mu.Unlock()
	if int(n) >= len(list) {
		return remote.Violation("BEHIND frame for branch %d of %d", n, len(list))
	}
	b := list[n]
	due := func() int32 { return int32(count - b.wrote.Load()) }
	switch left := due(); {
	case left <= 0:
		return nil
	case left > mostBehind:
		return remote.Violation("BEHIND frame for %d WRITEs of branch %d, which cannot be on their way", left, n)
	}
	look := time.NewTicker(s.wide.patience / behindLooks)
	defer look.Stop()
	silent, came := 0, b.input.came.Load()
	for due() > 0 {
		select {
		case <-b.moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			now := b.input.came.Load()
			if now != came || b.away() || !s.reachable() {
				silent, came = 0, now
			} else if silent++; silent == behindLooks {
				return remote.Violation("BEHIND frame for %d WRITEs of branch %d that do not come", due(), n)
			}
		}
	}
	return nil
}

// describeWide adds the branches to a state. None of their goroutines runs.
func (s *Session) describeWide(st *State) {
	st.Wanted = uint32(s.wide.want)
	for _, b := range s.wide.list {
		d := Branch{Unread: b.unread(), Wrote: b.wrote.Load()}
		if b.answering != nil {
			d.Answering = []Asked{{b.answering.id, b.answering.Extent}}
		}
		st.Branches = append(st.Branches, d)
	}
}

// adoptWide makes the branches of a state, whose streams conn has.
func (s *Session) adoptWide(conn frame.Stream, st *State) error {
	w := &s.wide
	w.want, w.asked = int(st.Wanted), len(st.Branches) > 0
	if !w.asked {
		return nil
	}
	has, ok := conn.(interface{ Branches() []frame.Branch })
	if !ok || len(has.Branches()) != len(st.Branches) {
		return fmt.Errorf("%w: %d branches, which its stream has not", ErrState, len(st.Branches))
	}
	for n, up := range has.Branches() {
		b, d := newBranch(up), st.Branches[n]
		b.input.again = d.Unread
		b.wrote.Store(d.Wrote)
		for _, r := range d.Answering {
			b.answering = &read{r.ID, r.Extent}
		}
		w.list = append(w.list, b)
	}
	return nil
}
