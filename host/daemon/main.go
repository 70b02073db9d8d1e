package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"causeway/host/api"
	"causeway/host/daemon/config"
)

// Main runs causewayd until ctx ends. load reads the configuration again at SIGHUP. A service
// manager is told how it stands (sd_notify(3)), and may have made the socket (sd_listen_fds(3)).
func Main(ctx context.Context, o Options, load func() (config.Config, error)) error {
	d, err := New(ctx, o)
	if err != nil {
		return err
	}
	defer d.Close()
	ln, err := d.socket()
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	ports := d.ports()
	had := make([]*served, len(ports))
	for i, p := range ports {
		if had[i], err = d.open(p); err != nil {
			_ = ln.Close()
			for _, s := range had[:i] {
				if s != nil {
					_ = s.Close()
				}
			}
			return err
		}
	}
	if o.AllPorts {
		d.beginScheduler()
	}
	o.Log.Info("causewayd is ready", "version", o.Version, "socket", ln.Addr(), "vgpus", len(d.vgpus))
	tell(sdnotify.SdNotifyReady)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				d.reload(load)
			}
		}
	}()
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error { return d.Serve(serving, ln) })
	for i, p := range ports {
		g.Go(func() error { return d.servePort(serving, p, had[i]) })
	}
	err = g.Wait()
	tell(sdnotify.SdNotifyStopping)
	o.Log.Info("causewayd ends; what it started goes on")
	return err
}

func (d *Daemon) reload(load func() (config.Config, error)) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", sdnotify.SdNotifyReloading, now.Nano()/int64(time.Microsecond)))
	defer tell(sdnotify.SdNotifyReady)
	c, err := load()
	var later []string
	if err == nil {
		later, err = d.Reload(c)
	}
	if err != nil {
		d.log.Error("the configuration is wrong: the one before holds", "error", err)
		return
	}
	d.log.Info("configuration read again")
	if len(later) > 0 {
		d.log.Warn("these keys hold after a restart only", "keys", later)
	}
}

// socket is the API's: the service manager's, or our own.
func (d *Daemon) socket() (net.Listener, error) {
	given, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("sockets of the service manager: %w", err)
	}
	for _, ln := range given {
		if ln != nil && ln.Addr().Network() == "unix" {
			return ln, nil
		}
	}
	if len(given) > 0 {
		return nil, errors.New("the service manager gave sockets, of which none is a Unix stream socket")
	}
	return d.Listen(api.Socket(d.run))
}
