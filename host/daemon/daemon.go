package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/discover"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/peer"
	"causeway/host/daemon/process"
	"causeway/host/daemon/systemd"
	"causeway/host/sandbox/cgroup"
)

// Options of a Daemon.
type Options struct {
	Config config.Config
	// Program is the causeway binary, which is started as `causeway device` and `causeway
	// scheduler`.
	Program string
	// Scheduler is whether Program has that command.
	Scheduler bool
	Version   string
	Machine   Machine
	// Scopes gives processes units of their own; nil: this host was not booted with systemd.
	Scopes Scopes
	// Journal takes what processes say; nil: files do.
	Journal *systemd.Journal
	// Grace is what a process may take to end by itself; 0: 5 s.
	Grace time.Duration
	// Obey is what a device process may take to take other limits, or which host may take over its
	// lease; 0: 10 s.
	Obey time.Duration
	// Now is the clock by which leases that others have here end; nil: time.Now. Renew is how often
	// those that this host has are renewed; 0: api.LeaseRenew.
	Now   func() time.Time
	Renew time.Duration
	// Agree is how long other peers may take to say that they await a VM, too, when one has said
	// so; 0: 1 s.
	Agree time.Duration
	// AllPorts: a port of the configuration that cannot be had ends causewayd. PortAgain is when
	// one is tried again; 0: 5 s.
	AllPorts  bool
	PortAgain time.Duration
	// SchedulerLook is how often the scheduler is asked whether it answers; 0: 10 s.
	SchedulerLook time.Duration
	// Lookup asks for DNS SRV records; nil: the host's resolver does.
	Lookup discover.Lookup
	Log    *slog.Logger
	// step is told of each step of a vGPU's start and end when it is taken; nil: nobody is. Tests
	// end causewayd there.
	step func(name string)
}

// Scopes puts processes under the host's service manager, so that what is done to causewayd's
// service is not done to them.
type Scopes interface {
	// Place puts a process into a unit of its own, with limits.
	Place(ctx context.Context, unit, description string, pid int, l cgroup.Limits) error
}

// Daemon is causewayd. Its methods may be called from any goroutine.
type Daemon struct {
	opt     Options
	run     string
	log     *slog.Logger
	started time.Time
	locks   keyedLocks
	handing keyedLocks          // of a vGPU's lease, to other hosts and back
	starts  *semaphore.Weighted // device processes that are being started
	gpus    gpuBook
	sched   scheduler
	lock    *os.File
	leases  lease.Book // that other hosts have here
	fleet   *lease.Reserved
	finder  *discover.Finder
	// Of GPU servers. A new lease takes as long as a process there needs to start, so that renewals
	// have connections of their own.
	renewing, leasing serverClients
	missing           string // the last Reading.Missing; gpuBook.mu is held

	ctx      context.Context // of what runs in the background
	stop     context.CancelFunc
	closing  context.Context // ends first: requests that would go on for ever end then
	shut     context.CancelFunc
	wg       sync.WaitGroup
	handlers sync.WaitGroup // requests that are being answered; none comes once Serve has returned

	swapping sync.Mutex // held by who makes room on GPUs

	mu     sync.Mutex
	cfg    config.Config
	policy *peer.Policy
	vgpus  map[string]*vgpu
	served servedCounts
}

// vgpu is a vGPU that has a record. Its fields are guarded by Daemon.mu.
type vgpu struct {
	rec   record
	proc  *process.Process // nil: lost, or not started yet
	ready bool             // its device process has answered
	end   bool             // we end it: it is not lost
	last  *api.Status      // its last account
	to    string           // UUID of the GPU to which it is being moved
	// Its GPU server; what it points to does not change; nil: its GPU is here, or the lease is
	// over.
	up    *api.Upstream
	epoch uint64 // of the lease
	// Of another server, while its programs go from one to the other; nil: they do not.
	beside *api.Upstream
	renew  bool // routineRenew is at it
	// Its device process was not reached with how its server is: it is told again.
	mute  bool
	comes lease.Coming // it awaits a VM from another host, with whose lease it goes on

	// Held while what is written down is changed by whom its lock does not keep apart, so that it
	// ends as what is so, and while it is removed; before Daemon.mu.
	written sync.Mutex

	// Held while its device process is told how its server is, so that it is told last what is so
	// last; before Daemon.mu.
	telling sync.Mutex

	agreed  time.Time // when its GPU server last changed limits for this host
	handed  time.Time // when another host was last let take over the lease
	watched bool      // routineHanded is at it
	// promised: an earlier causewayd may have had the server let another host take the lease over,
	// and ended before it told the device process.
	promised bool
	departs  bool // that was because a migration has begun
}

// mostStarts is how many device processes start at once; the others' requests wait.
const mostStarts = 8

