package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/meter"
	"causeway/remote"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/resume"
	"causeway/remote/shm"
	"causeway/remote/sys"
	"causeway/remote/tcp"
)

// Process is what a worker process needs besides its link.
type Process struct {
	// Backend finds a GPU backend by Config.GPU.
	Backend func(name string) (driver.Backend, error)
	// Logger makes the log of a given level.
	Logger func(level slog.Level) *slog.Logger
	// Resume is how a process that executed itself anew goes on (ResumeEnv), "" otherwise.
	Resume string
	// Seal is called when the process needs no new image any more, before it hears its guest; nil:
	// nothing.
	Seal func() error
	// Confined: it was sandboxed when it started.
	Confined bool
}

// Main is a worker process: it is configured over the link, whose descriptor it takes over, runs
// one session and returns. It may be told to get ready first, and then waits for its session as
// long as the parent lives.
func (p *Process) Main(ctx context.Context, linkFD int) error {
	harden()
	defer runtime.KeepAlive(ownStderr())
	if p.Resume != "" {
		return p.resume(ctx)
	}
	l, err := link.NewWorkerEnd(linkFD)
	if err != nil {
		return err
	}
	defer l.Close()
	s := &starter{link: l, backend: p.Backend, seal: p.Seal, confined: p.Confined}
	return s.begin(ctx, p)
}

// begin waits for the session, for which the worker may be told to get ready first.
func (s *starter) begin(ctx context.Context, p *Process) error {
	for warm := false; ; {
		r, err := s.link.Receive()
		if warm && errors.Is(err, io.EOF) {
			return nil // was not needed
		}
		if err != nil {
			return fmt.Errorf("no configuration: %w", err)
		}
		switch m := r.Message().(type) {
		case link.Configure:
			s.configure(p, m.Config)
			if m.Config.Relay != nil {
				return s.passOn(ctx, m.Connection.FD())
			}
			if m.Config.Parked {
				return s.adoptParked(ctx, m.Connection.FD())
			}
			if m.Config.Adopt {
				return s.adopt(ctx, m.Connection.FD())
			}
			return s.start(ctx, m.Connection.FD())
		case link.Warm:
			if warm {
				return r.Refuse()
			}
			warm = true
			s.configure(p, m.Config)
			s.warmUp()
		case link.Quit:
			if warm {
				return nil // was not needed
			}
			return r.Refuse()
		default:
			return r.Refuse()
		}
	}
}

// configure takes a configuration.
func (s *starter) configure(p *Process, cfg link.Config) {
	var lvl slog.Level
	_ = lvl.UnmarshalText([]byte(cfg.LogLevel)) // unknown: info
	s.cfg, s.log = cfg, p.Logger(lvl).With("worker", os.Getpid())
	s.havePlaces(cfg, runtime.NumCPU())
	if cfg.Base != 0 && !s.based {
		s.based = true
		if err := settleBase(uintptr(cfg.Base)); err != nil {
			s.log.Info("a session with variables may not find them where they were when it moves", "error", err)
		}
	}
}

