package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"

	"causeway/host/api"
	"causeway/host/daemon/peer"
	"causeway/host/daemon/process"
)

// scan finds again what earlier causewayds started, and removes what nobody serves any more.
func (d *Daemon) scan(ctx context.Context) error {
	vms, err := os.ReadDir(d.run)
	if err != nil {
		return fmt.Errorf("find what runs: %w", err)
	}
	for _, vm := range vms {
		if !vm.IsDir() {
			continue
		}
		dir := filepath.Join(d.run, vm.Name())
		if dir == d.opt.Config.StateDir || dir == d.opt.Config.LogDir {
			continue
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			d.log.Warn("cannot be read: what runs there stays unknown", "folder", dir, "error", err)
			continue
		}
		for _, f := range files {
			name, isRecord := strings.CutSuffix(f.Name(), recordSuffix)
			switch {
			case strings.HasPrefix(f.Name(), "."): // of a write that did not come to its end
				_ = os.Remove(filepath.Join(dir, f.Name()))
			case isRecord:
				d.findAgain(ctx, vm.Name(), name)
			}
		}
		d.removeStray(dir, vm.Name())
		_ = os.Remove(dir) // if it is empty, and still there
	}
	return ctx.Err()
}

// findAgain takes up one vGPU.
func (d *Daemon) findAgain(ctx context.Context, vm, name string) {
	rec, err := readRecord(d.run, vm, name)
	if err != nil {
		d.log.Error("a record cannot be used: what it is about, if it runs, is left alone", "error", err)
		return
	}
	v := &vgpu{rec: rec}
	if rec.Spec.Lease != "" {
		if err := d.leaseFound(&rec.Spec); err != nil {
			d.log.Warn("a lease cannot be taken up: it ends", "vgpu", rec.Spec.Key(), "error", err)
			defer d.endUnleased(ctx, v)
		}
	}
	if rec.Lost {
		d.add(v)
		return
	}
	if rec.Spec.Remote != "" {
		if err := d.upstreamFound(v); err != nil && rec.PID != 0 {
			d.log.Error("the lease of a vGPU cannot be taken up: its programs will get errors", "vgpu", rec.Spec.Key(), "server", rec.Spec.Remote, "error", err)
		}
	}
	proc, err := d.processOf(&rec)
	if err != nil {
		if rec.PID == 0 || rec.Starting { // it was never ready, so nobody was told of it
			d.log.Info("a vGPU was being started when causewayd ended: nothing is left of it", "vgpu", rec.Spec.Key())
			if err := d.forget(v); err != nil {
				d.log.Warn("remains of a vGPU", "error", err)
			}
			return
		}
		d.loseLocked(v, d.why(&rec, fmt.Sprintf("its device process %d ended while no causewayd ran: its exit status is not known", rec.PID)))
		d.note(&v.rec)
		d.log.Error("vGPU lost", "vgpu", rec.Spec.Key(), "why", v.rec.Why, "error", err)
		if err := writeJSON(recordPath(d.run, &rec.Spec), &v.rec); err != nil {
			d.log.Error("a lost vGPU was not written down", "vgpu", rec.Spec.Key(), "error", err)
		}
		d.add(v)
		return
	}
	if d.opt.Scopes != nil {
		_ = proc.Signal(syscall.SIGCONT) // in case that causewayd ended while it made its unit
	}
	v.proc, v.ready, v.rec.PID, v.rec.Start, v.promised = proc, true, proc.PID(), proc.StartTime(), v.up != nil
	d.add(v)
	st, err := d.ask(ctx, v)
	if rec.Starting && (err != nil || st.PID != proc.PID()) {
		d.endUnready(v)
		return
	}
	v.rec.Starting = false
	if err != nil {
		d.log.Warn("a device process runs but does not answer", "vgpu", rec.Spec.Key(), "pid", proc.PID(), "error", err)
	} else {
		v.rec.Version = st.Version
		v.rec.movedMeanwhile(st)
	}
	if !reflect.DeepEqual(v.rec, rec) {
		if err := writeJSON(recordPath(d.run, &rec.Spec), &v.rec); err != nil {
			d.log.Warn("what was found is not written down", "vgpu", rec.Spec.Key(), "error", err)
		}
	}
	d.log.Info("vGPU found", "vgpu", rec.Spec.Key(), "pid", proc.PID(), "version", v.rec.Version)
	d.wg.Go(func() { d.routineWatch(v, proc) })
	if v.up != nil {
		d.foundComing(v, proc)
		if v.beside != nil {
			d.wg.Go(func() { d.routineBeside(v, proc) })
		}
		d.wg.Go(func() { d.routineRenew(v, proc) })
		d.watchHanded(v)
	}
	d.wg.Go(func() { d.routineDeparts(v, proc) })
	if rec.Swap {
		d.wg.Go(func() { d.routineRoom(v, proc) })
	}
	d.wg.Go(func() { d.routineStays(v, proc) })
	if rec.Ahead {
		d.foundAhead(v, proc, st)
		return
	}
	if _, said := os.Lstat(rec.Spec.ReleasedPath(d.run)); st == nil || st.Connected || said != nil {
		return
	}
	d.log.Info("its VM ended while no causewayd ran", "vgpu", rec.Spec.Key())
	if err := d.end(ctx, v); err != nil {
		d.log.Warn("a vGPU whose VM has ended", "vgpu", rec.Spec.Key(), "error", err)
	}
}

// endUnready ends a vGPU that an earlier causewayd was starting, and of which nobody was told: its
// process may never be let begin.
func (d *Daemon) endUnready(v *vgpu) {
	key, pid := v.rec.Spec.Key(), v.proc.PID()
	if err := d.undo(v); err != nil {
		d.log.Error("a vGPU that was being started when causewayd ended is not ended", "vgpu", key, "pid", pid, "error", err)
		return
	}
	d.log.Info("a vGPU was being started when causewayd ended: it is ended, too", "vgpu", key, "pid", pid)
}

func (d *Daemon) add(v *vgpu) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.vgpus[v.rec.Spec.Key()] = v
}

// processOf finds a record's process. If only the intent was written there is none: it would have
// waited for its record to name it. Of a causewayd that did not have it wait, whoever serves the
// control socket is it, which the kernel tells, if it says so itself.
func (d *Daemon) processOf(rec *record) (*process.Process, error) {
	if rec.PID != 0 {
		return process.Adopt(rec.PID, rec.Start)
	}
	if rec.Starting {
		return nil, process.ErrGone
	}
	p, err := peer.Serving(rec.Spec.ControlPath(d.run))
	if err != nil {
		return nil, err
	}
	return process.Adopt(p.PID, 0)
}

// removeStray removes a VM's sockets that have no record, if nobody serves them.
func (d *Daemon) removeStray(dir, vm string) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, f := range files {
		ext := filepath.Ext(f.Name())
		if ext != ".sock" && ext != ".ctl" || f.Type()&os.ModeSocket == 0 {
			continue
		}
		s := api.Spec{VM: vm, Name: strings.TrimSuffix(f.Name(), ext)}
		if v := d.find(s.Key()); v != nil && !v.rec.Lost {
			continue
		}
		path := filepath.Join(dir, f.Name())
		if process.Listening(path) {
			d.log.Warn("somebody serves a socket of which causewayd knows nothing: it is left alone", "socket", path)
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.log.Warn("stray socket", "error", err)
			continue
		}
		d.log.Info("removed a socket that nobody serves", "socket", path)
	}
}
