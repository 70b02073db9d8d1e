package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/process"
	"causeway/host/daemon/systemd"
	"causeway/host/limit"
	"causeway/host/sandbox/cgroup"
)

// launch starts a vGPU's device process and waits until it is ready.
func (d *Daemon) launch(ctx context.Context, v *vgpu, gpu string) error {
	rec, _ := d.copyOf(v)
	spec := &rec.Spec
	out, journal, err := d.openLog(logName(spec))
	if err != nil {
		return err
	}
	defer out.Close()
	from, begun := logEnd(out), time.Now()
	// It waits until its record names it: if causewayd ends before, it does, too, and the next
	// causewayd finds none that it does not know.
	p, err := process.Start(process.Command{
		Path: d.opt.Program, Args: append(d.deviceArgs(&rec, gpu), "--held"), Env: d.environment(), Output: out, Held: true,
	})
	if err != nil {
		return fmt.Errorf("start the device process: %w", err)
	}
	d.reached(stepStarted)
	d.mu.Lock()
	v.proc, v.rec.PID, v.rec.Start, v.rec.Journal = p, p.PID(), p.StartTime(), journal
	rec = v.rec
	d.mu.Unlock()
	d.wg.Go(func() { d.routineWatch(v, p) })
	d.wg.Go(func() { d.routineDeparts(v, p) })
	d.wg.Go(func() { d.routineStays(v, p) })
	if err := writeJSON(recordPath(d.run, spec), &rec); err != nil {
		return fmt.Errorf("write down the vGPU: %w", err)
	}
	d.reached(stepNamed)
	c := d.config()
	d.scope(ctx, systemd.UnitName(spec.VM, spec.Name), "Causeway vGPU "+spec.Key(), p, c.Isolation.Limits())
	if err := p.Begin(); err != nil {
		return fmt.Errorf("let the device process begin: %w", err)
	}
	d.reached(stepBegun)
	st, err := d.awaitReady(ctx, v, p)
	if err != nil {
		if why := d.lastWords(logName(spec), from, begun, journal); why != "" {
			err = fmt.Errorf("%w; it said: %s", err, why)
		}
		return refuse(http.StatusInternalServerError, "see `causeway logs "+spec.Key()+"` and `causeway doctor`", "%s: %v", spec.Key(), err)
	}
	if spec.Remote == "" { // its server has checked
		if err := checkPlaced(rec.GPU, st); err != nil {
			return err
		}
	}
	d.reached(stepAnswered)
	d.mu.Lock()
	v.rec.Version, v.rec.Starting, v.ready = st.Version, false, true
	rec = v.rec
	d.mu.Unlock()
	if !p.Alive() { // routineWatch may have seen its end when it was not ready yet
		return refuse(http.StatusInternalServerError, "see `causeway logs "+spec.Key()+"`", "the device process of %s ended at once: %s", spec.Key(), p.Reason())
	}
	if err := writeJSON(recordPath(d.run, spec), &rec); err != nil {
		return fmt.Errorf("write down the vGPU: %w", err)
	}
	d.reached(stepReady)
	if rec.Swap {
		d.wg.Go(func() { d.routineRoom(v, p) })
	}
	d.log.Info("vGPU ready", "vgpu", spec.Key(), "gpu", rec.GPU, "pid", p.PID())
	return nil
}

