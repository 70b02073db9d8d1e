package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"causeway/host/daemon/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/place"
	"causeway/host/daemon/process"
)

// maxSocketPath is sun_path less its NUL (unix(7)).
const maxSocketPath = 107

// Ensure has a vGPU ready. The same Spec again changes nothing; other limits hold at once; anything else waits until no VM is connected.
func (d *Daemon) Ensure(ctx context.Context, asked api.Spec) (api.VGPU, error) {
	if err := d.checkSpec(&asked); err != nil {
		return api.VGPU{}, err
	}
	leave, err := d.gates.enter(ctx, asked.Key())
	if err != nil {
		return api.VGPU{}, err
	}
	defer leave()
	spec := d.withDefaults(asked)
	if v := d.find(asked.Key()); v != nil {
		if done, err := d.keep(ctx, v, asked, spec); done || err != nil {
			return d.view(ctx, v), err
		}
		if err := d.end(ctx, v); err != nil {
			return api.VGPU{}, err
		}
	}
	if err := d.starts.Acquire(ctx, 1); err != nil {
		return api.VGPU{}, err
	}
	defer d.starts.Release(1)
	v, err := d.start(ctx, asked, spec)
	if err != nil {
		d.log.Warn("vGPU not started", "vgpu", asked.Key(), "error", err)
		return api.VGPU{}, err
	}
	return d.view(ctx, v), nil
}

func (d *Daemon) checkSpec(s *api.Spec) error {
	if err := s.Check(); err != nil {
		return refuse(http.StatusBadRequest, "", "%v", err)
	}
	if n := len(s.SocketPath(d.run)); n > maxSocketPath {
		return refuse(http.StatusBadRequest, "use a shorter run_dir or VM name", "the socket's path would have %d bytes, of %d", n, maxSocketPath)
	}
	if s.Remote != "" {
		return refuse(http.StatusBadRequest, "leave it out", "a remote GPU server (%s) cannot serve VMs yet", s.Remote)
	}
	if s.Owner != "" {
		if err := config.CheckOwner(s.Owner); err != nil {
			return refuse(http.StatusBadRequest, "", "owner %q: %v", s.Owner, err)
		}
	}
	return nil
}

// withDefaults fills in what a request leaves to the configuration.
func (d *Daemon) withDefaults(s api.Spec) api.Spec {
	c := d.config().Devices
	s.GPU = cmp.Or(s.GPU, "any")
	s.Owner = cmp.Or(s.Owner, c.Owner())
	s.Limits = limitsWithDefaults(s.Limits, c)
	return s
}

func limitsWithDefaults(l api.Limits, c config.Devices) api.Limits {
	l.Memory = cmp.Or(l.Memory, uint64(c.Memory))
	l.Weight = cmp.Or(l.Weight, c.Weight)
	l.Cap = cmp.Or(l.Cap, c.Cap)
	l.Sessions = cmp.Or(l.Sessions, c.Sessions)
	return l
}

// keep judges a vGPU that is there: done says that it does as it is, or does now.
func (d *Daemon) keep(ctx context.Context, v *vgpu, asked, spec api.Spec) (done bool, err error) {
	rec, proc := d.copyOf(v)
	if rec.Lost || proc == nil || !proc.Alive() {
		return false, nil
	}
	asked.NUMA = rec.Asked.NUMA // it has its place
	if reflect.DeepEqual(rec.Asked, asked) {
		return true, nil
	}
	rest := rec.Asked
	rest.Limits = asked.Limits
	if reflect.DeepEqual(rest, asked) {
		return true, d.change(ctx, v, asked, spec.Limits)
	}
	if st, err := d.ask(ctx, v); err == nil && st.Connected {
		return false, refuse(http.StatusConflict, "detach it first: only limits change while a VM has it",
			"%s is in use, as %s", asked.Key(), describe(&rec.Asked))
	}
	return false, nil
}

func describe(s *api.Spec) string {
	t := "GPU " + cmp.Or(s.GPU, "any")
	if s.MIG != "" {
		t += ", MIG " + s.MIG
	}
	if s.Owner != "" {
		t += ", owner " + s.Owner
	}
	return t
}

