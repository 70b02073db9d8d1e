package verbstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"causeway/remote/verbs"
)

// Peer is one end of a connection that a test plays: what it does by RDMA, it does by hand.
type Peer struct {
	Queue verbs.Queue
	Offer verbs.Offer // the other end's
	mem   verbs.Memory
	own   []byte // registered as mem
	last  uint64
}

// source is where in its own window a Peer's writes begin: far behind what is written to that.
const source = verbs.MostWindow / 2

// probe is what each end sends ahead of all else.
const probe = "CWVBYE\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"

// Against upgrades a connection, whose end near is the test's, between two ports of which near's
// has an address. It returns the other end, too.
func Against(near, far net.Conn, nearPort, farPort verbs.Adapter, addr netip.Addr) (*Peer, net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	upgraded := make(chan result, 1)
	go func() {
		c, err := verbs.Upgrade(context.Background(), far, []verbs.Adapter{farPort}, "", false)
		upgraded <- result{c, err}
	}()
	p := &Peer{}
	if err := p.begin(near, nearPort, addr); err != nil {
		return nil, nil, errors.Join(err, near.Close(), (<-upgraded).err)
	}
	r := <-upgraded
	return p, r.c, r.err
}

func (p *Peer) begin(base net.Conn, a verbs.Adapter, addr netip.Addr) error {
	port, gid, err := verbs.Choose([]verbs.Adapter{a}, addr)
	if err != nil {
		return err
	}
	mem := make([]byte, verbs.MostWindow)
	copy(mem[source:], probe)
	p.own = mem
	if p.mem, err = a.Register(mem, verbs.RemoteWrite); err != nil {
		return err
	}
	if p.Queue, err = a.NewQueue(verbs.QueueSize{Send: 1000, Receive: 1000}); err != nil {
		return err
	}
	own := verbs.Offer{Link: port.Port().Link, MTU: port.Port().MTU, Queue: p.Queue.Number(), GID: gid.Addr,
		Window: verbs.Window{Address: p.mem.Address(), Key: p.mem.RemoteKey(), Size: verbs.MostWindow}}
	if _, err := base.Write(own.Append(nil)); err != nil {
		return err
	}
	other, err := verbs.ReadOffer(base)
	if err != nil {
		return err
	}
	p.Offer = other.Offer()
	if err := p.Queue.Connect(verbs.Path{GIDIndex: gid.Index, MTU: min(own.MTU, p.Offer.MTU), Peer: other}); err != nil {
		return err
	}
	if err := errors.Join(p.Queue.PostReceive(900), agree(base)); err != nil {
		return err
	}
	return errors.Join(p.Write(len(probe), p.Offer.Window.Key, uint32(len(probe))), agree(base))
}

// agree says that all is well, and hears whether it is.
func agree(base net.Conn) error {
	if _, err := base.Write([]byte{0, 0}); err != nil {
		return err
	}
	var n [2]byte
	if _, err := io.ReadFull(base, n[:]); err != nil {
		return err
	}
	if n != [2]byte{} {
		why, _ := io.ReadAll(io.LimitReader(base, int64(binary.LittleEndian.Uint16(n[:]))))
		return fmt.Errorf("the other end: %s", why)
	}
	return nil
}

// Write writes n bytes to where the other end's window begins, by a key, with an immediate.
func (p *Peer) Write(n int, key, immediate uint32) error {
	p.last++
	return p.Queue.Post([]verbs.Work{{
		ID: p.last, Op: verbs.WriteImmediate, Local: p.mem.Address() + source, LocalKey: p.mem.LocalKey(), Length: uint32(n),
		Remote: p.Offer.Window.Address, RemoteKey: key, Immediate: immediate, Signaled: true,
	}})
}

// Failed polls until a work request has failed, and says how.
func (p *Peer) Failed() (verbs.Status, error) {
	cs := make([]verbs.Completion, 64)
	for {
		n, err := p.Queue.Poll(cs)
		if err != nil {
			return 0, err
		}
		for _, c := range cs[:n] {
			if c.Status != verbs.Success {
				return c.Status, nil
			}
		}
	}
}

// Credited polls, at least once, until the other end has said that so many more messages are free
// again.
func (p *Peer) Credited(messages int) error {
	cs := make([]verbs.Completion, 64)
	for {
		n, err := p.Queue.Poll(cs)
		if err != nil {
			return err
		}
		for _, c := range cs[:n] {
			switch {
			case c.Status != verbs.Success:
				return c.Status
			case c.Received && c.Immediate>>31 == 1:
				messages -= int(c.Immediate >> 21 & 1023)
			}
		}
		if messages <= 0 {
			return nil
		}
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// Close lets go of what the peer has of its port.
func (p *Peer) Close() error { return errors.Join(p.Queue.Close(), p.mem.Close()) }
