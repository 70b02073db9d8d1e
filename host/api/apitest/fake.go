// Package apitest holds a fake causewayd and fake device processes: they speak package api over
// real Unix sockets and have nothing behind them.
//
// A Fake's fields are set before Serve; afterwards they are read and changed through Change alone,
// which holds its lock. Its goroutines end with the test.
package apitest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"causeway/host/api"
	"causeway/host/limit"
)

// Fake is a causewayd. Ensure makes vGPUs that wait; nothing else changes by itself.
type Fake struct {
	Version  api.Version
	GPUs     []api.GPU
	VGPUs    []api.VGPU
	Profiles []api.Profile
	Servers  []api.Server
	Logs     map[string]string // by VM/NAME
	Metrics  string
	// Requests so far, as METHOD PATH.
	Requests []string

	run  string
	mu   sync.Mutex
	grew chan struct{} // closed at each Change, for those who follow a log
}

// Serve serves below a run directory until the test ends.
func (f *Fake) Serve(t testing.TB, run string) {
	t.Helper()
	f.run, f.grew = run, make(chan struct{})
	if f.Logs == nil {
		f.Logs = map[string]string{}
	}
	serve(t, api.Socket(run), f.handler())
}

// ServeStatus serves as a device process does, with the status that get returns at that moment.
func ServeStatus(t testing.TB, socket string, get func() api.Status) {
	t.Helper()
	ServeDevice(t, socket, get, func(api.Change) *api.Error { return refuse(http.StatusConflict, "this one has no limits", "") })
}

// ServeDevice is ServeStatus for one that takes limits.
func ServeDevice(t testing.TB, socket string, get func() api.Status, set func(api.Change) *api.Error) {
	t.Helper()
	mux := http.NewServeMux()
	var mu sync.Mutex
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answer(w, get())
	})
	mux.HandleFunc("PUT /v1/limits", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var c api.Change
		e := refuse(http.StatusBadRequest, "no limits", "")
		if json.NewDecoder(r.Body).Decode(&c) == nil {
			e = set(c)
		}
		if e != nil {
			w.WriteHeader(e.Status)
			_ = json.NewEncoder(w).Encode(e)
			return
		}
		answer(w, get().Limits)
	})
	serve(t, socket, mux)
}

func serve(t testing.TB, socket string, h http.Handler) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	var ended sync.WaitGroup
	ended.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() {
		_ = srv.Close()
		ended.Wait()
	})
}

// Change calls fn while nobody else reads or changes the fields.
func (f *Fake) Change(fn func(*Fake)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
	close(f.grew)
	f.grew = make(chan struct{})
}

// refuse makes the error that a handler answers with.
func refuse(status int, text, remedy string) *api.Error {
	return &api.Error{Status: status, Text: text, Remedy: remedy}
}

func (f *Fake) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, fn := range map[string]func(*http.Request) (any, *api.Error){
		"GET /v1/version":                  func(*http.Request) (any, *api.Error) { return f.Version, nil },
		"GET /v1/profiles":                 func(*http.Request) (any, *api.Error) { return orEmpty(f.Profiles), nil },
		"GET /v1/servers":                  func(*http.Request) (any, *api.Error) { return orEmpty(f.Servers), nil },
		"GET /v1/gpus":                     func(*http.Request) (any, *api.Error) { return orEmpty(f.GPUs), nil },
		"POST /v1/gpus/{id}/drain":         func(r *http.Request) (any, *api.Error) { return f.drain(r, true) },
		"POST /v1/gpus/{id}/resume":        func(r *http.Request) (any, *api.Error) { return f.drain(r, false) },
		"GET /v1/vgpus":                    func(*http.Request) (any, *api.Error) { return orEmpty(f.VGPUs), nil },
		"GET /v1/vgpus/{vm}/{name}":        f.get,
		"PUT /v1/vgpus/{vm}/{name}":        f.ensure,
		"PUT /v1/vgpus/{vm}/{name}/limits": f.limits,
		"DELETE /v1/vgpus/{vm}/{name}":     f.release,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.Requests = append(f.Requests, r.Method+" "+r.URL.RequestURI())
			v, e := fn(r)
			if e != nil {
				w.WriteHeader(e.Status)
				_ = json.NewEncoder(w).Encode(e)
				return
			}
			answer(w, v)
		})
	}
	mux.HandleFunc("GET /v1/vgpus/{vm}/{name}/log", f.log)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		_, _ = io.WriteString(w, f.Metrics)
	})
	return mux
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if v != nil {
		_ = json.NewEncoder(w).Encode(v)
	}
}

