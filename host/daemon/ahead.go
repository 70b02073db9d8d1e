package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"

	"causeway/host/api"
	"causeway/host/daemon/process"
)

/*
A vGPU that was made because another host brings memory ahead of a VM, and of which nobody here
knew. It is somebody's when somebody here asks for it, which libvirt's hook does before QEMU starts,
or when a QEMU is connected. If neither has come when nothing is brought any more it ends; the
record says so, for the causewayd of then may be another one.
*/

// notAhead ends a vGPU that was made for a VM which has not come. One that does not answer is asked
// until it does.
func (d *Daemon) notAhead(v *vgpu, p *process.Process, log *slog.Logger) {
	err := d.endAhead(v)
	if !errors.As(err, new(silence)) {
		notCome(err, log)
		return
	}
	d.wg.Go(func() {
		for errors.As(err, new(silence)) && d.pause(p, d.opt.Renew) {
			err = d.endAhead(v)
		}
		if d.ctx.Err() == nil {
			notCome(err, log)
		}
	})
}

// foundAhead takes up what an earlier causewayd made for a VM. st is nil if the device process did
// not answer.
func (d *Daemon) foundAhead(v *vgpu, p *process.Process, st *api.Status) {
	log := d.log.With("vgpu", v.rec.Spec.Key())
	if st == nil || !st.Connected {
		d.notAhead(v, p, log)
		return
	}
	if err := d.claimed(v); err != nil {
		log.Warn("that a VM comes is not written down", "error", err)
	}
}

// errClaimed: a vGPU that was made for a VM is somebody's by now, or gone.
var errClaimed = errors.New("it is not only for a VM that may come any more")

// endAhead ends a vGPU that was made for a VM, unless it is somebody's.
func (d *Daemon) endAhead(v *vgpu) error {
	rec, _ := d.copyOf(v)
	key := rec.Spec.Key()
	ctx, cancel := context.WithTimeout(d.ctx, endTime)
	defer cancel()
	leave, err := d.locks.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	d.mu.Lock()
	claimed := !v.rec.Ahead || d.vgpus[key] != v
	d.mu.Unlock()
	if claimed {
		return errClaimed
	}
	err = d.release(ctx, key, true)
	var e *api.Error
	if errors.As(err, &e) && e.Status == http.StatusConflict && !errors.As(err, new(silence)) {
		// A QEMU is connected.
		return errors.Join(errClaimed, d.claimed(v))
	}
	return err
}

// claimed notes that a vGPU is somebody's. Its lock is held.
func (d *Daemon) claimed(v *vgpu) error {
	v.written.Lock()
	defer v.written.Unlock()
	d.mu.Lock()
	was := v.rec.Ahead
	v.rec.Ahead = false
	rec := v.rec
	d.mu.Unlock()
	if !was {
		return nil
	}
	return writeJSON(recordPath(d.run, &rec.Spec), &rec)
}

// notCome tells what came of the end of a vGPU for a VM that did not come.
func notCome(err error, log *slog.Logger) {
	var e *api.Error
	switch {
	case err == nil:
		log.Info("no VM came: its vGPU is ended")
	case errors.Is(err, errClaimed):
	case errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusConflict):
		// It is gone, or has come.
	case !errors.Is(err, io.EOF):
		log.Warn("a vGPU for a VM that did not come is left", "error", err)
	}
}
