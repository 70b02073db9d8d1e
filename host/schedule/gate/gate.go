package gate

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"causeway/host/driver"
	"causeway/host/schedule/page"
	"causeway/remote/sys"
)

// Options of a Gate.
type Options struct {
	Grant page.Grant
	Usage page.Usage
	Bell  int // eventfd by which the scheduler is told; stays the caller's
	// Gauge fences the session's work; nil: the driver cannot, and the session has nothing in
	// flight as far as anybody knows.
	Gauge driver.Gauge
	// OnConsumer has the consumer run f between two operations, and waits for it.
	OnConsumer func(f func() error) error
	// Serve runs what OnConsumer handed over, if anything, while the consumer stands at the gate.
	Serve func() error
	// Spin is how long the consumer looks for a grant before it sleeps.
	Spin time.Duration
}

// Gate is one session's.
type Gate struct {
	Options

	// The consumer's.
	free       page.Word // the last free word seen; 0: not free
	metering   bool      // the gauge was told
	sinceFence uint64    // operations since the last fence
	sharp      bool      // its thread's naps are exact

	loose     atomic.Bool   // there may be work that nobody counted: the session was free
	idle      atomic.Bool   // nothing that was counted is on the GPU
	submitted atomic.Uint64 // operations let through while metered

	mu      sync.Mutex
	marks   [depth]mark // of fences that have not passed, by number modulo depth
	passed  uint64      // marks passed
	fenced  uint64      // marks given
	done    uint64      // operations known to be finished
	counted time.Time   // up to here busy is in the usage; zero: not busy
	moved   time.Time   // when done last grew
	blind   bool        // the session was free, and nobody looked since: what passed is not counted
	est     float64     // nanoseconds that an operation takes
	active  bool        // as the scheduler was told
	quietAt time.Time   // nothing has been on the GPU since; zero: something is
	asking  bool        // the consumer was asked for a fence

	tells   bool          // the gauge says when marks pass
	passes  atomic.Uint32 // counts what it said, for the consumer to sleep on
	lacking atomic.Bool   // the consumer sleeps on it, or is about to
	kick    chan struct{}
	quit    chan struct{}
	stopped atomic.Bool
	group   sync.WaitGroup
}

// mark is what a fence stands behind.
type mark struct {
	ops uint64 // submitted before it
}

const (
	depth     = 256
	maxFlight = 1024 // operations
	leastOps  = 2    // one runs, one waits
	firstOps  = 8    // while nothing is known of what they take
	grace     = 60 * time.Microsecond
	// How long the consumer sleeps at the gate before it looks around.
	stand    = 10 * time.Millisecond
	napLeast = 20 * time.Microsecond
	napMost  = 500 * time.Microsecond
	napTold  = 2 * time.Millisecond // while a gauge tells: only busy time goes on
)

// New makes a gate and starts its goroutines.
func New(o Options) *Gate {
	g := &Gate{Options: o, kick: make(chan struct{}, 1), quit: make(chan struct{})}
	g.idle.Store(true)
	if g.Gauge != nil {
		g.tells = g.Gauge.OnPass(g.pass)
	}
	g.group.Go(g.routineListen)
	g.group.Go(g.routineMonitor)
	return g
}

// Close ends the goroutines. The consumer has ended, or will not come back. over: the session has
// ended, too; else another worker has it, and the usage is that one's.
func (g *Gate) Close(over bool) {
	g.stopped.Store(true)
	close(g.quit)
	g.Grant.Wake()
	// The listener may go to sleep just now: wake it until it is gone.
	gone := make(chan struct{})
	go func() {
		g.group.Wait()
		close(gone)
	}()
	for {
		select {
		case <-gone:
			if !over {
				return
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.Usage.Active.Store(0)
			g.Usage.Waiting.Store(0)
			g.Usage.Drained.Store(uint32(g.Grant.Word()))
			g.ring()
			return
		case <-time.After(time.Millisecond):
			g.Grant.Wake()
		}
	}
}

// Poke has a consumer that stands at the gate call Serve.
func (g *Gate) Poke() {
	g.Grant.Wake()
}

// Before lets an operation through that gives the GPU work, when it may. An error is ctx's, or of
// Serve, and ends the session.
func (g *Gate) Before(ctx context.Context) error {
	w := g.Grant.Word()
	if w == g.free && w != 0 {
		return nil
	}
	return g.before(ctx, w)
}

func (g *Gate) before(ctx context.Context, w page.Word) error {
	for {
		switch {
		case w.Free():
			g.become(w)
			return nil
		case w&page.Open == 0:
			g.become(0)
			if err := g.stand(ctx); err != nil {
				return err
			}
		default:
			g.become(0)
			if g.room() {
				g.submit()
				return nil
			}
			if g.sinceFence > 0 {
				g.fence() // else what fills the room would never be seen to end
			}
			if err := g.serve(ctx); err != nil {
				return err
			}
			g.lack()
		}
		w = g.Grant.Word()
	}
}

// become follows a change between free (w, the word) and metered (0).
func (g *Gate) become(w page.Word) {
	if w != 0 {
		if g.metering {
			g.metering = false
			g.Gauge.Metering(false)
		}
		g.free = w
		g.loose.Store(true)
		g.mu.Lock()
		g.blind = true
		g.mu.Unlock()
		g.announce()
		return
	}
	g.free = 0
	if !g.metering && g.Gauge != nil {
		g.metering = true
		g.Gauge.Metering(true)
	}
	if g.loose.Load() {
		g.fence()
		g.loose.Store(false)
		g.wakeMonitor()
	}
}

// announce tells the scheduler that the session wants the GPU.
func (g *Gate) announce() {
	g.mu.Lock()
	g.quietAt = time.Time{}
	if !g.active {
		g.active = true
		g.Usage.Active.Store(1)
		g.ring()
	}
	g.mu.Unlock()
}

// stand waits for a grant.
func (g *Gate) stand(ctx context.Context) error {
	if g.sinceFence > 0 {
		g.fence()
	}
	begin := time.Now()
	g.Usage.Waiting.Store(1)
	g.announce()
	defer func() {
		g.Usage.Waiting.Store(0)
		g.Usage.Waited.Add(uint64(time.Since(begin)))
		g.Usage.Waits.Add(1)
	}()
	g.wakeMonitor()
	for {
		w := g.Grant.Word()
		if w&page.Open != 0 {
			break
		}
		if err := g.serve(ctx); err != nil {
			return err
		}
		if time.Since(begin) < g.Spin {
			sys.Pause()
			continue
		}
		g.Grant.Await(w, stand)
		if g.Usage.Active.Load() == 0 {
			// A worker that had the session before may have said so just now.
			g.Usage.Active.Store(1)
			g.ring()
		}
	}
	return nil
}

// serve does what others want of the consumer.
func (g *Gate) serve(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return g.Serve()
}

// ring tells the scheduler to look.
func (g *Gate) ring() {
	sys.Signal(g.Bell)
}
