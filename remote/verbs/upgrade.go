package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"causeway/remote/frame"
)

// Limits of Upgrade: of all of it, and of the bytes that show whether packets arrive.
const (
	upgradeLimit = 30 * time.Second
	probeLimit   = 10 * time.Second
	probeAgain   = 2 * time.Second
)

// ErrStays: a session's bytes stay on the TLS connection. The error says why.
var ErrStays = errors.New("no RDMA")

// Upgrade agrees with the other end of a TLS connection to go on over RDMA. Both ends call it, one
// of them as the client, before they send anything else. why says why there are no adapters, if
// there are none. It takes the connection over, and returns what the session goes on with: a *Conn,
// or base itself and an ErrStays. Another error is base's, or the other end broke a rule; nothing
// is left then, and base is closed.
func Upgrade(ctx context.Context, base net.Conn, adapters []Adapter, why string, client bool) (net.Conn, error) {
	return UpgradeWide(ctx, base, adapters, why, client, 1)
}

// UpgradeWide is Upgrade of an end whose copies may go by so many queue pairs, that of the frames
// included, over the ports of all adapters; 0: by one for each port. It is the fewer that either
// end says.
func UpgradeWide(ctx context.Context, base net.Conn, adapters []Adapter, why string, client bool, pairs int) (net.Conn, error) {
	u := &upgrade{base: base, client: client, patience: probeLimit, adapters: adapters, pairs: pairs}
	return u.upgrade(ctx, adapters, why)
}

// UpgradeAgain is Upgrade for a session that has gone over a port before, and waits.
func UpgradeAgain(ctx context.Context, base net.Conn, a Adapter, client bool) (net.Conn, error) {
	u := &upgrade{base: base, client: client, patience: probeAgain, pairs: 1}
	return u.upgrade(ctx, []Adapter{a}, "")
}

// Again is UpgradeAgain for a session that went over c first: by that one's port, and with what
// copies went by.
func (c *Conn) Again(ctx context.Context, base net.Conn, client bool) (net.Conn, error) {
	u := &upgrade{base: base, client: client, patience: probeAgain, adapters: c.adapters, pairs: c.pairs, granters: slices.Clone(c.reach.granters), again: true}
	return u.upgrade(ctx, []Adapter{c.adapter}, "")
}

// Rejoin is the client's part where the server's is Again, and the client's end has come to another
// process, on another host perhaps: with what UpgradeWide would have there.
func Rejoin(ctx context.Context, base net.Conn, adapters []Adapter, why string, pairs int) (net.Conn, error) {
	u := &upgrade{base: base, client: true, patience: probeAgain, adapters: adapters, pairs: pairs}
	return u.upgrade(ctx, adapters, why)
}

// Stay is Rejoin of an end that tells the other one why this connection is to stay as it is: it
// waits for no adapter. The error is an ErrStays.
func Stay(ctx context.Context, base net.Conn, why string) (net.Conn, error) {
	return Rejoin(ctx, base, nil, why, 1)
}

func (u *upgrade) upgrade(ctx context.Context, adapters []Adapter, why string) (net.Conn, error) {
	base := u.base
	_ = base.SetDeadline(time.Now().Add(upgradeLimit))
	stop := context.AfterFunc(ctx, func() { _ = base.SetDeadline(time.Now()) })
	defer stop()
	c, err := u.run(ctx, adapters, why)
	if err != nil {
		err = errors.Join(err, u.release())
	}
	if err != nil && !errors.Is(err, ErrStays) {
		_ = base.Close()
		return nil, err
	}
	stop()
	if e := base.SetDeadline(time.Time{}); e != nil {
		if err == nil { // else that was done
			e = errors.Join(e, u.release())
		}
		return nil, errors.Join(e, base.Close())
	}
	if err != nil {
		return base, err
	}
	c.wg.Go(c.routineLifeline)
	return c, nil
}

// upgrade is one that is under way, with what is to be released if it fails.
type upgrade struct {
	base     net.Conn
	client   bool
	patience time.Duration // for the bytes that show whether packets arrive

	port        Port
	gid         GID
	queue       Queue
	window, out *buffer
	land        *buffer // the server's, through which it reaches memory; nil: it does not
	unreached   error   // why

	pairs    int       // that copies may go by
	adapters []Adapter // by which they may
	places   []place   // the ports of those, the frames' first
	granters []Adapter // the client's, by their numbers
	again    bool      // these are as they were
	rails    []*rail
}

func (u *upgrade) release() error {
	err := errors.Join(closeRails(&sync.Mutex{}, u.rails), u.window.close(), u.out.close(), u.land.close())
	if u.queue != nil {
		err = errors.Join(u.queue.Close(), err)
	}
	return err
}

