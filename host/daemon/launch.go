package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"causeway/host/daemon/api"
	"causeway/host/daemon/process"
)

// endGrace is what a process may take to end by itself.
const endGrace = 5 * time.Second

// launch starts a vGPU's device process and waits until it is ready.
func (d *Daemon) launch(ctx context.Context, v *vgpu, gpu string) error {
	rec, _ := d.copyOf(v)
	spec := &rec.Spec
	out, journal, err := d.openLog(spec)
	if err != nil {
		return err
	}
	defer out.Close()
	from := logEnd(out)
	p, err := process.Start(process.Command{
		Path: d.opt.Program, Args: d.deviceArgs(spec, gpu), Env: d.environment(), Output: out,
	})
	if err != nil {
		return fmt.Errorf("start the device process: %w", err)
	}
	d.mu.Lock()
	v.proc, v.rec.PID, v.rec.Start, v.rec.Journal = p, p.PID(), p.StartTime(), journal
	rec = v.rec
	d.mu.Unlock()
	d.wg.Go(func() { d.routineWatch(v, p) })
	if err := writeJSON(recordPath(d.run, spec), &rec); err != nil {
		return fmt.Errorf("write down the vGPU: %w", err)
	}
	d.scope(ctx, "causeway-"+spec.VM+"-"+spec.Name, "Causeway vGPU "+spec.Key(), p)
	st, err := d.awaitReady(ctx, v, p)
	if err != nil {
		if why := lastWords(out.Name(), from, journal); why != "" {
			err = fmt.Errorf("%w; it said: %s", err, why)
		}
		return refuse(http.StatusInternalServerError, "see `causeway logs "+spec.Key()+"` and `causeway doctor`", "%s: %v", spec.Key(), err)
	}
	if err := checkPlaced(rec.GPU, st); err != nil {
		return err
	}
	d.mu.Lock()
	v.rec.Version, v.ready = st.Version, true
	rec = v.rec
	d.mu.Unlock()
	if err := writeJSON(recordPath(d.run, spec), &rec); err != nil {
		return fmt.Errorf("write down the vGPU: %w", err)
	}
	d.log.Info("vGPU ready", "vgpu", spec.Key(), "gpu", rec.GPU, "pid", p.PID())
	return nil
}

func (d *Daemon) deviceArgs(s *api.Spec, gpu string) []string {
	c := d.config()
	args := []string{
		"device", "--socket", s.SocketPath(d.run), "--control", s.ControlPath(d.run), "--vm", s.VM, "--name", s.Name, "--gpu", gpu,
		"--weight", fmt.Sprint(s.Weight), "--sessions", fmt.Sprint(s.Sessions), "--warm", fmt.Sprint(c.Devices.WarmWorkers),
	}
	if s.Memory != 0 {
		args = append(args, "--memory", api.FormatSize(s.Memory))
	}
	if s.Cap != 0 {
		args = append(args, "--cap", fmt.Sprint(s.Cap))
	}
	if s.Owner != "" {
		args = append(args, "--owner", s.Owner)
	}
	if d.opt.Scheduler && c.Scheduler.Enabled {
		args = append(args, "--scheduler", d.schedulerSocket())
	}
	if c.Devices.Verbose {
		args = append(args, "--verbose")
	}
	return args
}

// environment is all that a process gets of ours.
func (d *Daemon) environment() []string { return Environment(d.config().Devices.Environment) }

// Environment is what a device process is started with: nothing of causewayd's, and what the configuration adds.
func Environment(more map[string]string) []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LANG": "C.UTF-8"}
	maps.Copy(env, more)
	var list []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}

// scope has the service manager treat a process as none of ours. Without it the process runs as well, until causewayd's service is
// stopped with all that belongs to it.
func (d *Daemon) scope(ctx context.Context, unit, description string, p *process.Process) {
	if d.opt.Scopes == nil {
		return
	}
	if err := d.opt.Scopes.Place(ctx, unit, description, p.PID()); err != nil {
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

// openLog opens where a device process's stderr goes.
func (d *Daemon) openLog(s *api.Spec) (f *os.File, journal bool, err error) {
	name := d.logPath(s)
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return nil, false, fmt.Errorf("log: %w", err)
	}
	f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return nil, false, fmt.Errorf("log: %w", err)
	}
	return f, false, nil
}

func (d *Daemon) logPath(s *api.Spec) string {
	return filepath.Join(d.opt.Config.LogDir, s.VM+"-"+s.Name+".log")
}

func logEnd(f *os.File) int64 {
	if info, err := f.Stat(); err == nil {
		return info.Size()
	}
	return 0
}

// lastWords is the last line that a process wrote to its log after from.
func lastWords(name string, from int64, journal bool) string {
	if journal {
		return ""
	}
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 8 << 10
	end := logEnd(f)
	b := make([]byte, min(max(end-from, 0), most))
	n, _ := f.ReadAt(b, end-int64(len(b)))
	lines := strings.Split(strings.TrimSpace(string(b[:n])), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "causeway: ")
}

// rotateLogs keeps log files below their size: a long one is copied to .1 and emptied, since its writer does not open it again. What
// is written in between is lost.
func (d *Daemon) rotateLogs() {
	most := int64(d.config().Devices.LogSize)
	files, err := filepath.Glob(filepath.Join(d.opt.Config.LogDir, "*.log"))
	if err != nil {
		return
	}
	for _, name := range files {
		if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() <= most {
			continue
		}
		if err := rotate(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("a log could not be rotated: it is emptied", "log", name, "error", err)
			_ = os.Truncate(name, 0)
		}
	}
}
