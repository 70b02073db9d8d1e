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
)

// maxWorkers bounds the CUDA processes of one hub.
const maxWorkers = 512

// hub gives each connection a worker of its own. A worker lives as long as its connection, also when the hub is gone; a tied one only if the
// hub left.
type hub struct {
	spawner *spawn.Spawner
	pool    *spawn.Pool // may be nil
	cfg     link.Config
	log     *slog.Logger
	seat    *schedule.Seat // at a scheduler; nil: GPU time is not limited
	budget  *memory.Page   // device memory of all its sessions, without what contexts take; nil: each has a limit of its own
	host    *memory.Page   // host memory that their requests hold; nil: as budget

	mu      sync.Mutex
	ended   bool // no worker starts any more: set before wg is waited for
	workers map[*spawn.Process]link.Config
	turns   map[*spawn.Process]*schedule.Session // with a seat
	wg      sync.WaitGroup                       // one for each worker
}

func newHub(s *spawn.Spawner, cfg link.Config, log *slog.Logger) *hub {
	h := &hub{spawner: s, cfg: cfg, log: log, workers: map[*spawn.Process]link.Config{}, turns: map[*spawn.Process]*schedule.Session{}}
	var err error
	if h.budget, err = memory.New(cfg.MemoryLimit); err != nil {
		log.Warn("each process has a memory limit of its own", "error", err)
	}
	if h.host, err = memory.New(2 * cfg.HostMemory); err != nil { // one session may have half
		log.Warn("each process has a budget of host memory of its own", "error", err)
	}
	return h
}

// listen accepts guest processes on a new socket until ctx ends.
func (h *hub) listen(ctx context.Context, path string) error {
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return fmt.Errorf("session socket: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = ln.Close() })
	go h.routineAccept(func() (fileConn, error) { return ln.AcceptUnix() }, link.CarrierUnix)
	return nil
}

// fileConn is a connection whose descriptor another process can have.
type fileConn interface {
	File() (*os.File, error)
	Close() error
	RemoteAddr() net.Addr
}

func (h *hub) routineAccept(accept func() (fileConn, error), carrier string) {
	for {
		c, err := accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(50 * time.Millisecond)
			continue
		case err != nil:
			h.log.Error("accept a CUDA process", "error", err)
			return
		}
		if err := h.start(c, carrier); err != nil {
			h.log.Error("start a worker", "error", err)
		}
		_ = c.Close()
	}
}

// start starts the worker of a connection, which the caller closes.
func (h *hub) start(c fileConn, carrier string) error {
	f, err := c.File()
	if err != nil {
		return err
	}
	defer f.Close()
	cfg := h.cfg
	cfg.Carrier = carrier
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return errors.New("a CUDA process came after the end")
	}
	if len(h.workers) >= maxWorkers {
		return fmt.Errorf("more than %d CUDA processes at once", maxWorkers)
	}
	var turn *schedule.Session
	if h.seat != nil {
		if turn, err = h.seat.Add(); err != nil {
			return err
		}
		cfg.Pages = link.GatePages(turn.Files())
	}
	if h.budget != nil {
		if cfg.MemorySlot, err = h.budget.Take(); err != nil {
			turn.Close()
			return err
		}
		cfg.Pages = append(cfg.Pages, link.Page{Kind: link.PageMemory, File: h.budget.File()})
	}
	if h.host != nil {
		if cfg.HostSlot, err = h.host.Take(); err != nil {
			h.freeBudget(cfg)
			turn.Close()
			return err
		}
		cfg.Pages = append(cfg.Pages, link.Page{Kind: link.PageHost, File: h.host.File()})
	}
	if p := h.pool.Take(); p != nil {
		if err := p.Configure(cfg, nil, int(f.Fd())); err == nil {
			h.addLocked(p, cfg, turn)
			return nil
		}
		p.Kill() // it has ended: another then
	}
	p, err := h.spawner.Start(cfg, nil, int(f.Fd()))
	if err != nil {
		turn.Close()
		h.free(cfg)
		return err
	}
	h.addLocked(p, cfg, turn)
	return nil
}

// keepWarm has n workers wait for sessions: a real GPU takes some 200 ms to start, the software GPU none. once: they are
// not replaced.
func (h *hub) keepWarm(n int, once bool) {
	if n == 0 || isSoft(h.cfg.GPU) || h.cfg.GPU == "auto" && !cuda.Present() {
		return
	}
	h.pool = &spawn.Pool{Spawner: h.spawner, Config: h.cfg, Size: n, Once: once, Log: h.log}
	h.pool.Fill()
}

func (h *hub) addLocked(p *spawn.Process, cfg link.Config, turn *schedule.Session) {
	h.workers[p], h.turns[p] = cfg, turn
	h.wg.Add(1)
	h.log.Info("worker started", "pid", p.PID())
	go func() {
		defer h.wg.Done()
		<-p.Done()
		if err := p.Err(); err != nil {
			h.log.Error("worker failed; its program sees CUDA_ERROR_LAUNCH_FAILED", "pid", p.PID(), "error", err)
		} else {
			h.log.Info("worker ended", "pid", p.PID())
		}
		_ = p.Close()
		h.mu.Lock()
		turn := h.turns[p] // nil: none, or its session has another worker now
		if cfg, last := h.workers[p]; last {
			h.free(cfg)
		}
		delete(h.workers, p)
		delete(h.turns, p)
		h.mu.Unlock()
		turn.Close()
	}()
}

// free gives a session's part of the budgets back.
func (h *hub) free(cfg link.Config) {
	h.freeBudget(cfg)
	if h.host != nil {
		h.host.Free(cfg.HostSlot)
	}
}

func (h *hub) freeBudget(cfg link.Config) {
	if h.budget != nil {
		h.budget.Free(cfg.MemorySlot)
	}
}

// memory is the limit, and what all sessions use.
func (h *hub) memory() (limit, used uint64) {
	if h.budget == nil {
		return h.cfg.MemoryLimit, 0
	}
	return h.budget.Limit(), h.budget.Used()
}

// rebuild moves every session to a fresh worker. It returns how many moved.
func (h *hub) rebuild(ctx context.Context) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	var errs []error
	for p, cfg := range maps.Clone(h.workers) {
		next, err := h.spawner.Rebuild(ctx, p, cfg)
		if err != nil {
			errs = append(errs, fmt.Errorf("worker %d: %w", p.PID(), err))
			continue
		}
		turn := h.turns[p]
		delete(h.workers, p) // it is about to end, and has nothing to move any more
		delete(h.turns, p)
		h.addLocked(next, cfg, turn)
		n++
	}
	return n, errors.Join(errs...)
}

// end has no worker start any more.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
}

// wait waits until all workers are gone, at most d. None starts any more.
func (h *hub) wait(d time.Duration) {
	h.end()
	gone := make(chan struct{})
	go func() {
		h.wg.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(d):
	}
}

// leave lets the workers that are left go on without this process, with programs that went to the background.
func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.workers {
		_ = p.Leave() // one that has ended needs no word
	}
}

// stop ends all workers.
func (h *hub) stop() {
	h.end()
	h.pool.Close()
	h.mu.Lock()
	ps := slices.Collect(maps.Keys(h.workers))
	h.mu.Unlock()
	for _, p := range ps {
		p.Stop(time.Second)
	}
	h.wg.Wait()
}
