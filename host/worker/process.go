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
	// Seal is called when the process needs no new image any more, before it hears its guest; nil: nothing.
	Seal func() error
}

// Main is a worker process: it is configured over the link, whose descriptor it takes over, runs one session and returns. It may
// be told to get ready first, and then waits for its session as long as the parent lives.
func (p *Process) Main(ctx context.Context, linkFD int) error {
	harden()
	defer runtime.KeepAlive(ownStderr())
	if p.Resume != "" {
		return p.resume(ctx)
	}
	l, err := link.New(linkFD)
	if err != nil {
		return err
	}
	defer l.Close()
	s := &starter{link: l, backend: p.Backend, seal: p.Seal}
	m, err := l.Receive()
	if err == nil && m.Type == link.Warm {
		if err := s.configure(p, m); err != nil {
			return err
		}
		s.warmUp()
		m, err = l.Receive()
		if errors.Is(err, io.EOF) || err == nil && m.Type == link.Quit {
			return nil // was not needed
		}
	}
	if err != nil {
		return fmt.Errorf("no configuration: %w", err)
	}
	if m.Type != link.Configure {
		sys.CloseAll(m.Files)
		return fmt.Errorf("message %d where the configuration is due", m.Type)
	}
	if err := s.configure(p, m); err != nil {
		return err
	}
	if s.cfg.Adopt {
		if err := s.sealed(); err != nil {
			sys.CloseAll(m.Files)
			return err
		}
		return s.adopt(ctx, m.Files)
	}
	return s.start(ctx, m.Files)
}

// configure takes a configuration. If it cannot, it closes the message's files.
func (s *starter) configure(p *Process, m link.Message) error {
	cfg, err := link.DecodeConfig(m.Payload)
	if err != nil {
		sys.CloseAll(m.Files)
		return err
	}
	var lvl slog.Level
	_ = lvl.UnmarshalText([]byte(cfg.LogLevel)) // unknown: info
	s.cfg, s.log = cfg, p.Logger(lvl).With("worker", os.Getpid())
	return nil
}

// harden takes away what no session needs. The full sandbox is for a process that runs others' requests as another user.
func harden() {
	// Best effort: a kernel without them leaves the process as it was.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// ownStderr gives this process's own words a descriptor of their own: backends take over 1 and 2, which the driver writes to for
// kernels. It returns the file that os.Stderr was, which the process keeps: collected, it would close 2, whatever that is by then.
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
	cfg     link.Config
	link    *link.Conn
	log     *slog.Logger
	backend func(name string) (driver.Backend, error)
	seal    func() error   // may be nil
	ready   driver.Backend // opened ahead, nil if not
	warm    bool           // ready has started its driver
	leased  *leased        // with CarrierLeased
	pages   pages          // shared with others
	budget  *memory.Budget // nil: Config.MemoryLimit, for this session alone
	host    *memory.Budget // of the host's memory; nil: Config.HostMemory, for this session alone
	meter   *meter.Writer  // nil: nobody reads
}

// start shakes hands with the guest process and runs the session.
func (s *starter) start(ctx context.Context, files []int) error {
	if s.warm && !s.fits(files) {
		return s.startCold(files)
	}
	if err := s.sealed(); err != nil {
		sys.CloseAll(files)
		return err
	}
	if err := s.awaitPages(); err != nil {
		sys.CloseAll(files)
		return err
	}
	carrier, err := s.carrier(files)
	if err != nil {
		s.refuse(err)
		return err
	}
	if carrier == nil {
		return nil // the guest process went away before it started
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
		w.count.to = s.meter
		if n := s.cfg.HostMemory; n != 0 && n < 1<<60 {
			debug.SetMemoryLimit(int64(n) + garbage) // what requests left behind is collected before it is as much again
		}
		w.hold(&hostMemory{limit: s.cfg.HostMemory, all: s.host, log: s.log})
	}
	return w, err
}

// garbage is what a worker's heap may have in use beside the budget of host memory before it is collected with vigour, in bytes.
const garbage = 1 << 30

