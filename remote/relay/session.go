package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/resume"
)

// Errors of a session that is passed on.
var (
	// ErrRefused: the server takes no such session. The error's text is the server's.
	ErrRefused = errors.New("refused")
	// ErrServer: the server, or the way to it, is gone.
	ErrServer = errors.New("the session ended with its GPU server")
)

// Refusal is what a server answers a session with that it does not take.
type Refusal struct {
	Errno unix.Errno
	Text  string
}

// Error implements error.
func (r *Refusal) Error() string {
	if r.Text == "" {
		return fmt.Sprintf("refused: %v", r.Errno)
	}
	return r.Text
}

// Errno is what a guest is told with an error of Open's.
func Errno(err error) unix.Errno {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Errno
	}
	if errors.Is(err, resume.ErrBudget) {
		return unix.ENOMEM
	}
	return unix.ENODEV
}

// Is implements errors.Is.
func (r *Refusal) Is(err error) bool { return err == ErrRefused }

const (
	streamBuffer = 64 << 10
	// welcomeLimit is how long a server may take to start a worker and open a GPU.
	welcomeLimit = 60 * time.Second
)

// Session is one session that is passed on.
type Session struct {
	local  remote.Carrier
	ring   remote.Ring
	mem    remote.GuestMemory
	bell   remote.Doorbell
	server string // its name
	log    *slog.Logger

	lane      // the session's first stream
	wide wide // and others beside it

	regions regions
	grants  grants
	away    sync.RWMutex // held for writing while guest memory is out of reach
	gone    bool         // for good; under away
	still   bool         // until the session's goroutines have ended; under away
	parks   parks
	moving  *Moving // under parks.mu; nil: it goes to no other server

	// The consumer's, and what the receiver tells it.
	batch   []byte // a RING frame; its header first
	sent    uint64 // position in the ring up to which the server has, or is sent, everything
	given   atomic.Uint64
	head    atomic.Uint64 // the server's
	pending atomic.Bool   // regions or a park wait for the consumer
	held    held
	room    chan struct{} // one place: the server's head moved
	poked   chan struct{} // one place: pending is set

	reply remote.Outgoing // the receiver's
	reads chan read
	dead  atomic.Bool // the server said that its worker is
}

var errUnwatched = errors.New("regions of this carrier cannot be passed on")

// lane is one of the session's streams, and what its goroutines have of it.
type lane struct {
	input input
	in    *bufio.Reader // of input
	// The receiver's: the frame that is under way, as far as it is not in the buffer.
	undone    []byte
	out       out
	answering *read // the READ that is answered
	// Until one waits, perhaps; nil: who answers has nowhere else to.
	sleep     func(ctx context.Context)
	rounds    bool // its server sends memory ahead of a session
	rehearses bool // and says what one is made of, for a rehearsal
}

func newLane(conn frame.Stream) lane { return lane{input: input{conn: conn}, out: out{conn: conn}} }

func newSession(local remote.Carrier, conn frame.Stream, server string, log *slog.Logger) *Session {
	s := &Session{
		local: local, ring: local.Ring(), mem: local.Memory(), bell: local.Doorbell(), server: server, log: log,
		lane:  newLane(conn),
		batch: make([]byte, frame.HeaderSize, frame.HeaderSize+batchMost),
		room:  make(chan struct{}, 1), poked: make(chan struct{}, 1), reads: make(chan read, mostReads),
	}
	s.in = bufio.NewReaderSize(&s.input, streamBuffer)
	s.wide.reads, s.wide.patience = make(chan read, mostReads), behindLimit
	s.regions.init(s.poke)
	s.grants.begin(conn, s.mem, s.reopen)
	return s
}

// Open says hello to a server in the name of a guest process, and waits for its answer. conn stays
// the caller's if that is an error. The caller tells the guest, by local.Welcome, and goes on with
// Run. server names the other end, for errors. Up to branches of a stream that can have them are
// begun once there is something to copy.
func Open(ctx context.Context, local remote.Carrier, conn frame.Stream, hello remote.Hello, branches int, server string, log *slog.Logger) (*Session, error) {
	w, ok := local.Memory().(remote.Watchable)
	if !ok {
		return nil, errUnwatched
	}
	s := newSession(local, conn, server, log)
	s.wide.want = branches
	if err := s.hello(ctx, conn, hello); err != nil {
		return nil, s.name(err)
	}
	w.Watch(&s.regions)
	return s, nil
}

