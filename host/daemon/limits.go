package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/place"
	"causeway/host/daemon/process"
	"causeway/host/limit"
)

// SetLimits changes limits while programs run, and returns those that hold then. What a change
// leaves out stays.
func (d *Daemon) SetLimits(ctx context.Context, key string, c api.Change) (api.Limits, error) {
	if err := c.Check(); err != nil {
		return api.Limits{}, err
	}
	leave, err := d.locks.enter(ctx, key)
	if err != nil {
		return api.Limits{}, err
	}
	defer leave()
	v := d.find(key)
	if v == nil {
		return api.Limits{}, unknown(key)
	}
	if rec, _ := d.copyOf(v); rec.Lost {
		return api.Limits{}, refuse(http.StatusConflict, "attach it again", "%s is lost: %s", key, rec.Why)
	}
	return d.change(ctx, v, c)
}

// change makes limits hold. The vGPU's lock is held.
func (d *Daemon) change(ctx context.Context, v *vgpu, c api.Change) (api.Limits, error) {
	rec, _ := d.copyOf(v)
	if !c.Named() {
		return rec.Spec.Limits, nil
	}
	if rec.Spec.Remote != "" {
		return d.changeRemote(ctx, v, c)
	}
	r, err := d.gpus.read(ctx)
	if err != nil {
		return api.Limits{}, fmt.Errorf("read the host's GPUs: %w", err)
	}
	d.refresh(ctx)
	if c, err = d.resolve(r, &rec, c); err != nil {
		return api.Limits{}, err
	}
	if st, err := d.ask(ctx, v); err == nil && c.On(st.Limits) == st.Limits && c.On(rec.Spec.Limits) == rec.Spec.Limits && c.Profile == rec.Spec.Profile {
		return st.Limits, nil
	}
	if err := d.holds(ctx, c); err != nil {
		return api.Limits{}, err
	}
	old, err := d.intend(r, v, c)
	if err != nil {
		return api.Limits{}, err
	}
	rec, _ = d.copyOf(v)
	if err = writeJSON(recordPath(d.run, &rec.Spec), &rec); err == nil {
		var now api.Limits
		if now, err = d.changeLimits(ctx, &rec.Spec, c); err == nil {
			d.log.Info("limits changed", "vgpu", rec.Spec.Key(), "limits", now)
			return now, nil
		}
	}
	d.mu.Lock()
	v.rec.Spec = old
	rec = v.rec
	d.mu.Unlock()
	err = errors.Join(err, writeJSON(recordPath(d.run, &rec.Spec), &rec))
	return api.Limits{}, fmt.Errorf("change limits of %s: %w", rec.Spec.Key(), err)
}

// changeLimits tells a device process, which may hang: whoever asked is told so.
func (d *Daemon) changeLimits(ctx context.Context, s *api.Spec, c api.Change) (now api.Limits, err error) {
	told, cancel := context.WithTimeout(ctx, d.opt.Obey)
	defer cancel()
	device := api.NewClient(s.ControlPath(d.run))
	defer device.Close()
	c.Profile = "" // it has been resolved
	err = device.Do(told, http.MethodPut, "/v1/limits", c, &now)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return now, silent(s.Key())
	}
	return now, err
}

// intend judges a change that is resolved, notes it, and returns what was.
func (d *Daemon) intend(r Reading, v *vgpu, c api.Change) (old api.Spec, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old = v.rec.Spec
	next := old
	next.Limits = c.On(old.Limits)
	next.Profile = c.Profile
	if c.Profile == "" && next.Memory == old.Memory && next.Share == old.Share && next.Cap == old.Cap {
		next.Profile = old.Profile
	}
	if next.Memory != old.Memory && next.Memory == 0 || next.Share > old.Share {
		// What it has it keeps.
		if err := d.judgeUnreservedLocked(&next); err != nil {
			return old, err
		}
	}
	if next.Memory != old.Memory && next.Memory != 0 {
		if next.Memory > old.Memory {
			if err := d.fitsLocked(r, v, next.Memory); err != nil {
				return old, err
			}
		}
		if g, n, ok := placed(r, &v.rec, d.cfg.Devices.WarmWorkers); ok {
			if err := g.Fits(limit.Memory(next.Memory), n); err != nil {
				return old, err
			}
		}
	}
	v.rec.Spec = next
	return old, nil
}

// resolve has a change name what its profile says on the vGPU's GPU.
func (d *Daemon) resolve(r Reading, rec *record, c api.Change) (api.Change, error) {
	if c.Profile == "" {
		return c, nil
	}
	p, err := d.profile(c.Profile)
	if err != nil {
		return c, err
	}
	g, n, ok := placed(r, rec, d.config().Devices.WarmWorkers)
	switch {
	case !ok:
		return c, refuse(http.StatusServiceUnavailable, "see `causeway gpus`", "profile %s is a part of a GPU, and the driver does not show that of %s now", c.Profile, rec.Spec.Key())
	case n > 1:
		return c, severalGPUs(c.Profile)
	}
	return c.With(p, g)
}

func severalGPUs(profile string) error {
	return refuse(http.StatusBadRequest, "name one GPU, or use --memory and --share", "profile %s is a part of one GPU, not of several", profile)
}

