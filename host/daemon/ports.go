package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"

	"causeway/host/api"
)

/*
Ports of the network, by which metrics are read and other hosts come. None of them keeps causewayd
from its own host's vGPUs, whose VMs would not start without it, and whose leases of GPU servers
would end, with what programs have there: one that cannot be had, as another process has it or this
host has not the address yet, is tried again until it can, and the log, doctor, `causeway ps`, a
metric and the service manager say meanwhile that it is not served. A certificate that has ended is
waited for likewise, at each connection (hostsTLS).
*/

// portAgain is when a port that cannot be had is tried again.
const portAgain = 5 * time.Second

// port is one of the configuration's.
type port struct {
	key, address string
	open         func() (*served, error)
}

// served is a listener, and who serves it until ctx ends.
type served struct {
	io.Closer
	serve func(ctx context.Context) error
}

// ports are those that the configuration names.
func (d *Daemon) ports() []port {
	c := &d.opt.Config
	list := []port{
		{"metrics.listen", c.Metrics.Listen, d.metricsPort},
		{"migration.listen", c.Migration.Listen, d.hostsPort},
		{"remote.listen", c.Remote.Listen, d.remotePort},
	}
	return slices.DeleteFunc(list, func(p port) bool { return p.address == "" })
}

func (d *Daemon) metricsPort() (*served, error) {
	ln, err := net.Listen("tcp", d.opt.Config.Metrics.Listen)
	if err != nil {
		return nil, notServed("metrics.listen", err)
	}
	d.log.Info("metrics are served", "address", ln.Addr())
	return &served{ln, func(ctx context.Context) error { return d.ServeMetrics(ctx, ln) }}, nil
}

func (d *Daemon) hostsPort() (*served, error) {
	ln, err := d.hostListener()
	if err != nil {
		return nil, err
	}
	return &served{ln, func(ctx context.Context) error { return d.ServeHosts(ctx, ln) }}, nil
}

func (d *Daemon) remotePort() (*served, error) {
	ln, err := d.remoteListener()
	if err != nil {
		return nil, err
	}
	return &served{ln, func(ctx context.Context) error { return d.ServeRemote(ctx, ln) }}, nil
}

// open has a port. One that cannot be had now, and may be later, is nil.
func (d *Daemon) open(p port) (*served, error) {
	s, err := p.open()
	var listen *net.OpError
	if d.opt.AllPorts || err == nil || !errors.As(err, &listen) {
		return s, err
	}
	d.notePort(p, err)
	return nil, nil
}

// servePort serves a port until ctx ends. s: it is had already; nil: not yet.
func (d *Daemon) servePort(ctx context.Context, p port, s *served) error {
	for {
		if s != nil {
			d.notePort(p, nil)
			err := s.serve(ctx)
			if ctx.Err() != nil || err == nil || d.opt.AllPorts {
				return err
			}
			d.notePort(p, fmt.Errorf("%s: %w", p.key, err))
		}
		select {
		case <-time.After(d.opt.PortAgain):
		case <-ctx.Done():
			return nil
		}
		var err error
		if s, err = p.open(); err != nil {
			d.notePort(p, err)
		}
	}
}

// notePort notes why a port is not served; nil: it is.
func (d *Daemon) notePort(p port, why error) {
	now := api.Port{Key: p.key, Address: p.address}
	if why != nil {
		now.Error = why.Error()
	}
	d.mu.Lock()
	i := slices.IndexFunc(d.served.ports, func(x api.Port) bool { return x.Key == p.key })
	if i < 0 {
		i = len(d.served.ports)
		d.served.ports = append(d.served.ports, api.Port{Key: p.key, Address: p.address})
	}
	was := d.served.ports[i].Error
	d.served.ports[i] = now
	d.mu.Unlock()
	switch {
	case now.Error == was:
		return
	case why != nil:
		d.log.Error("a port is not served, and is tried again: who comes by it is refused, and all else goes on", "error", why)
	default:
		d.log.Info("a port is served now", "listens", p.key, "address", p.address)
	}
	d.tellPorts()
}

// portList are the configuration's ports, and how each is.
func (d *Daemon) portList() []api.Port {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.served.ports)
}

// tellPorts has `systemctl status` show which ports are not served.
func (d *Daemon) tellPorts() {
	var not []string
	for _, p := range d.portList() {
		if p.Error != "" {
			not = append(not, p.Error)
		}
	}
	text := strings.Join(not, "; ")
	if text != "" {
		text = "not served: " + text
	}
	tell("STATUS=" + strings.ReplaceAll(text, "\n", " "))
}

// tell tells the service manager, if there is one.
func tell(state string) { _, _ = sdnotify.SdNotify(false, state) }
