package resume

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

/*
A client's end of a stream moves to another process, on another host: it is held, described, and
made again there. The server is told before, and waits longer than for a connection that is lost.
Until the other process has made a connection this one can go on as well, by Release; from then on
it cannot, as that one's attempts come after all of its own.
*/

// HoldLimit is how long a server waits for a connection of a stream whose client has said that it
// is held.
const HoldLimit = 5 * time.Minute

// Errors of streams that are held.
var (
	ErrHeld = errors.New("the stream is held")
	// ErrState says that what was read is no state of a stream.
	ErrState = errors.New("no state of a stream")
)

// Bounds of a State. What is written while the stream is held is kept beside the window.
const (
	mostKept   = 2 // windows
	MostKept   = mostKept * Window
	moveShift  = 32 // attempts of one process lie below
	mostMoves  = 1 << 31
	holdPeriod = Limit // that the word of it may take to leave
)

// State is a client's end of a stream that is held.
type State struct {
	Secret  [32]byte
	Attempt uint64
	Got     uint64 // bytes that were delivered; Head and Left follow the last frame of them
	Head    []byte // of a header
	Left    uint64 // bytes of a payload that is not complete
	Start   uint64 // where Kept begins in what was written
	Kept    []byte
	Reached uint64 // the other end may have received what lies before; a frame ends there
	Lifted  bool   // the ends of each connection agree on what it goes over
	// Branches are the session's other streams, which have none.
	Branches []State
}

// hold is how a stream stands still. Conn.mu guards it.
type hold struct {
	on    bool
	tells bool // the server is to be told
	told  bool // it is told
}

// Hold has a client's stream stand still: Read says ErrHeld, and what is written is kept. The
// server is told, over the connection that there is, or the next if one comes soon: an error says
// that it is not, and does not wait for longer than for any connection. Branches are held behind
// it, and stand still with an error, too.
func (c *Conn) Hold() error {
	c.awaitBranches()
	return c.holdBranches(c.holdAlone())
}

func (c *Conn) holdAlone() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.hold.told {
		return c.err
	}
	up := c.soonLocked(holdPatience)
	if c.err != nil {
		return c.err
	}
	c.hold = hold{on: true, tells: up != nil}
	c.stopTimerLocked()
	c.changed.Broadcast()
	if up == nil {
		return fmt.Errorf("%w, and another is not there yet", ErrLost)
	}
	_ = up.SetReadDeadline(time.Unix(1, 0))             // who reads returns
	_ = up.SetWriteDeadline(time.Now().Add(holdPeriod)) // who writes comes to an end
	over := time.AfterFunc(holdPeriod, func() {
		c.mu.Lock()
		c.hold.tells = false
		c.changed.Broadcast()
		c.mu.Unlock()
	})
	defer over.Stop()
	c.poke()
	for c.err == nil && (c.sending || c.hold.tells && c.writableLocked() != nil) {
		// The server waits no longer than for any other that is lost.
		c.changed.Wait()
	}
	c.hold.tells = false
	if c.err == nil && (!c.hold.told || c.up != up || c.mute == up) {
		c.hold.told = false
		return errors.New("the server is not told that the stream is held: the connection takes nothing")
	}
	return c.err
}

// stand has a stream stand still of which nobody is told: it does not go on before Release, which
// has it make another connection.
func (c *Conn) stand() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.hold.on {
		return
	}
	c.hold = hold{on: true}
	c.stopTimerLocked()
	c.changed.Broadcast()
	if c.up != nil {
		_ = c.up.SetDeadline(time.Unix(1, 0)) // who reads or writes returns
	}
}

// holdPatience is how long a stream whose connection was just lost, and that is to stand still,
// waits for the next one: a VM stands meanwhile.
const holdPatience = time.Second

// soonLocked is the connection that takes what is written, after a while if there is none at first;
// nil: there is none then either.
func (c *Conn) soonLocked(patience time.Duration) Way {
	late := false
	over := time.AfterFunc(patience, func() {
		c.mu.Lock()
		late = true
		c.changed.Broadcast()
		c.mu.Unlock()
	})
	defer over.Stop()
	up := c.writableLocked()
	for up == nil && c.err == nil && !late {
		c.changed.Wait()
		up = c.writableLocked()
	}
	return up
}

