package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"causeway/host/api"
	"causeway/host/daemon/metrics"
	"causeway/host/daemon/peer"
)

// Bounds of a request.
const (
	maxBody    = 64 << 10
	maxHeaders = 16 << 10
	readTime   = 10 * time.Second
	idleTime   = time.Minute
	endTime    = 3 * time.Second // requests that are being answered when causewayd is to end
)

// servedCounts count requests.
type servedCounts struct {
	requests, failed, refused atomic.Uint64

	ports []api.Port // how each is; Daemon.mu guards it
}

// route is an entry of the API.
type route struct {
	pattern string
	needs   peer.Role
	do      func(d *Daemon, w http.ResponseWriter, r *http.Request) error
}

// routes are the whole API: what is here, and who may.
var routes = []route{
	{"GET /v1/version", peer.Viewer, (*Daemon).getVersion},
	{"GET /v1/gpus", peer.Viewer, (*Daemon).getGPUs},
	{"GET /v1/servers", peer.Viewer, (*Daemon).getServers},
	{"POST /v1/gpus/{id}/drain", peer.Admin, (*Daemon).postDrain},
	{"POST /v1/gpus/{id}/resume", peer.Admin, (*Daemon).postResume},
	{"GET /v1/profiles", peer.Viewer, (*Daemon).getProfiles},
	{"GET /v1/vgpus", peer.Viewer, (*Daemon).getVGPUs},
	{"GET /v1/vgpus/{vm}/{name}", peer.Viewer, (*Daemon).getVGPU},
	{"PUT /v1/vgpus/{vm}/{name}", peer.Operator, (*Daemon).putVGPU},
	{"PUT /v1/vgpus/{vm}/{name}/limits", peer.Operator, (*Daemon).putLimits},
	{"POST /v1/vgpus/{vm}/{name}/move", peer.Operator, (*Daemon).postMove},
	{"POST /v1/vgpus/{vm}/{name}/handover", peer.Admin, (*Daemon).postHandover},
	{"DELETE /v1/vgpus/{vm}/{name}", peer.Operator, (*Daemon).deleteVGPU},
	{"GET /v1/vgpus/{vm}/{name}/log", peer.Viewer, (*Daemon).getLog},
}

// Handler is the API. Requests carry who made them (peer.With); without, nobody may anything.
func (d *Daemon) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) { d.serve(w, req, r) })
	}
	text := metrics.Handler(d, d.log)
	scrape := route{"GET /metrics", peer.Viewer, func(_ *Daemon, w http.ResponseWriter, r *http.Request) error {
		text.ServeHTTP(w, r)
		return nil
	}}
	mux.HandleFunc(scrape.pattern, func(w http.ResponseWriter, req *http.Request) { d.serve(w, req, scrape) })
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		d.answer(w, req, refuse(http.StatusNotFound, "the client may be newer than this causewayd", "causewayd has no %s %s", req.Method, req.URL.Path))
	})
	return mux
}

func (d *Daemon) serve(w http.ResponseWriter, req *http.Request, r route) {
	d.served.requests.Add(1)
	d.handlers.Add(1)
	defer d.handlers.Done()
	req.Body = http.MaxBytesReader(w, req.Body, maxBody)
	who, ok := peer.From(req.Context())
	if role := d.role(who); !ok || role < r.needs {
		d.served.refused.Add(1)
		d.answer(w, req, refuse(http.StatusForbidden, fmt.Sprintf("an administrator adds you or a group of yours to roles.%v in causewayd.toml; as packaged, members of the group causeway are operators", r.needs),
			"%v has the role %v, and this needs %v", who, role, r.needs))
		return
	}
	if err := r.do(d, w, req); err != nil {
		d.answer(w, req, err)
	}
}

// answer says what went wrong.
func (d *Daemon) answer(w http.ResponseWriter, req *http.Request, err error) {
	if req.Context().Err() != nil {
		return // nobody listens any more
	}
	d.served.failed.Add(1)
	e := asError(err)
	d.log.Debug("request failed", "method", req.Method, "path", req.URL.Path, "status", e.Status, "error", err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(e)
}

func reply(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the peer is gone, or it works: our types can be encoded
	return nil
}

// body reads a request's only JSON value.
func body(req *http.Request, v any) error {
	dec := json.NewDecoder(req.Body)
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one value")
		}
	}
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		return refuse(http.StatusRequestEntityTooLarge, "", "the request has more than %d bytes", maxBody)
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "", "the request's body: %v", err)
	}
	return nil
}

func key(req *http.Request) string { return req.PathValue("vm") + "/" + req.PathValue("name") }

func (d *Daemon) getVersion(w http.ResponseWriter, _ *http.Request) error {
	return reply(w, d.Version())
}

func (d *Daemon) getGPUs(w http.ResponseWriter, req *http.Request) error {
	list, err := d.GPUs(req.Context())
	if err != nil {
		return err
	}
	return reply(w, list)
}

func (d *Daemon) getProfiles(w http.ResponseWriter, req *http.Request) error {
	list, err := d.Profiles(req.Context())
	if err != nil {
		return err
	}
	return reply(w, list)
}

