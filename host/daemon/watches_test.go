package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/host/daemon/process"
	"causeway/host/limit"
	"causeway/host/sandbox/cgroup"
)

// asked is a device process of a test, which notes what it is asked, and by how many connections.
type asked struct {
	mu    sync.Mutex
	paths map[string]bool
	open  map[net.Conn]bool
}

// serveAsked serves a control socket; waits says which requests are answered by nothing before who
// asks is gone.
func serveAsked(t *testing.T, path string, waits func(path string) bool) *asked {
	t.Helper()
	a := &asked{paths: map[string]bool{}, open: map[net.Conn]bool{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		ConnState: func(c net.Conn, st http.ConnState) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.open[c] = true; st == http.StateClosed {
				delete(a.open, c)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			a.mu.Lock()
			a.paths[req.Method+" "+req.URL.Path] = true
			a.mu.Unlock()
			if waits(req.URL.Path) {
				<-req.Context().Done()
				return
			}
			_ = json.NewEncoder(w).Encode(api.Status{Connected: true, Version: "test"})
		}),
	}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
	return a
}

func (a *asked) has(path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paths[path]
}

func (a *asked) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open)
}

// awaits waits for something that is about to happen.
func awaits(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// noScopes stands for systemd.
type noScopes struct{}

func (noScopes) Place(context.Context, string, string, int, cgroup.Limits) error { return nil }

// standing reports whether a process was stopped.
func standing(p *process.Process) bool {
	b, err := os.ReadFile(filepath.Join("/proc", itoa(p.PID()), "stat"))
	return err == nil && strings.Contains(string(b), ") T ")
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// TestWatchesWhatIsFound: a vGPU that an earlier causewayd started is watched as one that this one
// starts: its VM's departures, migrations that will fail, its needs of room where there are any,
// and its end. One whose unit was being made goes on.
func TestWatchesWhatIsFound(t *testing.T) {
	for what, c := range map[string]struct{ swaps, scopes bool }{"any": {}, "one that gives room": {swaps: true}, "in a unit": {scopes: true}} {
		p := sleeper(t)
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		awaits(t, "it stands", func() bool { return standing(p) })
		d := onMachine(t, Reading{})
		d.cfg.Migration.Peers = []string{"hostb"}
		if c.scopes {
			d.opt.Scopes = noScopes{}
		}
		rec := record{Format: recordFormat, Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Share: 100}}, PID: p.PID(), Start: p.StartTime(), Swap: c.swaps}
		path := recordPath(d.run, &rec.Spec)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &rec)); err != nil {
			t.Fatal(err)
		}
		a := serveAsked(t, rec.Spec.ControlPath(d.run), func(path string) bool { return path != "/v1/status" })
		d.findAgain(t.Context(), "vm1", "gpu0")
		for _, path := range []string{"GET /v1/status", "GET /v1/departs", "GET /v1/stays"} {
			awaits(t, what+": "+path, func() bool { return a.has(path) })
		}
		if c.swaps {
			awaits(t, what+": its needs", func() bool { return a.has("GET /v1/room") })
		} else if a.has("GET /v1/room") {
			t.Errorf("%s: it is asked for needs", what)
		}
		if standing(p) == c.scopes {
			t.Errorf("%s: it stands: %v", what, !c.scopes)
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		awaits(t, what+": its end is noticed", func() bool { rec, _ := d.copyOf(d.find("vm1/gpu0")); return rec.Lost })
		p.Close()
	}
}

// TestFoundWithALease: a device process that is found while it awaits its VM is given its lease
// again, as causewayd may have ended before it was; none that has its VM is.
func TestFoundWithALease(t *testing.T) {
	for _, comes := range []lease.Coming{lease.ComesHad, ""} {
		p := sleeper(t)
		d := onMachine(t, Reading{})
		d.opt.Renew = time.Hour
		rec := record{Format: recordFormat, Spec: api.Spec{VM: "vm1", Name: "gpu0", Remote: "[::1]:1"}, PID: p.PID(), Start: p.StartTime()}
		path := recordPath(d.run, &rec.Spec)
		f := lease.File{ID: leaseID(1), Epoch: 7, Upstream: &api.Upstream{Server: "[::1]:1", Lease: leaseID(1)}, Comes: comes}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &rec), f.Write(rec.Spec.LeasePath(d.run))); err != nil {
			t.Fatal(err)
		}
		a := serveAsked(t, rec.Spec.ControlPath(d.run), func(path string) bool { return path == "/v1/departs" })
		d.findAgain(t.Context(), "vm1", "gpu0")
		if a.has("PUT /v1/relay") != (comes != "") {
			t.Errorf("it awaits %q: it is given its lease: %v", comes, comes == "")
		}
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		awaits(t, "its end is noticed", func() bool { rec, _ := d.copyOf(d.find("vm1/gpu0")); return rec.Lost })
		p.Close()
	}
}

