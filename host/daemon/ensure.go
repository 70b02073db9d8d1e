package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/place"
	"causeway/host/daemon/process"
	"causeway/host/limit"
)

// maxSocketPath is sun_path less its NUL (unix(7)).
const maxSocketPath = 107

// Ensure has a vGPU ready. What a wish leaves out stays as it is, so the same wish again changes
// nothing; limits change at once; anything else waits until no VM is connected.
func (d *Daemon) Ensure(ctx context.Context, w api.Wish) (api.VGPU, error) {
	return d.ensure(ctx, w, false)
}

// ensure is Ensure; ahead: what it makes is for a VM that may come (ahead.go).
func (d *Daemon) ensure(ctx context.Context, w api.Wish, ahead bool) (api.VGPU, error) {
	if err := d.checkWish(ctx, &w); err != nil {
		return api.VGPU{}, err
	}
	leave, err := d.locks.enter(ctx, w.Key())
	if err != nil {
		return api.VGPU{}, err
	}
	defer leave()
	var was *api.Spec
	if v := d.find(w.Key()); v != nil {
		if rec, _ := d.copyOf(v); rec.Spec.Lease != "" {
			return api.VGPU{}, refuse(http.StatusConflict, "`causeway limits` changes its limits, `causeway delete` ends the lease", "%s is a lease of the host %s", w.Key(), rec.Spec.Lease)
		}
		done, err := d.keep(ctx, v, &w)
		if done && !ahead {
			err = d.claimed(v)
		}
		if done || err != nil {
			return d.view(ctx, v), err
		}
		rec, _ := d.copyOf(v)
		was = &rec.Spec
		if d.wanted(&w, was).Remote == "" {
			if err := d.fitsElsewhere(ctx, v, &w, was); err != nil {
				return api.VGPU{}, err
			}
		}
		if err := d.end(ctx, v); err != nil {
			return api.VGPU{}, err
		}
	}
	if err := d.starts.Acquire(ctx, 1); err != nil {
		return api.VGPU{}, err
	}
	defer d.starts.Release(1)
	rec := newRecord(d.wanted(&w, was))
	rec.Ahead = ahead
	v, err := d.start(ctx, w, rec)
	if err != nil {
		d.log.Warn("vGPU not started", "vgpu", w.Key(), "error", err)
		return api.VGPU{}, err
	}
	view := d.view(ctx, v)
	view.Created = true
	return view, nil
}

func (d *Daemon) checkWish(ctx context.Context, s *api.Wish) error {
	if err := s.Check(); err != nil {
		return refuse(http.StatusBadRequest, "", "%v", err)
	}
	if n := len(s.SocketPath(d.run)); n > maxSocketPath {
		return refuse(http.StatusBadRequest, "use a shorter run_dir or VM name", "the socket's path would have %d bytes, of %d", n, maxSocketPath)
	}
	if s.Remote != "" && s.Remote != api.RemoteAny {
		name, err := d.named(ctx, s.Remote)
		if err != nil {
			return err
		}
		s.Remote = name
	}
	if s.Owner != "" {
		if err := config.CheckOwner(s.Owner); err != nil {
			return refuse(http.StatusBadRequest, "", "owner %q: %v", s.Owner, err)
		}
	}
	return nil
}

// keep judges a vGPU that is there: done says that it does as it is, or does now.
func (d *Daemon) keep(ctx context.Context, v *vgpu, w *api.Wish) (done bool, err error) {
	rec, proc := d.copyOf(v)
	if rec.Lost || proc == nil || !proc.Alive() {
		return false, nil
	}
	was := rec.Spec
	next := d.wanted(w, &was)
	if doesAs(&next, &was) {
		_, err := d.change(ctx, v, w.Change)
		return err == nil, err
	}
	if st, err := d.ask(ctx, v); err == nil && st.Connected {
		return false, refuse(http.StatusConflict, "detach it first: only limits change while a VM has it", "%s is in use, as %s", w.Key(), describe(&was))
	}
	return false, nil
}

// doesAs reports whether a vGPU serves as another, but for limits, which change at once, and for
// what chose its place, which it has.
func doesAs(a, b *api.Spec) bool {
	return a.GPU == b.GPU && a.MIG == b.MIG && a.Remote == b.Remote && a.Owner == b.Owner && a.Migratable == b.Migratable && a.Programs == b.Programs
}