func (f *Fake) drain(r *http.Request, on bool) (any, *api.Error) {
	for i := range f.GPUs {
		g := &f.GPUs[i]
		if g.ID == r.PathValue("id") || strconv.Itoa(g.Index) == r.PathValue("id") {
			g.Drained, g.Why = on, ""
			if on {
				g.Why = "an operator drained it"
			}
			return nil, nil
		}
	}
	return nil, refuse(http.StatusNotFound, fmt.Sprintf("no GPU %s", r.PathValue("id")), "`causeway gpus` lists them")
}

func (f *Fake) find(r *http.Request) (*api.VGPU, *api.Error) {
	vm, name := r.PathValue("vm"), r.PathValue("name")
	for i := range f.VGPUs {
		if s := &f.VGPUs[i].Spec; s.VM == vm && s.Name == name {
			return &f.VGPUs[i], nil
		}
	}
	return nil, refuse(http.StatusNotFound, fmt.Sprintf("no vGPU %s/%s", vm, name), "`causeway ps` lists them")
}

func (f *Fake) get(r *http.Request) (any, *api.Error) {
	v, e := f.find(r)
	if e != nil {
		return nil, e
	}
	return v, nil
}

func (f *Fake) ensure(r *http.Request) (any, *api.Error) {
	var w api.Wish
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
		return nil, refuse(http.StatusBadRequest, err.Error(), "")
	}
	w.VM, w.Name = r.PathValue("vm"), r.PathValue("name")
	if err := w.Check(); err != nil {
		return nil, refuse(http.StatusBadRequest, err.Error(), "")
	}
	if v, e := f.find(r); e == nil {
		v.Spec.Limits = w.On(v.Spec.Limits)
		return v, nil
	}
	s := api.Spec{VM: w.VM, Name: w.Name, GPU: cmp.Or(w.GPU, "any"), MIG: w.MIG, Owner: w.Owner, Profile: w.Profile,
		Limits: w.On(api.Limits{Share: limit.DefaultShare, Sessions: limit.DefaultSessions})}
	v := api.VGPU{Spec: s, State: api.Waiting, Socket: s.SocketPath(f.run), Control: s.ControlPath(f.run), PID: os.Getpid(), Started: time.Now()}
	if len(f.GPUs) > 0 {
		v.GPU = f.GPUs[0].ID
	}
	f.VGPUs = append(f.VGPUs, v)
	v.Created = true
	return v, nil
}

func (f *Fake) limits(r *http.Request) (any, *api.Error) {
	v, e := f.find(r)
	if e != nil {
		return nil, e
	}
	var c api.Change
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		return nil, refuse(http.StatusBadRequest, err.Error(), "")
	}
	if err := c.Check(); err != nil {
		return nil, refuse(http.StatusBadRequest, err.Error(), "")
	}
	v.Spec.Limits = c.On(v.Spec.Limits)
	return v.Spec.Limits, nil
}

func (f *Fake) release(r *http.Request) (any, *api.Error) {
	v, e := f.find(r)
	if e != nil {
		return nil, e
	}
	if r.URL.Query().Get("if") == "unused" && v.State == api.Connected {
		return nil, refuse(http.StatusConflict, fmt.Sprintf("a VM uses %s", v.Spec.Key()), "detach it first")
	}
	key := v.Spec.Key()
	f.VGPUs = slices.DeleteFunc(f.VGPUs, func(v api.VGPU) bool { return v.Spec.Key() == key })
	return nil, nil
}

func (f *Fake) log(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("vm") + "/" + r.PathValue("name")
	f.mu.Lock()
	f.Requests = append(f.Requests, r.Method+" "+r.URL.RequestURI())
	text, known := f.Logs[key]
	grew := f.grew
	f.mu.Unlock()
	if !known {
		e := refuse(http.StatusNotFound, "no vGPU "+key, "`causeway ps` lists them")
		w.WriteHeader(e.Status)
		_ = json.NewEncoder(w).Encode(e)
		return
	}
	sent := len(text)
	if n, err := strconv.Atoi(r.URL.Query().Get("lines")); err == nil && n >= 0 {
		lines := strings.SplitAfter(text, "\n") // the last is empty
		text = strings.Join(lines[max(0, len(lines)-1-n):], "")
	}
	for {
		_, _ = io.WriteString(w, text)
		if r.URL.Query().Get("follow") == "" || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-grew:
		}
		f.mu.Lock()
		text, grew = f.Logs[key][sent:], f.grew
		sent += len(text)
		f.mu.Unlock()
	}
}
