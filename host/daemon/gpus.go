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

	"causeway/host/daemon/api"
	"causeway/host/daemon/place"
)

// Machine tells of the host's GPUs.
type Machine interface {
	// Read says how they are. Faults are those since the last call. Err says why real GPUs cannot be seen though there are some.
	Read(ctx context.Context) (Reading, error)
	Close()
}

// Reading is how the host's GPUs are.
type Reading struct {
	GPUs   []api.GPU
	Slices []Slice
	Faults []Fault
	// Missing says why the real GPUs, which this host has, cannot be used. Empty: they can, or there are none.
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

// gpuBook is what is known of the GPUs. mu is held while they are read.
type gpuBook struct {
	machine Machine
	file    string

	mu      sync.Mutex
	last    Reading
	at      time.Time
	drained map[string]Drain // by UUID; kept in file
}

// freshGPUs is how long a reading serves.
const freshGPUs = 500 * time.Millisecond

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

// read returns the reading, with drains, at most freshGPUs old. note gets each reading that is new.
func (b *gpuBook) read(ctx context.Context, note func(Reading)) (Reading, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at.IsZero() || time.Since(b.at) > freshGPUs {
		r, err := b.machine.Read(ctx)
		if err != nil {
			return Reading{}, err
		}
		b.last, b.at = r, time.Now()
		note(r)
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

// readGPUs reads the GPUs and drains those that report faults.
func (d *Daemon) readGPUs(ctx context.Context) (Reading, error) {
	return d.gpus.read(ctx, d.noteFaults)
}

// GPUs lists the host's GPUs with what is promised of them.
func (d *Daemon) GPUs(ctx context.Context) ([]api.GPU, error) {
	r, err := d.readGPUs(ctx)
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

// tallyLocked adds up, for each GPU and MIG slice, what its vGPUs were promised. d.mu is held.
func (d *Daemon) tallyLocked(r Reading) []place.GPU {
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
		if v.rec.Lost {
			continue
		}
		used := uint64(0)
		if v.last != nil {
			used = v.last.Memory
		}
		for _, id := range strings.Split(v.rec.GPU, ",") {
			at := slices.IndexFunc(all, func(g place.GPU) bool { return g.ID == id })
			if at < 0 {
				continue
			}
			g := &all[at]
			promised, used := v.rec.Spec.Memory, min(used, g.Memory) // the device process says it: it may lie
			if promised == 0 {
				promised = used // without a limit, what it has is gone
			}
			used = min(used, promised)
			g.Promised += min(promised, math.MaxInt64-min(g.Promised, math.MaxInt64))
			g.Weight += uint64(v.rec.Spec.Weight)
			g.Count++
			g.VGPUs = append(g.VGPUs, key)
			g.Others -= min(g.Others, used)
		}
	}
	return all
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

// findGPU finds a GPU by UUID, its beginning, number, or soft.
func (d *Daemon) findGPU(ctx context.Context, name string) (string, error) {
	r, err := d.readGPUs(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, g := range r.GPUs {
		switch {
		case strings.EqualFold(g.ID, name):
			return g.ID, nil
		case g.Backend == "soft" && name == "soft",
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
