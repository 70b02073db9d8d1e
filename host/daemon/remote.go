package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"syscall"

	"causeway/host/api"
	"causeway/host/daemon/intake"
	"causeway/host/daemon/lease"
	"causeway/remote"
	"causeway/remote/mtls"
)

// remoteListener is where programs of other hosts, and those hosts' causewayds, connect.
func (d *Daemon) remoteListener() (*net.TCPListener, error) {
	ln, err := net.Listen("tcp", d.opt.Config.Remote.Listen)
	if err != nil {
		return nil, notServed("remote.listen", err)
	}
	if _, err := d.hostsTLS("remote.listen", api.RemoteProtocol); err != nil {
		_ = ln.Close()
		return nil, err
	}
	d.log.Info("other hosts' vGPUs are served", "address", ln.Addr())
	return ln.(*net.TCPListener), nil
}

// hostsTLS is for connections of other hosts, by a key. A certificate of this host that is out of
// its time keeps them away, and nobody else, until there is another.
func (d *Daemon) hostsTLS(key, protocol string) (*tls.Config, error) {
	f := d.identity()
	cfg, err := f.Server(protocol)
	switch {
	case mtls.OutOfTime(err):
		d.log.Error("other hosts are refused until this one's certificate is renewed", "listens", key, "error", err, "remedy", mtls.Remedy(err))
		return f.Later(protocol), nil
	case err != nil:
		return nil, notServed(key, err)
	}
	return cfg, nil
}

// notServed is why nobody can be listened to by a key, with what to do.
func notServed(key string, err error) error {
	remedy := mtls.Remedy(err)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		remedy = "another process has that port (`ss -ltnp` names it): end it, or configure another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		remedy = "this host has no such address (`ip address` lists them)"
	}
	if remedy == "" {
		return fmt.Errorf("%s: %w", key, err)
	}
	return fmt.Errorf("%s: %w: %s", key, err, remedy)
}

// identity is who this host is to others.
func (d *Daemon) identity() mtls.Files {
	m := d.config().Migration
	return m.Files()
}

// ServeRemote serves a GPU server's port until ctx ends.
func (d *Daemon) ServeRemote(ctx context.Context, ln *net.TCPListener) error {
	i := &intake.Intake{
		TLS:     func() (*tls.Config, error) { return d.identity().Server(api.RemoteProtocol) },
		Admit:   hostOf,
		Session: d.session,
		Remedy:  mtls.Remedy,
		Log:     d.log,
	}
	return i.Serve(ctx, ln, func(ctx context.Context, controls net.Listener) error {
		return d.serveHTTP(ctx, controls, d.remoteHandler(), func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, controlKey{}, c)
		})
	})
}

type controlKey struct{}

// hostOf says who shows a certificate. What they may is said to each of their requests.
func hostOf(cert *x509.Certificate) (string, error) {
	h, err := lease.HostOf(cert)
	return h.String(), err
}

// asker is the host that makes a request, which is asked for each: what it may can have changed
// since it connected.
func (d *Daemon) asker(r *http.Request) (h lease.Host, err error) {
	c, ok := r.Context().Value(controlKey{}).(*intake.Control)
	if !ok {
		return h, refuse(http.StatusForbidden, "", "nobody is known to ask")
	}
	if err := d.identity().Check(c.Shown); err != nil {
		return h, refuse(http.StatusForbidden, mtls.Remedy(err), "%v", err)
	}
	return lease.HostOf(c.Shown[0])
}

// allowed is asker for what hosts may ask.
func (d *Daemon) allowed(r *http.Request) (h lease.Host, err error) {
	if h, err = d.asker(r); err != nil {
		return h, err
	}
	if allow := d.config().Remote.Allow; len(allow) > 0 && !slices.Contains(allow, h.String()) {
		return h, refuse(http.StatusForbidden, "an administrator of the GPU server adds this host to remote.allow there", "remote.allow does not name the host %s", h)
	}
	return h, nil
}

