package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// routineHealth looks at the GPUs and at the size of logs now and then.
func (d *Daemon) routineHealth() {
	for {
		if _, err := d.gpus.read(d.ctx); err != nil && d.ctx.Err() == nil {
			d.log.Warn("the GPUs cannot be read", "error", err)
		}
		d.rotateLogs()
		t := time.NewTimer(d.config().Health.Interval.Of())
		select {
		case <-t.C:
		case <-d.ctx.Done():
			t.Stop()
			return
		}
	}
}

// noteReading says what is new, and drains GPUs that report faults of their own. gpuBook.mu is
// held.
func (d *Daemon) noteReading(r Reading) {
	if r.Missing != d.missing {
		d.missing = r.Missing
		switch {
		case r.Missing != "":
			d.log.Error("this host has GPUs that cannot be used: see `causeway doctor`", "why", r.Missing)
		default:
			d.log.Info("the driver answers again")
		}
	}
	h := d.config().Health
	for _, f := range r.Faults {
		what := cmp.Or(f.Text, fmt.Sprintf("XID %d", f.XID))
		if !h.Drain || f.XID != 0 && slices.Contains(h.IgnoreXIDs, f.XID) {
			d.log.Info("a GPU reports what does not drain it", "gpu", f.GPU, "fault", what)
			continue
		}
		if _, is := d.gpus.drained[f.GPU]; is {
			continue
		}
		d.log.Error("a GPU reports a fault: it gets no new vGPU", "gpu", f.GPU, "fault", what)
		if err := d.gpus.setLocked(f.GPU, &Drain{Why: what, Since: time.Now()}); err != nil {
			d.gpus.drained[f.GPU] = Drain{Why: what, Since: time.Now()} // it is faulty all the same
			d.log.Error("it will be forgotten at a restart", "gpu", f.GPU, "error", err)
		}
	}
}
