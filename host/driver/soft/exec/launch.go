package exec

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a launch, as of current devices.
const (
	maxThreads = 1024
	maxShared  = 256 << 10 // bytes per block, above what any device grants
	maxStack   = 512 << 10

	// reservedShared is the part of shared memory that cooperative groups keep
	// for themselves. It lies behind the program's own here.
	reservedShared = 1 << 10
)

// resident is how many blocks a worker keeps started, without being asked to
// make all resident, when a block does not end within restless: it may wait
// for another.
const (
	resident = 16
	restless = 10 * time.Millisecond
)

// maxMemory bounds registers, local and shared memory of a launch, in bytes.
const maxMemory = 2 << 30

// charge accounts for memory, and raises a fault when the launch has too much:
// hostile code can ask for gigabytes with a few characters.
func (w *warp) charge(n uint64) {
	if w.blk.launch.memory.Add(int64(n)) > maxMemory {
		w.fault(StackOverflow, "registers and local memory of the launch are too large")
	}
}

// launch is one running grid. Everything but the counters is constant.
type launch struct {
	kernel  *Kernel
	config  *Config
	threads int
	units   uint64 // clusters, or blocks
	cluster int    // blocks of a cluster; 0: none
	cores   int
	stack   uint64
	shared  uint64
	static  uint64
	grid    []byte // gridWindow; empty unless cooperative
	began   time.Time
	next    atomic.Uint64 // block to start
	memory  atomic.Int64  // bytes that warps took so far
	stop    atomic.Bool

	children children // launches by the grid's threads

	mu    sync.Mutex
	err   error
	stats Stats
}

// Launch runs the kernel and returns when all blocks ended or one faulted.
// Errors: *Fault for what the kernel did, *UnsupportedError for an instruction
// that exec lacks, *ConfigError for a bad Config, and a Fault of kind Cancelled
// (which wraps ctx's error) when ctx ended first. Memory written before an
// error stays written.
func (k *Kernel) Launch(ctx context.Context, c Config) error {
	l, err := k.prepare(&c)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return &Fault{Kind: Cancelled, Err: err}
	}
	unhook := context.AfterFunc(ctx, func() {
		l.fail(&Fault{Kind: Cancelled, Err: ctx.Err()})
	})
	defer unhook()
	var wg sync.WaitGroup
	for i := 1; i < l.cores; i++ {
		wg.Go(func() { l.work(i) })
	}
	l.work(0)
	wg.Wait()
	l.mu.Lock()
	err = l.err
	if c.Stats != nil {
		*c.Stats = l.stats
	}
	l.mu.Unlock()
	if err == nil {
		err = l.children.run(ctx, &c)
	}
	return err
}

func (k *Kernel) prepare(c *Config) (*launch, error) {
	if k.err != nil {
		return nil, k.err
	}
	bad := func(format string, args ...any) (*launch, error) {
		return nil, &ConfigError{k.name + ": " + fmt.Sprintf(format, args...)}
	}
	g, b := c.Grid, c.Block
	if g[0] == 0 || g[1] == 0 || g[2] == 0 || b[0] == 0 || b[1] == 0 || b[2] == 0 {
		return bad("empty grid %v or block %v", g, b)
	}
	if g[0] > 1<<31-1 || g[1] > 65535 || g[2] > 65535 {
		return bad("grid %v is too large", g)
	}
	if b[0] > 1024 || b[1] > 1024 || b[2] > 64 || b[0]*b[1]*b[2] > k.attrs.MaxThreadsPerBlock {
		return bad("block %v has more than %d threads", b, k.attrs.MaxThreadsPerBlock)
	}
	if r := k.attrs.RequiredBlock; r != [3]uint32{} && r != b {
		return bad("block %v, but the kernel requires %v", b, r)
	}
	if uint64(len(c.Params)) < k.bytes {
		return bad("%d bytes of parameters, but the kernel takes %d", len(c.Params), k.bytes)
	}
	if c.Space == nil {
		return bad("no address space")
	}
	l := &launch{kernel: k, config: c, threads: int(b[0] * b[1] * b[2]), began: time.Now()}
	l.units = uint64(g[0]) * uint64(g[1]) * uint64(g[2])
	if c.Cluster == [3]uint32{} {
		c.Cluster = k.attrs.RequiredCluster
	}
	if n := c.Cluster; n != [3]uint32{} {
		size := uint64(n[0]) * uint64(n[1]) * uint64(n[2])
		if size == 0 || max(n[0], n[1], n[2]) > maxCluster || size > maxCluster || g[0]%n[0] != 0 || g[1]%n[1] != 0 || g[2]%n[2] != 0 {
			return bad("clusters of %v in a grid of %v", n, g)
		}
		l.cluster = int(size)
		l.units /= size
	}
	l.static = k.dynamicAt
	if c.DynShared == 0 {
		l.static = k.sharedSize
	}
	l.shared = l.static + uint64(c.DynShared)
	if k.reserved {
		l.shared = (l.shared+15)&^15 + reservedShared
	}
	if l.shared > maxShared {
		return bad("%d bytes of shared memory are more than %d", l.shared, maxShared)
	}
	l.stack = min(c.StackBytes, maxStack)
	if l.stack == 0 {
		l.stack = maxStack
	}
	l.stack = (max(l.stack, k.code.frame) + 15) &^ 15
	if c.Cooperative {
		l.grid = make([]byte, 64)
	}
	l.cores = c.Cores
	if l.cores <= 0 {
		l.cores = runtime.GOMAXPROCS(0)
	}
	l.cores = int(min(uint64(l.cores), l.units))
	return l, nil
}

