package publish

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"causeway/host/api"
)

// Causewayd is whom it asks. *api.Client is one.
type Causewayd interface {
	GPUs(ctx context.Context) ([]api.GPU, error)
	VGPUs(ctx context.Context) ([]api.VGPU, error)
}

// Publisher tells Kubernetes of the node's GPUs, as causewayd shows them.
type Publisher struct {
	Node      string
	Causewayd Causewayd
	// Publish has the slices be so. It is called when something has changed.
	Publish func(context.Context, resourceslice.DriverResources) error
	// Every is how often causewayd is asked; Patience is how long it may not answer before its GPUs
	// get no new claims.
	Every, Patience time.Duration
	// OfferedByFleet: the fleet's controller publishes the node's GPUs, which it knows from
	// causewayd itself. What is left to say is that the driver runs.
	OfferedByFleet bool
	Log            *slog.Logger

	last       Node
	lastAnswer time.Time
	published  *resourceslice.DriverResources

	mu      sync.Mutex
	devices []resourceapi.Device // as published
}

// Devices are the node's as they were published last.
func (p *Publisher) Devices() []resourceapi.Device {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devices
}

// Run publishes until ctx ends. A causewayd that never answered has no GPUs that anybody would know
// of.
func (p *Publisher) Run(ctx context.Context) {
	t := time.NewTicker(p.Every)
	defer t.Stop()
	p.lastAnswer = time.Now()
	for {
		p.Look(ctx, time.Now())
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Look asks causewayd once, and publishes what is new.
func (p *Publisher) Look(ctx context.Context, now time.Time) {
	n, err := p.read(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		p.Log.Warn("causewayd does not say which GPUs this node has", "error", err)
		n = p.last
		n.Name, n.Unreachable = p.Node, now.Sub(p.lastAnswer) > p.Patience
	} else {
		p.last, p.lastAnswer = n, now
	}
	r := n.Resources()
	if p.OfferedByFleet {
		none := Node{Name: p.Node}
		r = none.Resources()
	}
	if p.published != nil && reflect.DeepEqual(*p.published, r) {
		p.note(&n)
		return
	}
	if err := p.Publish(ctx, r); err != nil {
		p.Log.Warn("the node's GPUs are not published", "error", err)
		return
	}
	p.published = &r
	p.note(&n)
	p.Log.Info("GPUs published", "devices", len(n.Devices()), "unreachable", n.Unreachable, "by_the_fleet", p.OfferedByFleet)
}

// note has the devices be as they were published, or as the fleet's controller will have them.
func (p *Publisher) note(n *Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = n.Devices()
}

func (p *Publisher) read(ctx context.Context) (Node, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Every)
	defer cancel()
	n := Node{Name: p.Node}
	var err error
	if n.GPUs, err = p.Causewayd.GPUs(ctx); err == nil {
		n.VGPUs, err = p.Causewayd.VGPUs(ctx)
	}
	return n, err
}
