// Package spawn starts worker processes. The parent (run, serve, device) owns a Process: it reads
// the link and waits.
package spawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/sandbox"
	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

// LinkFD is the descriptor of the link in a worker process.
const LinkFD = 3

// Spawner starts workers.
type Spawner struct {
	// Command starts a worker; nil: this program with the argument "worker".
	Command []string
	// Env is the workers' environment; nil: this process's, less what belongs to guests.
	Env    []string
	Stderr io.Writer // nil: this process's
	// OneArena has libc allocate from one arena in the workers, from their first thread on: of
	// sessions that may move. Where arenas of threads come to lie, and when, shows in where a
	// driver puts what it gives to guests, and a later word does not reach threads that have one.
	OneArena bool
	// NoNewPrivs bars workers from gaining privileges by set-uid programs.
	NoNewPrivs bool
	// Sandbox confines the workers, with no_new_privs; nil: they are as this process is.
	Sandbox *sandbox.Space

	// Shared is what its workers share: one Spawner serves one virtual GPU.
	Shared offer.Broker

	grace time.Duration // in place of stderrGrace, for tests
}

// Process is a running worker.
type Process struct {
	link    *link.ParentEnd
	cmd     *exec.Cmd
	kill    func() error
	wake    atomic.Pointer[func(slot uint32)] // set before the session is
	replies chan link.ToParent
	shared  *offer.Broker
	use     question[link.Use]
	copied  chan link.Copied
	wants   chan link.Want
	probes  probes
	// Where the session goes that is passed on; nil: it runs here.
	relay     atomic.Pointer[link.Relay]
	calls     calls
	diverts   *diverts
	carried   atomic.Pointer[string]
	rehearses atomic.Bool
	awaits    atomic.Bool   // a redeem of it waits
	drained   chan struct{} // everything that the worker said has been read
	done      chan struct{}
	err       error // valid once done is closed
}

// NoConnection is what Start and Configure take where none goes with the configuration.
const NoConnection = -1

// Start starts a worker with its configuration and the connection of link.Configure, which it
// duplicates. wake, which may be nil, is called for each guest thread to be woken, on the goroutine
// that reads the link.
func (s *Spawner) Start(cfg link.Config, wake func(slot uint32), conn int) (*Process, error) {
	p, err := s.process()
	if err != nil {
		return nil, err
	}
	if err := p.Configure(cfg, wake, conn); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// Warm starts a worker that gets ready for sessions like cfg; Configure gives it one.
func (s *Spawner) Warm(cfg link.Config) (*Process, error) {
	p, err := s.process()
	if err != nil {
		return nil, err
	}
	if err := p.Send(link.Warm{Config: cfg}); err != nil {
		p.Kill()
		return nil, fmt.Errorf("warm worker: %w", err)
	}
	return p, nil
}

// Configure gives a process that has no session yet its configuration and connection, as Start
// does.
func (p *Process) Configure(cfg link.Config, wake func(slot uint32), conn int) error {
	p.wake.Store(&wake)
	p.relay.Store(cfg.Relay)
	p.calls.goesOn(cfg.Adopt)
	if err := p.Send(link.Configure{Config: cfg, Connection: link.FileOf(conn)}); err != nil {
		return fmt.Errorf("configure worker: %w", err)
	}
	if len(cfg.Pages) > 0 {
		return p.Share(cfg.Pages...)
	}
	return nil
}

// Share hands pages to the worker, whose session sees them from then on, in place of earlier ones
// of their kinds. Those of Config.Pages are there before the session opens. The files stay the
// caller's.
func (p *Process) Share(pages ...link.Page) error {
	if err := p.Send(link.SharePages{Pages: pages}); err != nil {
		return fmt.Errorf("share pages with worker: %w", err)
	}
	return nil
}

// process starts a worker process that waits for its first message.
func (s *Spawner) process() (*Process, error) {
	conn, child, err := link.Pair()
	if err != nil {
		return nil, err
	}
	defer child.Close()
	argv := s.Command
	if argv == nil {
		argv = []string{"/proc/self/exe", "worker"}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Args[0] = "causeway"
	cmd.Env = s.Env
	if cmd.Env == nil {
		cmd.Env = hostEnv(os.Environ())
	}
	if s.OneArena {
		// mallopt(3), M_ARENA_MAX
		cmd.Env = append(cmd.Env[:len(cmd.Env):len(cmd.Env)], "MALLOC_ARENA_MAX=1")
	}
	cmd.Stderr = s.Stderr
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	cmd.WaitDelay = cmp.Or(s.grace, stderrGrace)
	cmd.ExtraFiles = []*os.File{child}
	// A group of its own: what the terminal sends to the app's group does not reach its worker.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.fork(cmd); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	// Root's worker has no way to its own score any more. A user's raises it itself, if it was
	// faster than this.
	if err := sandbox.RaiseOOM(cmd.Process.Pid, sandbox.WorkerOOM); err != nil {
		slog.Debug("worker keeps its OOM score", "error", err)
	}
	p := newProcess(conn, &s.Shared)
	p.cmd, p.kill = cmd, cmd.Process.Kill
	go func() {
		p.err = cmd.Wait()
		p.shared.Gone(p) // before anybody takes it that its memory is free
		close(p.done)
	}()
	go p.routineReceive()
	return p, nil
}

// newProcess is the parent's side of a worker.
func newProcess(conn *link.ParentEnd, shared *offer.Broker) *Process {
	return &Process{
		link: conn, shared: shared, replies: make(chan link.ToParent, mostReplies), use: newQuestion[link.Use](),
		copied:  make(chan link.Copied, mostReplies),
		diverts: newDiverts(), probes: probes{question: newQuestion[link.Probed]()}, wants: make(chan link.Want, 1), drained: make(chan struct{}), done: make(chan struct{}),
	}
}

// stderrGrace is how long what a worker has started may keep the worker's standard error open
// behind its end, if that is no file: who waits for the worker waits for no longer.
const stderrGrace = 10 * time.Second

// mostReplies is how many answers may wait to be asked for.
const mostReplies = 16

// addrCompatLayout is ADDR_COMPAT_LAYOUT of personality(2): mappings grow upwards from a third of
// the address space.
const addrCompatLayout = 0x0200000

// fork starts cmd from a thread of its own, whose ways the child inherits: memory laid out from the
// bottom, because a worker maps its guest's pinned memory at the guest's addresses, which lie at
// the top where its own libraries would be; and, if wanted, no way to gain privileges.
func (s *Spawner) fork(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		now, _, errno := unix.RawSyscall(unix.SYS_PERSONALITY, 0xffffffff, 0, 0)
		if errno == 0 {
			_, _, errno = unix.RawSyscall(unix.SYS_PERSONALITY, now|addrCompatLayout, 0, 0)
		}
		if errno != 0 { // a sandbox may forbid it: some addresses may then be taken
			slog.Debug("worker keeps the usual memory layout", "error", errno)
		}
		if s.NoNewPrivs {
			if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
				done <- fmt.Errorf("no_new_privs: %w", err)
				return
			}
		}
		done <- s.Sandbox.Fork(cmd)
	}()
	return <-done
}

