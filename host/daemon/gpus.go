package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/place"
)

// Machine tells of the host's GPUs.
type Machine interface {
	// Read says how they are. Faults are those since the last call. Err says why real GPUs cannot
	// be seen though there are some.
	Read(ctx context.Context) (Reading, error)
	Close()
}

// Reading is how the host's GPUs are.
type Reading struct {
	GPUs   []api.GPU
	Slices []Slice
	Faults []Fault
	// Missing says why the real GPUs, which this host has, cannot be used. Empty: they can, or
	// there are none.
	Missing string
}

// Slice is a MIG slice.
type Slice struct {
	ID, Parent, Profile string
	Memory              uint64
}

// Fault is what the driver reported of a GPU.
type Fault struct {
	GPU  string // UUID
	XID  uint64 // 0: none
	Text string
}

// Drain is why a GPU gets no new vGPU.
type Drain struct {
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
}

// gpuBook is what is known of the GPUs. One goroutine at a time reads them, for all who ask: a
// driver may hang.
type gpuBook struct {
	machine Machine
	file    string
	spawn   func(func()) // runs what is waited for at the end
	ctx     context.Context
	note    func(Reading) // gets each new reading; mu is held

	mu      sync.Mutex
	last    Reading
	err     error
	at      time.Time
	flight  chan struct{}    // closed when the reading that goes on has ended; nil: none goes on
	drained map[string]Drain // by UUID; kept in file
}

const (
	freshGPUs = 500 * time.Millisecond // how long a reading serves
	slowGPUs  = 2 * time.Second        // when to do with an older one
)

func (b *gpuBook) open(m Machine, state string) error {
	b.machine, b.file, b.drained = m, filepath.Join(state, "drained.json"), map[string]Drain{}
	err := readJSON(b.file, &b.drained)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if b.drained == nil {
		b.drained = map[string]Drain{}
	}
	return err
}

