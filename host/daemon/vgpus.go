package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"causeway/host/api"
	"causeway/host/daemon/process"
	"causeway/host/limit"
)

// Times.
const (
	askTimeout     = time.Second      // what a device process may take to answer
	awaitsTimeout  = 10 * time.Second // likewise, where it is asked whether a VM may come
	unusedPatience = 2 * time.Second  // a VM that has just ended may be connected still
)

func (d *Daemon) find(key string) *vgpu {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.vgpus[key]
}

func (d *Daemon) copyOf(v *vgpu) (record, *process.Process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return v.rec, v.proc
}

// ask asks a vGPU's device process for its account.
func (d *Daemon) ask(ctx context.Context, v *vgpu) (*api.Status, error) {
	return d.askWithin(ctx, v, askTimeout)
}

// askWithin is ask where no answer means no, and who asks waits for it.
func (d *Daemon) askWithin(ctx context.Context, v *vgpu, limit time.Duration) (*api.Status, error) {
	rec, _ := d.copyOf(v)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	body, err := c.Open(ctx, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	st := &api.Status{}
	if err := json.NewDecoder(io.LimitReader(body, maxStatus)).Decode(st); err != nil {
		return nil, fmt.Errorf("status of %s: %w", rec.Spec.Key(), err)
	}
	d.mu.Lock()
	v.last = st
	d.mu.Unlock()
	return st, nil
}

// maxStatus bounds a device process's account: it serves a guest, which may have taken it over.
const maxStatus = 4 << 20

// refresh asks all device processes.
func (d *Daemon) refresh(ctx context.Context) { _, _ = d.VGPUs(ctx) }

// VGPUs lists all vGPUs, by VM and name.
func (d *Daemon) VGPUs(ctx context.Context) ([]api.VGPU, error) {
	d.mu.Lock()
	var all []*vgpu
	for _, key := range slices.Sorted(maps.Keys(d.vgpus)) {
		all = append(all, d.vgpus[key])
	}
	d.mu.Unlock()
	const atOnce = 16
	list := make([]api.VGPU, len(all))
	slots := semaphore.NewWeighted(atOnce)
	var wg sync.WaitGroup
	for i, v := range all {
		if err := slots.Acquire(ctx, 1); err != nil {
			wg.Wait()
			return nil, err
		}
		wg.Go(func() {
			defer slots.Release(1)
			list[i] = d.view(ctx, v)
		})
	}
	wg.Wait()
	return list, nil
}

// VGPU is one of them.
func (d *Daemon) VGPU(ctx context.Context, key string) (api.VGPU, error) {
	v := d.find(key)
	if v == nil {
		return api.VGPU{}, unknown(key)
	}
	return d.view(ctx, v), nil
}

func unknown(key string) error {
	return refuse(http.StatusNotFound, "`causeway ps` lists them", "there is no vGPU %s", key)
}

// view is a vGPU as the API shows it. One that does not answer is shown as it was last.
func (d *Daemon) view(ctx context.Context, v *vgpu) api.VGPU {
	rec, proc := d.copyOf(v)
	var st *api.Status
	if !rec.Lost && proc != nil {
		st, _ = d.ask(ctx, v)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rec = v.rec
	out := api.VGPU{
		Spec: rec.Spec, State: api.Waiting, GPU: rec.GPU, Socket: rec.Spec.SocketPath(d.run), Control: rec.Spec.ControlPath(d.run),
		PID: rec.PID, Started: rec.Started, Why: rec.Why, Status: st, Upstream: v.up,
	}
	if st != nil && (v.up != nil || rec.Spec.Remote != "") {
		out.Status = atItsServer(*st, &rec.Spec, v.up, v.agreed)
	}
	switch {
	case rec.Lost:
		out.State = api.Lost
	case v.last != nil && v.last.Connected:
		out.State = api.Connected
	}
	return out
}

// atItsServer is a device process's account with what its vGPU's GPU server knows better: the
// memory that its programs use there, and its share and cap, which only the server holds. Until a
// renewal that was asked for after agreed these are as they were agreed.
func atItsServer(st api.Status, s *api.Spec, up *api.Upstream, agreed time.Time) *api.Status {
	l := s.Limits
	if up != nil && up.State != nil {
		st.Memory = up.State.Memory
		if up.State.Limits.Share != 0 && up.Renewed.Add(-up.RoundTrip).After(agreed) {
			l = up.State.Limits
		}
	}
	st.Limits.Share, st.Limits.Cap = cmp.Or(l.Share, limit.DefaultShare), l.Cap
	return &st
}

// routineWatch waits for the end of a device process, or ours.
func (d *Daemon) routineWatch(v *vgpu, p *process.Process) {
	select {
	case <-p.Done():
	case <-d.ctx.Done():
		return
	}
	d.mu.Lock()
	if v.end || v.proc != p || !v.ready {
		d.mu.Unlock()
		return
	}
	rec := v.rec
	d.mu.Unlock()
	// Reads logs: not under the lock.
	why := d.why(&rec, fmt.Sprintf("its device process %d is gone: %s", p.PID(), p.Reason()))
	if d.lose(v, p, why) {
		rec.Why = why
		d.note(&rec)
		d.log.Error("vGPU lost", "vgpu", rec.Spec.Key(), "why", why)
	}
}

// lose writes down that a vGPU's device process is gone; false: it is being ended, or has another
// process. Whoever deletes it just now removes what is written here.
func (d *Daemon) lose(v *vgpu, p *process.Process, why string) bool {
	v.written.Lock()
	defer v.written.Unlock()
	d.mu.Lock()
	if v.end || v.proc != p {
		d.mu.Unlock()
		return false
	}
	d.loseLocked(v, why)
	rec := v.rec
	d.mu.Unlock()
	if err := writeJSON(recordPath(d.run, &rec.Spec), &rec); err != nil {
		d.log.Error("a lost vGPU was not written down", "vgpu", rec.Spec.Key(), "error", err)
	}
	return true
}

func (d *Daemon) loseLocked(v *vgpu, why string) {
	v.rec.Lost, v.rec.Why = true, why
}

// Release ends a vGPU. unused: only if no VM is connected.
func (d *Daemon) Release(ctx context.Context, key string, unused bool) error {
	leave, err := d.locks.enter(ctx, key)
	if err != nil {
		return err
	}
	defer leave()
	return d.release(ctx, key, unused)
}

// release is Release of whoever holds the lock.
func (d *Daemon) release(ctx context.Context, key string, unused bool) error {
	v := d.find(key)
	if v == nil {
		return unknown(key)
	}
	for start := time.Now(); unused; time.Sleep(50 * time.Millisecond) {
		rec, proc := d.copyOf(v)
		if rec.Lost || proc == nil || !proc.Alive() {
			break
		}
		st, err := d.ask(ctx, v)
		if err != nil {
			d.log.Warn("whether a VM is connected is not known", "vgpu", key, "error", err)
			return silent(key)
		}
		if !st.Connected {
			break
		}
		if time.Since(start) > unusedPatience || ctx.Err() != nil {
			if h := rec.Spec.Lease; h != "" {
				return refuse(http.StatusConflict, "end them there, or delete it by force (causeway delete --force): they get errors then", "programs of %s use %s", h, key)
			}
			return refuse(http.StatusConflict, "end the VM or detach the device first", "a VM is connected to %s", key)
		}
	}
	rec, _ := d.copyOf(v)
	if rec.Spec.Lease != "" {
		d.leases.Deny(key)
	}
	err := d.end(ctx, v)
	if err == nil && rec.Spec.Programs {
		d.removeProgramsFolder(&rec.Spec)
	}
	return err
}

// end ends a vGPU's process and removes what is left of it. Its lock is held.
func (d *Daemon) end(ctx context.Context, v *vgpu) error {
	d.mu.Lock()
	v.end = true
	rec, proc := v.rec, v.proc
	d.mu.Unlock()
	d.reached(stepEnding)
	if proc != nil && proc.Alive() {
		c := api.NewClient(rec.Spec.ControlPath(d.run))
		stop, cancel := context.WithTimeout(ctx, askTimeout)
		_ = c.Do(stop, http.MethodPost, "/v1/stop", nil, nil) // SIGTERM says the same
		cancel()
		c.Close()
		if err := proc.End(context.WithoutCancel(ctx), d.opt.Grace); err != nil {
			d.mu.Lock()
			v.end = false
			d.mu.Unlock()
			return err
		}
	}
	d.reached(stepEnded)
	d.log.Info("vGPU ended", "vgpu", rec.Spec.Key())
	if err := d.giveBack(v); err != nil {
		d.log.Warn("a lease is not given back: it ends at the server after its term", "vgpu", rec.Spec.Key(), "server", rec.Spec.Remote, "error", err)
	}
	return d.forget(v)
}
