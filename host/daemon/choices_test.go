package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/place"
	"causeway/host/limit"
)

// bare is a causewayd that runs nothing.
func bare(t *testing.T) *Daemon {
	t.Helper()
	reserved, err := lease.NewReserved(lease.ReservedFile{}, func(lease.ReservedFile) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "bare") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &Daemon{run: dir, ctx: t.Context(), log: slog.New(slog.DiscardHandler), vgpus: map[string]*vgpu{}, fleet: reserved, cfg: config.Default()}
	d.opt.Config.LogDir = filepath.Join(dir, "log")
	d.leases.Term, d.leases.Now = time.Minute, time.Now
	return d
}

// status is what a client sees of an error; 0: there is none.
func status(err error) int {
	if err == nil {
		return 0
	}
	return asError(err).Status
}

// TestDoesAs: whatever a vGPU is but its limits, another does not do as it where that differs.
func TestDoesAs(t *testing.T) {
	was := api.Spec{VM: "vm1", Name: "gpu0", GPU: "any", Limits: api.Limits{Memory: 1}}
	for what, c := range map[string]struct {
		change func(s *api.Spec)
		same   bool
	}{
		"nothing": {func(*api.Spec) {}, true}, "limits": {func(s *api.Spec) { s.Memory, s.Share, s.Profile = 2, 7, "half" }, true}, "node": {func(s *api.Spec) { s.NUMA = new(int) }, true},
		"GPU": {func(s *api.Spec) { s.GPU = "0" }, false}, "MIG": {func(s *api.Spec) { s.MIG = "1g.18gb" }, false}, "server": {func(s *api.Spec) { s.Remote = "gpu1" }, false},
		"owner": {func(s *api.Spec) { s.Owner = "1" }, false}, "migratable": {func(s *api.Spec) { s.Migratable = true }, false}, "programs": {func(s *api.Spec) { s.Programs = true }, false},
	} {
		next := was
		c.change(&next)
		if doesAs(&next, &was) != c.same || doesAs(&was, &next) != c.same {
			t.Errorf("another %s: %v", what, !c.same)
		}
	}
}

// TestForHosts: other hosts are told of GPUs without who has them, and why each is drained.
func TestForHosts(t *testing.T) {
	list := []api.GPU{{ID: "a", VGPUs: []string{"vm1/gpu0"}, Why: "busy"}, {ID: "b", VGPUs: []string{"vm2/gpu0"}, Drained: true, Why: "an operator's words"}}
	forHosts(list)
	if list[0].VGPUs != nil || list[0].Why != "busy" || list[1].VGPUs != nil || list[1].Why != "drained" {
		t.Errorf("%+v", list)
	}
}

