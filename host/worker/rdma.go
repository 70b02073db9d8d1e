package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"causeway/host/worker/link"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/verbs"
	"causeway/remote/verbs/ibv"
)

// rdma is the adapters that a session between hosts may use, or why there are none. They stay open as long as the process lives.
type rdma struct {
	adapters []verbs.Adapter
	why      string
}

// open opens what a configuration names. A session goes on without. confined: this process has been since it started.
func (r *rdma) open(cfg link.Config, confined bool, log *slog.Logger) {
	if cfg.RDMA == "" || cfg.Relay == nil && cfg.TLS == nil {
		return
	}
	name := cfg.RDMA
	if name == link.RDMAAuto {
		name = ""
	}
	ds, err := ibv.Open(name)
	if err != nil {
		r.why = err.Error()
		log.Info("no RDMA here", "why", err)
		return
	}
	for _, a := range ds.Adapters() {
		if p := a.Port(); p.Software && confined {
			r.why = fmt.Sprintf("%v is soft RoCE, whose kernel side takes nothing from a sandboxed worker: --sandbox off, for a trial", p)
		} else {
			r.adapters = append(r.adapters, a)
		}
	}
}

// onTCP is what frames go over without RDMA.
const onTCP = "TCP with TLS"

// over is what frames go over if both ends agree on RDMA inside TLS, whose connection is raw; nil: they stay there. The parent is told. It takes the connection over.
func (s *starter) over(ctx context.Context, c *frame.Secure, raw net.Conn, client bool) (frame.Stream, error) {
	if c.ConnectionState().NegotiatedProtocol != mtls.VerbsProtocol {
		what := onTCP
		if s.cfg.RDMA != "" {
			what += ": the other host has RDMA off"
		}
		return nil, s.carried(c, what)
	}
	up, err := verbs.Upgrade(ctx, c, s.rdma.adapters, s.rdma.why, client)
	switch {
	case errors.Is(err, verbs.ErrStays):
		s.log.Info("frames stay on TCP", "why", err)
		return nil, s.carried(c, onTCP+": "+err.Error())
	case err != nil:
		return nil, err
	}
	s.log.Info("frames go by RDMA", "over", fmt.Sprint(up))
	// No other connection follows this one.
	if err := errors.Join(frame.Tune(raw, frame.Lost), s.carried(c, fmt.Sprint(up))); err != nil {
		return nil, errors.Join(err, up.Close())
	}
	return up, nil
}

// carried tells the parent. If that fails nothing is left of the connection.
func (s *starter) carried(c *frame.Secure, what string) error {
	err := s.link.Send(link.Carried{Over: what})
	if err != nil {
		c.Abort()
	}
	return err
}

// another has a session go on over another connection, if it is one that does.
func (s *starter) another(r link.Received[link.ToWorker], m link.Reconnected) error {
	switch {
	case s.cfg.TLS == nil: // a session of no lease has one connection
		return r.Refuse()
	case s.lasting == nil: // nor does one by RDMA follow another: who says its name ahead of TLS has proved nothing, and changes nothing
		r.Discard()
		return nil
	}
	return s.reconnected(m)
}