func (u *upgrade) run(ctx context.Context, adapters []Adapter, why string) (*Conn, error) {
	adapter, own, err := u.prepare(adapters, why)
	if err != nil {
		own = Offer{Declined: trouble(err)}
	}
	peer, perr := u.exchange(own)
	switch {
	case perr != nil:
		return nil, perr
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrStays, err)
	case peer.offer.Declined != "":
		return nil, fmt.Errorf("%w: the other end: %s", ErrStays, peer.offer.Declined)
	}
	if err := u.agree(u.connect(own, peer)); err != nil {
		return nil, err
	}
	c := newConn(u.base, u.about(peer), u.queue, u.window, u.out, peer)
	c.adapter, c.adapters, c.pairs = adapter, u.adapters, u.pairs
	if err := u.agree(u.probe(ctx, c)); err != nil {
		return nil, err
	}
	if err := u.agreeRails(own, peer); err != nil {
		return nil, err
	}
	if !u.client || !peer.offer.Reach {
		u.granters = nil
	}
	c.reach.begin(u.land, u.granters, u.rails)
	if !u.client && peer.offer.Alone {
		if err := patient(u.base); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// patient has a connection outlast a loss of its link as long as the one between the adapters does.
func patient(base net.Conn) error {
	if t, ok := base.(interface {
		Tune(limit time.Duration) error
	}); ok {
		return t.Tune(frame.Lost)
	}
	return nil
}

// prepare makes what the other end is told of.
func (u *upgrade) prepare(adapters []Adapter, why string) (Adapter, Offer, error) {
	if len(adapters) == 0 {
		return nil, Offer{}, errors.New(why)
	}
	a, gid, err := Choose(adapters, address(u.base.LocalAddr()))
	if err != nil {
		return nil, Offer{}, err
	}
	u.port, u.gid = a.Port(), gid
	u.places = places(place{a, gid}, u.adapters, address(u.base.LocalAddr()))
	if !u.again {
		u.granters = []Adapter{a}
	}
	if u.window, err = newBuffer(a, windowSize, RemoteWrite); err != nil {
		return nil, Offer{}, err
	}
	if u.queue, err = a.NewQueue(QueueSize{Send: sends, Receive: receives, Inline: inline}); err != nil {
		return nil, Offer{}, err
	}
	if u.out, err = newBuffer(a, MostWindow, 0); err != nil { // ahead of what can be done without
		return nil, Offer{}, err
	}
	if !u.client {
		u.land, u.unreached = newBuffer(a, pieces*pieceSize, 0)
	}
	return a, Offer{
		Link: u.port.Link, MTU: u.port.MTU, LID: u.port.LID, GID: gid.Addr, Queue: u.queue.Number(), PSN: newPSN(),
		Window: Window{Address: u.window.reg.Address(), Key: u.window.reg.RemoteKey(), Size: windowSize},
		Reach:  u.land != nil,
		Rails:  wanted(u.pairs, len(u.places)),
	}, nil
}

func address(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr()
	}
	return netip.Addr{}
}

// exchange tells the other end of this one. The client speaks first.
func (u *upgrade) exchange(own Offer) (Peer, error) {
	send := func() error {
		_, err := u.base.Write(own.Append(nil))
		return err
	}
	if u.client {
		if err := send(); err != nil {
			return Peer{}, err
		}
	}
	peer, err := ReadOffer(u.base)
	if err == nil && !u.client {
		err = send()
	}
	return peer, err
}

// connect readies the queue pair for what the other end may write.
func (u *upgrade) connect(own Offer, peer Peer) error {
	if own.Link != peer.offer.Link {
		return fmt.Errorf("this end has %v, the other %v", own.Link, peer.offer.Link)
	}
	u.out.mem = u.out.all[:peer.offer.Window.Size]
	if err := u.queue.Connect(Path{GIDIndex: u.gid.Index, MTU: min(own.MTU, peer.offer.MTU), OwnPSN: own.PSN, Peer: peer}); err != nil {
		return err
	}
	return u.queue.PostReceive(receives)
}

// probe has some bytes go each way.
func (u *upgrade) probe(ctx context.Context, c *Conn) error {
	if err := c.SetDeadline(time.Now().Add(u.patience)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	var b [endSize]byte
	_, err := c.Write(word(endMagic, 0))
	if err == nil {
		_, err = io.ReadFull(c, b[:])
	}
	if err == nil && [endSize]byte(word(endMagic, 0)) != b {
		err = fmt.Errorf("other bytes came than were sent: %x", b)
	}
	if errors.Is(err, errDeadline) {
		err = fmt.Errorf("nothing comes through within %v (%v)", u.patience, u.port)
	}
	return errors.Join(err, c.SetDeadline(time.Time{}))
}

// agree tells the other end how this one fared, and hears how that did: both go on, or neither.
func (u *upgrade) agree(own error) error {
	text := ""
	if own != nil {
		text = trouble(own)
	}
	if u.client {
		if err := writeReason(u.base, text); err != nil {
			return err
		}
	}
	other, err := readReason(u.base)
	if err == nil && !u.client {
		err = writeReason(u.base, text)
	}
	switch {
	case err != nil:
		return err
	case own != nil:
		return fmt.Errorf("%w: %w", ErrStays, own)
	case other != "":
		return fmt.Errorf("%w: the other end: %s", ErrStays, other)
	}
	return nil
}

func (u *upgrade) about(p Peer) string {
	how := "copies in frames"
	switch {
	case u.land != nil || u.client && p.offer.Reach:
		how = "copies one-sided"
	case u.unreached != nil:
		how += ": " + u.unreached.Error()
	}
	return fmt.Sprintf("%v by %s port %d, MTU %d, %s", u.port.Link, u.port.Device, u.port.Number, min(u.port.MTU, p.offer.MTU).Bytes(), how)
}

// trouble is an error as the other end is told.
func trouble(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	return text[:min(len(text), maxReason)]
}
