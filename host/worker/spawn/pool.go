package spawn

import (
	"log/slog"
	"sync"
	"time"

	"causeway/host/worker/link"
)

// refillDelay keeps the start of a new spare out of the way of the session that took the last one:
// starting a driver holds locks that its first calls want.
const refillDelay = time.Second

// Pool keeps workers ready for sessions that have not come yet. Its methods may be called from any
// goroutine.
type Pool struct {
	// Spawner and Config make the spares. Size is how many wait at a time; 0: none.
	Spawner *Spawner
	Config  link.Config
	Size    int
	// Once: spares that were taken are not replaced.
	Once bool
	Log  *slog.Logger

	mu     sync.Mutex
	spare  []*Process
	timer  *time.Timer
	closed bool
}

// Fill starts spares until Size of them wait.
func (p *Pool) Fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && len(p.spare) < p.Size {
		w, err := p.Spawner.Warm(p.Config)
		if err != nil {
			p.Log.Warn("no worker kept ready", "error", err)
			return
		}
		p.Log.Debug("worker kept ready", "pid", w.PID())
		p.spare = append(p.spare, w)
	}
}

// Take returns a worker that Configure can give a session, or nil: start one then. If giving fails,
// Kill it.
func (p *Pool) Take() *Process {
	if p == nil || p.Size == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Once && !p.closed && p.timer == nil {
		p.timer = time.AfterFunc(refillDelay, func() {
			p.mu.Lock()
			p.timer = nil
			p.mu.Unlock()
			p.Fill()
		})
	}
	for len(p.spare) > 0 {
		w := p.spare[0]
		p.spare = p.spare[1:]
		select {
		case <-w.Done():
			_ = w.Close()
		default:
			return w
		}
	}
	return nil
}

// Close ends the spares, and waits for them.
func (p *Pool) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	spare := p.spare
	p.spare, p.closed = nil, true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	for _, w := range spare {
		w.Kill()
	}
}