// fail records the first error and stops the workers.
func (l *launch) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.stop.Store(true)
}

// work runs blocks until none is left.
func (l *launch) work(worker int) {
	// A device allocation may be unmapped under a running kernel.
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	p := &pool{l: l, worker: worker}
	defer p.finish()
	defer func() {
		if r := recover(); r != nil {
			l.fail(p.asError(r))
		}
	}()
	if l.config.Cooperative {
		for n := uint64(worker); n < l.units; n += uint64(l.cores) {
			p.start(n)
		}
		p.drain()
		return
	}
	for !l.stop.Load() {
		n := l.next.Add(1) - 1
		if n >= l.units {
			break
		}
		p.start(n)
		p.drainTo(resident)
	}
	p.drain()
}

// pool is a worker's blocks: those running and one finished for reuse.
type pool struct {
	l       *launch
	worker  int
	running []*blockRun
	spare   []*blockRun
	current *blockRun
	stats   Stats
}

// start begins block n, or all blocks of cluster n.
func (p *pool) start(n uint64) {
	if p.l.cluster == 0 {
		p.take().start(n)
		return
	}
	c := &clusterRun{live: p.l.cluster}
	for range p.l.cluster {
		c.blocks = append(c.blocks, p.take())
	}
	for i, b := range c.blocks {
		p.current = b
		b.start(0)
		b.joinCluster(c, n, uint32(i))
	}
}

// take makes a block one of those running.
func (p *pool) take() *blockRun {
	var b *blockRun
	if n := len(p.spare); n > 0 {
		b, p.spare = p.spare[n-1], p.spare[:n-1]
		clear(b.shared)
	} else {
		b = &blockRun{launch: p.l, worker: p.worker, shared: make([]byte, p.l.shared)}
		for i := 0; i*32 < p.l.threads; i++ {
			b.warps = append(b.warps, &warp{blk: b, index: i, pool: map[*code][]*frame{}})
		}
		b.warps[0].charge(p.l.shared)
	}
	p.current = b
	p.running = append(p.running, b)
	return b
}

// drainTo runs the started blocks until all ended, or until they make no end
// and fewer than limit are started.
func (p *pool) drainTo(limit int) {
	since := time.Now()
	for len(p.running) > 0 {
		for i := 0; i < len(p.running); {
			if p.l.stop.Load() {
				return
			}
			b := p.running[i]
			p.current = b
			if b.step() {
				p.running = append(p.running[:i], p.running[i+1:]...)
				p.retire(b)
				since = time.Now()
				continue
			}
			i++
		}
		if len(p.running) < limit && p.l.next.Load() < p.l.units && time.Since(since) > restless {
			return
		}
	}
}

func (p *pool) drain() { p.drainTo(0) }

func (p *pool) retire(b *blockRun) {
	p.count(b)
	c := b.cluster
	if c == nil {
		p.spare = append(p.spare, b)
		return
	}
	if c.live--; c.live == 0 { // others may have used its memory until now
		p.spare = append(p.spare, c.blocks...)
	}
}

func (p *pool) count(b *blockRun) {
	for _, w := range b.warps {
		p.stats.WarpInstructions += w.instrs
		p.stats.LaneInstructions += w.laneInstrs
		w.instrs, w.laneInstrs = 0, 0
	}
}

func (p *pool) finish() {
	for _, b := range p.running {
		p.count(b)
	}
	p.l.mu.Lock()
	p.l.stats.WarpInstructions += p.stats.WarpInstructions
	p.l.stats.LaneInstructions += p.stats.LaneInstructions
	p.l.mu.Unlock()
}

// asError turns what a worker panicked with into the launch's error. Anything
// that is no fault of the kernel is a bug of ours: it fails the launch with its
// stack, and leaves the process alone.
func (p *pool) asError(r any) error {
	switch e := r.(type) {
	case *Fault:
		return e
	case *UnsupportedError:
		return e
	case interface {
		error
		Addr() uintptr
	}: // a memory fault of the process: an allocation vanished
		return &Fault{Kind: IllegalAddress, Address: uint64(e.Addr()), Msg: "memory freed while in use"}
	}
	return fmt.Errorf("exec: internal error: %v\n%s", r, debug.Stack())
}