// TestChosenGPU: what a device process is told of the GPU that was chosen, and the record says;
// what is not to be had is refused by its kind.
func TestChosenGPU(t *testing.T) {
	soft := func(n int) (list []api.GPU) {
		for i := range n {
			list = append(list, api.GPU{ID: fmt.Sprint("soft-", i), Index: i, Backend: "soft", Memory: 1 << 30, NUMA: -1})
		}
		return list
	}
	real := []api.GPU{{ID: "GPU-a", Index: 0, Backend: "cuda", Memory: 8 << 30, NUMA: 0}, {ID: "GPU-b", Index: 1, Backend: "cuda", Memory: 8 << 30, NUMA: 1}}
	const gib = 1 << 30
	half, none, one := "half", -1, 1
	for what, c := range map[string]struct {
		r       Reading
		rules   string // of software GPUs
		spec    api.Spec
		profile string
		told    string
		rec     string
		refused int // -1: place.ErrNoGPU
	}{
		"the software GPU":            {Reading{GPUs: soft(1)}, config.SoftAuto, api.Spec{GPU: "any"}, "", "soft", "soft-0", 0},
		"the second of them":          {Reading{GPUs: soft(2)}, config.SoftAuto, api.Spec{GPU: "soft/1"}, "", "soft/1", "soft-1", 0},
		"one with a file":             {Reading{GPUs: soft(2)}, config.SoftAuto, api.Spec{GPU: "soft:sm_90"}, "", "soft:sm_90", "soft-0", 0},
		"a real one of such a name":   {Reading{GPUs: []api.GPU{{ID: "soft:x", Backend: "cuda", Memory: gib, NUMA: -1}}}, config.SoftAuto, api.Spec{GPU: "any"}, "", "soft:x", "soft:x", 0},
		"though the driver is broken": {Reading{GPUs: soft(1), Missing: "broken"}, config.SoftAuto, api.Spec{GPU: "any"}, "", "", "", -1},
		"by name all the same":        {Reading{GPUs: soft(1), Missing: "broken"}, config.SoftAuto, api.Spec{GPU: "soft"}, "", "soft", "soft-0", 0},
		"by name only":                {Reading{GPUs: soft(1)}, config.SoftNamed, api.Spec{GPU: "any"}, "", "", "", -1},
		"by name":                     {Reading{GPUs: soft(1)}, config.SoftNamed, api.Spec{GPU: "soft"}, "", "soft", "soft-0", 0},
		"never":                       {Reading{GPUs: soft(1)}, config.SoftNever, api.Spec{GPU: "soft"}, "", "", "", -1},
		"a real one":                  {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "1"}, "", "GPU-b", "GPU-b", 0},
		"of the VM's node":            {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "any", NUMA: &one}, "", "GPU-b", "GPU-b", 0},
		"of none":                     {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "any", NUMA: &none}, "", "GPU-a", "GPU-a", 0},
		"two":                         {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "0,1"}, "", "0,1", "GPU-a,GPU-b", 0},
		"a part of two":               {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "0,1"}, half, "", "", http.StatusBadRequest},
		"a part of one":               {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "0"}, half, "GPU-a", "GPU-a", 0},
		"too little":                  {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "0", Limits: api.Limits{Memory: 1 << 20}}, "", "", "", http.StatusBadRequest},
		"too much":                    {Reading{GPUs: real}, config.SoftAuto, api.Spec{GPU: "0", Limits: api.Limits{Memory: 9 * gib}}, "", "", "", http.StatusInsufficientStorage},
	} {
		d := bare(t)
		d.cfg.Placement.SoftwareGPU, d.cfg.Profiles = c.rules, limit.Profiles()
		c.spec.VM, c.spec.Name = "vm1", "gpu0"
		v := &vgpu{rec: record{Spec: c.spec}}
		told, err := d.placeVGPU(c.r, v, api.Change{Profile: c.profile})
		switch {
		case c.refused == 0 && (err != nil || told != c.told || v.rec.GPU != c.rec || d.find("vm1/gpu0") != v):
			t.Errorf("%s: told %q, of %q, %v", what, told, v.rec.GPU, err)
		case c.refused != 0 && (err == nil || told != "" || d.find("vm1/gpu0") != nil):
			t.Errorf("%s: told %q", what, told)
		case c.refused > 0 && status(err) != c.refused, c.refused < 0 && !errors.Is(err, place.ErrNoGPU):
			t.Errorf("%s: %v", what, err)
		}
		if want := c.profile != ""; c.refused == 0 && want && (v.rec.Spec.Profile != half || v.rec.Spec.Memory == 0 || v.rec.Spec.Memory > 4*gib || v.rec.Spec.Share != 50) {
			t.Errorf("%s: %+v", what, v.rec.Spec)
		}
	}
	d := bare(t)
	if _, err := d.placeVGPU(Reading{GPUs: real}, &vgpu{}, api.Change{Profile: "third"}); status(err) != http.StatusBadRequest || len(d.vgpus) != 0 {
		t.Errorf("a profile that there is not: %v", err)
	}
}

