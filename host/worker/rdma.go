package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"causeway/host/worker/link"
	"causeway/remote/frame"
	"causeway/remote/mtls"
	"causeway/remote/resume"
	"causeway/remote/verbs"
	"causeway/remote/verbs/ibv"
)

// rdma is the adapters that a session between hosts may use, or why there are none. They stay open
// as long as the process lives.
type rdma struct {
	adapters []verbs.Adapter
	why      string
	gpus     *verbs.GPURegions // with a session by RDMA, and Config.GPUDirect
}

// open opens what a configuration names. A session goes on without. confined: this process has been
// since it started.
func (r *rdma) open(cfg link.Config, confined bool, log *slog.Logger) {
	if cfg.RDMA == "" || cfg.Relay == nil && cfg.TLS == nil {
		return
	}
	name := cfg.RDMA
	if name == link.RDMAAuto {
		name = ""
	}
	ds, err := ibv.Open(name, verbs.Partition(cfg.Partition))
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

// carriedOver is what a session's stream goes over if both ends agree on RDMA inside TLS, now and
// inside of connections that follow; the zero value: it stays there. The parent is told. Where that
// fails nothing is left of the connection.
func (s *starter) over(ctx context.Context, c *frame.Secure, client bool) (resume.Lifted, error) {
	return s.overTold(ctx, c, client, &telling{s: s})
}

// overTold is over of a session of which the parent may be told later.
func (s *starter) overTold(ctx context.Context, c *frame.Secure, client bool, to *telling) (resume.Lifted, error) {
	turn := to.begin()
	if c.ConnectionState().NegotiatedProtocol != mtls.VerbsProtocol {
		what := onTCP
		if s.cfg.RDMA != "" {
			what += ": the other host has RDMA off"
		}
		return resume.Lifted{}, to.carried(turn, c, what)
	}
	up, err := verbs.UpgradeWide(ctx, c, s.rdma.adapters, s.rdma.why, client, s.cfg.Pairs)
	if conn, ok := up.(*verbs.Conn); ok {
		s.gpuOver(conn, client)
	}
	way, err := to.upgraded(turn, c, up, err)
	conn, ok := way.(*verbs.Conn)
	if err != nil || !ok {
		return resume.Lifted{}, err
	}
	s.alone = !client && conn.Alone()
	again := func(ctx context.Context, c *frame.Secure) (resume.Way, error) {
		turn := to.begin()
		up, err := conn.Again(ctx, c, client)
		if conn.Alone() && errors.Is(err, verbs.ErrStays) { // a guest has no keys: it makes another
			c.Abort()
			return nil, err
		}
		return to.upgraded(turn, c, up, err)
	}
	return resume.Lifted{Way: conn, Again: again}, nil
}

// Why a host agrees on no RDMA: it is not to have any; or not yet, as the session has just come.
const (
	noRDMA  = "this host has RDMA off"
	noneYet = "the session has come to another host, which tries it beside"
)

// elsewhere is for a session that has come here from another host: what it goes over is agreed on
// by the adapters of this one. Where there are any it does not wait for that.
func (s *starter) elsewhere(to *telling) resume.Lifted {
	var first *verbs.Conn // which others are by the port of; one connection is agreed on at a time
	why := cmp.Or(s.rdma.why, noRDMA)
	l := resume.Lifted{Again: func(ctx context.Context, c *frame.Secure) (resume.Way, error) {
		turn := to.begin()
		var up net.Conn
		var err error
		if first != nil {
			up, err = first.Again(ctx, c, true)
		} else {
			up, err = verbs.Rejoin(ctx, c, s.rdma.adapters, why, s.cfg.Pairs)
		}
		way, err := to.upgraded(turn, c, up, err)
		if conn, ok := way.(*verbs.Conn); ok && first == nil {
			first = conn
		}
		return way, err
	}}
	if len(s.rdma.adapters) > 0 {
		l.Stays = func(ctx context.Context, c *frame.Secure) (resume.Way, error) {
			turn := to.begin()
			up, err := verbs.Stay(ctx, c, noneYet)
			return to.upgraded(turn, c, up, err)
		}
	}
	return l
}

// telling is what the parent is told of a stream's ways: at once, or, where the session may never
// go over it, when it does. Each agreement has its turn from when it begins, as one beside a
// connection may end before the one that the connection began with: what the parent was told of a
// later turn stays.
type telling struct {
	s *starter

	mu          sync.Mutex
	later       bool
	last        func(o *carriedOver)
	began, told uint64 // turns
}

func (t *telling) begin() (turn uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.began++
	return t.began
}

func (t *telling) tell(turn uint64, change func(o *carriedOver)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn < t.told {
		return nil
	}
	t.told = turn
	if t.later {
		t.last = change
		return nil
	}
	return t.s.tell(change)
}

// now has the parent told, from here on.
func (t *telling) now() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.later = false; t.last == nil {
		return nil
	}
	return t.s.tell(t.last)
}

// upgraded tells what both ends have agreed on: the way that the stream goes, which may be the
// connection.
func (t *telling) upgraded(turn uint64, c *frame.Secure, up net.Conn, err error) (resume.Way, error) {
	s := t.s
	switch {
	case errors.Is(err, verbs.ErrStays):
		s.log.Info("frames stay on TCP", "why", err)
		return c, t.carried(turn, c, onTCP+": "+err.Error())
	case err != nil:
		return nil, err
	}
	s.log.Info("frames go by RDMA", "over", fmt.Sprint(up))
	way := up.(*verbs.Conn)
	way.Watch(func(about string) { s.railLost(way, about) })
	err = t.tell(turn, func(o *carriedOver) { o.by, o.frame = way, way.String() })
	if err != nil {
		c.Abort()
		way.Abort()
		return nil, err
	}
	return way, nil
}

// carried tells the parent. If that fails nothing is left of the connection.
func (t *telling) carried(turn uint64, c *frame.Secure, what string) error {
	err := t.tell(turn, func(o *carriedOver) { o.by, o.frame = nil, what })
	if err != nil {
		c.Abort()
	}
	return err
}

// railLost tells of a queue pair for copies that is lost, unless frames go another way by now.
func (s *starter) railLost(way *verbs.Conn, about string) {
	s.log.Warn("a queue pair for copies is lost; the others go on", "over", about)
	s.way.mu.Lock()
	defer s.way.mu.Unlock()
	if s.way.by != way {
		return
	}
	s.way.frame = way.String()
	if err := s.sendWayLocked(); err != nil {
		s.log.Warn("the parent is not told what copies go by", "error", err)
	}
}

// another has a session go on over another connection, if it is one that does.
func (s *starter) another(r link.Received[link.ToWorker], m link.Reconnected) error {
	switch {
	case s.cfg.TLS == nil: // a session of no lease has one connection
		return r.Refuse()
	case s.lasting == nil:
		// The session has not begun: who says its name ahead of TLS has proved nothing, and changes
		// nothing.
		r.Discard()
		return nil
	}
	return s.reconnected(m)
}
