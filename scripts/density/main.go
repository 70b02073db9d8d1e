package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

type options struct {
	causeway, lib                   string
	vgpus, sessions, cycles, starts int
	watch, flood                    time.Duration
	perVM                           int
}

func main() {
	var o options
	dir := filepath.Dir(os.Args[0])
	flag.StringVar(&o.causeway, "causeway", filepath.Join(dir, "causeway"), "the causeway program")
	flag.StringVar(&o.lib, "lib", filepath.Join(dir, "..", "lib"), "folder of the guest's libraries")
	flag.IntVar(&o.vgpus, "vgpus", 50, "vGPUs at once")
	flag.IntVar(&o.sessions, "sessions", 200, "idle sessions at once")
	flag.IntVar(&o.cycles, "cycles", 500, "vGPUs attached and detached")
	flag.IntVar(&o.starts, "starts", 1000, "sessions started and ended")
	flag.DurationVar(&o.watch, "watch", 10*time.Second, "how long the idle host is watched")
	flag.DurationVar(&o.flood, "flood", 10*time.Second, "how long one VM floods the host with sessions; 0: not")
	flag.Parse()
	o.perVM = max(64, (o.sessions+o.vgpus-1)/o.vgpus+1)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, &o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "density:", err)
		os.Exit(1)
	}
}

// Bounds of what things cost, some four times what they do cost: they find what went wrong, not
// what got a little worse.
const (
	mostVGPU         = 16 << 20 // bytes
	mostSession      = 12 << 20
	mostIdle         = 1.0 // per cent of a core, all processes together, without sessions
	mostIdlePerVGPU  = 0.01
	mostIdleSession  = 0.05
	mostFlood        = 5 // times as long as alone, the median
	mostFloodAnyhow  = 400 * time.Millisecond
	settledSessions  = 5 * time.Second
	settledVGPUs     = 2 * time.Second
	settling         = time.Minute // at most
	tries            = 3           // of what other work on the machine makes dearer
	sessionsAtATime  = 4
	warmUpCycles     = 20
	cyclesPerSession = 10
)

// test is one run: its host and the VMs that are connected.
type test struct {
	*options
	*host
	vms    []*vm
	faults []error // bounds that did not hold
}

func run(ctx context.Context, o *options) error {
	h, err := startHost(ctx, o)
	if err != nil {
		return err
	}
	t := &test{options: o, host: h}
	for _, phase := range []func(context.Context) error{t.attachAll, t.openAll, t.leakStarts, t.detachAll, t.leakCycles, t.floods} {
		if err = phase(ctx); err != nil {
			break
		}
	}
	for _, v := range t.vms {
		_ = v.close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, tail(filepath.Join(h.dir, "causewayd.log")))
	}
	return errors.Join(append(t.faults, err, h.close())...)
}

// line prints one figure.
func line(name, format string, args ...any) {
	fmt.Printf("%-58s %s\n", name, fmt.Sprintf(format, args...))
}

// bound says, and remembers, that a figure is out of bounds.
func (t *test) bound(ok bool, format string, args ...any) {
	if !ok {
		t.faults = append(t.faults, fmt.Errorf(format, args...))
	}
}

// times are durations of one kind.
type times []time.Duration