// TestMissingGPUs: that the driver is broken is said where that is why there is none, and only
// there.
func TestMissingGPUs(t *testing.T) {
	other := refuse(http.StatusInsufficientStorage, "", "no room")
	for what, c := range map[string]struct {
		missing string
		err     error
		status  int
	}{
		"broken": {"no driver", fmt.Errorf("any: %w", place.ErrNoGPU), http.StatusServiceUnavailable}, "there are none": {"", place.ErrNoGPU, status(place.ErrNoGPU)}, "for another reason": {"no driver", other, http.StatusInsufficientStorage},
	} {
		if err := noGPU(Reading{Missing: c.missing}, c.err); status(err) != c.status || c.status != http.StatusServiceUnavailable && err != c.err {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestPromiseInItsOwnWay: a vGPU that would be placed anew, or get more, is judged as if it were
// gone, and stays promised what it has.
func TestPromiseInItsOwnWay(t *testing.T) {
	const gib = 1 << 30
	r := Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib, NUMA: -1, Used: 5 * gib}}}
	d := bare(t)
	v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", GPU: "any", Limits: api.Limits{Memory: 4 * gib}}, GPU: "GPU-a"}, last: &api.Status{Memory: 3 * gib}}
	other := &vgpu{rec: record{Spec: api.Spec{VM: "vm2", Name: "gpu0", Limits: api.Limits{Memory: gib}}, GPU: "GPU-a"}}
	d.vgpus[v.rec.Spec.Key()], d.vgpus[other.rec.Spec.Key()] = v, other
	for memory, fits := range map[uint64]bool{4 * gib: true, 5 * gib: true, 5*gib + 1: false} {
		// 2 GiB are neither's
		next := &vgpu{rec: record{Spec: v.rec.Spec}}
		next.rec.Spec.Memory = memory
		d.mu.Lock()
		grows := d.fitsLocked(r, v, memory)
		d.mu.Unlock()
		if (grows == nil) != fits {
			t.Errorf("%d bytes in place of what it has: %v", memory, grows)
		}
		if err := d.wouldPlace(r, v, next, api.Change{}, nil); err == nil {
			// What it uses is not free before it is gone.
			t.Errorf("%d bytes as another", memory)
		}
		if d.find(v.rec.Spec.Key()) != v || d.find(other.rec.Spec.Key()) != other || len(d.vgpus) != 2 {
			t.Fatal("it is not promised what it has any more")
		}
	}
	v.rec.GPU = "GPU-z,GPU-a"
	d.mu.Lock()
	if err := d.fitsLocked(r, v, 6*gib); err == nil {
		t.Error("behind a GPU that the driver does not show, the other is not looked at")
	}
	d.mu.Unlock()
	delete(d.vgpus, v.rec.Spec.Key()) // another has its name
	d.vgpus[v.rec.Spec.Key()] = &vgpu{rec: v.rec}
	was := d.find(v.rec.Spec.Key())
	_ = d.wouldPlace(r, v, &vgpu{rec: record{Spec: v.rec.Spec}}, api.Change{}, nil)
	if d.find(v.rec.Spec.Key()) != was {
		t.Error("one that is gone is back")
	}
}

