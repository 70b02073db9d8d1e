package place

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"causeway/host/api"
)

const giB = 1 << 30

func gpu(i int, model string, memory uint64, f func(*GPU)) GPU {
	g := GPU{GPU: api.GPU{ID: "GPU-" + strings.Repeat(string(rune('a'+i)), 8) + "-0000", Index: i, Backend: "cuda", Name: model, Memory: memory * giB, NUMA: -1}}
	if f != nil {
		f(&g)
	}
	return g
}

func soft() GPU {
	return GPU{GPU: api.GPU{ID: "GPU-50f7", Backend: "soft", Name: "Causeway Software GPU", Memory: 8 * giB, NUMA: -1}}
}

func slice(i, parent int, profile string, f func(*GPU)) GPU {
	g := gpu(parent, "NVIDIA H200", 18, nil)
	g.Parent, g.ID, g.Profile = g.ID, "MIG-"+string(rune('0'+i)), profile
	if f != nil {
		f(&g)
	}
	return g
}

func TestChoose(t *testing.T) {
	all := Rules{Overcommit: 1, SoftAny: true, SoftNamed: true}
	two := []GPU{gpu(0, "NVIDIA H200", 140, nil), gpu(1, "NVIDIA A100", 80, nil), soft()}
	with := func(base []GPU, f func([]GPU)) []GPU {
		b := append([]GPU(nil), base...)
		f(b)
		return b
	}
	cut := []GPU{gpu(0, "NVIDIA H200", 140, func(g *GPU) { g.MIG = []string{"MIG-1", "MIG-2"} }), slice(1, 0, "1g.18gb", func(g *GPU) { g.Count = 1 }), slice(2, 0, "1g.18gb", nil), slice(3, 0, "2g.35gb", func(g *GPU) { g.Drained, g.Why = true, "XID 79" })}
	for name, c := range map[string]struct {
		gpus  []GPU
		wish  Wish
		rules Rules
		want  []int
		err   error
		words string
	}{
		"any, all alike: most room":                  {two, Wish{NUMA: -1}, all, []int{0}, nil, ""},
		"any, one has vGPUs":                         {with(two, func(g []GPU) { g[0].Share, g[0].Count = 100, 1 }), Wish{GPU: "any", NUMA: -1}, all, []int{1}, nil, ""},
		"any, near the VM's memory":                  {with(two, func(g []GPU) { g[0].NUMA, g[1].NUMA = 0, 1 }), Wish{GPU: "any", NUMA: 1}, all, []int{1}, nil, ""},
		"any, near is full":                          {with(two, func(g []GPU) { g[0].NUMA, g[1].NUMA, g[1].Promised = 0, 1, 80*giB }), Wish{GPU: "any", Memory: 1, NUMA: 1}, all, []int{0}, nil, ""},
		"any, one is drained":                        {with(two, func(g []GPU) { g[0].Drained = true }), Wish{GPU: "any", NUMA: -1}, all, []int{1}, nil, ""},
		"any, all are drained":                       {with(two, func(g []GPU) { g[0].Drained, g[1].Drained, g[1].Why = true, true, "XID 79" }), Wish{NUMA: -1}, all, nil, ErrDrained, "GPU 1 (NVIDIA A100): XID 79"},
		"any does not become soft beside real GPUs":  {two, Wish{GPU: "any", Memory: 200 * giB, NUMA: -1}, all, nil, ErrNoRoom, "200 GiB do not fit: GPU 0 (NVIDIA H200) has 140 GiB"},
		"any, no real GPU":                           {[]GPU{soft()}, Wish{GPU: "any", NUMA: -1}, all, []int{0}, nil, ""},
		"auto is any":                                {[]GPU{soft()}, Wish{GPU: "auto", NUMA: -1}, all, []int{0}, nil, ""},
		"any, no real GPU, soft by name only":        {[]GPU{soft()}, Wish{GPU: "any", NUMA: -1}, Rules{SoftNamed: true}, nil, ErrNoGPU, "no GPU; it has soft"},
		"soft":                                       {two, Wish{GPU: "soft", NUMA: -1}, all, []int{2}, nil, ""},
		"soft:2":                                     {two, Wish{GPU: "soft:2", NUMA: -1}, all, []int{2}, nil, ""},
		"soft by UUID":                               {two, Wish{GPU: "gpu-50f7", NUMA: -1}, all, []int{2}, nil, ""},
		"soft by UUID is not offered":                {two, Wish{GPU: "GPU-50f7", NUMA: -1}, Rules{}, nil, ErrNoGPU, "GPU-50f7"},
		"soft is not offered":                        {two, Wish{GPU: "soft", NUMA: -1}, Rules{}, nil, ErrNoGPU, "placement.software_gpu"},
		"number":                                     {two, Wish{GPU: "1", NUMA: -1}, all, []int{1}, nil, ""},
		"numbers":                                    {two, Wish{GPU: "1,0", NUMA: -1}, all, []int{1, 0}, nil, ""},
		"a number twice":                             {two, Wish{GPU: "0,0", NUMA: -1}, all, nil, ErrWish, "twice"},
		"a number that is not there":                 {two, Wish{GPU: "2", NUMA: -1}, all, nil, ErrNoGPU, "no GPU 2; it has GPU 0 (NVIDIA H200), GPU 1"},
		"a number far too large":                     {two, Wish{GPU: "99999999999999", NUMA: -1}, all, nil, ErrNoGPU, ""},
		"numbers, one has no room":                   {with(two, func(g []GPU) { g[1].Promised = 79 * giB }), Wish{GPU: "0,1", Memory: 2 * giB, NUMA: -1}, all, nil, ErrNoRoom, "1 GiB are left"},
		"numbers, one is drained":                    {with(two, func(g []GPU) { g[1].Drained = true }), Wish{GPU: "0,1", NUMA: -1}, all, nil, ErrDrained, "by request"},
		"UUID":                                       {two, Wish{GPU: "GPU-bbbbbbbb-0000", NUMA: -1}, all, []int{1}, nil, ""},
		"UUID, other case":                           {two, Wish{GPU: "gpu-BBBBBBBB-0000", NUMA: -1}, all, []int{1}, nil, ""},
		"beginning of a UUID":                        {two, Wish{GPU: "GPU-bbbb", NUMA: -1}, all, []int{1}, nil, ""},
		"model":                                      {two, Wish{GPU: "h200", NUMA: -1}, all, []int{0}, nil, ""},
		"no such model":                              {two, Wish{GPU: "B200", NUMA: -1}, all, nil, ErrNoGPU, `GPU "B200"`},
		"a model's name does not mean soft":          {two, Wish{GPU: "Causeway", NUMA: -1}, all, nil, ErrNoGPU, ""},
		"others use it":                              {with(two, func(g []GPU) { g[0].Others = 139 * giB }), Wish{GPU: "0", Memory: 2 * giB, NUMA: -1}, all, nil, ErrNoRoom, "139 GiB used by others: 1 GiB are left"},
		"overcommit":                                 {with(two, func(g []GPU) { g[0].Promised = 140 * giB }), Wish{GPU: "0", Memory: 70 * giB, NUMA: -1}, Rules{Overcommit: 1.5}, []int{0}, nil, ""},
		"overcommit has an end":                      {with(two, func(g []GPU) { g[0].Promised = 140 * giB }), Wish{GPU: "0", Memory: 71 * giB, NUMA: -1}, Rules{Overcommit: 1.5}, nil, ErrNoRoom, "has 210 GiB"},
		"promises beyond what is there":              {with(two, func(g []GPU) { g[0].Promised = ^uint64(0); g[0].Others = 5 }), Wish{GPU: "0", Memory: 1, NUMA: -1}, all, nil, ErrNoRoom, ""},
		"without a limit a full GPU will do":         {with(two, func(g []GPU) { g[0].Promised = 140 * giB }), Wish{GPU: "0", NUMA: -1}, all, []int{0}, nil, ""},
		"MIG profile, a free slice":                  {cut, Wish{GPU: "any", MIG: "1g.18gb", NUMA: -1}, all, []int{2}, nil, ""},
		"MIG profile, all are taken":                 {with(cut, func(g []GPU) { g[2].Count = 1 }), Wish{MIG: "1g.18gb", NUMA: -1}, all, nil, ErrNoGPU, "that is free"},
		"MIG profile on a model":                     {cut, Wish{GPU: "H200", MIG: "1g.18gb", NUMA: -1}, all, []int{2}, nil, ""},
		"MIG profile on another model":               {cut, Wish{GPU: "A100", MIG: "1g.18gb", NUMA: -1}, all, nil, ErrNoGPU, "MIG slice 1g.18gb of A100"},
		"MIG profile, drained":                       {cut, Wish{MIG: "2g.35gb", NUMA: -1}, all, nil, ErrDrained, "XID 79"},
		"MIG profile that is not there":              {cut, Wish{MIG: "7g.141gb", NUMA: -1}, all, nil, ErrNoGPU, ""},
		"MIG by UUID, shared":                        {cut, Wish{GPU: "MIG-1", NUMA: -1}, all, []int{1}, nil, ""},
		"any is no slice, nor a GPU cut into slices": {cut, Wish{GPU: "any", NUMA: -1}, all, nil, ErrNoGPU, ""},
		"a GPU cut into slices by number":            {cut, Wish{GPU: "0", NUMA: -1}, all, nil, ErrWish, "cut into MIG slices"},
		"no GPU at all":                              {nil, Wish{GPU: "any", NUMA: -1}, all, nil, ErrNoGPU, "this host has no GPU"},
	} {
		if c.rules.Overcommit == 0 {
			c.rules.Overcommit = 1
		}
		got, err := Choose(c.gpus, c.wish, c.rules)
		if !errors.Is(err, c.err) || c.err == nil && err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, err, c.want, c.err)
			continue
		}
		if err != nil && !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %q does not say %q", name, err, c.words)
		}
	}
}

