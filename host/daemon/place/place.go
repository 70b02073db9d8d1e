// Package place chooses the GPU of a new vGPU. It is a pure function of the GPUs as they are and of
// what was promised; the caller holds both still while it asks.
package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"causeway/host/api"
)

// Errors of Choose.
var (
	ErrWish    = errors.New("no GPU is called that")
	ErrNoGPU   = errors.New("no such GPU")
	ErrDrained = errors.New("drained")
	ErrNoRoom  = errors.New("no room")
)

// GPU is a GPU, or a MIG slice of one, on which a vGPU may be placed.
type GPU struct {
	api.GPU
	// Parent and Profile are a slice's: the UUID of its GPU, and as in 1g.18gb.
	Parent, Profile string
	// Others is memory in use by none of our vGPUs.
	Others uint64
	// Share is the sum of its vGPUs' shares; Count is how many they are.
	Share uint64
	Count int
	// Bounded: who asks may have Bound of it at most, however much is free: a fleet has the rest.
	Bounded bool
	Bound   uint64
}

// Wish is what is wanted.
type Wish struct {
	GPU, MIG string
	Memory   uint64 // 0: no limit, so nothing is promised
	// Part says how much it is of a GPU, in place of Memory, or why that cannot be had; nil:
	// Memory.
	Part func(*GPU) (uint64, error)
	NUMA int // node of the VM; negative: unknown
}

// Rules are the configuration's.
type Rules struct {
	Overcommit float64 // of memory
	SoftAny    bool    // any may mean a software GPU where there is no real one
	SoftNamed  bool    // a software GPU may be asked for by name
}

// Room is how much more memory may be promised on a GPU.
func (g *GPU) Room(overcommit float64) uint64 {
	most := uint64(float64(g.Memory) * max(overcommit, 1))
	taken := g.Promised + g.Others
	if taken < g.Promised || taken >= most {
		return 0
	}
	if g.Bounded {
		return min(most-taken, g.Bound)
	}
	return most - taken
}

// Choose returns the places in gpus of the GPUs that a wish gets: one, or all those of a list.
func Choose(gpus []GPU, w Wish, r Rules) ([]int, error) {
	name := strings.TrimSpace(w.GPU)
	if name == "" || name == "auto" {
		name = "any"
	}
	if w.MIG == "" {
		if list, ok := ordinals(name); ok {
			return chooseAll(gpus, list, w, r)
		}
	}
	fits, what, err := matcher(gpus, name, w.MIG, r)
	if err != nil {
		return nil, err
	}
	var among []int
	for i := range gpus {
		if fits(&gpus[i]) {
			among = append(among, i)
		}
	}
	if len(among) == 0 {
		return nil, fmt.Errorf("%w: this host has no %s%s", ErrNoGPU, what, offered(gpus, r))
	}
	free := slices.DeleteFunc(slices.Clone(among), func(i int) bool { return gpus[i].Drained })
	if len(free) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrDrained, why(gpus, among))
	}
	var errs []error
	roomy := slices.DeleteFunc(slices.Clone(free), func(i int) bool {
		n, err := w.of(&gpus[i])
		if err == nil && gpus[i].Room(r.Overcommit) < n {
			err = noRoom(gpus, []int{i}, n, r)
		}
		errs = append(errs, err)
		return err != nil
	})
	if len(roomy) == 0 {
		if w.Part != nil {
			return nil, errors.Join(errs...)
		}
		return nil, noRoom(gpus, free, w.Memory, r)
	}
	return []int{slices.MinFunc(roomy, func(a, b int) int { return compare(&gpus[a], &gpus[b], a, b, w, r) })}, nil
}

// of is how much memory of a GPU is wished.
func (w *Wish) of(g *GPU) (uint64, error) {
	if w.Part == nil {
		return w.Memory, nil
	}
	return w.Part(g)
}

// Fits says whether so much more memory may be promised on one of gpus.
func Fits(gpus []GPU, at int, memory uint64, r Rules) error {
	if gpus[at].Room(r.Overcommit) < memory {
		return noRoom(gpus, []int{at}, memory, r)
	}
	return nil
}

// compare says which of two GPUs that will do is the better one: near the VM's memory, then where
// fewer compete, then where more memory is left, then the first.
func compare(a, b *GPU, i, j int, w Wish, r Rules) int {
	far := func(g *GPU) int {
		if w.NUMA >= 0 && g.NUMA >= 0 && g.NUMA != w.NUMA {
			return 1
		}
		return 0
	}
	return cmp.Or(
		cmp.Compare(far(a), far(b)),
		cmp.Compare(a.Share, b.Share),
		cmp.Compare(a.Count, b.Count),
		-cmp.Compare(a.Room(r.Overcommit), b.Room(r.Overcommit)),
		cmp.Compare(i, j),
	)
}