// start places and starts a vGPU of which nothing is left. Its gate is held. What fails is undone.
func (d *Daemon) start(ctx context.Context, asked, spec api.Spec) (*vgpu, error) {
	for _, s := range []string{spec.SocketPath(d.run), spec.ControlPath(d.run)} {
		if process.Listening(s) {
			return nil, refuse(http.StatusConflict, "end it (`ss -xlp src "+s+"` names it), or use another name", "a process that causewayd did not start serves %s", s)
		}
	}
	v, gpu, err := d.reserve(ctx, asked, spec)
	if err != nil {
		return nil, err
	}
	if err := d.launch(ctx, v, gpu); err != nil {
		return nil, errors.Join(err, d.undo(v))
	}
	return v, nil
}

// reserve chooses the GPU and writes the intent down, in one step, so that nothing is promised twice. It returns what --gpu is told.
func (d *Daemon) reserve(ctx context.Context, asked, spec api.Spec) (*vgpu, string, error) {
	r, err := d.gpus.read(ctx)
	if err != nil {
		return nil, "", fmt.Errorf("read the host's GPUs: %w", err)
	}
	if slices.ContainsFunc(r.GPUs, func(g api.GPU) bool { return g.Backend != "soft" }) {
		d.refresh(ctx) // what of a GPU's use is our vGPUs'
	}
	v := &vgpu{rec: record{Format: recordFormat, Asked: asked, Spec: spec, Started: time.Now()}}
	gpu, err := d.placeVGPU(r, v)
	if err != nil {
		if r.Missing != "" && errors.Is(err, place.ErrNoGPU) {
			err = refuse(http.StatusServiceUnavailable, "see `causeway doctor`", "%v: %s", err, r.Missing)
		}
		return nil, "", err
	}
	err = os.MkdirAll(filepath.Dir(recordPath(d.run, &spec)), 0o755)
	if err == nil {
		err = writeJSON(recordPath(d.run, &spec), &v.rec)
	}
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("write down the vGPU: %w", err), d.undo(v))
	}
	return v, gpu, nil
}

// placeVGPU chooses the GPU and has the vGPU in the table.
func (d *Daemon) placeVGPU(r Reading, v *vgpu) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	spec, p := &v.rec.Spec, d.cfg.Placement
	all := d.tallyLocked(r)
	wish := place.Wish{GPU: spec.GPU, MIG: spec.MIG, Memory: spec.Memory, NUMA: -1}
	if spec.NUMA != nil {
		wish.NUMA = *spec.NUMA
	}
	picked, err := place.Choose(all, wish, place.Rules{
		Overcommit: p.Overcommit, SoftAny: p.SoftwareGPU == config.SoftAuto && r.Missing == "", SoftNamed: p.SoftwareGPU != config.SoftNever,
	})
	if err != nil {
		return "", err
	}
	var ids, numbers []string
	for _, i := range picked {
		ids, numbers = append(ids, all[i].ID), append(numbers, fmt.Sprint(all[i].Index))
	}
	v.rec.GPU = strings.Join(ids, ",")
	d.vgpus[spec.Key()] = v
	switch {
	case all[picked[0]].Backend == "soft" && strings.HasPrefix(spec.GPU, "soft:"):
		return spec.GPU, nil
	case all[picked[0]].Backend == "soft":
		return "soft", nil
	case len(picked) > 1:
		return strings.Join(numbers, ","), nil
	}
	return v.rec.GPU, nil // numbers change when a GPU falls off the bus
}

// undo removes what is left of a vGPU that did not start.
func (d *Daemon) undo(v *vgpu) error {
	d.mu.Lock()
	proc := v.proc
	v.end = true
	d.mu.Unlock()
	var err error
	if proc != nil {
		// Not the request's context: that may be why it failed.
		err = proc.End(context.Background(), d.opt.Grace)
	}
	return errors.Join(err, d.forget(v))
}

// forget removes a vGPU whose process has ended from the table and the disk.
func (d *Daemon) forget(v *vgpu) error {
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
	err := removeAll(recordPath(d.run, &spec), spec.SocketPath(d.run), spec.ControlPath(d.run))
	_ = os.Remove(filepath.Dir(recordPath(d.run, &spec))) // stays while other vGPUs of the VM are there
	return err
}
