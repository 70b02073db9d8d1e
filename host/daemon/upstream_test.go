package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/daemon/config"
	"causeway/host/daemon/lease"
	"causeway/host/limit"
	"causeway/remote"
	"causeway/remote/mtls"
)

// servesAt answers at a Unix socket as handle does, until the test ends.
func servesAt(t *testing.T, path string, handle http.HandlerFunc) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handle}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { _ = s.Close() })
}

// linesLog keeps a log's lines without their time.
type linesLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *linesLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, line, _ := strings.Cut(string(b), "msg=")
	l.lines = append(l.lines, line)
	return len(b), nil
}

func (l *linesLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.lines = nil }()
	return strings.Join(l.lines, "")
}

// farVGPU is a vGPU of a causewayd's that has a lease, with its device process and its server
// played by the test.
type farVGPU struct {
	d      *Daemon
	v      *vgpu
	c      *api.Client // of the server
	log    *linesLog
	status int // of the server's answers
	state  api.LeaseState
	took   []api.LeaseRenewal // what it was asked
	told   []string           // what the device process heard
	ends   bool               // and whether its programs are to end
	of     remote.LeaseID     // of which lease it was said
	runs   bool               // a program does
	meet   func()             // happens while the server answers
}

func newFarVGPU(t *testing.T) *farVGPU {
	t.Helper()
	dir, err := os.MkdirTemp("", "far") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &farVGPU{log: &linesLog{}, status: http.StatusOK}
	f.d = &Daemon{run: dir, ctx: t.Context(), log: slog.New(slog.NewTextHandler(f.log, nil)), vgpus: map[string]*vgpu{}}
	f.v = &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0", Remote: "gpu1"}}, epoch: 3, renew: true,
		up: &api.Upstream{Server: "gpu1", Lease: leaseID(1), Renewed: time.Now()}}
	server := filepath.Join(dir, "server")
	servesAt(t, server, func(w http.ResponseWriter, req *http.Request) {
		if want := "POST " + leasePath(leaseID(1)) + "/renew"; req.Method+" "+req.URL.Path != want {
			t.Errorf("asked %s %s", req.Method, req.URL.Path)
		}
		var n api.LeaseRenewal
		_ = json.NewDecoder(req.Body).Decode(&n)
		f.took = append(f.took, n)
		if f.meet != nil {
			f.meet()
		}
		w.WriteHeader(f.status)
		if f.status == http.StatusOK {
			_ = json.NewEncoder(w).Encode(f.state)
		}
	})
	servesAt(t, f.v.rec.Spec.ControlPath(dir), func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			st := api.Status{Sessions: []api.Session{{State: "parked"}}}
			if f.runs {
				st.Sessions = append(st.Sessions, api.Session{State: "running"})
			}
			_ = json.NewEncoder(w).Encode(st)
			return
		}
		var s api.UpstreamState
		_ = json.NewDecoder(req.Body).Decode(&s)
		f.told = append(f.told, req.URL.Path+" "+s.Why)
		f.ends, f.of = s.Ends, s.Lease
	})
	f.c = api.NewClient(server)
	t.Cleanup(f.c.Close)
	return f
}

func (f *farVGPU) renew() renewal { return f.d.renewOnce(f.c, "gpu1", f.v, f.d.log) }

