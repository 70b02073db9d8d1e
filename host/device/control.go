package device

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"causeway/host/api"
	"causeway/host/worker/link"
	"causeway/remote/sys"
)

// Bounds of the control socket.
const (
	controlAtOnce = 32 // connections
	controlLimit  = 10 * time.Second
	mostBody      = 64 << 10
)

// ServeControl serves the device's API (package api) on ln until ctx ends. stop is what POST
// /v1/stop calls. Only root and this process's own user are answered.
func (d *Device) ServeControl(ctx context.Context, ln *net.UnixListener, stop func()) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		d.Look()
		reply(w, d.Status())
	})
	mux.HandleFunc("GET /v1/stays", func(w http.ResponseWriter, r *http.Request) { d.serveStays(ctx, w, r) })
	mux.HandleFunc("PUT /v1/limits", func(w http.ResponseWriter, r *http.Request) {
		var c api.Change
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody))
		dec.DisallowUnknownFields() // a misspelt limit would be none
		err := dec.Decode(&c)
		if err == nil && c.Profile != "" {
			err = errors.New("a device process knows no profiles: causewayd does")
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("limits: %w", err))
			return
		}
		now, err := d.SetLimits(c)
		switch {
		case errors.Is(err, ErrUnheld):
			refuse(w, http.StatusConflict, err)
		case err != nil:
			refuse(w, http.StatusBadRequest, err)
		default:
			reply(w, now)
		}
	})
	mux.HandleFunc("POST /v1/rebuild", func(w http.ResponseWriter, r *http.Request) {
		n, err := d.Rebuild(r.Context())
		if err != nil {
			refuse(w, http.StatusConflict, fmt.Errorf("%d sessions moved: %w", n, err))
			return
		}
		reply(w, Moved{n})
	})
	mux.HandleFunc("POST /v1/move", func(w http.ResponseWriter, r *http.Request) {
		var c api.Relocation
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("move: %w", err))
			return
		}
		did, err := d.Relocate(r.Context(), c)
		if err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
		reply(w, did)
	})
	mux.HandleFunc("POST /v1/divert", func(w http.ResponseWriter, r *http.Request) {
		var c api.Diversion
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&c); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("another GPU server: %w", err))
			return
		}
		did, err := d.Divert(r.Context(), c)
		if err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
		reply(w, did)
	})
	mux.HandleFunc("PUT /v1/upstream", func(w http.ResponseWriter, r *http.Request) {
		var c api.UpstreamState
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&c); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("state of the GPU server: %w", err))
			return
		}
		d.SetUpstream(c)
		reply(w, struct{}{})
	})
	mux.HandleFunc("PUT /v1/handover", func(w http.ResponseWriter, r *http.Request) {
		var c api.Handover
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&c); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("who may take over the lease: %w", err))
			return
		}
		d.SetHandover(c)
		reply(w, struct{}{})
	})
	mux.HandleFunc("PUT /v1/relay", func(w http.ResponseWriter, r *http.Request) {
		var to link.Relay
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&to)
		if err == nil {
			err = d.SetRelay(to)
		}
		if err != nil {
			refuse(w, http.StatusConflict, fmt.Errorf("another lease: %w", err))
			return
		}
		reply(w, struct{}{})
	})
	mux.HandleFunc("GET /v1/room", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("wait") != "" {
			d.AwaitNeed(r.Context())
		}
		reply(w, d.RoomStatus())
	})
	mux.HandleFunc("PUT /v1/room", func(w http.ResponseWriter, r *http.Request) {
		var c api.RoomChange
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("room: %w", err))
			return
		}
		reply(w, d.SetRoom(c))
	})
	for path, f := range map[string]func(context.Context, Suspension) (Suspended, error){"suspend": d.Suspend, "resume": d.Resume} {
		mux.HandleFunc("POST /v1/"+path, func(w http.ResponseWriter, r *http.Request) {
			var what Suspension
			dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&what); err != nil && !errors.Is(err, io.EOF) {
				// Nothing: all of them.
				refuse(w, http.StatusBadRequest, fmt.Errorf("%s: %w", path, err))
				return
			}
			did, err := f(r.Context(), what)
			switch {
			case errors.Is(err, ErrNoSession):
				refuse(w, http.StatusNotFound, err)
				return
			case errors.Is(err, ErrNoDisk):
				refuse(w, http.StatusInsufficientStorage, fmt.Errorf("%d sessions are: %w", did.Sessions, err))
				return
			case err != nil:
				refuse(w, http.StatusConflict, fmt.Errorf("%d sessions are: %w", did.Sessions, err))
				return
			}
			reply(w, did)
		})
	}
	mux.HandleFunc("POST /v1/copy", func(w http.ResponseWriter, r *http.Request) {
		var c api.Copying
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&c); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Errorf("how to send memory ahead: %w", err))
			return
		}
		if c.Connections < 0 || c.Connections > mostConnections {
			refuse(w, http.StatusBadRequest, fmt.Errorf("%d connections: at most %d", c.Connections, mostConnections))
			return
		}
		d.stream(w, r, func(conn net.Conn) {
			if c.Along {
				_ = d.CopyAlong(ctx, conn, c.Attempt)
				return
			}
			_ = d.CopyTo(ctx, conn, CopyOptions{Bandwidth: c.Bandwidth, Pause: c.Pause, Connections: c.Connections, Attempt: c.Attempt, Throttle: c.Throttle})
		})
	})
	mux.HandleFunc("GET /v1/departs", func(w http.ResponseWriter, r *http.Request) {
		t := time.NewTimer(api.DepartsLimit)
		defer t.Stop()
		select {
		case <-d.departs:
			reply(w, api.Departs{Departs: true})
		case <-t.C:
			reply(w, api.Departs{})
		case <-r.Context().Done():
		case <-ctx.Done():
			refuse(w, http.StatusServiceUnavailable, errGone)
		}
	})
	mux.HandleFunc("POST /v1/arrive", func(w http.ResponseWriter, r *http.Request) {
		d.stream(w, r, func(conn net.Conn) { _ = d.CopyFrom(ctx, conn) })
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, struct{}{})
		stop()
	})
	srv := &http.Server{
		Handler: trusted(mux), ReadHeaderTimeout: controlLimit, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, judged{trustedPeer(c)})
		},
	}
	end := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = srv.Shutdown(grace) // what is left is closed below
		_ = srv.Close()
	})
	defer end()
	if err := srv.Serve(&bounded{ln, make(chan struct{}, controlAtOnce)}); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control socket: %w", err)
	}
	return nil
}

