package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"causeway/remote"
)

/*
Where the way between a client that is another process and the server is lost, the session is not.
Either is seen first here, or by the client: its queue pair has failed, or the connection to the
server has ended with nobody having said that this was all, as it does when the server's queue pair
has failed. From then on, in this order: the client is told (lostMagic), if it did not say so first;
it has given its queue pair up when it says how far it is (lostMagic); another connection is made,
on which the server gives up its own and says how far that is; the client hears of it (foundMagic),
and both agree as they did on the first. If they cannot, the client says how far it is again. All of
it has a limit, behind which the client's channel is closed. What was not received is sent again by
the two ends, each of which keeps it: nothing of it comes this way.
*/

var (
	errQueueLost = errors.New("the guest's own RDMA connection is lost")
	errNoOther   = errors.New("the guest's own RDMA connection is lost, and there was no other")
)

// lostText is said in the place of a server's offer or reason that does not come.
const lostText = "the connection to the GPU server is lost"

// words passes words on until one side is gone. lost: the session goes on, of whose stream the
// client has got so many bytes.
func (p *pass) words() (got uint64, lost bool, err error) {
	server := p.toConn()
	heard := make(chan error, 1)
	go func() { heard <- p.fromServer(server) }()
	got, lost, err = p.fromClient(server)
	if lost {
		abort(p.conn()) // fromServer comes to its end
	} else {
		_ = p.conn().Close()
	}
	err = errors.Join(err, <-heard)
	return got, lost && !p.ended.Load() && err == nil, err
}

// fromClient passes the client's words on. The server is told of its end, unless the client has
// said that this was all.
func (p *pass) fromClient(server io.Writer) (got uint64, lost bool, err error) {
	var b [endSize]byte
	for said := false; ; {
		if _, err := io.ReadFull(p.client, b[:]); err != nil {
			if !said {
				copy(b[:], cutMagic)
				_, _ = server.Write(b[:]) // who is gone as well need not hear it
			}
			return 0, false, nil
		}
		switch magic := string(b[:8]); {
		case magic == endMagic:
			said = true
			p.ended.Store(true)
		case magic == ackMagic:
		case magic == lostMagic && p.another != nil:
			return binary.LittleEndian.Uint64(b[8:]), true, nil
		default:
			return 0, false, remote.Violation("%x comes out of band of RDMA", b)
		}
		if _, err := server.Write(b[:]); err != nil {
			abort(p.conn()) // which fromServer finds
		}
	}
}

// fromServer passes the server's words on. When they end without one that this was all, the client
// is asked how far it is.
func (p *pass) fromServer(server io.Reader) error {
	var b [endSize]byte
	for {
		if _, err := io.ReadFull(server, b[:]); err != nil {
			if p.ended.Load() || p.another == nil {
				p.closeClient()
				return nil
			}
			p.tell(lostMagic, 0)
			return nil
		}
		switch string(b[:8]) {
		case endMagic:
			p.ended.Store(true)
		case ackMagic:
		default:
			p.closeClient()
			return remote.Violation("%x comes out of band of RDMA", b)
		}
		if _, err := p.client.Write(b[:]); err != nil {
			p.closeClient()
			return nil
		}
	}
}

// tell says a word to the client. One that is gone has its end found by who reads it.
func (p *pass) tell(magic string, n uint64) {
	if _, err := p.client.Write(word(magic, n)); err != nil {
		p.closeClient()
	}
}

// again has both ends agree inside another connection, and returns what on.
func (p *pass) again(ctx context.Context, got uint64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	stop := context.AfterFunc(ctx, p.end)
	defer stop()
	for why := errQueueLost; ; {
		if err := p.find(ctx, why, got); err != nil {
			return "", err
		}
		about, err := p.agreeAgain()
		if err == nil && !stop() {
			err = context.DeadlineExceeded
		}
		if !errors.Is(err, ErrStays) {
			return about, err
		}
		abort(p.conn())
		var b [endSize]byte
		if _, e := io.ReadFull(p.client, b[:]); e != nil {
			if ctx.Err() != nil { // which has closed the channel
				e = ctx.Err()
			}
			return "", fmt.Errorf("%w: %w", err, e)
		}
		if string(b[:8]) != lostMagic {
			return "", remote.Violation("%x comes out of band of RDMA, behind a reason", b)
		}
		why, got = err, binary.LittleEndian.Uint64(b[8:])
	}
}

// noOther is why a session ends that had begun, and has no way any more: nil if its client has gone
// first. The last attempt may have come to an ErrStays, which the session is no more.
func (p *pass) noOther(err error) error {
	switch {
	case errors.Is(err, remote.ErrProtocol):
		return err
	case p.gone.Load():
		return nil
	case errors.Is(err, ErrStays):
		return fmt.Errorf("%w: %s", errNoOther, err)
	default:
		return fmt.Errorf("%w: %w", errNoOther, err)
	}
}

// find makes another connection, unless the client goes meanwhile, which says nothing until it is
// told of it.
func (p *pass) find(ctx context.Context, why error, got uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan error, 1)
	go func() {
		_, err := p.client.Peek(1)
		if err != nil {
			cancel()
		}
		seen <- err
	}()
	server, received, err := p.another(ctx, why, got)
	if err != nil {
		p.closeClient()
		<-seen // that it is closed
		return err
	}
	p.goOver(server)
	p.tell(foundMagic, received)
	return <-seen
}

// agreeAgain is agree where a server that is lost meanwhile is nobody's end: the client hears a
// reason, as of any other that has come to nothing.
func (p *pass) agreeAgain() (string, error) {
	server := p.toConn()
	near, err := ReadOffer(p.client)
	if err != nil {
		return "", err
	}
	near.offer.Alone, near.offer.Rails = true, 0
	far := Peer{Offer{Declined: lostText}}
	if _, err := server.Write(near.offer.Append(nil)); err == nil {
		if peer, err := ReadOffer(server); err == nil {
			far = peer
			far.offer.Rails = 0
		}
	}
	if _, err := p.client.Write(far.offer.Append(nil)); err != nil {
		return "", err
	}
	if err := declined(near.offer, far.offer); err != nil {
		return "", err
	}
	for range 2 {
		said, err := readReason(p.client)
		if err != nil {
			return "", err
		}
		text := lostText
		if writeReason(server, said) == nil {
			if t, err := readReason(server); err == nil {
				text = t
			}
		}
		if err := writeReason(p.client, text); err != nil {
			return "", err
		}
		if err := declined(Offer{Declined: said}, Offer{Declined: text}); err != nil {
			return "", err
		}
	}
	return agreed(near.offer, far.offer), nil
}