// Release has a stream that is held, or was made by Import, go on over another connection, with its
// branches.
func (c *Conn) Release() {
	for _, b := range c.all() {
		b.Release()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.hold.on || c.err != nil {
		return
	}
	up := c.up
	c.hold = hold{}
	c.loseLocked(ErrHeld)
	if up != nil {
		up.Abort()
	}
}

// Export describes a stream that is held, and that nobody reads or writes, with its branches.
func (c *Conn) Export() (State, error) {
	s, err := c.exportAlone()
	if err == nil {
		s.Branches, err = c.exportBranches()
	}
	return s, err
}

func (c *Conn) exportAlone() (State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return State{}, c.err
	case !c.hold.told || c.sending || !c.out.whole():
		return State{}, errors.New("the stream is not held")
	}
	kept, _ := c.kept.take(nil, c.kept.start, c.kept.size())
	c.kept.pin = noPin
	return State{
		Secret: c.secret, Attempt: c.attempt, Got: c.got, Head: slices.Clone(c.frames.head[:c.frames.have]), Left: c.frames.left,
		Start: c.kept.start, Kept: slices.Concat(kept...), Reached: c.reached, Lifted: c.Lifted(),
	}, nil
}

// Import makes a stream of what Export described, elsewhere perhaps, which is held until Release.
// What it keeps is booked in a budget, which may be nil.
func Import(s State, cfg *tls.Config, dial Dialer, b Budget) (*Conn, error) {
	return ImportOver(s, Lifted{}, cfg, dial, b)
}

// ImportOver is Import where the ends of each connection may have to agree on what the stream goes
// over: l has no Way yet.
func ImportOver(s State, l Lifted, cfg *tls.Config, dial Dialer, b Budget) (*Conn, error) {
	c := bareConn(s.Secret, Limit)
	c.client, c.branches.cfg, c.branches.dial, c.branches.kept = true, cfg, dial, b
	err := c.kept.begin(b)
	switch {
	case err != nil:
	case s.Lifted && l.Again == nil:
		err = fmt.Errorf("%w: its ends agree on what it goes over, which this one cannot", ErrState)
	case s.Lifted:
		c.lift = l
	}
	if err == nil {
		err = c.adoptState(s)
	}
	if err == nil {
		err = c.importBranches(s.Branches)
	}
	if err != nil {
		c.end(err)
		return nil, err
	}
	go c.routineSend()
	go c.routineRedial(cfg, dial)
	return c, nil
}

// check says why a state of a stream with a window is none.
func (s *State) check(window uint64) error {
	switch end := s.Start + uint64(len(s.Kept)); {
	case uint64(len(s.Kept)) > mostKept*window || end < s.Start || s.Reached < s.Start || s.Reached > end:
		return fmt.Errorf("%w: %d bytes from %d, sent up to %d", ErrState, len(s.Kept), s.Start, s.Reached)
	case len(s.Head) >= frame.HeaderSize || s.Left > frame.Max || s.Left > 0 && len(s.Head) > 0:
		return fmt.Errorf("%w: within a frame, %d bytes of a header and %d to come", ErrState, len(s.Head), s.Left)
	case s.Attempt>>moveShift >= mostMoves:
		return fmt.Errorf("%w: attempt %#x", ErrState, s.Attempt)
	}
	// Within a frame what is written waits for no room.
	var last boundary
	if last.pass(s.Kept[s.Reached-s.Start:]); last.left > frame.Max {
		return fmt.Errorf("%w: within a frame that it sends, %d bytes to come", ErrState, last.left)
	}
	return nil
}

// adoptState has a client's stream that is new be what was described, held.
func (c *Conn) adoptState(s State) error {
	if err := s.check(c.window); err != nil {
		return err
	}
	c.hold = hold{on: true, told: true}
	c.attempt = (s.Attempt>>moveShift + 1) << moveShift
	c.got = s.Got // which the first connection tells
	c.frames.have, c.frames.left = copy(c.frames.head[:], s.Head), s.Left
	c.kept.start, c.kept.end = s.Start, s.Start
	if !c.kept.fits(len(s.Kept), false) {
		return fmt.Errorf("%w: %d bytes", ErrBudget, len(s.Kept))
	}
	room, at := c.kept.grow(nil, len(s.Kept)), 0
	for _, r := range room {
		at += copy(r, s.Kept[at:])
	}
	c.kept.added(room, true)
	c.sent, c.reached = s.Reached, s.Reached
	c.wrote.pass(s.Kept[s.Reached-s.Start:])
	return nil
}

// isHeld reports whether the stream stands still.
func (c *Conn) isHeld() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hold.on && c.err == nil
}

// longer has a server wait longer for the next connection: its client says that the stream is held.
func (c *Conn) longer(h frame.Header) error {
	if c.client || h.Len != 0 || h.Flags != 0 || h.Arg != 0 {
		return remote.Violation("HOLD frame with %d bytes, flags %#x and argument %d", h.Len, h.Flags, h.Arg)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up == c.from { // else the client has gone on since
		c.now = max(c.limit, HoldLimit)
	}
	return nil
}