// TestLetsConnectionsGo: nothing of what a device process is asked leaves a connection to it.
func TestLetsConnectionsGo(t *testing.T) {
	d := onMachine(t, Reading{})
	d.opt.Obey = time.Minute
	v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}, up: &api.Upstream{Server: "gpu1"}}
	d.add(v)
	a := serveAsked(t, v.rec.Spec.ControlPath(d.run), func(string) bool { return false })
	for what, ask := range map[string]func(){
		"its account":   func() { _, _ = d.ask(t.Context(), v) },
		"other limits":  func() { _, _ = d.changeLimits(t.Context(), &v.rec.Spec, api.Change{}) },
		"of its server": func() { d.tellUpstream(v) },
	} {
		ask()
		awaits(t, what+": no connection is left", func() bool { return a.connections() == 0 })
	}
	for _, path := range []string{"GET /v1/status", "PUT /v1/limits", "PUT /v1/upstream"} {
		if !a.has(path) {
			t.Errorf("not asked: %s", path)
		}
	}
}

// TestEndsWhatHasEnded: a device process that has ended is not asked to; one that lives is, and
// ends. Neither is there any more.
func TestEndsWhatHasEnded(t *testing.T) {
	for _, alive := range []bool{false, true} {
		p := sleeper(t)
		d := onMachine(t, Reading{})
		d.opt.Grace = time.Minute
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, PID: p.PID()}, proc: p, ready: true}
		d.add(v)
		a := serveAsked(t, v.rec.Spec.ControlPath(d.run), func(string) bool { return false })
		if !alive {
			if err := p.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
		}
		if err := d.end(t.Context(), v); err != nil {
			t.Error(err)
		}
		if a.has("POST /v1/stop") != alive || p.Alive() || d.find("vm1/gpu0") != nil || !v.end {
			t.Errorf("alive %v: it is asked to stop: %v, and lives: %v", alive, a.has("POST /v1/stop"), p.Alive())
		}
	}
}

// TestResolvesProfiles: a profile is a part of the one GPU that a vGPU has, or of its MIG slice,
// and nothing where that is not known, or several.
func TestResolvesProfiles(t *testing.T) {
	const gib = 1 << 30
	d := bare(t)
	d.cfg.Profiles, d.cfg.Devices.WarmWorkers = limit.Profiles(), 0
	r := Reading{GPUs: []api.GPU{{ID: "GPU-a", Backend: "cuda", Memory: 8 * gib}, {ID: "GPU-b", Backend: "cuda", Memory: 16 * gib}}, Slices: []Slice{{ID: "MIG-c", Profile: "1g", Memory: 4 * gib}}}
	most := func(gpu string, n uint64) bool { // of what a GPU has, less what the driver takes
		return n > 0 && n <= map[string]uint64{"GPU-a": 4, "gpu-B": 8, "MIG-c": 2}[gpu]*gib
	}
	for gpu, refused := range map[string]int{"GPU-a": 0, "gpu-B": 0, "MIG-c": 0, "GPU-z": http.StatusServiceUnavailable, "": http.StatusServiceUnavailable, "GPU-a,GPU-b": http.StatusBadRequest, "GPU-z,GPU-a": http.StatusServiceUnavailable} {
		rec := &record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}, GPU: gpu}
		c, err := d.resolve(r, rec, api.Change{Profile: "half"})
		if status(err) != refused || refused == 0 && (c.Memory == nil || !most(gpu, uint64(*c.Memory)) || c.Share == nil || *c.Share != 50 || c.Profile != "half") {
			t.Errorf("of %q: %+v, %v", gpu, c, err)
		}
		if c, err := d.resolve(r, rec, api.Change{}); err != nil || c.Named() {
			t.Errorf("nothing, of %q: %+v, %v", gpu, c, err)
		}
		if _, err := d.resolve(r, rec, api.Change{Profile: "third"}); status(err) != http.StatusBadRequest {
			t.Errorf("a profile that there is not, of %q: %v", gpu, err)
		}
	}
	for ids, n := range map[string]int{"GPU-a": 1, "GPU-a,GPU-b": 2, "mig-C": 1, "GPU-z": 0} {
		g, got, ok := placed(r, &record{GPU: ids}, 3)
		if ok != (n > 0) || got != n || ok && (g.Waiting != 3 || g.Memory == 0 || g.Soft) {
			t.Errorf("%s: %+v, %d, %v", ids, g, got, ok)
		}
	}
	if !onGPU(&api.GPU{Backend: "soft"}, 0).Soft {
		t.Error("a software GPU is none")
	}
}

