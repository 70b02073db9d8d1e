package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver/cuda"
	"causeway/host/schedule"
	"causeway/host/schedule/memory"
	"causeway/host/worker/link"
	"causeway/host/worker/spawn"
	"causeway/remote"
)

// maxWorkers bounds the CUDA processes of one server.
const maxWorkers = 512

// server gives each connection a worker of its own. A worker lives as long as its connection, also
// when the server is gone; a tied one only if the server left.
type server struct {
	spawner    *spawn.Spawner
	pool       *spawn.Pool // may be nil
	cfg        link.Config
	gpu        string // which GPU it was asked for
	log        *slog.Logger
	membership *schedule.Membership // at a scheduler; nil: GPU time is not limited
	// Device memory of all its sessions, without what contexts take; nil: each has a limit of its
	// own.
	budget *memory.Page
	host   *memory.Page // host memory that their requests hold; nil: as budget

	mu        sync.Mutex
	ended     bool // no worker starts any more: set before wg is waited for
	workers   map[*spawn.Process]link.Config
	scheduled map[*spawn.Process]*schedule.Session // with membership
	wg        sync.WaitGroup                       // one for each worker
}

func newServer(spawner *spawn.Spawner, cfg link.Config, log *slog.Logger) *server {
	s := &server{spawner: spawner, cfg: cfg, log: log, workers: map[*spawn.Process]link.Config{}, scheduled: map[*spawn.Process]*schedule.Session{}}
	var err error
	if s.budget, err = memory.New(cfg.MemoryLimit); err != nil {
		log.Warn("each process has a memory limit of its own", "error", err)
	}
	if s.budget != nil {
		spawner.Shared.OnKept(s.budget.AddKept)
	}
	if s.host, err = memory.New(2 * cfg.HostMemory); err != nil { // one session may have half
		log.Warn("each process has a budget of host memory of its own", "error", err)
	}
	return s
}

// listen accepts guest processes on a new socket until ctx ends.
func (s *server) listen(ctx context.Context, path string) error {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("session socket: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	go s.routineAccept(func() (fileConn, error) { return ln.AcceptUnix() }, link.CarrierUnix)
	return nil
}

// fileConn is a connection whose descriptor another process can have.
type fileConn interface {
	File() (*os.File, error)
	Close() error
	RemoteAddr() net.Addr
}

func (s *server) routineAccept(accept func() (fileConn, error), carrier string) {
	for {
		c, err := accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(50 * time.Millisecond)
			continue
		case err != nil:
			s.log.Error("accept a CUDA process", "error", err)
			return
		}
		if err := s.start(c, carrier); err != nil {
			s.log.Error("start a worker", "error", err)
		}
		_ = c.Close()
	}
}

// again gives a session's worker the connection over which it is to go on, which the caller closes.
func (s *server) again(c *net.TCPConn, id remote.SessionID) error {
	f, err := c.File()
	if err != nil {
		return err
	}
	defer f.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, cfg := range s.workers {
		if cfg.Session == id {
			return p.Send(link.Reconnected{Connection: link.FileOf(int(f.Fd()))})
		}
	}
	return errors.New("it is for a session that has ended")
}

