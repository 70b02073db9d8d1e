package controller

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/fleet/claim"
)

// pools are what the fleet offers, published together. Its methods may be called from any
// goroutine.
type pools struct {
	mu    sync.Mutex
	by    map[string]resourceslice.Pool
	dirty chan struct{}
}

func newPools() *pools {
	return &pools{by: map[string]resourceslice.Pool{}, dirty: make(chan struct{}, 1)}
}

// set has a pool be so.
func (p *pools) set(name string, pool resourceslice.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if had, is := p.by[name]; is && reflect.DeepEqual(had, pool) {
		return
	}
	p.by[name] = pool
	p.wake()
}

// drop ends one.
func (p *pools) drop(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.by, name)
	p.wake()
}

func (p *pools) wake() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// resources are all pools. The publisher changes what it is given.
func (p *pools) resources() *resourceslice.DriverResources {
	p.mu.Lock()
	defer p.mu.Unlock()
	return (&resourceslice.DriverResources{Pools: maps.Clone(p.by)}).DeepCopy()
}

// run publishes until ctx ends. What is not among the pools when it begins is not published any
// more.
func (p *pools) run(ctx context.Context, client kubernetes.Interface, owner *resourceslice.Owner, log *slog.Logger) error {
	c, err := resourceslice.StartController(ctx, resourceslice.Options{DriverName: claim.Driver, KubeClient: client, Owner: owner, Resources: p.resources(),
		ErrorHandler: func(_ context.Context, err error, msg string) {
			log.Warn("what the fleet offers is not published", "error", err, "at", msg)
		}})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.dirty:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
		c.Update(p.resources())
	}
}