// TestLimitsOfTheLost: what is lost, or unknown, has no limits to change; a change of nothing says
// what holds.
func TestLimitsOfTheLost(t *testing.T) {
	d := bare(t)
	d.cfg.Profiles = limit.Profiles()
	m := limit.Memory(1 << 30)
	more := api.Change{Memory: &m}
	if _, err := d.SetLimits(t.Context(), "vm1/gpu0", more); status(err) != http.StatusNotFound {
		t.Errorf("unknown: %v", err)
	}
	v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Memory: 7}}, Lost: true, Why: "it fell off"}}
	d.add(v)
	if _, err := d.SetLimits(t.Context(), "vm1/gpu0", more); status(err) != http.StatusConflict || !strings.Contains(err.Error(), "it fell off") {
		t.Errorf("lost: %v", err)
	}
	v.rec.Lost = false
	if l, err := d.SetLimits(t.Context(), "vm1/gpu0", api.Change{}); err != nil || l.Memory != 7 {
		t.Errorf("nothing: %+v, %v", l, err)
	}
	tiny := limit.Memory(4)
	if _, err := d.SetLimits(t.Context(), "vm1/gpu0", api.Change{Memory: &tiny}); err == nil {
		t.Error("4 bytes")
	}
}

// TestWhatHoldsShares: a share, or a cap, is refused where nobody would hold it, at once when
// whoever asks is gone; what is as by default needs nobody.
func TestWhatHoldsShares(t *testing.T) {
	share := func(n limit.Share) api.Change { return api.Change{Share: &n} }
	capped := func(n limit.Cap) api.Change { return api.Change{Cap: &n} }
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for what, c := range map[string]struct {
		c             api.Change
		option, rules bool // of a scheduler: both, or there is none
		listens       bool
		refused       int
	}{
		"nothing":                           {api.Change{}, true, true, false, 0},
		"the default share":                 {share(limit.DefaultShare), true, true, false, 0},
		"no cap":                            {capped(0), true, true, false, 0},
		"a share without a scheduler":       {share(50), false, true, false, http.StatusConflict},
		"a share, and it is off":            {share(50), true, false, true, http.StatusConflict},
		"a cap without a scheduler":         {capped(50), false, true, false, 0},
		"a share, and it does not run":      {share(50), true, true, false, http.StatusConflict},
		"a cap, and it does not run":        {capped(50), true, true, false, http.StatusConflict},
		"a share":                           {share(50), true, true, true, 0},
		"a cap":                             {capped(50), true, true, true, 0},
		"the default share without anybody": {share(limit.DefaultShare), false, false, false, 0},
	} {
		d := bare(t)
		d.opt.Scheduler, d.cfg.Scheduler.Enabled = c.option, c.rules
		if c.listens {
			servesAt(t, d.schedulerSocket(), func(http.ResponseWriter, *http.Request) {})
		}
		if err := d.holds(over, c.c); status(err) != c.refused {
			t.Errorf("%s: %v", what, err)
		}
	}
	huge := limit.HostMemory(1 << 62)
	if err := bare(t).holds(over, api.Change{HostMemory: &huge}); err == nil {
		t.Error("more of the host's memory than it has")
	}
}

// TestFoundAsItStarted: a vGPU that was being started when causewayd ended, and whose process
// serves by now, is one that has started, also on the disk; one whose process is another's ends.
func TestFoundAsItStarted(t *testing.T) {
	for _, its := range []bool{true, false} {
		p := sleeper(t)
		d := onMachine(t, Reading{})
		d.opt.Grace = time.Minute
		rec := record{Format: recordFormat, Spec: api.Spec{VM: "vm1", Name: "gpu0", Limits: api.Limits{Share: 100}}, PID: p.PID(), Start: p.StartTime(), Starting: true}
		path := recordPath(d.run, &rec.Spec)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), writeJSON(path, &rec)); err != nil {
			t.Fatal(err)
		}
		pid := p.PID()
		if !its {
			pid++
		}
		servesAt(t, rec.Spec.ControlPath(d.run), func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path != "/v1/status" {
				<-req.Context().Done()
				return
			}
			_ = json.NewEncoder(w).Encode(api.Status{PID: pid, Connected: true})
		})
		d.findAgain(t.Context(), "vm1", "gpu0")
		v := d.find("vm1/gpu0")
		if (v != nil) != its {
			t.Fatalf("its own process %v: %+v", its, v)
		}
		if !its { // who ended it had a descriptor of its own
			select {
			case <-p.Done():
			case <-time.After(time.Minute):
				t.Fatal("another's process answers for it, and it lives")
			}
			continue
		}
		if rec, err := readRecord(d.run, "vm1", "gpu0"); err != nil || rec.Starting || v.rec.Starting {
			t.Errorf("it is being started: %+v, %v", rec, err)
		}
		p.Close()
	}
}