// read returns the reading, with drains: at most freshGPUs old, or the last one if the driver takes
// its time.
func (b *gpuBook) read(ctx context.Context) (Reading, error) {
	b.mu.Lock()
	first := b.at.IsZero()
	var wait chan struct{}
	if first || time.Since(b.at) > freshGPUs {
		if b.flight == nil {
			b.flight = make(chan struct{})
			b.spawn(b.routineRead)
		}
		wait = b.flight
	}
	b.mu.Unlock()
	if wait != nil {
		var slow <-chan time.Time
		if !first {
			t := time.NewTimer(slowGPUs)
			defer t.Stop()
			slow = t.C
		}
		select {
		case <-wait:
		case <-slow:
		case <-ctx.Done():
			return Reading{}, ctx.Err()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return Reading{}, b.err
	}
	r := b.last
	r.GPUs = slices.Clone(r.GPUs)
	for i := range r.GPUs {
		if d, ok := b.drained[r.GPUs[i].ID]; ok {
			r.GPUs[i].Drained, r.GPUs[i].Why = true, d.Why
		}
	}
	return r, nil
}

// routineRead reads the GPUs once. No request's context ends it: the next one would start all over.
func (b *gpuBook) routineRead() {
	r, err := b.machine.Read(b.ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err = err; err == nil {
		b.last = r
		b.note(r)
	}
	b.at = time.Now()
	close(b.flight)
	b.flight = nil
}

// setLocked drains a GPU, or with nil ends that. Nothing changes if it cannot be written down.
func (b *gpuBook) setLocked(id string, d *Drain) error {
	next := maps.Clone(b.drained)
	if d == nil {
		delete(next, id)
	} else {
		next[id] = *d
	}
	if err := writeJSON(b.file, next); err != nil {
		return fmt.Errorf("write down which GPUs are drained: %w", err)
	}
	b.drained = next
	return nil
}

// GPUs lists the host's GPUs with what is promised of them.
func (d *Daemon) GPUs(ctx context.Context) ([]api.GPU, error) {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	all := d.tallyLocked(r)
	d.mu.Unlock()
	list := []api.GPU{}
	for i := range all {
		if all[i].Parent == "" {
			list = append(list, all[i].GPU)
		}
	}
	return list, nil
}

// tallyLocked adds up, for each GPU and MIG slice, what its vGPUs were promised, and what is
// reserved for leases. d.mu is held.
func (d *Daemon) tallyLocked(r Reading) []place.GPU { return d.tallyForLocked(r, "") }

// tallyForLocked leaves out what is reserved for one.
func (d *Daemon) tallyForLocked(r Reading, key string) []place.GPU {
	var all []place.GPU
	for _, g := range r.GPUs {
		all = append(all, place.GPU{GPU: g, Others: g.Used})
	}
	for _, s := range r.Slices {
		g := place.GPU{GPU: api.GPU{ID: s.ID, Backend: "cuda", Memory: s.Memory, NUMA: -1}, Parent: s.Parent, Profile: s.Profile}
		for i := range r.GPUs {
			if p := &r.GPUs[i]; p.ID == s.Parent {
				g.Name, g.NUMA, g.Drained, g.Why, g.Index = p.Name, p.NUMA, p.Drained, p.Why, p.Index
			}
		}
		all = append(all, g)
	}
	for _, key := range slices.Sorted(maps.Keys(d.vgpus)) {
		v := d.vgpus[key]
		if v.rec.Lost || v.rec.Spec.Remote != "" {
			continue
		}
		for _, id := range v.places() {
			at := slices.IndexFunc(all, func(g place.GPU) bool { return g.ID == id })
			if at < 0 {
				continue
			}
			g := &all[at]
			promised, used := v.rec.Spec.Memory, v.uses(g)
			if promised == 0 {
				promised = used // without a limit, what it has is gone
			}
			g.Promised += min(promised, math.MaxInt64-min(g.Promised, math.MaxInt64))
			g.Share += uint64(v.rec.Spec.Share)
			g.Count++
			g.VGPUs = append(g.VGPUs, key)
			g.Others -= min(g.Others, used)
		}
	}
	d.addReservedLocked(all, key)
	return all
}

// uses is how much of a GPU's memory a vGPU has. Its device process says it, and may lie: no more
// than it may have.
func (v *vgpu) uses(g *place.GPU) uint64 {
	if v.last == nil {
		return 0
	}
	most := g.Memory
	if n := v.rec.Spec.Memory; n != 0 {
		most = min(most, n)
	}
	return min(v.last.Memory, most)
}

// places are the GPUs on which the vGPU has memory promised.
func (v *vgpu) places() []string {
	list := strings.Split(v.rec.GPU, ",")
	if v.to != "" {
		list = append(list, v.to)
	}
	return list
}

// Drain keeps new vGPUs away from a GPU; Resume lets them come again.
func (d *Daemon) Drain(ctx context.Context, name, why string) error {
	id, err := d.findGPU(ctx, name)
	if err != nil {
		return err
	}
	d.gpus.mu.Lock()
	defer d.gpus.mu.Unlock()
	if _, is := d.gpus.drained[id]; is {
		return nil
	}
	d.log.Info("GPU drained", "gpu", id, "why", why)
	return d.gpus.setLocked(id, &Drain{Why: why, Since: time.Now()})
}

// Resume undoes Drain.
func (d *Daemon) Resume(ctx context.Context, name string) error {
	d.gpus.mu.Lock()
	_, is := d.gpus.drained[name] // also one that the host does not have any more
	d.gpus.mu.Unlock()
	id := name
	if !is {
		var err error
		if id, err = d.findGPU(ctx, name); err != nil {
			return err
		}
	}
	d.gpus.mu.Lock()
	defer d.gpus.mu.Unlock()
	if _, is := d.gpus.drained[id]; !is {
		return nil
	}
	d.log.Info("GPU resumed", "gpu", id)
	return d.gpus.setLocked(id, nil)
}

// findGPU finds a GPU by UUID, its beginning, number, soft or soft/1.
func (d *Daemon) findGPU(ctx context.Context, name string) (string, error) {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, g := range r.GPUs {
		switch {
		case strings.EqualFold(g.ID, name):
			return g.ID, nil
		case g.Backend == "soft" && (name == "soft" && g.Index == 0 || name == fmt.Sprintf("soft/%d", g.Index)),
			g.Backend != "soft" && fmt.Sprint(g.Index) == name,
			len(name) >= 8 && strings.HasPrefix(strings.ToLower(g.ID), strings.ToLower(name)):
			found = append(found, g.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", refuse(http.StatusNotFound, "see `causeway gpus`", "this host has no GPU %q", name)
	case 1:
		return found[0], nil
	}
	return "", refuse(http.StatusBadRequest, "write the UUID", "%q is the name of %d GPUs", name, len(found))
}