// start starts the worker of a connection, which the caller closes.
func (s *server) start(c fileConn, carrier string) error {
	f, err := c.File()
	if err != nil {
		return err
	}
	defer f.Close()
	cfg := s.cfg
	cfg.Carrier = carrier
	if c, ok := c.(sessionConn); ok {
		cfg.Session = c.session
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errors.New("a CUDA process came after the end")
	}
	if len(s.workers) >= maxWorkers {
		return fmt.Errorf("more than %d CUDA processes at once", maxWorkers)
	}
	var scheduled *schedule.Session
	if s.membership != nil {
		if scheduled, err = s.membership.Add(); err != nil {
			return err
		}
		cfg.Pages = link.GatePages(scheduled.Files())
	}
	if s.budget != nil {
		if cfg.MemorySlot, err = s.budget.Take(); err != nil {
			scheduled.Close()
			return err
		}
		cfg.Pages = append(cfg.Pages, link.Page{Kind: link.PageMemory, File: s.budget.File()})
	}
	if s.host != nil {
		if cfg.HostSlot, err = s.host.Take(); err != nil {
			s.freeBudget(cfg)
			scheduled.Close()
			return err
		}
		cfg.Pages = append(cfg.Pages, link.Page{Kind: link.PageHost, File: s.host.File()})
	}
	if p := s.pool.Take(); p != nil {
		if err := p.Configure(cfg, nil, int(f.Fd())); err == nil {
			s.addLocked(p, cfg, scheduled)
			return nil
		}
		p.Kill() // it has ended: another then
	}
	p, err := s.spawner.Start(cfg, nil, int(f.Fd()))
	if err != nil {
		scheduled.Close()
		s.free(cfg)
		return err
	}
	s.addLocked(p, cfg, scheduled)
	return nil
}

// keepWarm has n workers wait for sessions: a real GPU takes some 200 ms to start, the software GPU
// none. once: they are not replaced.
func (s *server) keepWarm(n int, once bool) {
	if n == 0 || isSoft(s.cfg.GPU) || s.cfg.GPU == "auto" && !cuda.Present() {
		return
	}
	s.pool = &spawn.Pool{Spawner: s.spawner, Config: s.cfg, Size: n, Once: once, Log: s.log}
	s.pool.Fill()
}

func (s *server) addLocked(p *spawn.Process, cfg link.Config, scheduled *schedule.Session) {
	s.workers[p], s.scheduled[p] = cfg, scheduled
	s.wg.Add(1)
	s.log.Info("worker started", "pid", p.PID())
	go func() {
		defer s.wg.Done()
		<-p.Done()
		if err := p.Err(); err != nil {
			s.log.Error("worker failed; its program sees CUDA_ERROR_LAUNCH_FAILED", "pid", p.PID(), "error", err)
		} else {
			s.log.Info("worker ended", "pid", p.PID())
		}
		_ = p.Close()
		s.mu.Lock()
		scheduled := s.scheduled[p] // nil: none, or its session has another worker now
		if cfg, last := s.workers[p]; last {
			s.free(cfg)
		}
		delete(s.workers, p)
		delete(s.scheduled, p)
		s.mu.Unlock()
		scheduled.Close()
	}()
}

// free gives a session's part of the budgets back.
func (s *server) free(cfg link.Config) {
	s.freeBudget(cfg)
	if s.host != nil {
		s.host.Free(cfg.HostSlot)
	}
}

func (s *server) freeBudget(cfg link.Config) {
	if s.budget != nil {
		s.budget.Free(cfg.MemorySlot)
	}
}

// memory is the limit, and what all sessions use.
func (s *server) memory() (limit, used uint64) {
	if s.budget == nil {
		return s.cfg.MemoryLimit, 0
	}
	return s.budget.Limit(), s.budget.Used()
}

// rebuild moves every session to a fresh worker. It returns how many moved.
func (s *server) rebuild(ctx context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	var errs []error
	for p, cfg := range maps.Clone(s.workers) {
		if err := s.rebuildOneLocked(ctx, p, cfg); err != nil {
			errs = append(errs, fmt.Errorf("worker %d: %w", p.PID(), err))
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}

// end has no worker start any more.
func (s *server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// wait waits until all workers are gone, at most d. None starts any more.
func (s *server) wait(d time.Duration) {
	s.end()
	gone := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(d):
	}
}

// leave lets the workers that are left go on without this process, with programs that went to the
// background.
func (s *server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.workers {
		_ = p.Leave() // one that has ended needs no word
	}
}

// stop ends all workers.
func (s *server) stop() {
	s.end()
	s.pool.Close()
	s.mu.Lock()
	ps := slices.Collect(maps.Keys(s.workers))
	s.mu.Unlock()
	for _, p := range ps {
		p.Stop(time.Second)
	}
	s.wg.Wait()
}