// profile finds one of the configuration's.
func (d *Daemon) profile(name string) (limit.Profile, error) {
	all := d.config().Profiles
	p, ok := all[name]
	if !ok {
		return p, refuse(http.StatusBadRequest, "`causeway profiles` shows them", "no profile %q: there are %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
	}
	return p, nil
}

// placed is the GPU of a vGPU, and how many it has. waiting is how many workers wait ready for
// each.
func placed(r Reading, rec *record, waiting int) (limit.GPU, int, bool) {
	ids := strings.Split(rec.GPU, ",")
	for i := range r.GPUs {
		if g := &r.GPUs[i]; strings.EqualFold(g.ID, ids[0]) {
			return onGPU(g, waiting), len(ids), true
		}
	}
	for _, s := range r.Slices {
		if strings.EqualFold(s.ID, ids[0]) {
			return limit.GPU{Name: "the MIG slice " + s.Profile, Memory: s.Memory, Waiting: waiting}, len(ids), true
		}
	}
	return limit.GPU{}, 0, false
}

func onGPU(g *api.GPU, waiting int) limit.GPU {
	return limit.GPU{Soft: g.Backend == "soft", Name: g.Name, Memory: g.Memory, Waiting: waiting}
}

// schedulerPatience is how long a limit waits for a scheduler that is about to start.
const schedulerPatience = 5 * time.Second

// holds says why a share or a cap that is named cannot hold: one that silently does not would be
// none. Without a scheduler each device process holds its own cap.
func (d *Daemon) holds(ctx context.Context, c api.Change) error {
	if c.HostMemory != nil {
		if err := c.HostMemory.Fits(limit.OfHost()); err != nil {
			return err
		}
	}
	share := c.Share != nil && *c.Share != limit.DefaultShare
	capped := c.Cap != nil && *c.Cap != 0
	switch runs := d.opt.Scheduler && d.config().Scheduler.Enabled; {
	case !share && !capped, !runs && !share:
		return nil
	case !runs:
		return refuse(http.StatusConflict, "leave the share out (or write 100), or set scheduler.enabled = true in causewayd.toml and restart causewayd",
			"a share of %v cannot hold: this causewayd runs no scheduler of GPU time (scheduler.enabled = false)", *c.Share)
	}
	ctx, cancel := context.WithTimeout(ctx, schedulerPatience)
	defer cancel()
	for !process.Listening(d.schedulerSocket()) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return refuse(http.StatusConflict, "`journalctl -u causewayd` says why; without share and cap the vGPU can be had",
				"share and cap cannot hold: the scheduler of GPU time does not run")
		}
	}
	return nil
}

// wanted is what a vGPU is to be: what is wished, over what it was, or else over what the
// configuration says.
func (d *Daemon) wanted(w *api.Wish, was *api.Spec) api.Spec {
	c := d.config().Devices
	s := api.Spec{VM: w.VM, Name: w.Name, GPU: "any", Migratable: c.Migratable, Owner: c.Owner(), Limits: limitsOf(c)}
	if was != nil {
		s = *was
	}
	if w.Remote == api.RemoteAny && s.Remote != "" { // it has one
		w.Remote = s.Remote
	}
	s.GPU, s.MIG, s.Remote, s.Owner = cmp.Or(w.GPU, s.GPU), cmp.Or(w.MIG, s.MIG), cmp.Or(w.Remote, s.Remote), cmp.Or(w.Owner, s.Owner)
	s.NUMA, s.MovesAs = cmp.Or(w.NUMA, s.NUMA), cmp.Or(w.MovesAs, s.MovesAs)
	s.Migratable, s.Programs = *cmp.Or(w.Migratable, &s.Migratable), *cmp.Or(w.Programs, &s.Programs)
	if s.Programs && w.Owner == "" && (was == nil || !was.Programs) {
		// Who gets its folder may use it, and nobody else unless that is said.
		s.Owner = ""
	}
	if l := w.On(s.Limits); l != s.Limits {
		s.Limits, s.Profile = l, ""
	}
	return s
}

// limitsOf are those of a vGPU for which nobody names any.
func limitsOf(c config.Devices) api.Limits {
	return api.Limits{Memory: uint64(c.Memory), Share: uint32(c.Share), Cap: uint32(c.Cap), Sessions: uint32(c.Sessions),
		HostMemory: uint64(c.HostMemory), UserSessions: uint32(c.UserSessions)}
}

// Profiles lists the profiles, and what they are on each GPU.
func (d *Daemon) Profiles(ctx context.Context) ([]api.Profile, error) {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return nil, err
	}
	d.refresh(ctx)
	c := d.config()
	d.mu.Lock()
	all := d.tallyLocked(r)
	d.mu.Unlock()
	list := []api.Profile{}
	for _, name := range slices.Sorted(maps.Keys(c.Profiles)) {
		p := api.Profile{Name: name, Profile: c.Profiles[name], On: []api.ProfileOn{}}
		for i := range all {
			if all[i].Parent == "" {
				p.On = append(p.On, profileOn(p.Profile, &all[i], &c))
			}
		}
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b api.Profile) int { return -cmp.Compare(a.Share, b.Share) })
	return list, nil
}

func profileOn(p limit.Profile, g *place.GPU, c *config.Config) api.ProfileOn {
	m, err := p.Memory.On(onGPU(&g.GPU, c.Devices.WarmWorkers))
	if err != nil {
		return api.ProfileOn{GPU: g.ID, Why: err.Error()}
	}
	on := api.ProfileOn{GPU: g.ID, Memory: uint64(m)}
	if !g.Drained && len(g.MIG) == 0 {
		on.Room = int(min(g.Room(c.Placement.Overcommit)/uint64(m), 1<<20))
	}
	return on
}