// New takes the run directory and finds again what runs there.
func New(ctx context.Context, o Options) (*Daemon, error) {
	policy, err := peer.NewPolicy(o.Config.Roles)
	if err != nil {
		return nil, err
	}
	if o.Config.Devices.Log == config.LogJournal && o.Journal == nil {
		return nil, fmt.Errorf("%w: devices.log = \"journal\": this host was not booted with systemd: use \"file\"", config.ErrValue)
	}
	o.Grace, o.Renew, o.Obey = cmp.Or(o.Grace, 5*time.Second), cmp.Or(o.Renew, api.LeaseRenew), cmp.Or(o.Obey, 10*time.Second)
	o.Agree, o.PortAgain = cmp.Or(o.Agree, time.Second), cmp.Or(o.PortAgain, portAgain)
	for _, dir := range []string{o.Config.RunDir, o.Config.StateDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("causewayd's folder: %w", err)
		}
	}
	lock, err := lockDir(ctx, o.Config.RunDir)
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		opt: o, run: o.Config.RunDir, log: o.Log, started: time.Now(), lock: lock, cfg: o.Config, policy: policy,
		starts: semaphore.NewWeighted(mostStarts), vgpus: map[string]*vgpu{}, finder: discover.New(o.Lookup),
	}
	d.leases.Term, d.leases.Now = api.LeaseTerm, o.Now
	if o.Now == nil {
		d.leases.Now = time.Now
	}
	d.ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	d.closing, d.shut = context.WithCancel(d.ctx)
	d.gpus.spawn, d.gpus.ctx, d.gpus.note = d.wg.Go, d.ctx, d.noteReading
	if err := d.gpus.open(o.Machine, o.Config.StateDir); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := d.openReserved(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if err := d.scan(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.wg.Go(d.routineHealth)
	d.wg.Go(d.routineLeases)
	if !o.AllPorts {
		d.beginScheduler()
	}
	return d, nil
}

// beginScheduler keeps a scheduler running from now on, if there is to be one. It outlives
// causewayd: one that may yet end for want of a port has none before it has them all.
func (d *Daemon) beginScheduler() {
	if d.opt.Scheduler && d.opt.Config.Scheduler.Enabled {
		d.wg.Go(d.routineScheduler)
	}
}

// Close ends causewayd. What it started goes on.
func (d *Daemon) Close() error {
	d.shut()
	d.handlers.Wait() // those whose time was up undo what they began
	d.stop()
	d.wg.Wait()
	for _, v := range d.vgpus {
		if v.proc != nil {
			_ = v.proc.Close()
		}
	}
	return unlockDir(d.lock)
}

// Reload makes a new configuration hold. It returns the keys that hold only after a restart.
func (d *Daemon) Reload(c config.Config) (restart []string, err error) {
	policy, err := peer.NewPolicy(c.Roles)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range []struct {
		name    string
		changed bool
	}{
		{"run_dir", c.RunDir != d.cfg.RunDir}, {"state_dir", c.StateDir != d.cfg.StateDir}, {"log_dir", c.LogDir != d.cfg.LogDir},
		{"scheduler.enabled", c.Scheduler != d.cfg.Scheduler}, {"metrics.listen", c.Metrics != d.cfg.Metrics},
		{"placement.software_gpus", c.Placement.SoftwareGPUs != d.cfg.Placement.SoftwareGPUs},
		{"migration.listen", c.Migration.Listen != d.cfg.Migration.Listen}, {"remote.listen", c.Remote.Listen != d.cfg.Remote.Listen},
		{"placement.software_memory", c.Placement.SoftwareMemory != d.cfg.Placement.SoftwareMemory},
	} {
		if k.changed {
			restart = append(restart, k.name)
		}
	}
	c.RunDir, c.StateDir, c.LogDir, c.Scheduler, c.Metrics = d.cfg.RunDir, d.cfg.StateDir, d.cfg.LogDir, d.cfg.Scheduler, d.cfg.Metrics
	c.Placement.SoftwareGPUs, c.Placement.SoftwareMemory = d.cfg.Placement.SoftwareGPUs, d.cfg.Placement.SoftwareMemory
	d.cfg, d.policy = c, policy
	return restart, nil
}

// config is the configuration that holds now. Its maps and lists are not changed.
func (d *Daemon) config() config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg
}

func (d *Daemon) role(p peer.Peer) peer.Role {
	d.mu.Lock()
	policy := d.policy
	d.mu.Unlock()
	return policy.Role(p)
}

// keyedLocks let one request at a time change a vGPU.
type keyedLocks struct {
	mu sync.Mutex
	of map[string]*keyedLock
}

type keyedLock struct {
	pass chan struct{}
	n    int // who holds it or waits
}

// enter waits for the lock; leave must be called.
func (g *keyedLocks) enter(ctx context.Context, key string) (leave func(), err error) {
	g.mu.Lock()
	if g.of == nil {
		g.of = map[string]*keyedLock{}
	}
	one := g.of[key]
	if one == nil {
		one = &keyedLock{pass: make(chan struct{}, 1)}
		g.of[key] = one
	}
	one.n++
	g.mu.Unlock()
	drop := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if one.n--; one.n == 0 {
			delete(g.of, key)
		}
	}
	select {
	case one.pass <- struct{}{}:
		return func() { <-one.pass; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, ctx.Err()
	}
}