// Local is the carrier of the session's guest.
func (s *Session) Local() remote.Carrier { return s.local }

// name says whose an error is.
func (s *Session) name(err error) error {
	return fmt.Errorf("gpu server %s: %w", s.server, err)
}

func (s *Session) hello(ctx context.Context, conn frame.Stream, h remote.Hello) error {
	d, err := s.mem.Await(ctx, 0)
	if err != nil {
		return err
	}
	h.Type, h.Region, h.Va, h.Size = remote.MsgHello, 0, d.VA, d.Size
	if err := s.out.send(frame.Header{Kind: frame.Hello}, remote.FormatHello(h, "")); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(time.Now().Add(welcomeLimit))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	if s.wide.want, err = s.welcomed(s.wide.want); err != nil {
		return err
	}
	stop()
	return conn.SetReadDeadline(time.Time{})
}

// welcomed reads the server's answer. It returns how many of the branches that are wanted there may
// be: the server says how many it takes, and one of another version none.
func (l *lane) welcomed(want int) (int, error) {
	f, err := frame.ReadHeader(l.in)
	if err != nil {
		return 0, lost(err)
	}
	if f.Kind != frame.Welcome || f.Len < remote.HelloSize || f.Len > remote.HelloSize+remote.MaxText {
		return 0, remote.Violation("frame %d of %d bytes is no welcome", f.Kind, f.Len)
	}
	b := make([]byte, f.Len)
	if _, err := io.ReadFull(l.in, b); err != nil {
		return 0, lost(err)
	}
	m, text, err := remote.ParseHello(b)
	switch {
	case err != nil:
		return 0, err
	case m.Type != remote.MsgWelcome:
		return 0, remote.Violation("message %d is no welcome", m.Type)
	case m.Status != 0:
		return 0, &Refusal{unix.Errno(m.Status), text}
	}
	l.rounds, l.rehearses = m.Flags&frame.Rounds != 0, m.Flags&frame.Rehearses != 0
	return int(min(uint64(want), m.Size)), nil
}

// lost is the error of a stream that ended.
func lost(err error) error {
	switch {
	case errors.Is(err, remote.ErrProtocol):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it closed the connection", ErrServer)
	}
	return fmt.Errorf("%w: %w", ErrServer, err)
}

// Run passes on until the guest process is gone or ctx ends, which is no error, or until the server
// is, which the guest is told. It ends the stream, and leaves the carrier, which nothing of the
// session touches any more, to the caller.
func (s *Session) Run(ctx context.Context) error {
	err := s.pass(ctx)
	for errors.Is(err, errStill) || errors.Is(err, errMoved) {
		err = s.pass(ctx)
	}
	_ = s.out.conn.Close()
	s.endPark()
	switch {
	case errors.Is(err, errGuest):
		return s.local.Err()
	case errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, errLocal):
		return err
	}
	_ = s.touch(func() error {
		s.ring.SetState(remote.WorkerDead)
		return nil
	})
	return s.name(err)
}

// Reasons for the end that are not the server's.
var (
	errGuest = errors.New("the guest process is gone")
	errLocal = errors.New("the guest broke a rule")
)

// reachable reports whether guest memory is within reach now.
func (s *Session) reachable() bool {
	if !s.away.TryRLock() {
		return false
	}
	s.away.RUnlock()
	return true
}

// touch has f do something with guest memory, for which it must not wait.
func (s *Session) touch(f func() error) error {
	s.away.RLock()
	defer s.away.RUnlock()
	switch {
	case s.gone:
		return remote.ErrClosed
	case s.still:
		return errStill
	}
	return f()
}

// poke has the consumer look for what else there is to do.
func (s *Session) poke() {
	s.pending.Store(true)
	select {
	case s.poked <- struct{}{}:
	default:
	}
	s.bell.Ring()
}
