package daemon

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"

	"golang.org/x/net/netutil"

	"causeway/host/api"
	"causeway/host/daemon/lease"
	"causeway/remote/mtls"
)

/*
Other hosts' causewayds, and `causeway migrate` there, connect by TLS, with a certificate of the
same authority, and are asked nothing else: who has one may bring memory ahead of a VM, for which a
vGPU is started if there is none. What they send goes to the vGPU's device process; nothing of it is
looked at here.
*/

// mostHosts bounds connections of other hosts.
const mostHosts = 8 * api.MostConnections

// hostListener is where other hosts connect.
func (d *Daemon) hostListener() (net.Listener, error) {
	ln, err := net.Listen("tcp", d.opt.Config.Migration.Listen)
	if err != nil {
		return nil, notServed("migration.listen", err)
	}
	cfg, err := d.hostsTLS("migration.listen", api.HostProtocol)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	d.log.Info("other hosts are awaited", "address", ln.Addr())
	return tls.NewListener(netutil.LimitListener(ln, mostHosts), cfg), nil
}

// ServeHosts serves other hosts until ctx ends, and what they bring with it.
func (d *Daemon) ServeHosts(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/vgpus/{vm}/{name}/precopy", func(w http.ResponseWriter, r *http.Request) {
		d.handlers.Add(1)
		defer d.handlers.Done()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if err := d.precopy(ctx, w, r); err != nil {
			d.log.Warn("another host's request failed", "host", mtls.Peer(r.TLS), "address", r.RemoteAddr, "vgpu", key(r), "error", err)
			d.answer(w, r, err)
		}
	})
	for pattern, do := range map[string]func(w http.ResponseWriter, r *http.Request) error{
		"GET /v1/host": func(w http.ResponseWriter, _ *http.Request) error {
			name, err := d.ownName()
			if err != nil {
				return err
			}
			return reply(w, name)
		},
		"GET /v1/vgpus/{vm}/{name}/awaited": func(w http.ResponseWriter, r *http.Request) error {
			v := d.findComing(r.PathValue("vm"), r.PathValue("name"), r.URL.Query().Get(api.MovesAsQuery))
			if err := d.awaits(r.Context(), v, key(r)); err != nil {
				return err
			}
			return reply(w, struct{}{})
		},
		"POST /v1/vgpus/{vm}/{name}/lease": func(w http.ResponseWriter, r *http.Request) error {
			i, err := lease.DecodeInheritance(r.Body)
			if err != nil {
				return err
			}
			if i.Wish.Key() != key(r) {
				return refuse(http.StatusBadRequest, "", "the path names %s, the body %s", key(r), i.Wish.Key())
			}
			if err := d.inherit(r.Context(), i); err != nil {
				return err
			}
			return reply(w, struct{}{})
		},
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			d.handlers.Add(1)
			defer d.handlers.Done()
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			if err := do(w, r); err != nil {
				d.log.Warn("another host's request failed", "host", mtls.Peer(r.TLS), "address", r.RemoteAddr, "path", r.URL.Path, "error", err)
				d.answer(w, r, err)
			}
		})
	}
	return d.serveHTTP(ctx, ln, mux, nil)
}

// precopy connects another host with a vGPU's device process, until either ends.
func (d *Daemon) precopy(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	var a api.Arriving
	if err := body(r, &a); err != nil {
		return err
	}
	if a.Wish.Key() != key(r) {
		return refuse(http.StatusBadRequest, "", "the path names %s, the body %s", key(r), a.Wish.Key())
	}
	made, err := d.expect(r.Context(), a)
	if err != nil {
		return err
	}
	log := d.log.With("vgpu", key(r), "host", mtls.Peer(r.TLS))
	v := d.findComing(a.Wish.VM, a.Wish.Name, a.Wish.MovesAs)
	if v == nil {
		return unknown(key(r))
	}
	if made {
		defer func() {
			_, p := d.copyOf(v)
			d.notAhead(v, p, log)
		}()
	}
	rec, _ := d.copyOf(v)
	if rec.Spec.Key() != key(r) {
		log = log.With("here", rec.Spec.Key())
	}
	c := api.NewClient(rec.Spec.ControlPath(d.run))
	defer c.Close()
	device, err := c.Stream(ctx, "/v1/arrive", nil)
	if err != nil {
		return err
	}
	defer device.Close()
	far, err := api.Switch(w, r)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _, _ = far.Close(), device.Close() })()
	d.reached(stepComes)
	log.Info("memory comes ahead of a VM")
	err = api.Relay(far, device)
	log.Info("memory came ahead of a VM", "reason", err)
	return nil
}

// expect has a vGPU ready for a VM that may come. made: there was none. One of a fleet's claim is
// made by who serves the fleet here, and gets nothing before its VM is awaited: a node that was
// taken over has a host's certificate as well.
func (d *Daemon) expect(ctx context.Context, a api.Arriving) (made bool, err error) {
	w := a.Wish
	v := d.findComing(w.VM, w.Name, w.MovesAs)
	awaited := a.Awaited || strings.HasPrefix(w.VM, api.ClaimPrefix)
	if v != nil {
		rec, _ := d.copyOf(v)
		awaited = awaited || strings.HasPrefix(rec.Spec.VM, api.ClaimPrefix)
	}
	if awaited {
		return false, d.awaits(ctx, v, w.Key())
	}
	if v != nil {
		return false, nil
	}
	// Which are for this host to say: of two that move alike none is found.
	w.Owner, w.MovesAs = "", ""
	view, err := d.ensure(ctx, w, true)
	return view.Created, err // else others have made it meanwhile
}

// findComing finds the vGPU here of a VM of another host: the one of that name, or else the only
// one of a VM that moves as it does, which has another name on each host.
func (d *Daemon) findComing(vm, name, movesAs string) *vgpu {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.vgpus[vm+"/"+name]; v != nil || movesAs == "" {
		return v
	}
	var found *vgpu
	for _, v := range d.vgpus {
		if v.end || v.rec.Spec.MovesAs != movesAs || v.rec.Spec.Name != name {
			continue
		}
		if found != nil { // which of them it is nobody can tell
			return nil
		}
		found = v
	}
	return found
}