// TestNeverTooMuch: whatever is asked for in whatever order, no more than the rule is promised, and
// nothing on a drained GPU.
func TestNeverTooMuch(t *testing.T) {
	gpus := []GPU{gpu(0, "A", 10, nil), gpu(1, "A", 20, nil), gpu(2, "B", 40, func(g *GPU) { g.Drained = true })}
	seed := uint64(1)
	next := func(n uint64) uint64 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return (seed >> 33) % n
	}
	placed := 0
	for range 500 {
		w := Wish{GPU: []string{"any", "0", "1", "A", "B", "0,1"}[next(6)], Memory: next(5 * giB), NUMA: int(next(3)) - 1}
		got, err := Choose(gpus, w, Rules{Overcommit: 1.25})
		if err != nil {
			continue
		}
		placed++
		for _, i := range got {
			gpus[i].Promised += w.Memory
			gpus[i].Count++
			if gpus[i].Promised > gpus[i].Memory/4*5 || gpus[i].Drained {
				t.Fatalf("%+v on %+v", w, gpus[i])
			}
		}
	}
	if placed < 5 || gpus[0].Promised < 9*giB || gpus[1].Promised < 18*giB {
		t.Errorf("%d placed, %d and %d bytes promised", placed, gpus[0].Promised, gpus[1].Promised)
	}
}