// HostEnv is this process's environment, less what belongs to guests.
func HostEnv() []string { return hostEnv(os.Environ()) }

// hostEnv drops the variables that point programs at Causeway: a worker that follows them would
// find the guest library instead of the driver.
func hostEnv(env []string) []string {
	out := make([]string, 0, len(env))
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		switch name {
		case "CAUSEWAY", "LD_PRELOAD":
			continue
		case "LD_LIBRARY_PATH":
			kv = name + "=" + strings.Join(withoutOwnLib(filepath.SplitList(value)), ":")
		}
		out = append(out, kv)
	}
	return out
}

func withoutOwnLib(dirs []string) []string {
	exe, err := os.Executable()
	if err != nil {
		return dirs
	}
	own := filepath.Join(filepath.Dir(filepath.Dir(exe)), "lib")
	var out []string
	for _, d := range dirs {
		if abs, err := filepath.Abs(d); err == nil && abs == own {
			continue
		}
		out = append(out, d)
	}
	return out
}

// routineReceive reads the link until the worker or Close ends it. A worker that says what no
// worker says, or answers what nobody asked, is ended: its guest may have taken it over.
func (p *Process) routineReceive() {
	defer p.shared.Gone(p) // what was redeemed aside meanwhile
	defer close(p.drained)
	defer p.shared.Gone(p)
	for {
		m, err := p.link.Receive()
		if err == nil {
			err = p.follow(m)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, link.ErrMessage), errors.Is(err, link.ErrUnexpected), errors.Is(err, errUnasked):
			slog.Warn("worker is ended for what it said", "error", err)
			_ = p.kill()
		}
		return
	}
}

// errUnasked says that more was answered than anybody has asked.
var errUnasked = errors.New("worker answers what nobody asked")