func (d *Daemon) postDrain(w http.ResponseWriter, req *http.Request) error {
	who, _ := peer.From(req.Context())
	if err := d.Drain(req.Context(), req.PathValue("id"), "drained by "+who.String()); err != nil {
		return err
	}
	return reply(w, struct{}{})
}

func (d *Daemon) postResume(w http.ResponseWriter, req *http.Request) error {
	if err := d.Resume(req.Context(), req.PathValue("id")); err != nil {
		return err
	}
	return reply(w, struct{}{})
}

func (d *Daemon) getVGPUs(w http.ResponseWriter, req *http.Request) error {
	list, err := d.VGPUs(req.Context())
	if err != nil {
		return err
	}
	return reply(w, list)
}

func (d *Daemon) getVGPU(w http.ResponseWriter, req *http.Request) error {
	v, err := d.VGPU(req.Context(), key(req))
	if err != nil {
		return err
	}
	return reply(w, v)
}

func (d *Daemon) putVGPU(w http.ResponseWriter, req *http.Request) error {
	s := api.Wish{VM: req.PathValue("vm"), Name: req.PathValue("name")}
	if err := body(req, &s); err != nil {
		return err
	}
	if s.Key() != key(req) {
		return refuse(http.StatusBadRequest, "", "the path names %s, the body %s", key(req), s.Key())
	}
	v, err := d.Ensure(req.Context(), s)
	if err != nil {
		return err
	}
	return reply(w, v)
}

func (d *Daemon) putLimits(w http.ResponseWriter, req *http.Request) error {
	var c api.Change
	if err := body(req, &c); err != nil {
		return err
	}
	now, err := d.SetLimits(req.Context(), key(req), c)
	if err != nil {
		return err
	}
	return reply(w, now)
}

func (d *Daemon) deleteVGPU(w http.ResponseWriter, req *http.Request) error {
	cond := req.URL.Query().Get("if")
	if cond != "" && cond != "unused" {
		return refuse(http.StatusBadRequest, "use ?if=unused, or nothing", "?if=%s", cond)
	}
	if err := d.Release(req.Context(), key(req), cond == "unused"); err != nil {
		return err
	}
	return reply(w, struct{}{})
}

func (d *Daemon) getLog(w http.ResponseWriter, req *http.Request) error {
	q := req.URL.Query()
	lines := -1
	if s := q.Get("lines"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return refuse(http.StatusBadRequest, "", "?lines=%s is no number of lines", s)
		}
		lines = n
	}
	follow := q.Get("follow")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	return d.Log(req.Context(), flushing{w, http.NewResponseController(w)}, key(req), lines, follow != "" && follow != "0")
}

// flushing sends each piece at once.
type flushing struct {
	io.Writer
	c *http.ResponseController
}

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.c.Flush()
}

// Counts implements metrics.Source.
func (d *Daemon) Counts() metrics.Counts {
	s := &d.served
	bad, no := s.failed.Load(), s.refused.Load()
	c := metrics.Counts{OK: s.requests.Load() - min(bad, s.requests.Load()), Failed: bad - min(no, bad), Refused: no}
	d.sched.mu.Lock()
	defer d.sched.mu.Unlock()
	c.SchedulerRestarts, c.SchedulerUp = d.sched.restarts, d.sched.pid != 0 && !d.sched.silent
	return c
}

// Certificate implements metrics.Source.
func (d *Daemon) Certificate() (end time.Time, needed bool) {
	c := d.config()
	if !c.MeetsHosts() {
		return end, false
	}
	s, _ := d.identity().Standing() // with an error, of nobody
	return s.Until, true
}

// ServeMetrics serves GET /metrics, and nothing else, to anybody who connects, until ctx ends.
func (d *Daemon) ServeMetrics(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler(d, d.log))
	return d.serveHTTP(ctx, netutil.LimitListener(ln, maxScrapes), mux, nil)
}

// maxScrapes bounds connections to the metrics' listener.
const maxScrapes = 32

// Version is this causewayd's.
func (d *Daemon) Version() api.Version {
	return api.Version{Version: d.opt.Version, PID: os.Getpid(), Started: d.started, Ports: d.portList()}
}

// Serve serves the API on a Unix socket until ctx ends; requests then have a moment to come to
// their end.
func (d *Daemon) Serve(ctx context.Context, ln net.Listener) error {
	return d.serveHTTP(ctx, newBounded(ln), d.Handler(), func(ctx context.Context, c net.Conn) context.Context {
		if b, ok := c.(*boundedConn); ok {
			ctx = peer.With(ctx, b.peer)
		}
		return ctx
	})
}

func (d *Daemon) serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, who func(context.Context, net.Conn) context.Context) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: readTime, ReadTimeout: readTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeaders, ConnContext: who,
		// Handshakes that failed, of hosts.
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn),
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		d.shut()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = srv.Shutdown(end)
		_ = srv.Close()
	})
	err := srv.Serve(ln)
	if stop() {
		return err // it did not end because of ctx
	}
	<-done
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