func describe(s *api.Spec) string {
	t := "GPU " + cmp.Or(s.GPU, "any")
	if s.Remote != "" {
		t += " of the server " + s.Remote
	}
	if s.MIG != "" {
		t += ", MIG " + s.MIG
	}
	if s.Migratable {
		t += ", migratable"
	}
	if s.Programs {
		t += ", for programs of this host"
	}
	if s.Owner != "" {
		t += ", owner " + s.Owner
	}
	return t
}

// start places and starts a vGPU of which nothing is left. Its lock is held. What fails is undone.
func (d *Daemon) start(ctx context.Context, w api.Wish, rec record) (*vgpu, error) {
	spec := rec.Spec
	for _, s := range []string{spec.SocketPath(d.run), spec.ControlPath(d.run)} {
		if process.Listening(s) {
			return nil, refuse(http.StatusConflict, "end it (`ss -xlp src "+s+"` names it), or use another name", "a process that causewayd did not start serves %s", s)
		}
	}
	if spec.Programs {
		if err := makeProgramsFolder(d.run, &spec); err != nil {
			return nil, err
		}
	}
	if spec.Remote != "" {
		return d.startRemote(ctx, w, rec)
	}
	v, gpu, err := d.reserve(ctx, w, rec)
	if err != nil {
		return nil, err
	}
	if err := d.launch(ctx, v, gpu); err != nil {
		return nil, errors.Join(err, d.undo(v))
	}
	return v, nil
}

// reserve chooses the GPU and writes the intent down, in one step, so that nothing is promised
// twice. It returns what --gpu is told.
func (d *Daemon) reserve(ctx context.Context, w api.Wish, rec record) (*vgpu, string, error) {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("read the host's GPUs: %w", err)
	}
	if slices.ContainsFunc(r.GPUs, func(g api.GPU) bool { return g.Backend != "soft" }) {
		d.refresh(ctx) // what of a GPU's use is our vGPUs'
	}
	v, spec := &vgpu{rec: rec}, rec.Spec
	gpu, err := d.placeVGPU(r, v, w.Change)
	v.rec.Swap = d.swaps(v.rec.GPU)
	if err == nil {
		if err = d.holds(ctx, v.rec.Spec.All()); err != nil {
			err = errors.Join(err, d.forget(v))
		}
	}
	if err != nil {
		return nil, "", noGPU(r, err)
	}
	err = os.MkdirAll(filepath.Dir(recordPath(d.run, &spec)), 0o755)
	if err == nil {
		err = writeJSON(recordPath(d.run, &spec), &v.rec)
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("write down the vGPU: %w", err), d.undo(v))
	}
	d.reached(stepIntent)
	return v, gpu, nil
}

// noGPU adds to an error of place that GPUs are missing, and why.
func noGPU(r Reading, err error) error {
	if r.Missing != "" && errors.Is(err, place.ErrNoGPU) {
		return refuse(http.StatusServiceUnavailable, "see `causeway doctor`", "%v: %s", err, r.Missing)
	}
	return err
}

// fitsElsewhere judges whether a vGPU that is to be ended for another place would get that: what
// cannot be had ends nothing.
func (d *Daemon) fitsElsewhere(ctx context.Context, v *vgpu, w *api.Wish, was *api.Spec) error {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return fmt.Errorf("read the host's GPUs: %w", err)
	}
	profile, err := d.profileOf(w.Change)
	if err != nil {
		return err
	}
	next := &vgpu{rec: record{Spec: d.wanted(w, was)}}
	if err := d.wouldPlace(r, v, next, w.Change, profile); err != nil {
		return noGPU(r, err)
	}
	return d.holds(ctx, next.rec.Spec.All())
}

// wouldPlace chooses for next as if v were gone, and promises nothing.
func (d *Daemon) wouldPlace(r Reading, v, next *vgpu, c api.Change, profile *limit.Profile) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key := v.rec.Spec.Key(); d.vgpus[key] == v { // its own promise does not stand in its way
		delete(d.vgpus, key)
		defer func() { d.vgpus[key] = v }()
	}
	_, err := d.chooseLocked(r, next, c, profile)
	return err
}

// profileOf finds the profile that a change names; nil if it names none.
func (d *Daemon) profileOf(c api.Change) (*limit.Profile, error) {
	if c.Profile == "" {
		return nil, nil
	}
	p, err := d.profile(c.Profile)
	return &p, err
}

// placeVGPU chooses the GPU and has the vGPU in the table. It returns what --gpu is told.
func (d *Daemon) placeVGPU(r Reading, v *vgpu, c api.Change) (string, error) {
	profile, err := d.profileOf(c)
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	gpu, err := d.chooseLocked(r, v, c, profile)
	if err == nil {
		d.vgpus[v.rec.Spec.Key()] = v
	}
	return gpu, err
}