// stream gives f the connection of a request, and returns when f does, which logs how it went.
func (d *Device) stream(w http.ResponseWriter, r *http.Request, f func(net.Conn)) {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, mostBody))
	conn, err := api.Switch(w, r)
	if err != nil {
		refuse(w, http.StatusUpgradeRequired, err)
		return
	}
	f(conn)
}

// Moved is the answer to POST /v1/rebuild.
type Moved struct {
	Sessions int `json:"sessions"`
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who has gone wants no answer
}

func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Error{Text: err.Error()})
}

type peerKey struct{}

var errNobody = errors.New("who asks is not known")

// judged is what trustedPeer says of a connection; a request without it is of nobody.
type judged struct{ err error }

// trustedPeer says why the other end of a connection is not answered; nil: it is root or this
// process's user.
func trustedPeer(c net.Conn) error {
	if b, ok := c.(*boundedConn); ok {
		c = b.Conn
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("a connection of %T", c)
	}
	who, err := sys.Peer(uc)
	if err != nil {
		return err
	}
	return sys.Trusted(who)
}

// trusted answers root and this process's user.
func trusted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer, known := r.Context().Value(peerKey{}).(judged)
		if err := peer.err; err != nil || !known {
			refuse(w, http.StatusForbidden, fmt.Errorf("the device does not answer: %w", cmp.Or(err, errNobody)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bounded is a listener with so many connections at once; more wait in its backlog.
type bounded struct {
	net.Listener
	room chan struct{}
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	b.room <- struct{}{}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.room
		return nil, err
	}
	return &boundedConn{c, sync.OnceFunc(func() { <-b.room })}, nil
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