// TestIntendedLimits: more is judged, what it has it keeps; a profile's name stays as long as all
// that holds which the profile says.
func TestIntendedLimits(t *testing.T) {
	const gib = 1 << 30
	r := Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib, NUMA: -1}}}
	memory := func(n uint64) *limit.Memory { m := limit.Memory(n); return &m }
	share := func(n uint32) *limit.Share { s := limit.Share(n); return &s }
	capped := limit.Cap(25)
	sessions := limit.Sessions(7)
	had := api.Limits{Memory: 4 * gib, Share: 150}
	for what, c := range map[string]struct {
		lease   bool // in a fleet that has not reserved it, and has less for such leases now
		c       api.Change
		refused int
		profile string
	}{
		"nothing":                 {false, api.Change{}, 0, "half"},
		"sessions":                {false, api.Change{Sessions: &sessions}, 0, "half"},
		"as it is":                {false, api.Change{Memory: memory(4 * gib), Share: share(150)}, 0, "half"},
		"less":                    {false, api.Change{Memory: memory(2 * gib)}, 0, ""},
		"another share":           {false, api.Change{Share: share(149)}, 0, ""},
		"a cap":                   {false, api.Change{Cap: &capped}, 0, ""},
		"another profile":         {false, api.Change{Profile: "full", Memory: memory(8 * gib)}, 0, "full"},
		"one that says the same":  {false, api.Change{Profile: "twin", Memory: memory(4 * gib), Share: share(150)}, 0, "twin"},
		"all that there is":       {false, api.Change{Memory: memory(8 * gib)}, 0, ""},
		"more than that":          {false, api.Change{Memory: memory(8*gib + 1)}, http.StatusInsufficientStorage, "half"},
		"no limit":                {false, api.Change{Memory: memory(0)}, 0, ""},
		"too little":              {false, api.Change{Memory: memory(1 << 20)}, http.StatusBadRequest, "half"},
		"of a lease: as it is":    {true, api.Change{Memory: memory(4 * gib), Share: share(150)}, 0, "half"},
		"of a lease: less memory": {true, api.Change{Memory: memory(2 * gib)}, 0, ""},
		"of a lease: less share":  {true, api.Change{Share: share(149)}, 0, ""},
		"of a lease: more share":  {true, api.Change{Share: share(151)}, http.StatusForbidden, "half"},
		"of a lease: no limit":    {true, api.Change{Memory: memory(0)}, http.StatusForbidden, "half"},
		"of a lease: more memory": {true, api.Change{Memory: memory(4*gib + 1)}, http.StatusInsufficientStorage, "half"},
	} {
		d := bare(t)
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: had, Profile: "half"}, GPU: "GPU-a"}}
		if c.lease {
			v.rec.Spec.Lease, d.cfg.Remote.Fleet, d.cfg.Remote.Unreserved = "hosta", []string{"fleet"}, 4*gib
		}
		d.vgpus[v.rec.Spec.Key()] = v
		was := v.rec.Spec
		old, err := d.intend(r, v, c.c)
		if old != was || (err == nil) != (c.refused == 0) || c.refused != 0 && status(err) != c.refused {
			t.Errorf("%s: %v, and it was %+v", what, err, old)
		}
		want := was.Limits
		if c.refused == 0 {
			want = c.c.On(was.Limits)
		}
		if v.rec.Spec.Profile != c.profile || v.rec.Spec.Limits != want {
			t.Errorf("%s: it is %q, %+v", what, v.rec.Spec.Profile, v.rec.Spec.Limits)
		}
	}
}

// TestRoomForProfiles: how many of a profile a GPU has room for: none where it is drained, or
// parted.
func TestRoomForProfiles(t *testing.T) {
	cfg := config.Default()
	p := limit.Profiles()["half"]
	g := place.GPU{GPU: api.GPU{ID: "GPU-a", Backend: "soft", Memory: 1 << 30}}
	for what, c := range map[string]struct {
		set  func(g *place.GPU)
		room int
	}{
		"free": {func(*place.GPU) {}, 2}, "half of it is promised": {func(g *place.GPU) { g.Promised = 1 << 29 }, 1}, "drained": {func(g *place.GPU) { g.Drained = true }, 0},
		"parted": {func(g *place.GPU) { g.MIG = []string{"1g.18gb"} }, 0},
	} {
		g := g
		c.set(&g)
		if on := profileOn(p, &g, &cfg); on.GPU != "GPU-a" || on.Memory != 1<<29 || on.Room != c.room || on.Why != "" {
			t.Errorf("%s: %+v", what, on)
		}
	}
}