// chooseAll gives a list of GPUs by number: all of them must do.
func chooseAll(gpus []GPU, list []int, w Wish, r Rules) ([]int, error) {
	var picked []int
	for _, n := range list {
		at := slices.IndexFunc(gpus, func(g GPU) bool { return g.Parent == "" && g.Backend != "soft" && g.Index == n })
		switch {
		case at < 0:
			return nil, fmt.Errorf("%w: this host has no GPU %d%s", ErrNoGPU, n, offered(gpus, r))
		case slices.Contains(picked, at):
			return nil, fmt.Errorf("%w: GPU %d is listed twice", ErrWish, n)
		case len(gpus[at].MIG) > 0:
			return nil, fmt.Errorf("%w: GPU %d is cut into MIG slices: ask for one by profile or UUID", ErrWish, n)
		case gpus[at].Drained:
			return nil, fmt.Errorf("%w: %s", ErrDrained, why(gpus, []int{at}))
		}
		if need, err := w.of(&gpus[at]); err != nil {
			return nil, err
		} else if gpus[at].Room(r.Overcommit) < need {
			return nil, noRoom(gpus, []int{at}, need, r)
		}
		picked = append(picked, at)
	}
	return picked, nil
}

func ordinals(name string) ([]int, bool) {
	var list []int
	for _, s := range strings.Split(name, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16)
		if err != nil {
			return nil, false
		}
		list = append(list, int(n))
	}
	return list, true
}

// matcher makes of a name the question which GPUs it means.
func matcher(gpus []GPU, name, mig string, r Rules) (fits func(*GPU) bool, what string, err error) {
	lower := strings.ToLower(name)
	switch {
	case mig != "":
		what = "MIG slice " + mig
		if name != "any" {
			what += " of " + name
		}
		return func(g *GPU) bool { return g.Profile == mig && g.Count == 0 && (name == "any" || names(g, lower)) }, what + " that is free", nil
	case isSoft(lower):
		if !r.SoftNamed {
			return nil, "", fmt.Errorf("%w: the configuration does not offer the software GPU (placement.software_gpu)", ErrNoGPU)
		}
		one, numbered := strings.CutPrefix(lower, "soft/")
		return func(g *GPU) bool { return g.Backend == "soft" && (!numbered || strconv.Itoa(g.Index) == one) }, "software GPU", nil
	case lower == "any":
		real := slices.ContainsFunc(gpus, func(g GPU) bool { return g.Backend != "soft" })
		soft := r.SoftAny && !real
		return func(g *GPU) bool { return whole(g) && (g.Backend != "soft" || soft) }, "GPU", nil
	}
	return func(g *GPU) bool {
		if g.Backend == "soft" { // by its UUID alone: a part of it, or of its name, means another
			return r.SoftNamed && strings.EqualFold(g.ID, name)
		}
		return (whole(g) || strings.EqualFold(g.ID, name)) && names(g, lower)
	}, fmt.Sprintf("GPU %q", name), nil
}

// whole: a slice, and a GPU that is cut into slices, are had by asking for them only.
func whole(g *GPU) bool { return g.Parent == "" && len(g.MIG) == 0 }

// names reports whether a name in lower case is the UUID, the beginning of it, or a part of the
// model's.
func names(g *GPU, lower string) bool {
	id := strings.ToLower(g.ID)
	return id == lower || strings.EqualFold(g.Parent, lower) || len(lower) >= 8 && strings.HasPrefix(id, lower) || strings.Contains(strings.ToLower(g.Name), lower)
}

func isSoft(name string) bool {
	return name == "soft" || strings.HasPrefix(name, "soft:") || strings.HasPrefix(name, "soft/")
}

// offered lists what there is, for an error.
func offered(gpus []GPU, r Rules) string {
	var list []string
	for i := range gpus {
		g := &gpus[i]
		if g.Backend == "soft" && !r.SoftNamed {
			continue
		}
		list = append(list, title(g))
	}
	if len(list) == 0 {
		return ""
	}
	return "; it has " + strings.Join(list, ", ")
}

func title(g *GPU) string {
	switch {
	case g.Backend == "soft":
		return "soft (" + g.Name + ")"
	case g.Parent != "":
		return fmt.Sprintf("MIG slice %s (%s)", g.Profile, g.ID)
	}
	return fmt.Sprintf("GPU %d (%s)", g.Index, g.Name)
}

func why(gpus []GPU, among []int) string {
	var list []string
	for _, i := range among {
		list = append(list, title(&gpus[i])+": "+cmp.Or(gpus[i].Why, "by request"))
	}
	return strings.Join(list, "; ")
}

func noRoom(gpus []GPU, among []int, want uint64, r Rules) error {
	var list []string
	for _, i := range among {
		g := &gpus[i]
		list = append(list, fmt.Sprintf("%s has %s, of which %s are promised to %s and %s used by others: %s are left",
			title(g), size(uint64(float64(g.Memory)*max(r.Overcommit, 1))), size(g.Promised), vgpus(g.Count), size(g.Others), left(g, r)))
	}
	return fmt.Errorf("%w: %s do not fit: %s", ErrNoRoom, size(want), strings.Join(list, "; "))
}

// left says how much room who asks has.
func left(g *GPU, r Rules) string {
	if g.Bounded {
		return size(g.Room(r.Overcommit)) + " without a reservation of the fleet's (remote.unreserved)"
	}
	return size(g.Room(r.Overcommit))
}

func vgpus(n int) string {
	if n == 1 {
		return "1 vGPU"
	}
	return fmt.Sprintf("%d vGPUs", n)
}

func size(n uint64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift {
			text := strconv.FormatFloat(float64(n)/float64(uint64(1)<<u.shift), 'f', 2, 64)
			return strings.TrimRight(strings.TrimRight(text, "0"), ".") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
