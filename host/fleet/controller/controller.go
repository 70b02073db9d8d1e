package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/fleet/claim"
	"causeway/host/fleet/lease"
	"causeway/remote/mtls"
)

// Options of Run.
type Options struct {
	Client kubernetes.Interface
	Events record.EventRecorder
	Config string // a file, which is read again and again
	// MayCome: the file need not be there yet, nor the certificate; until then there are no hosts.
	MayCome   bool
	Files     mtls.Files
	Namespace string // of the Lease
	Identity  string // one that no other controller has
	// Every is how often a host is asked for its heartbeat; Patience is how long it may not answer
	// before it gets no new claims.
	Every, Patience time.Duration
	Metrics         *Metrics
	Health          *Health
	Log             *slog.Logger
}

// Times.
const (
	configEvery = 5 * time.Second
	refusedFor  = 30 * time.Second // of a GPU of which a claim was refused
	leastPause  = 50 * time.Millisecond
)

// Run looks after the fleet whenever this controller leads, until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Health == nil {
		o.Health = NewHealth()
	}
	c, err := o.config()
	if err != nil {
		return err
	}
	if _, err := o.Files.Client("check", "check"); err != nil && (!o.MayCome || len(c.Hosts) > 0) {
		return fmt.Errorf("the controller's certificate: %w", err)
	}
	return lead(ctx, &o, func(ctx context.Context, l *leader) error {
		o.Metrics.leads(l.epoch)
		defer o.Metrics.ended(l.epoch)
		defer o.Health.ended(l.epoch)
		return (&fleet{Options: o, leader: l, pools: newPools(), hosts: map[string]*host{}}).run(ctx)
	})
}

// config is the configuration as it is now.
func (o *Options) config() (*Config, error) {
	c, err := ReadConfig(o.Config)
	if o.MayCome && errors.Is(err, fs.ErrNotExist) {
		return &Config{}, nil
	}
	return c, err
}

// fleet is the controller while it leads.
type fleet struct {
	Options
	leader  *leader
	pools   *pools
	cluster *cluster

	mu    sync.Mutex
	hosts map[string]*host // by pool
	ready bool             // the configuration has been read, and all that there was is known
}

// host is a GPU host with its keeper, which one goroutine has.
type host struct {
	config HostConfig
	wakeup chan struct{}
	stop   context.CancelFunc
	leave  chan struct{} // closed when it is not to be in the fleet any more
	first  chan struct{} // closed after its first pass
	once   sync.Once
	idle   bool // its keeper's: that it has left has been said
}

func (h *host) wake() {
	select {
	case h.wakeup <- struct{}{}:
	default:
	}
}