func (l times) quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(l))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func (l times) String() string {
	ms := func(q float64) float64 { return float64(l.quantile(q).Microseconds()) / 1000 }
	return fmt.Sprintf("median %.1f, p99 %.1f, most %.1f ms", ms(0.5), ms(0.99), ms(1))
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// vmName is the n-th VM's.
func vmName(n int) string { return fmt.Sprintf("vm%d", n) }

func (t *test) attachAll(ctx context.Context) error {
	r, err := t.measure()
	if err != nil {
		return err
	}
	line("causewayd alone", "%.1f MiB PSS, %d threads, %d descriptors", mib(r.of("daemon").pss), r.of("daemon").threads, r.of("daemon").fds)
	if s := r["scheduler"]; s != nil {
		line("scheduler alone", "%.1f MiB PSS, %d threads", mib(s.pss), s.threads)
	}
	var ready, connected times
	for n := range t.vgpus {
		v, a, b, err := t.attach(ctx, vmName(n), t.perVM)
		if err != nil {
			return err
		}
		t.vms = append(t.vms, v)
		ready, connected = append(ready, a), append(connected, b)
	}
	line("attach: request to socket ready", "%v", ready)
	line("attach: request to VM connected and mounted", "%v", connected)
	time.Sleep(settledVGPUs)
	if r, err = t.measure(); err != nil {
		return err
	}
	d := r.of("device")
	t.bound(d.n == t.vgpus, "%d device processes for %d vGPUs", d.n, t.vgpus)
	n := int64(max(d.n, 1))
	t.bound(d.pss/n <= mostVGPU, "%.1f MiB for a vGPU", mib(d.pss/n))
	line(fmt.Sprintf("%d vGPUs without sessions: each device process", d.n), "%.1f MiB PSS (%.1f anonymous), %.1f threads, %.0f descriptors",
		mib(d.pss/n), mib(d.anon/n), float64(d.threads)/float64(n), float64(d.fds)/float64(n))
	if len(r) > 2 {
		for role, s := range r {
			if role != "device" && role != "daemon" && role != "scheduler" {
				line("  processes: "+role, "%d, %.1f MiB PSS each", s.n, mib(s.pss/int64(s.n)))
			}
		}
	}
	line("  and in the kernel (page tables, stacks of threads)", "%.2f MiB", mib(d.kernel/n))
	line("  causewayd", "%.1f MiB PSS, %d threads, %d descriptors", mib(r.of("daemon").pss), r.of("daemon").threads, r.of("daemon").fds)
	return t.rest("at rest, no sessions", 0)
}

// openAll opens sessions on all VMs in turn, watches them idle, and ends them.
func (t *test) openAll(context.Context) error {
	was, err := t.measure()
	if err != nil {
		return err
	}
	var open times
	var list []*session
	for n := range t.sessions {
		begin := time.Now()
		s, err := t.vms[n%len(t.vms)].start(uint32(1000 + n))
		if err != nil {
			return fmt.Errorf("session %d: %w", n, err)
		}
		open, list = append(open, time.Since(begin)), append(list, s)
	}
	line(fmt.Sprintf("%d sessions: open to first context", t.sessions), "%v", open)
	time.Sleep(settledSessions)
	r, err := t.measure()
	if err != nil {
		return err
	}
	w := r.of("worker")
	t.bound(w.n >= t.sessions, "%d workers for %d sessions", w.n, t.sessions)
	n := int64(max(w.n, 1))
	t.bound(w.pss/n <= mostSession, "%.1f MiB for a session", mib(w.pss/n))
	line("  each worker process", "%.1f MiB PSS (%.1f anonymous; largest process %.1f), %.1f threads, %.0f descriptors",
		mib(w.pss/n), mib(w.anon/n), mib(w.most), float64(w.threads)/float64(n), float64(w.fds)/float64(n))
	line("  its device process, per session", "%.2f MiB PSS more", mib((r.of("device").pss-was.of("device").pss)/n))
	line("  and in the kernel (page tables, stacks of threads)", "%.2f MiB", mib(w.kernel/n))
	if err := t.rest("at rest, with sessions", t.sessions); err != nil {
		return err
	}
	begin := time.Now()
	for _, s := range list {
		if err := s.Close(); err != nil {
			return fmt.Errorf("end of a session: %w", err)
		}
	}
	if err := t.settle("worker", 0, settling); err != nil {
		return err
	}
	line("  all ended, no worker left", "%.1f s", time.Since(begin).Seconds())
	return nil
}

// rest watches processes that have nothing to do, again if they do too much.
func (t *test) rest(when string, sessions int) error {
	most := mostIdle + mostIdlePerVGPU*float64(t.vgpus) + mostIdleSession*float64(sessions)
	all := 0.0
	for range tries {
		var err error
		if all, err = t.atRest(when); err != nil {
			return err
		}
		if all <= most {
			break
		}
	}
	t.bound(all <= most, "%s: %.2f %% of a core, of %.2f", when, all, most)
	return nil
}

// atRest prints what each role takes, and returns per cent of a core of all together.
func (t *test) atRest(when string) (all float64, _ error) {
	a, err := t.measure()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	time.Sleep(t.watch)
	b, err := t.measure()
	if err != nil {
		return 0, err
	}
	took := time.Since(begin)
	for _, role := range []string{"daemon", "scheduler", "device", "worker"} {
		if b[role] == nil {
			continue
		}
		cpu := 100 * (b.of(role).cpu - a.of(role).cpu).Seconds() / took.Seconds()
		wakes := float64(b.of(role).wakeups-a.of(role).wakeups) / took.Seconds()
		line(fmt.Sprintf("  %s: %d %s processes", when, b.of(role).n, role), "%.3f %% of a core, %.1f wake-ups/s together", cpu, wakes)
		all += cpu
	}
	return all, nil
}

// leakStarts starts and ends sessions, four at a time.
func (t *test) leakStarts(ctx context.Context) error {
	if t.starts == 0 {
		return nil
	}
	turn := func(n int) (times, error) {
		var mu sync.Mutex
		var all times
		var errs error
		var wg sync.WaitGroup
		for lane := range sessionsAtATime {
			wg.Go(func() {
				for i := lane; i < n && ctx.Err() == nil; i += sessionsAtATime {
					begin := time.Now()
					s, err := t.vms[i%len(t.vms)].start(uint32(2000 + i))
					took := time.Since(begin)
					if err == nil {
						err = s.Close()
					}
					mu.Lock()
					all, errs = append(all, took), errors.Join(errs, err)
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		return all, errors.Join(errs, t.settle("worker", 0, settling))
	}
	if _, err := turn(2 * t.vgpus); err != nil { // buffers grow to what they need
		return err
	}
	begin := time.Now()
	list, err := t.unchanged("session starts", func() (times, error) { return turn(t.starts) })
	if err != nil {
		return err
	}
	line(fmt.Sprintf("%d session starts and ends, 4 at a time", t.starts), "%v; %.1f s", list, time.Since(begin).Seconds())
	return nil
}

func (t *test) detachAll(ctx context.Context) error {
	var took times
	for n, v := range t.vms {
		begin := time.Now()
		if err := t.detach(ctx, vmName(n), v); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
	}
	t.vms = nil
	line("detach", "%v", took)
	return t.settle("device", 0, settling)
}

// leakCycles attaches and detaches vGPUs, every tenth with a session.
func (t *test) leakCycles(ctx context.Context) error {
	if t.cycles == 0 {
		return nil
	}
	turn := func(n int) (times, error) {
		var all times
		for i := range n {
			v, _, took, err := t.attach(ctx, "cycle", 1)
			if err != nil {
				return nil, err
			}
			if i%cyclesPerSession == 0 {
				if _, err := v.start(uint32(3000 + i)); err != nil {
					return nil, errors.Join(err, v.close())
				}
			}
			if err := t.detach(ctx, "cycle", v); err != nil {
				return nil, err
			}
			all = append(all, took)
		}
		return all, errors.Join(t.settle("device", 0, settling), t.settle("worker", 0, settling))
	}
	if _, err := turn(warmUpCycles); err != nil {
		return err
	}
	begin := time.Now()
	list, err := t.unchanged("attach/detach cycles", func() (times, error) { return turn(t.cycles) })
	if err != nil {
		return err
	}
	line(fmt.Sprintf("%d attach/detach cycles", t.cycles), "attach %v; %.1f s", list, time.Since(begin).Seconds())
	return nil
}

// tail is the end of a log.
func tail(name string) string {
	b, _ := os.ReadFile(name)
	return string(b[max(0, len(b)-2000):])
}