// run consumes, beside the link's goroutine.
func (s *starter) run(ctx context.Context, w *Worker) error {
	w.sharing.link = s.link
	if err := s.openGate(w); err != nil {
		return errors.Join(err, w.close())
	}
	if s.budget != nil {
		w.limitIs(s.budget.Limit()) // it may have changed while the session moved
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.routineLink(w, func() {
		cancel()
		if s.leased != nil {
			s.leased.end() // also ends a park
		}
	})
	return w.Run(ctx)
}

// carrier makes the carrier that the configuration names.
func (s *starter) carrier(files []int) (remote.Carrier, error) {
	switch s.cfg.Carrier {
	case link.CarrierUnix:
		conn, err := connection(files)
		if err != nil {
			return nil, err
		}
		uc, ok := conn.(*net.UnixConn)
		if !ok {
			return nil, errors.Join(errors.New("guest's connection is not a unix socket"), conn.Close())
		}
		return asCarrier(shm.AcceptUnix(uc))
	case link.CarrierTCP:
		conn, err := connection(files)
		if err != nil {
			return nil, err
		}
		return asCarrier(tcp.Accept(conn))
	case link.CarrierLeased:
		sys.CloseAll(files)
		return s.acceptLeased()
	}
	sys.CloseAll(files)
	return nil, fmt.Errorf("unknown carrier %q", s.cfg.Carrier)
}

// asCarrier keeps a nil pointer from becoming a carrier.
func asCarrier[C remote.Carrier](c C, err error) (remote.Carrier, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// connection is the guest's connection, the one file that came with the configuration.
func connection(files []int) (net.Conn, error) {
	if len(files) != 1 {
		sys.CloseAll(files)
		return nil, fmt.Errorf("%d descriptors where the guest's connection is due", len(files))
	}
	f := os.NewFile(uintptr(files[0]), "guest")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("guest's connection: %w", err)
	}
	return c, nil
}

// acceptLeased follows the device process until region 0 is there.
func (s *starter) acceptLeased() (remote.Carrier, error) {
	l := newLeased(s.link)
	s.leased = l
	for {
		m, err := s.link.Receive()
		switch {
		case errors.Is(err, io.EOF), err == nil && m.Type == link.Quit:
			return nil, l.Close()
		case err != nil:
			return nil, errors.Join(err, l.Close())
		case m.Type == link.Start && len(m.Files) == 1:
			if err := l.start(m.Files[0], 0, true); err != nil {
				return nil, errors.Join(err, l.Close())
			}
			return l, nil
		case m.Type == link.Shared:
			if err := s.pages.take(m); err != nil {
				return nil, errors.Join(err, l.Close())
			}
		case m.Type == link.Limit: // nobody has asked yet
		default:
			if err := l.handle(m); err != nil {
				return nil, errors.Join(err, l.Close())
			}
		}
	}
}

// refuse tells the parent that no session came to be. Where the carrier shook hands itself, it has told the guest.
func (s *starter) refuse(err error) {
	_ = s.link.Send(link.Message{Type: link.Started, A: uint64(unix.EPROTO), Payload: []byte(err.Error())})
}

// routineLink follows the parent process until the session or the link ends.
func (s *starter) routineLink(w *Worker, end func()) {
	tied := s.leased != nil || s.cfg.Tied
	for {
		m, err := s.link.Receive()
		if err != nil {
			// Without a device process there is no guest memory. A worker on a connection goes on with its guest, unless it is tied.
			if tied {
				end()
			}
			return
		}
		if m.Type == link.Leave {
			tied = s.leased != nil
			continue
		}
		if err := s.follow(w, m, end); err != nil {
			if !errors.Is(err, errEnded) && !errors.Is(err, errMoved) {
				s.log.Error("session ends", "error", err)
			}
			end()
			return
		}
	}
}

func (s *starter) follow(w *Worker, m link.Message, end func()) error {
	switch m.Type {
	case link.Quit:
		end()
		return nil
	case link.Park:
		if err := w.park(s.leased); err != nil {
			return err
		}
		return s.link.Send(link.Message{Type: link.Parked, A: m.A})
	case link.Answer:
		w.sharing.answered(m)
		return nil
	case link.Resume:
		return w.resume(s.leased)
	case link.Shared:
		return s.pages.take(m)
	case link.Measure:
		go w.measure(s.link)
		return nil
	case link.Limit:
		w.limitIs(m.A)
		return nil
	case link.Rebuild:
		return s.rebuild(w, m.Files)
	}
	if s.leased != nil {
		return s.leased.handle(m)
	}
	sys.CloseAll(m.Files)
	return fmt.Errorf("unexpected link message %d", m.Type)
}