func (f *fleet) run(ctx context.Context) error {
	var err error
	if f.cluster, err = newCluster(f.Client, f.Events, f.changed); err != nil {
		return err
	}
	if err := f.cluster.start(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	if err := f.configure(ctx, &wg); err != nil {
		return err
	}
	// A pool that is not known when the publisher begins is taken away: so all hosts have answered
	// before, or were found as they were published.
	for _, h := range f.all() {
		select {
		case <-h.first:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	wg.Go(func() { f.routineConfig(ctx, &wg) })
	f.mu.Lock()
	f.ready = true
	f.mu.Unlock()
	f.Health.works(f.leader.epoch)
	for _, c := range f.cluster.claims.GetStore().List() {
		for _, p := range poolsOf(c) {
			f.changed(p)
		}
	}
	return f.pools.run(ctx, f.Client, f.cluster.owner(ctx, f.Namespace, f.Log), f.Log)
}

func (f *fleet) all() (list []*host) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		list = append(list, h)
	}
	return list
}

// changed has a pool's keeper look at its claims.
func (f *fleet) changed(pool string) {
	f.mu.Lock()
	h, ready := f.hosts[pool], f.ready
	f.mu.Unlock()
	if h != nil {
		h.wake()
	} else if ready {
		f.unkept(pool)
	}
}

// unkept tells claims that have devices of a pool which is none of the fleet's: whoever published
// it, nobody gives leases of it.
func (f *fleet) unkept(pool string) {
	for _, c := range f.cluster.Claims(pool) {
		f.Log.Warn("a claim has a device that is none of the fleet's", "claim", c.Namespace+"/"+c.Name, "pool", pool)
		f.cluster.Warn(idOf(c), fmt.Errorf("its GPU is of the pool %s, which is none of the fleet's: nobody gives a lease of it. If the GPU host is to be in the fleet, the controller's configuration names it, with `leaving: true` if it is to leave; if not, whoever publishes its ResourceSlice says what is not so", pool))
	}
}

func idOf(c *resourceapi.ResourceClaim) claim.ID {
	return claim.ID{Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

func (f *fleet) routineConfig(ctx context.Context, wg *sync.WaitGroup) {
	t := time.NewTicker(configEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := f.configure(ctx, wg); err != nil {
				f.Log.Error("the configuration that was read before holds", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// configure keeps the hosts that the configuration names, and no others.
func (f *fleet) configure(ctx context.Context, wg *sync.WaitGroup) error {
	c, err := f.config()
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	named := map[string]bool{}
	for _, hc := range c.Hosts {
		pool := claim.PoolOf(hc.Name)
		named[pool] = true
		if h := f.hosts[pool]; h != nil {
			if reflect.DeepEqual(h.config, hc) && !closed(h.leave) {
				continue
			}
			h.stop()
		}
		if err := f.keep(ctx, wg, hc); err != nil {
			return err
		}
	}
	for pool, h := range f.hosts {
		if !named[pool] && !closed(h.leave) {
			f.Log.Info("a GPU host leaves the fleet when nobody has a lease of it any more, if this controller leads until then: with `leaving: true` in the configuration any does", "host", h.config.Name)
			close(h.leave)
			h.wake()
		}
	}
	return nil
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// keep begins to look after a host. f.mu is held.
func (f *fleet) keep(ctx context.Context, wg *sync.WaitGroup, c HostConfig) error {
	s, err := dial(c.Address, f.Files)
	if err != nil {
		return fmt.Errorf("GPU host %s: %w", c.Name, err)
	}
	pool := claim.PoolOf(c.Name)
	k := &lease.Keeper{
		Host: c.host(), Address: c.Address, Server: s, Cluster: f.cluster, Leader: f.leader, Patience: f.Patience, Backoff: refusedFor, Now: time.Now, Log: f.Log,
		Counted: func(act string) { f.Metrics.acts.WithLabelValues(c.Name, act).Inc() },
	}
	if gpus := f.cluster.published(c.Name); len(gpus) > 0 {
		k.Found(gpus)
	}
	ctx, stop := context.WithCancel(ctx)
	h := &host{config: c, wakeup: make(chan struct{}, 1), stop: stop, leave: make(chan struct{}), first: make(chan struct{})}
	// Of one that is replaced nothing is published any more.
	k.Publish = func(p resourceslice.Pool) {
		if ctx.Err() == nil {
			f.pools.set(pool, p)
		}
	}
	f.hosts[pool] = h
	wg.Go(func() {
		defer s.close()
		f.routineKeep(ctx, h, k)
	})
	return nil
}

// routineKeep has a host's keeper pass again and again, until ctx ends or the host has left.
func (f *fleet) routineKeep(ctx context.Context, h *host, k *lease.Keeper) {
	for {
		k.Leaving = closed(h.leave) || h.config.Leaving
		again := k.Pass(ctx)
		if ctx.Err() == nil { // else another may look after it already
			f.Metrics.host(h.config.Name, k.Account())
		}
		h.once.Do(func() { close(h.first) })
		switch idle := k.Idle(); {
		case idle && closed(h.leave):
			f.left(h)
			return
		case idle && !h.idle: // it is looked after until the configuration does not name it
			f.Log.Info("nobody has a lease of a GPU host that is leaving: it may be taken out of the configuration", "host", h.config.Name)
			h.idle = true
		case !idle:
			h.idle = false
		}
		if again == 0 {
			again = f.Every - f.Every/10 + rand.N(f.Every/5+1) // not all at once
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(leastPause):
		}
		select {
		case <-ctx.Done():
			return
		case <-h.wakeup:
		case <-time.After(again):
		}
	}
}

// left: nobody has anything of a host that was to leave.
func (f *fleet) left(h *host) {
	pool := claim.PoolOf(h.config.Name)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hosts[pool] != h {
		return
	}
	delete(f.hosts, pool)
	f.pools.drop(pool)
	f.Metrics.left(h.config.Name)
	f.Log.Info("a GPU host has left the fleet", "host", h.config.Name)
}