// chooseLocked chooses the GPU of a vGPU, and what its profile is there. d.mu is held.
func (d *Daemon) chooseLocked(r Reading, v *vgpu, c api.Change, profile *limit.Profile) (string, error) {
	spec, p := &v.rec.Spec, d.cfg.Placement
	all := d.tallyForLocked(r, spec.Key())
	d.boundLocked(all, spec)
	wish := place.Wish{GPU: spec.GPU, MIG: spec.MIG, Memory: spec.Memory, NUMA: -1}
	if spec.NUMA != nil {
		wish.NUMA = *spec.NUMA
	}
	waiting := d.cfg.Devices.WarmWorkers
	if profile != nil && c.Memory == nil {
		wish.Part = func(g *place.GPU) (uint64, error) {
			m, err := profile.Memory.On(onGPU(&g.GPU, waiting))
			return uint64(m), err
		}
	}
	picked, err := place.Choose(all, wish, place.Rules{
		Overcommit: p.Overcommit, SoftAny: p.SoftwareGPU == config.SoftAuto && r.Missing == "", SoftNamed: p.SoftwareGPU != config.SoftNever,
	})
	if err != nil {
		return "", err
	}
	g := onGPU(&all[picked[0]].GPU, waiting)
	if profile != nil {
		if len(picked) > 1 {
			return "", severalGPUs(c.Profile)
		}
		if c, err = c.With(*profile, g); err != nil {
			return "", err
		}
		spec.Profile, spec.Limits = c.Profile, c.On(spec.Limits)
	}
	if err := d.judgeUnreservedLocked(spec); err != nil {
		return "", err
	}
	if err := g.Fits(limit.Memory(spec.Memory), len(picked)); err != nil {
		return "", err
	}
	var ids, numbers []string
	for _, i := range picked {
		ids, numbers = append(ids, all[i].ID), append(numbers, fmt.Sprint(all[i].Index))
	}
	v.rec.GPU = strings.Join(ids, ",")
	switch {
	case all[picked[0]].Backend == "soft" && strings.HasPrefix(spec.GPU, "soft:"):
		return spec.GPU, nil
	case all[picked[0]].Backend == "soft" && all[picked[0]].Index > 0:
		return fmt.Sprintf("soft/%d", all[picked[0]].Index), nil
	case all[picked[0]].Backend == "soft":
		return "soft", nil
	case len(picked) > 1:
		return strings.Join(numbers, ","), nil
	}
	return v.rec.GPU, nil // numbers change when a GPU falls off the bus
}

// undo removes what is left of a vGPU that did not start. Of one whose process does not end all
// stays, so that it can be deleted later.
func (d *Daemon) undo(v *vgpu) error {
	d.mu.Lock()
	proc := v.proc
	v.end = true
	d.mu.Unlock()
	var err error
	if proc != nil {
		// Not the request's context: that may be why it failed.
		if err = proc.End(context.Background(), d.opt.Grace); err != nil {
			d.mu.Lock()
			v.end, v.ready = false, true
			d.mu.Unlock()
			return err
		}
	}
	err = errors.Join(err, d.giveBack(v))
	return errors.Join(err, d.forget(v))
}

// forget removes a vGPU whose process has ended from the table and the disk.
func (d *Daemon) forget(v *vgpu) error {
	v.written.Lock()
	defer v.written.Unlock()
	d.mu.Lock()
	spec := v.rec.Spec
	if d.vgpus[spec.Key()] == v {
		delete(d.vgpus, spec.Key())
	}
	proc := v.proc
	d.mu.Unlock()
	if proc != nil {
		_ = proc.Close()
	}
	err := removeAll(spec.SocketPath(d.run), spec.ControlPath(d.run), spec.ReleasedPath(d.run), spec.LeasePath(d.run), filepath.Join(spec.ProgramsPath(d.run), api.ProgramsNVML))
	d.reached(stepSwept)
	// Last: what was left of the others would be nobody's.
	err = errors.Join(err, removeAll(recordPath(d.run, &spec)))
	d.reached(stepForgotten)
	if spec.Lease != "" {
		d.leases.Remove(spec.Key())
	}
	// Stays while other vGPUs of the VM are there.
	_ = os.Remove(filepath.Dir(recordPath(d.run, &spec)))
	return err
}