func (d *Daemon) deviceArgs(rec *record, gpu string) []string {
	s, c := &rec.Spec, d.config()
	args := []string{
		"device", "--socket", s.SocketPath(d.run), "--control", s.ControlPath(d.run), "--vm", s.VM, "--name", s.Name,
		"--sessions", fmt.Sprint(s.Sessions), "--warm", fmt.Sprint(c.Devices.WarmWorkers),
	}
	if s.Remote != "" {
		args = append(args, "--relay", s.LeasePath(d.run))
	} else {
		args = append(args, "--gpu", gpu)
	}
	if s.Memory != 0 {
		args = append(args, "--memory", limit.FormatSize(s.Memory))
	}
	if s.HostMemory != 0 {
		args = append(args, "--host-memory", limit.FormatSize(s.HostMemory))
	}
	if s.UserSessions != 0 {
		args = append(args, "--user-sessions", fmt.Sprint(s.UserSessions))
	}
	if s.Share != limit.DefaultShare && s.Remote == "" { // its server holds them
		args = append(args, "--share", fmt.Sprint(s.Share))
	}
	if s.Cap != 0 && s.Remote == "" {
		args = append(args, "--cap", fmt.Sprint(s.Cap))
	}
	if rec.Swap {
		args = append(args, "--swap")
	}
	if c.Devices.SuspendTo != "" {
		args = append(args, "--suspend-to", c.Devices.SuspendTo)
	}
	if s.Lease != "" {
		args = append(args, "--lease", s.LeasePath(d.run))
	}
	if s.Lease != "" || s.Remote != "" {
		args = append(args, "--rdma", c.Remote.RDMA, "--copy-connections", fmt.Sprint(c.Remote.CopyConnections))
	}
	if (s.Lease != "" || s.Remote != "") && c.Remote.RDMAPairs != 1 {
		args = append(args, "--rdma-queue-pairs", fmt.Sprint(c.Remote.RDMAPairs))
	}
	if (s.Lease != "" || s.Remote != "") && c.Remote.RDMAPartition != "" {
		args = append(args, "--rdma-partition", c.Remote.RDMAPartition)
	}
	if s.Lease != "" && c.Remote.GPUDirect {
		args = append(args, "--gpu-direct")
	}
	if s.Remote != "" && c.Remote.GuestRDMA {
		args = append(args, "--guest-rdma")
	}
	if s.Programs {
		args = append(args, "--programs")
	}
	if s.Migratable {
		args = append(args, "--migratable")
	}
	if s.Owner != "" && !s.Programs { // whose folder is closed to others
		args = append(args, "--owner", s.Owner)
	}
	if d.opt.Scheduler && c.Scheduler.Enabled && s.Remote == "" {
		args = append(args, "--scheduler", d.schedulerSocket())
	}
	args = append(args, "--sandbox", c.Isolation.Sandbox, "--ioctls", c.Isolation.Ioctls)
	if c.Isolation.KernelsReachWorker {
		args = append(args, "--kernels-reach-worker")
	}
	if c.Isolation.LinkedGPUs && s.Lease == "" {
		// Sessions of leases go to other servers, not to another GPU here.
		args = append(args, "--linked-gpus")
	}
	if l := c.Isolation.Limits(); l != (cgroup.Limits{}) && d.opt.Scopes == nil {
		args = append(args, "--cgroup", "causeway/"+s.VM+"/"+s.Name, "--cgroup-memory", limit.Memory(l.Memory).String(), "--cgroup-memory-high", limit.Memory(l.High).String(),
			"--cgroup-cpu", fmt.Sprint(l.CPU), "--cgroup-weight", fmt.Sprint(l.CPUWeight), "--cgroup-processes", fmt.Sprint(l.Processes))
	}
	if c.Devices.Verbose {
		args = append(args, "--verbose")
	}
	return args
}

// environment is all that a process gets of ours.
func (d *Daemon) environment() []string { return Environment(d.config().Devices.Environment) }

// Environment is what a device process is started with: nothing of causewayd's, and what the
// configuration adds.
func Environment(more map[string]string) []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LANG": "C.UTF-8"}
	maps.Copy(env, more)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// scopeTime is what the service manager may take to make a unit.
const scopeTime = 10 * time.Second

// scope has the service manager treat a process as none of ours. It is stopped meanwhile, so that
// all that it starts is in its unit. Without a unit the process runs as well, until causewayd's
// service is stopped with all that belongs to it.
func (d *Daemon) scope(ctx context.Context, unit, description string, p *process.Process, l cgroup.Limits) {
	if d.opt.Scopes == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, scopeTime)
	defer cancel()
	err := p.Signal(syscall.SIGSTOP)
	if err == nil {
		err = errors.Join(d.opt.Scopes.Place(ctx, unit, description, p.PID(), l), p.Signal(syscall.SIGCONT))
	}
	if err != nil {
		d.log.Warn("no unit of its own: it may end when causewayd's service is stopped, unless that has KillMode=process", "process", p.PID(), "unit", unit, "error", err)
	}
}

// awaitReady waits until a device process answers at its control socket.
func (d *Daemon) awaitReady(ctx context.Context, v *vgpu, p *process.Process) (*api.Status, error) {
	limit := d.config().Devices.StartTimeout.Of()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		st, err := d.ask(ctx, v)
		if err == nil && st.PID == p.PID() {
			return st, nil
		}
		if err == nil {
			return nil, fmt.Errorf("process %d answers at its control socket instead", st.PID)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-p.Done():
			t.Stop()
			return nil, fmt.Errorf("the device process did not start: %s", p.Reason())
		case <-ctx.Done():
			t.Stop()
			if errors.Is(err, api.ErrNotRunning) { // nobody listens there yet
				err = nil
			}
			return nil, fmt.Errorf("the device process was not ready within %v (devices.start_timeout): %w", limit, errors.Join(ctx.Err(), err))
		}
	}
}

// checkPlaced: numbers of GPUs change when one falls off the bus.
func checkPlaced(want string, st *api.Status) error {
	first, _, _ := strings.Cut(want, ",")
	if st.UUID == "" || strings.EqualFold(st.UUID, first) {
		return nil
	}
	return refuse(http.StatusServiceUnavailable, "try again", "the driver numbers its GPUs otherwise by now: the device process got %s in place of %s", st.UUID, first)
}