// havePlaces has the runtime have as many more places as goroutines of such a session sleep in the
// kernel at most. A worker that was told to get ready is configured twice.
func (s *starter) havePlaces(cfg link.Config, cores int) {
	if cfg.Relay == nil && cfg.TLS == nil {
		return // it has no connections for copies
	}
	if n := remote.AwakePlaces(cfg.Branches, cores) - s.places; n > 0 {
		s.places += n
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
}

// harden takes away what no session needs. The full sandbox is for a process that runs others'
// requests as another user.
func harden() {
	// Best effort: a kernel without them leaves the process as it was.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// ownStderr gives this process's own words a descriptor of their own: backends take over 1 and 2,
// which the driver writes to for kernels. It returns the file that os.Stderr was, which the process
// keeps: collected, it would close 2, whatever that is by then.
func ownStderr() *os.File {
	old := os.Stderr
	fd, err := unix.FcntlInt(old.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return old // closed: there is nothing to set apart
	}
	os.Stderr = os.NewFile(uintptr(fd), "/dev/stderr")
	_ = debug.SetCrashOutput(os.Stderr, debug.CrashOptions{})
	return old
}

// starter brings a session up: carrier, backend, worker.
type starter struct {
	cfg      link.Config
	link     *link.WorkerEnd
	log      *slog.Logger
	backend  func(name string) (driver.Backend, error)
	seal     func() error   // may be nil
	ready    driver.Backend // nil until it is opened
	warm     bool           // ready has started its driver ahead of the session
	based    bool           // where mappings begin is settled
	places   int            // which the runtime has for who sleeps in the kernel
	virtiofs *virtiofs      // with CarrierVirtiofs
	lasting  *resume.Conn   // with Config.TLS
	tied     bool           // the session ends with the link; routineLink's
	pages    pages          // shared with others
	budget   *memory.Budget // nil: Config.MemoryLimit, for this session alone
	host     *memory.Budget // of the host's memory; nil: Config.HostMemory, for this session alone
	memory   *hostMemory    // of the session; made when it is asked for
	meter    *meter.Writer  // nil: nobody reads
	ahead    ahead          // routineLink's
	rdma     rdma
	way      carriedOver
	alone    bool // the other end is a guest process itself, by RDMA
	// confined: the process has been, before it heard its parent.
	confined bool
	// What the parent said while only answers were listened for.
	held []link.Received[link.ToWorker]
}

// start shakes hands with the guest process and runs the session. conn is the guest's connection,
// which it takes over; -1: lent memory is the carrier.
func (s *starter) start(ctx context.Context, conn int) error {
	if s.warm && !s.fits(conn) {
		return s.startCold(conn)
	}
	if s.cfg.Base != 0 && !s.warm && s.fits(conn) {
		s.warmUp() // as its successors will: what a driver places depends on what it did before
	}
	carrier, err := s.greet(conn)
	if err != nil || carrier == nil {
		return err
	}
	if a, ok := arrivalOf(carrier); ok {
		return s.arrive(ctx, a)
	}
	w, err := s.open(carrier)
	if err != nil {
		return err
	}
	if err := carrier.Welcome(0, ""); err != nil {
		return errors.Join(fmt.Errorf("welcome: %w", err), w.close())
	}
	return s.run(ctx, w)
}

// greet is what every session begins with: the process is sealed, has its pages, and shakes hands.
// nil: the guest process went away before it started.
func (s *starter) greet(conn int) (remote.Carrier, error) {
	s.rdma.open(s.cfg, s.confined, s.log) // whose files a sealed process cannot open
	if err := s.awaitLent(); err != nil {
		if conn >= 0 {
			_ = unix.Close(conn)
		}
		return nil, err
	}
	c, err := s.carrier(conn)
	if err != nil {
		s.refuse(err)
	}
	return c, err
}

func (s *starter) sealed() error {
	if s.seal == nil {
		return nil
	}
	return s.seal()
}

// open opens the backend on a carrier; failing that, it tells the guest why and closes the carrier.
func (s *starter) open(c remote.Carrier) (*Worker, error) {
	b, err := s.gpu()
	if err != nil {
		return nil, errors.Join(err, c.Welcome(uint32(unix.ENODEV), err.Error()), c.Close())
	}
	s.log.Info("session opens", "gpu", b.Name(), "peer", s.cfg.Peer, "carrier", s.cfg.Carrier)
	w, err := s.session(c, b)
	if err != nil {
		return nil, errors.Join(err, c.Welcome(uint32(unix.ENODEV), err.Error()), c.Close())
	}
	return w, nil
}

// session is New with what the starter has for it.
func (s *starter) session(c remote.Carrier, b driver.Backend) (*Worker, error) {
	w, err := New(c, b, s.options(), s.log)
	if err == nil {
		w.direct(s.rdma.gpus)
		s.accounts(w)
	}
	return w, err
}

// comes is the worker of a session that comes, which has no carrier yet: what comes ahead of it
// takes its place.
func (s *starter) comes(b driver.Backend, h *handover) (*Worker, error) {
	o := s.options()
	w := newWorker(o, s.log)
	if err := w.open(b, o); err != nil {
		return nil, err
	}
	s.accounts(w)
	if e, ok := w.session.(driver.Expecter); ok && e.Expects() {
		h.recv.Into(e)
	}
	return w, nil
}

// accounts are where a session's use is noted.
func (s *starter) accounts(w *Worker) {
	w.count.to = s.meter
	w.sharing.rehearses = s.cfg.Rehearsal
	if n := s.cfg.HostMemory; n != 0 && n < 1<<60 {
		// What requests left behind is collected before it is as much again.
		debug.SetMemoryLimit(int64(n) + garbage)
	}
	w.hold(s.hostMemory())
}

// garbage is what a worker's heap may have in use beside the budget of host memory before it is
// collected with vigour, in bytes.
const garbage = 1 << 30

// run consumes, beside the link's goroutine.
func (s *starter) run(ctx context.Context, w *Worker) error {
	w.sharing.use(s.link, nil, false)
	s.openRoom(w)
	if err := s.openGate(w); err != nil {
		return errors.Join(err, w.close())
	}
	if s.budget != nil {
		w.limitIs(s.budget.Limit()) // it may have changed while the session moved
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c, ok := w.carrier.(*tcp.Carrier); ok {
		go s.routineLeave(w, c)
	}
	go s.routineLink(w, func() {
		cancel()
		if s.virtiofs != nil {
			s.virtiofs.end() // also ends a park
		}
	})
	return w.Run(ctx)
}

// carrier makes the carrier that the configuration names.
func (s *starter) carrier(conn int) (remote.Carrier, error) {
	switch s.cfg.Carrier {
	case link.CarrierUnix:
		c, err := sys.UnixConn(conn, "guest's connection")
		if err != nil {
			return nil, err
		}
		if s.cfg.Tenant {
			return asCarrier(shm.AcceptTenant(c))
		}
		return asCarrier(shm.AcceptUnix(c))
	case link.CarrierTCP:
		f := os.NewFile(uintptr(conn), "guest")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			return nil, fmt.Errorf("guest's connection: %w", err)
		}
		return s.stream(c)
	}
	return s.acceptVirtiofs()
}

// stream is the carrier of a guest whose frames come over a connection: its own, or a relay's, with
// TLS.
func (s *starter) stream(c net.Conn) (remote.Carrier, error) {
	limit := frame.Lost
	if s.cfg.TLS != nil {
		limit = frame.Silent
	}
	if err := frame.Tune(c, limit); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if s.cfg.TLS == nil {
		return asCarrier(tcp.Accept(c))
	}
	cfg, err := s.cfg.TLS.Server(mtls.SessionProtocols(s.cfg.RDMA != "")...)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	ctx := context.Background()
	first, err := frame.Server(ctx, c, cfg)
	if err != nil {
		return nil, err
	}
	lifted, err := s.over(ctx, first, false)
	if err != nil {
		return nil, err
	}
	lasting, err := resume.NewServerOver(first, lifted, replayed{s.hostMemory()})
	if err != nil {
		return nil, err
	}
	s.lasting = lasting
	if lasting.Lifted() {
		return asCarrier(tcp.Accept(lasting)) // copies are one-sided
	}
	return asCarrier(tcp.AcceptWide(lasting, s.cfg.Branches))
}

// reconnected has the session go on over another connection, aside: it has to shake hands first.
func (s *starter) reconnected(m link.Reconnected) error {
	f := os.NewFile(uintptr(m.Connection.FD()), "another connection of the session")
	defer f.Close()
	cfg, err := s.cfg.TLS.Server(mtls.ResumeProtocol)
	if err != nil {
		return err
	}
	c, err := net.FileConn(f)
	if err == nil {
		err = frame.Tune(c, frame.Silent)
	}
	if err != nil {
		s.log.Warn("another connection of the session cannot be used", "error", err)
		return nil // a later one may do
	}
	go func() {
		if err := s.lasting.Accept(c, cfg); err != nil {
			s.log.Warn("the session does not go on over a connection", "error", err)
			return
		}
		s.log.Info("the session goes on over another connection")
	}()
	return nil
}

// acceptVirtiofs follows the device process until region 0 is there.
func (s *starter) acceptVirtiofs() (remote.Carrier, error) {
	l := newVirtiofs(s.link)
	s.virtiofs = l
	for l.ring == nil {
		r, err := s.link.Receive()
		if err == nil {
			err = s.prepare(l, r)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, errEnded):
			return nil, l.Close()
		case err != nil:
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// prepare follows a message of the device process before the session starts.
func (s *starter) prepare(l *virtiofs, r link.Received[link.ToWorker]) error {
	switch m := r.Message().(type) {
	case link.Quit:
		return errEnded
	case link.Start:
		_ = aside(m.Memory).Close() // there is none to be taken back
		return l.start(m.Doorbell.FD(), 0, true)
	case link.SharePages:
		return s.pages.take(m.Pages)
	case link.SetLimit: // nobody has asked yet
		return nil
	}
	return l.handle(r)
}
