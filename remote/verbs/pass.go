package verbs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"causeway/remote"
)

// cutMagic is a word beside a stream, in the place of the end's: who passes words on for an end has seen that it is gone, and nothing more comes.
const cutMagic = "CWVCUT\x00\x01"

// leaveLimit bounds what a server is told when the end comes from here.
const leaveLimit = time.Second

// Passed counts the bytes that Pass has passed on.
type Passed struct{ ToServer, ToClient uint64 }

// Total is how many there were in both directions.
func (p Passed) Total() uint64 { return p.ToServer + p.ToClient }

// Pass has another process be the client's end of an Upgrade that server, a TLS connection of this one's, begins: it passes on what the two ends say beside the fabric, and nothing else, since what it takes from
// the client is read as an offer, as a reason, or as a word, and said again as that. The keys of the TLS connection stay here; what goes by RDMA does not come this way. began hears of the connection
// that the two have agreed on. Pass takes both over, and returns when one of them is gone or ctx ends: nil, if they had agreed, and neither broke a rule; ErrStays if they could not.
func Pass(ctx context.Context, client io.ReadWriteCloser, server net.Conn, began func(about string) error) (Passed, error) {
	p := &pass{}
	var over sync.Once
	end := func() {
		over.Do(func() {
			_ = client.Close()
			_ = server.Close()
		})
	}
	defer end()
	defer context.AfterFunc(ctx, func() { // the server hears of it first
		_ = server.SetDeadline(time.Now().Add(leaveLimit))
		_ = client.Close()
	})()
	limit := time.AfterFunc(upgradeLimit, end)
	p.client, p.server = counted{client, &p.toClient}, counted{server, &p.toServer}
	about, err := p.agree()
	if !limit.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err == nil {
		err = patient(server)
	}
	if err == nil {
		err = began(about)
	}
	if err != nil {
		return p.passed(), err
	}
	both := make(chan error, 2)
	go func() { both <- p.words(p.client, p.server, true) }()
	go func() { both <- p.words(p.server, p.client, false) }()
	err = <-both
	end()
	return p.passed(), errors.Join(err, <-both)
}

// pass is one that is under way.
type pass struct {
	client, server     io.ReadWriter
	toServer, toClient atomic.Uint64
}

func (p *pass) passed() Passed { return Passed{p.toServer.Load(), p.toClient.Load()} }

// counted counts what is written.
type counted struct {
	io.ReadWriter
	n *atomic.Uint64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.ReadWriter.Write(b)
	c.n.Add(uint64(n))
	return n, err
}

// agree passes on what Upgrade says, and returns what the ends have agreed on.
func (p *pass) agree() (string, error) {
	near, err := passOffer(p.client, p.server, true)
	if err != nil {
		return "", err
	}
	far, err := passOffer(p.server, p.client, false)
	if err != nil {
		return "", err
	}
	for _, o := range []struct{ whose, why string }{{"the guest", near.Declined}, {"the GPU server", far.Declined}} {
		if o.why != "" {
			return "", fmt.Errorf("%w: %s: %s", ErrStays, o.whose, o.why)
		}
	}
	for range 2 { // how connecting went, and whether bytes come through
		if err := errors.Join(passReason(p.client, p.server, "the guest"), passReason(p.server, p.client, "the GPU server")); err != nil {
			return "", err
		}
	}
	how := "copies in frames"
	if far.Reach {
		how = "copies one-sided"
	}
	return fmt.Sprintf("%v by the guest's own adapter (%v), MTU %d, %s", near.Link, netip.AddrFrom16(near.GID).Unmap(), min(near.MTU, far.MTU).Bytes(), how), nil
}

func passOffer(from io.Reader, to io.Writer, alone bool) (Offer, error) {
	peer, err := ReadOffer(from)
	peer.offer.Alone = alone // whatever the end says itself
	if err == nil {
		_, err = to.Write(peer.offer.Append(nil))
	}
	return peer.offer, err
}

// passReason passes on how an end fared. A reason is an ErrStays.
func passReason(from io.Reader, to io.Writer, whose string) error {
	text, err := readReason(from)
	if err == nil {
		err = writeReason(to, text)
	}
	if err == nil && text != "" {
		err = fmt.Errorf("%w: %s: %s", ErrStays, whose, text)
	}
	return err
}

// words passes words on until their end, which is no error. cut: the other end is told of that.
func (p *pass) words(from io.Reader, to io.Writer, cut bool) error {
	var b [endSize]byte
	for ended := false; ; {
		if _, err := io.ReadFull(from, b[:]); err != nil {
			if cut && !ended {
				copy(b[:], cutMagic)
				_, _ = to.Write(b[:]) // who is gone as well need not hear it
			}
			return nil
		}
		switch string(b[:8]) {
		case endMagic:
			ended = true
		case ackMagic:
		default:
			return remote.Violation("%x comes out of band of RDMA", b)
		}
		if _, err := to.Write(b[:]); err != nil {
			return nil
		}
	}
}

// writeReason and readReason pass a text, empty if all is well, behind its length.
func writeReason(w io.Writer, text string) error {
	_, err := w.Write(append(binary.LittleEndian.AppendUint16(nil, uint16(len(text))), text...))
	return err
}

func readReason(r io.Reader) (string, error) {
	var b [2 + maxReason]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return "", err
	}
	n := int(binary.LittleEndian.Uint16(b[:]))
	if n > maxReason {
		return "", remote.Violation("a reason of %d bytes", n)
	}
	_, err := io.ReadFull(r, b[2:][:n])
	text := strings.ToValidUTF8(string(b[2:][:n]), "?")
	return text[:min(len(text), maxReason)], err
}