// TestWhatRenewalsTell: what a server answers to renewals, one after the other, is noted; its loss
// and its return are told once, to the device process and to the log.
func TestWhatRenewalsTell(t *testing.T) {
	f := newFarVGPU(t)
	const lost, refused, again = "is lost", "not renewed", "renewed again"
	ended := api.LeaseState{Why: "ended by its operator"}
	for i, step := range []struct {
		status  int
		state   api.LeaseState
		late    bool // it was renewed last before a term
		came    renewal
		isLost  bool
		says    string // a word of its error
		log     string // a word of what is logged; none: nothing is
		told    int    // how often the device process is told something
		toldWhy string
	}{
		{status: 200, state: api.LeaseState{Sessions: 1}},
		{status: 200, state: api.LeaseState{Sessions: 2}},
		{status: 503, says: "503", log: refused},
		{status: 503, says: "503"}, // no second line
		{status: 200, log: again},
		{status: 503, says: "503", log: refused},
		{status: 503, says: "503", late: true, isLost: true, log: lost, told: 1, toldWhy: "/v1/upstream the GPU server gpu1 is lost: "},
		{status: 503, says: "503", late: true, isLost: true},
		{status: 200, log: again, told: 1, toldWhy: "/v1/upstream "},
		{status: 200, state: ended, came: leaseGone, isLost: true, says: ended.Why, log: lost, told: 1, toldWhy: "/v1/upstream the GPU server gpu1 is lost: " + ended.Why},
		{status: 200, log: again, told: 1},
		{status: 410, came: leaseGone, isLost: true, says: "410", log: lost, told: 1},
		{status: 410, came: leaseGone, isLost: true, says: "410"},
		{status: 200, log: again, told: 1},
		{status: 412, came: leaseOver, isLost: true, says: "412", log: lost, told: 1},
	} {
		f.status, f.state = step.status, step.state
		f.told, f.took = nil, nil
		before := *f.v.up
		if step.late {
			before.Renewed = time.Now().Add(-api.LeaseTerm - time.Minute)
			f.v.up = &before
		}
		if came := f.renew(); came != step.came || f.v.renew != (came == leaseHolds) {
			t.Errorf("step %d: %v, renewed on: %v", i, came, f.v.renew)
		}
		up := f.v.up
		if up.Lost != step.isLost || (up.Error == "") != (step.says == "") || !strings.Contains(up.Error, step.says) {
			t.Errorf("step %d: %+v", i, up)
		}
		if answered := step.status == 200; answered && (up.State == nil || *up.State != step.state || up.RoundTrip <= 0) || up.Renewed.After(before.Renewed) != answered {
			t.Errorf("step %d: %+v after %+v", i, up, before)
		}
		said := f.log.take()
		if (said == "") != (step.log == "") || !strings.Contains(said, step.log) || strings.Count(said, "\n") > 1 {
			t.Errorf("step %d: logged %q", i, said)
		}
		if len(f.told) != step.told || step.told > 0 && !strings.HasPrefix(f.told[0], step.toldWhy) {
			t.Errorf("step %d: the device process is told %q", i, f.told)
		}
		if len(f.took) != 1 || f.took[0].Epoch != 3 || f.took[0].Take {
			t.Errorf("step %d: asked %+v", i, f.took)
		}
	}
}