// follow does what a message of the worker says.
func (p *Process) follow(r link.Received[link.ToParent]) error {
	switch m := r.Message().(type) {
	case link.Wake:
		if wake := p.wake.Load(); wake != nil && *wake != nil {
			(*wake)(m.Slot)
		}
	case link.Offer:
		return p.offer(m)
	case link.Redeem:
		return p.redeem(m)
	case link.Withdraw:
		p.withdraw(m)
	case link.LetGo:
		p.letGo(m)
	case link.Want:
		p.keepWant(m)
	case link.Connect:
		return p.connect(m)
	case link.Carried:
		p.carried.Store(&m.Over)
	case link.Rehearses:
		p.rehearses.Store(true)
	case link.Measured:
		p.keepMeasured(m.Use)
	case link.Probed:
		if err := p.keepProbed(m); err != nil {
			return fmt.Errorf("%w: %s", err, link.Name(m))
		}
	case link.Diverted:
		return p.diverts.keep(m)
	case link.Copied:
		select {
		case p.copied <- m:
		default:
			return fmt.Errorf("%w: %s", errUnasked, link.Name(m))
		}
	case link.Started, link.RegionEnded, link.Parked, link.Rebuilt, link.Adopted, link.Exported:
		select {
		case p.replies <- m:
		default:
			return fmt.Errorf("%w: %s", errUnasked, link.Name(m))
		}
	default:
		return r.Refuse()
	}
	return nil
}

// Rehearses reports whether the session is another server's that is only tried.
func (p *Process) Rehearses() bool { return p.rehearses.Load() }

// Carried is what frames of the worker's session go over between hosts, in its own words; empty: it
// has not said so.
func (p *Process) Carried() string {
	if s := p.carried.Load(); s != nil {
		return *s
	}
	return ""
}

// Send sends a message to the worker. One that does not read what it is sent is ended: whoever
// tells it something would wait for it, and it would outlive its session.
func (p *Process) Send(m link.ToWorker) error {
	err := p.link.Send(m)
	if errors.Is(err, link.ErrDeaf) {
		slog.Warn("worker is ended: it does not read what it is told", "message", link.Name(m))
		_ = p.kill()
	}
	return err
}

// Errors of Await.
var (
	ErrEnded  = errors.New("worker ended")
	ErrSilent = errors.New("worker does not answer")
)

// Await returns the worker's next answer for which want is true; others that come meanwhile are
// dropped. One goroutine calls it at a time.
func (p *Process) Await(ctx context.Context, want func(link.ToParent) bool) (link.ToParent, error) {
	for {
		select {
		case m := <-p.replies:
			if want(m) {
				return m, nil
			}
		case <-p.drained:
			select {
			case m := <-p.replies:
				if want(m) {
					return m, nil
				}
				continue
			default:
			}
			return nil, ErrEnded
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrSilent, ctx.Err())
		}
	}
}

// Awaiter is a worker whose answers can be awaited.
type Awaiter interface {
	Await(ctx context.Context, want func(link.ToParent) bool) (link.ToParent, error)
}

// Next awaits the worker's next answer of one kind.
func Next[M link.ToParent](ctx context.Context, w Awaiter) (M, error) {
	m, err := w.Await(ctx, func(m link.ToParent) bool {
		_, ok := m.(M)
		return ok
	})
	if err != nil {
		var none M
		return none, err
	}
	return m.(M), nil
}

// Copied brings the answers to link.Copy. They may be under way for long, while others of the
// worker's answers are awaited.
func (p *Process) Copied() <-chan link.Copied { return p.copied }

// PID is the worker's process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// CPU is the CPU time that the process has taken.
func (p *Process) CPU() time.Duration {
	select {
	case <-p.done:
		if st := p.cmd.ProcessState; st != nil {
			return st.UserTime() + st.SystemTime()
		}
		return 0
	default:
		return cpuTime(p.PID())
	}
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: nil for exit status 0. Only after Done.
func (p *Process) Err() error { return p.err }

// Leave lets a Tied worker go on without this process.
func (p *Process) Leave() error { return p.Send(link.Leave{}) }

// Stop asks the worker to quit, and kills it after grace, whether or not it could be asked. It
// returns when the process is gone.
func (p *Process) Stop(grace time.Duration) {
	go func() { _ = p.Send(link.Quit{}) }()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.done:
		_ = p.link.Close()
	case <-t.C:
		p.Kill()
	}
}

// Kill ends the process and the link, and waits for it.
func (p *Process) Kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		slog.Warn("kill worker", "pid", p.PID(), "error", err)
	}
	<-p.done
	_ = p.link.Close()
}

// Close closes the link of a process that has ended, after what it said has been read.
func (p *Process) Close() error {
	t := time.NewTimer(time.Second) // somebody else may hold the worker's end open
	defer t.Stop()
	select {
	case <-p.drained:
	case <-t.C:
	}
	return p.link.Close()
}