// remoteRoutes are all that other hosts may ask of a GPU server.
var remoteRoutes = map[string]remoteRoute{
	"GET /v1/gpus": func(d *Daemon, w http.ResponseWriter, r *http.Request, _ lease.Host) error {
		list, err := d.offered(r.Context())
		if err != nil {
			return err
		}
		return reply(w, api.Offer{Version: d.opt.Version, Protocol: remote.ProtocolVersion, GPUs: list})
	},
	"GET /v1/leases": func(d *Daemon, w http.ResponseWriter, _ *http.Request, h lease.Host) error {
		list := []string{}
		for _, e := range d.leases.Of(h.String()) {
			list = append(list, e.ID.String())
		}
		return reply(w, list)
	},
	"POST /v1/leases": func(d *Daemon, w http.ResponseWriter, r *http.Request, h lease.Host) error {
		req, err := lease.DecodeRequest(r.Body)
		if err != nil {
			return err
		}
		l, err := d.grant(r.Context(), h, req)
		if err != nil {
			return err
		}
		return reply(w, l)
	},
	"POST /v1/leases/{id}/renew": func(d *Daemon, w http.ResponseWriter, r *http.Request, h lease.Host) error {
		e, err := d.leaseNamed(r, h)
		if err != nil {
			return err
		}
		n, err := lease.DecodeRenewal(r.Body)
		if err != nil {
			return err
		}
		s, err := d.renew(r.Context(), h, e.ID, n)
		if err != nil {
			return err
		}
		return reply(w, s)
	},
	"PUT /v1/leases/{id}/limits": func(d *Daemon, w http.ResponseWriter, r *http.Request, h lease.Host) error {
		e, err := d.leaseNamed(r, h)
		if err != nil {
			return err
		}
		c, err := lease.DecodeChange(r.Body)
		if err != nil {
			return err
		}
		if err := d.withinReserved(e.VGPU, c); err != nil {
			return err
		}
		l, err := d.SetLimits(r.Context(), e.VGPU, c)
		if err != nil {
			return err
		}
		return reply(w, l)
	},
	"PUT /v1/leases/{id}/heir": func(d *Daemon, w http.ResponseWriter, r *http.Request, h lease.Host) error {
		e, err := d.leaseNamed(r, h)
		if err != nil {
			return err
		}
		to, err := lease.DecodeHeir(r.Body)
		if err != nil {
			return err
		}
		if err := d.setHeir(h, e, to.Host); err != nil {
			return err
		}
		return reply(w, struct{}{})
	},
	"DELETE /v1/leases/{id}": func(d *Daemon, w http.ResponseWriter, r *http.Request, h lease.Host) error {
		e, err := d.leaseNamed(r, h)
		if err != nil {
			return err
		}
		if err := d.leaveLease(r.Context(), e, h); err != nil {
			return err
		}
		return reply(w, struct{}{})
	},
}

// leaseNamed is the lease that a request names, if the host that asks has it or may take it over.
func (d *Daemon) leaseNamed(r *http.Request, h lease.Host) (lease.Entry, error) {
	var id remote.LeaseID
	if err := id.UnmarshalText([]byte(r.PathValue("id"))); err != nil {
		return lease.Entry{}, refuse(http.StatusBadRequest, "", "%v", err)
	}
	return d.leases.For(id, h.String())
}

// remoteRoute answers what h asks, which has shown that it may.
type remoteRoute func(d *Daemon, w http.ResponseWriter, r *http.Request, h lease.Host) error

func (d *Daemon) remoteHandler() http.Handler {
	mux := http.NewServeMux()
	for pattern, do := range remoteRoutes {
		d.handleRemote(mux, pattern, d.allowed, do)
	}
	for pattern, do := range fleetRoutes {
		d.handleRemote(mux, pattern, d.controller, do)
	}
	return mux
}

// handleRemote has do answer for whom who admits.
func (d *Daemon) handleRemote(mux *http.ServeMux, pattern string, who func(*http.Request) (lease.Host, error), do remoteRoute) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		d.handlers.Add(1)
		defer d.handlers.Done()
		r.Body = http.MaxBytesReader(w, r.Body, lease.MostMessage)
		h, err := who(r)
		if err == nil {
			err = do(d, w, r, h)
		}
		if err != nil {
			d.log.Warn("another host's request is refused", "host", h, "address", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "error", err)
			d.answer(w, r, err)
		}
	})
}
