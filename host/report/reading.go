package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
)

// Reading is what a node said at one moment.
type Reading struct {
	Time   time.Time
	Daemon *api.Version // nil: no causewayd was there, and the device processes were asked
	GPUs   []api.GPU
	VGPUs  []api.VGPU
	Notes  []string // what could not be read, a sentence each
}

// Sort puts a reading into the order in which it is shown: GPUs by number, vGPUs by name, sessions
// by number.
func (r *Reading) Sort() {
	slices.SortStableFunc(r.GPUs, func(a, b api.GPU) int {
		return cmp.Or(cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(r.VGPUs, func(a, b api.VGPU) int {
		return cmp.Or(cmp.Compare(a.Spec.VM, b.Spec.VM), cmp.Compare(a.Spec.Name, b.Spec.Name))
	})
	for _, v := range r.VGPUs {
		if v.Status != nil {
			slices.SortFunc(v.Status.Sessions, func(a, b api.Session) int { return cmp.Compare(a.ID, b.ID) })
		}
	}
}

// Find returns the vGPUs that a key names: VM/NAME one of them, VM all of that VM.
func (r *Reading) Find(key string) []api.VGPU {
	var found []api.VGPU
	for _, v := range r.VGPUs {
		if names(key, &v) {
			found = append(found, v)
		}
	}
	return found
}

func names(key string, v *api.VGPU) bool {
	vm, name, one := strings.Cut(key, "/")
	return v.Spec.VM == vm && (!one || v.Spec.Name == name)
}

// used is the memory in use of a GPU: as its driver says, or where none does (the software GPU; all
// GPUs without causewayd) what all of its vGPUs count.
func (r *Reading) used(g *api.GPU) uint64 {
	if g.Backend == "cuda" {
		return g.Used
	}
	var counted uint64
	for i := range r.VGPUs {
		if v := &r.VGPUs[i]; v.GPU == g.ID && v.Status != nil {
			counted += v.Status.Memory
		}
	}
	return max(g.Used, counted)
}

// gpu is the GPU with a UUID, or the one that holds that MIG slice.
func (r *Reading) gpu(uuid string) *api.GPU {
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if uuid != "" && (strings.EqualFold(g.ID, uuid) || slices.Contains(g.MIG, uuid)) {
			return g
		}
	}
	return nil
}

// GPU finds a GPU by what people call it: a number, soft, or a UUID or the beginning of one that no
// other has.
func (r *Reading) GPU(name string) (*api.GPU, error) {
	var found []*api.GPU
	for i := range r.GPUs {
		switch g := &r.GPUs[i]; {
		case GPUNumber(g) == name, strings.EqualFold(g.ID, name):
			return g, nil
		case len(name) > len("GPU-") && len(g.ID) > len(name) && strings.EqualFold(g.ID[:len(name)], name):
			found = append(found, g)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("no GPU %q", name)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%q begins the UUIDs of %d GPUs", name, len(found))
}

// gpuOf names a vGPU's GPU shortly: its number and model.
func (r *Reading) gpuOf(v *api.VGPU) string {
	switch g := r.gpu(v.GPU); {
	case v.Upstream != nil:
		return v.Spec.Remote + " " + model(v.Upstream.GPU)
	case v.Spec.Remote != "":
		return v.Spec.Remote
	case g != nil && v.GPU != g.ID:
		return gpuName(g) + " " + cmp.Or(v.Spec.MIG, "MIG")
	case g != nil:
		return gpuName(g)
	case v.Status != nil && v.Status.GPU != "":
		return model(v.Status.GPU)
	}
	return cmp.Or(v.GPU, v.Spec.GPU, "-")
}

func gpuName(g *api.GPU) string {
	switch {
	case g.Backend == "soft":
		return GPUNumber(g)
	case g.Index < 0:
		return model(g.Name)
	}
	return GPUNumber(g) + " " + model(g.Name)
}

// GPUNumber is what --gpu takes for a GPU.
func GPUNumber(g *api.GPU) string {
	switch {
	case g.Backend == "soft" && g.Index == 0:
		return "soft"
	case g.Backend == "soft":
		return "soft/" + number(g.Index)
	case g.Index < 0:
		return "-"
	}
	return number(g.Index)
}

// model drops from a GPU's name what all of them share.
func model(name string) string {
	name = clean(name)
	return strings.TrimPrefix(name, "NVIDIA ")
}

// memoryOf is a vGPU's limit: what its process enforces, else what was asked; 0: none.
func memoryOf(v *api.VGPU) uint64 {
	if v.Status != nil {
		return v.Status.Limits.Memory
	}
	return v.Spec.Memory
}

// limitsOf are a vGPU's limits with the default share filled in.
func limitsOf(v *api.VGPU) api.Limits {
	l := v.Spec.Limits
	if v.Status != nil {
		l = v.Status.Limits
	}
	l.Share = cmp.Or(l.Share, limit.DefaultShare)
	return l
}