// TestRenewalTakesTheLease: of a vGPU in which a program runs a renewal says so; with the answer
// its VM has come, and with no other.
func TestRenewalTakesTheLease(t *testing.T) {
	f := newFarVGPU(t)
	await := func() {
		t.Helper()
		if err := f.d.hasLease(f.v, &lease.File{ID: leaseID(1), Epoch: 3, Upstream: f.v.up, Comes: lease.ComesHad}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		runs   bool
		status int
		comes  lease.Coming
	}{{false, 200, lease.ComesHad}, {true, 503, lease.ComesHad}, {true, 200, ""}} {
		await()
		f.runs, f.status, f.took = c.runs, c.status, nil
		f.renew()
		if len(f.took) != 1 || f.took[0].Take != c.runs || f.v.comes != c.comes {
			t.Errorf("%+v: asked %+v, and it awaits %q", c, f.took, f.v.comes)
		}
	}
}

// TestRenewalOfAnother: an answer that comes when the vGPU has another lease says nothing of that;
// one that comes when causewayd ends says nothing at all.
func TestRenewalOfAnother(t *testing.T) {
	f := newFarVGPU(t)
	other := &api.Upstream{Server: "gpu2", Lease: leaseID(2)}
	f.status = http.StatusGone
	f.meet = func() {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		f.v.up = other
	}
	if came := f.renew(); came != leaseHolds || f.v.up != other || other.Error != "" || !f.v.renew || len(f.told) > 0 {
		t.Errorf("%v, %+v, renewed on: %v, told %v", came, f.v.up, f.v.renew, f.told)
	}

	f = newFarVGPU(t)
	var end context.CancelFunc
	f.d.ctx, end = context.WithCancel(t.Context())
	f.meet = end
	was := f.v.up
	if came := f.renew(); came != leaseOver || f.v.up != was || f.log.take() != "" || len(f.told) > 0 {
		t.Errorf("%v, %+v, told %v", came, f.v.up, f.told)
	}
}

// TestDeviceIsNotTold: that a device process cannot be told how its server is stands in the log,
// but for the end of causewayd. It is told with the next renewal.
func TestDeviceIsNotTold(t *testing.T) {
	f := newFarVGPU(t)
	f.v.rec.Spec.Name = "gpu7" // which nobody serves
	f.d.tellUpstream(f.v)
	if said := f.log.take(); strings.Count(said, "is not told") != 1 {
		t.Errorf("logged %q", said)
	}
	f.v.rec.Spec.Name = "gpu0"
	for range 2 {
		f.renew()
	}
	if len(f.told) != 1 || f.told[0] != "/v1/upstream " {
		t.Errorf("told %q", f.told)
	}
	f.v.rec.Spec.Name = "gpu7"
	ctx, end := context.WithCancel(t.Context())
	end()
	f.d.ctx = ctx
	f.d.tellUpstream(f.v)
	if said := f.log.take(); said != "" {
		t.Errorf("at the end logged %q", said)
	}
}

// TestChangesThatNoServerHears: of a vGPU whose server is lost no limit changes, but that what is
// so already may be asked for while it waits; what is so already needs no server.
func TestChangesThatNoServerHears(t *testing.T) {
	spec := api.Spec{VM: "vm1", Name: "gpu0", Remote: "gpu1", Profile: "small", Limits: api.Limits{Memory: 1 << 30, Share: 100}}
	same := func(profile string) api.Change {
		c := spec.Limits.Change()
		c.Profile = profile
		return c
	}
	more, here, lost := same("small"), &api.Upstream{Server: "[::1]:1"}, &api.Upstream{Server: "[::1]:1", Lost: true}
	m := limit.Memory(2 << 30)
	more.Memory = &m
	for what, c := range map[string]struct {
		up      *api.Upstream
		comes   lease.Coming
		change  api.Change
		refused int // status; 0: it is so; -1: the server would be asked
	}{
		"as it is":                       {here, "", same("small"), 0},
		"another profile":                {here, "", same("large"), -1},
		"more":                           {here, "", more, -1},
		"lost":                           {lost, "", more, http.StatusConflict},
		"lost, as it is":                 {lost, "", same("small"), http.StatusConflict},
		"no lease":                       {nil, "", more, http.StatusConflict},
		"no lease, as it is":             {nil, "", same("small"), http.StatusConflict},
		"waits":                          {lost, lease.ComesKept, same("small"), 0},
		"waits, another profile":         {lost, lease.ComesKept, same("large"), 0},
		"waits, more":                    {lost, lease.ComesKept, more, http.StatusConflict},
		"waits without a lease":          {nil, lease.ComesKept, same("small"), http.StatusConflict},
		"waits with a lease":             {here, lease.ComesKept, same("large"), -1},
		"awaits a VM, lost, as it is":    {lost, lease.ComesHad, same("small"), http.StatusConflict},
		"awaits a VM, as it is":          {here, lease.ComesHad, same("small"), 0},
		"awaits a VM, and would be more": {here, lease.ComesMade, more, -1},
	} {
		d := &Daemon{run: t.TempDir(), ctx: t.Context(), log: slog.New(slog.DiscardHandler), vgpus: map[string]*vgpu{}}
		l, err := d.changeRemote(t.Context(), &vgpu{rec: record{Spec: spec}, up: c.up, comes: c.comes}, c.change)
		var e *api.Error
		switch {
		case c.refused == 0 && (err != nil || l != spec.Limits):
			t.Errorf("%s: %+v, %v", what, l, err)
		case c.refused > 0 && (!errors.As(err, &e) || e.Status != c.refused || e.Remedy == ""):
			t.Errorf("%s: %v", what, err)
		case c.refused < 0 && (err == nil || errors.As(err, &e) && e.Status == http.StatusConflict):
			t.Errorf("%s: the server is not asked: %v", what, err)
		}
	}
}

// TestWhatAServerIsAskedFor: host memory is the server's to limit unless somebody names it; a
// profile is asked for as it was wished.
func TestWhatAServerIsAskedFor(t *testing.T) {
	spec := api.Spec{Limits: api.Limits{Memory: 1 << 30, HostMemory: 2 << 30}}
	named := spec.Limits.Change()
	for what, c := range map[string]struct {
		w      api.Wish
		memory bool // the change names the memory limit
		host   bool // and the host's
	}{
		"nothing":     {api.Wish{}, true, false},
		"host memory": {api.Wish{Change: api.Change{HostMemory: named.HostMemory}}, true, true},
		"a profile":   {api.Wish{Change: api.Change{Profile: "small"}}, false, false},
	} {
		got := remoteChange(&c.w, &spec)
		if (got.Memory != nil) != c.memory || (got.HostMemory != nil) != c.host || got.Profile != c.w.Profile {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

// TestErrorsOfAServer: they stay what they are, and name the server; others are of the way to it.
func TestErrorsOfAServer(t *testing.T) {
	var e *api.Error
	err := atServer("gpu1", fmt.Errorf("asked: %w", refuse(http.StatusInsufficientStorage, "ask for less", "no room")))
	if !errors.As(err, &e) || e.Status != http.StatusInsufficientStorage || e.Text != "GPU server gpu1: no room" || e.Remedy != "ask for less" {
		t.Errorf("%v", err)
	}
	if err := atServer("gpu1", errors.New("no route")); !errors.As(err, &e) || e.Status != http.StatusBadGateway || e.Text != "GPU server gpu1: no route" || e.Remedy == "" {
		t.Errorf("%v", err)
	}
}

// TestNamedServers: a server is found by the name that it has, by its host's name alone, and with
// the port that it has without one; no other is.
func TestNamedServers(t *testing.T) {
	d := &Daemon{}
	d.cfg.Remote = config.Remote{Servers: []string{"gpu1:7001", "gpu2", "gpu3:" + api.RemotePort, "gpu1:7002"}}
	for name, want := range map[string]string{
		"gpu1:7001": "gpu1:7001", "gpu1:7002": "gpu1:7002", "gpu1": "gpu1:7001", "gpu2": "gpu2", "gpu2:" + api.RemotePort: "gpu2", "gpu3": "gpu3:" + api.RemotePort,
		"gpu4": "", "gpu1:7003": "", "gpu2:7001": "", "": "", "7001": "",
	} {
		got, err := d.named(t.Context(), name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", name, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "no GPU server \""+name+"\"") {
			t.Errorf("%q: %v", name, err)
		}
		list, err := d.serversFor(t.Context(), &api.Spec{Remote: name})
		if (err == nil) != (want != "") || err == nil && !slices.Equal(list, []string{want}) {
			t.Errorf("for %q: %v, %v", name, list, err)
		}
	}
	for _, name := range []string{"gpu1", api.RemoteAny} {
		if _, err := (&Daemon{}).serversFor(t.Context(), &api.Spec{Remote: name}); err == nil || !strings.Contains(err.Error(), "configured with no GPU server") {
			t.Errorf("without servers: %v", err)
		}
	}
}

// TestAddressesOfAServer: they come with its port, for those who cannot ask.
func TestAddressesOfAServer(t *testing.T) {
	for name, want := range map[string]string{"127.0.0.1:7001": "127.0.0.1:7001", "127.0.0.1": "127.0.0.1:" + api.RemotePort, "[::1]:7001": "[::1]:7001"} {
		if got, err := resolve(t.Context(), name); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// TestFoundLeases: what an earlier causewayd wrote down of a lease goes on in the next epoch, if it
// is one that this host has.
func TestFoundLeases(t *testing.T) {
	for what, c := range map[string]struct {
		f  lease.File
		ok bool
	}{
		"this host's": {lease.File{ID: leaseID(1), Epoch: 7, Upstream: &api.Upstream{Lease: leaseID(1)}, Comes: lease.ComesHad}, true},
		"a server's":  {lease.File{ID: leaseID(1), Epoch: 7}, false},
		"none":        {lease.File{Epoch: 7, Upstream: &api.Upstream{}}, false},
	} {
		d := &Daemon{run: t.TempDir()}
		v := &vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}}
		path := v.rec.Spec.LeasePath(d.run)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), c.f.Write(path)); err != nil {
			t.Fatal(err)
		}
		err := d.upstreamFound(v)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", what, err)
		}
		f, e := lease.Read(path)
		if e != nil || c.ok && (f.Epoch != 8 || v.epoch != 8 || v.up == nil || v.up.Lease != leaseID(1) || v.comes != lease.ComesHad) || !c.ok && (f.Epoch != 7 || v.up != nil) {
			t.Errorf("%s: %+v is written down, %+v is known; %v", what, f, v, e)
		}
	}
	if err := (&Daemon{run: t.TempDir()}).upstreamFound(&vgpu{rec: record{Spec: api.Spec{VM: "vm1", Name: "gpu0"}}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing is written down: %v", err)
	}
}

// TestRevokedServerEnds: programs do not go on for longer than a lease's term at a server whose
// certificate is revoked, as that may be who ends no lease. At one that is lost for another reason
// they may.
func TestRevokedServerEnds(t *testing.T) {
	revoked, err := api.NewServerClient("127.0.0.1:1", func(string) (*tls.Config, error) { return nil, mtls.ErrRevoked })
	if err != nil {
		t.Fatal(err)
	}
	for name, lost := range map[string]bool{"renewed before": false, "lost before": true} {
		t.Run(name, func(t *testing.T) {
			f := newFarVGPU(t)
			late := func() { f.v.up.Renewed = time.Now().Add(-api.LeaseTerm - time.Minute) }
			if lost {
				late()
				if f.status = http.StatusServiceUnavailable; f.renew() != leaseHolds || len(f.told) != 1 || f.ends {
					t.Errorf("told %q, ends: %v", f.told, f.ends)
				}
			}
			f.c = revoked
			if f.renew(); !lost && len(f.told) != 0 {
				t.Errorf("told %q", f.told)
			}
			late()
			if f.renew(); !f.ends || !f.v.up.Lost || f.of != leaseID(1) {
				t.Errorf("told %q, ends: %v, of the lease %v", f.told, f.ends, f.of)
			}
			n := len(f.told)
			if f.renew(); len(f.told) != n {
				t.Error("it is told again")
			}
		})
	}
}
