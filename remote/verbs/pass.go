package verbs

import (
	"bufio"
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

// Words beside a stream that are only those of who passes on. cutMagic tells the server, in the
// place of the end's word, that the client is gone, and nothing more comes. lostMagic says that the
// way is lost: to the client, which answers with it, and how many bytes of the stream it has
// received. foundMagic has the client go on over another queue pair, and says how many of its bytes
// the server has.
const (
	cutMagic   = "CWVCUT\x00\x01"
	lostMagic  = "CWVLST\x00\x01"
	foundMagic = "CWVGOT\x00\x01"
)

// leaveLimit bounds what a server is told when the end comes from here.
const leaveLimit = time.Second

// Passed counts the bytes that Pass has passed on.
type Passed struct{ ToServer, ToClient uint64 }

// Total is how many there were in both directions.
func (p Passed) Total() uint64 { return p.ToServer + p.ToClient }

// Another makes another connection to the server, in place of one that is lost for a reason. The
// client has received so many bytes of the stream; it returns how many of the client's the server
// has. It tries until ctx ends.
type Another func(ctx context.Context, why error, got uint64) (server net.Conn, received uint64, err error)

// Pass has another process, at c, be the client's end of an Upgrade that server, a TLS connection
// of this one's, begins: it passes on what the two ends say beside the fabric, and nothing else,
// since what it takes from the client is read as an offer, as a reason, or as a word, and said
// again as that. The keys of the TLS connection stay here; what goes by RDMA does not come this
// way. began hears of each connection that the two have agreed on. Where the way between them is
// lost, another makes a connection inside which they agree again, if it is not nil, within limit
// (passagain.go). Pass takes c, the client's channel, and server over, and returns when the client
// is gone, or the server and nothing brings it back, or ctx ends: nil, if they had agreed, and
// neither broke a rule, nor was lost for good before the client went; ErrStays if they could not
// agree at first.
func Pass(ctx context.Context, c io.ReadWriteCloser, server net.Conn, began func(about string) error, another Another, limit time.Duration) (Passed, error) {
	p := &pass{another: another, limit: limit}
	p.closeClient = sync.OnceFunc(func() {
		p.shut.Store(true)
		_ = c.Close()
	})
	mark := channel{c, p}
	p.client = peeked{bufio.NewReaderSize(mark, endSize), counted{mark, &p.toClient}}
	p.goOver(server)
	defer p.end()
	defer context.AfterFunc(ctx, func() { // the server hears of it first
		_ = p.conn().SetDeadline(time.Now().Add(leaveLimit))
		p.closeClient()
	})()
	first := time.AfterFunc(upgradeLimit, p.end)
	about, err := p.agree()
	if !first.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	for err == nil {
		var got uint64
		var lost bool
		if err = errors.Join(patient(p.conn()), began(about)); err != nil {
			break
		}
		if got, lost, err = p.words(); !lost || err != nil {
			break
		}
		if about, err = p.again(ctx, got); err != nil {
			err = p.noOther(err)
			break
		}
	}
	return p.passed(), err
}

// pass is one that is under way.
type pass struct {
	client      peeked
	closeClient func()
	shut, gone  atomic.Bool // it was called; the client's channel has ended before
	another     Another
	limit       time.Duration // of looking for another
	ended       atomic.Bool   // an end has said that this was all

	toServer, toClient atomic.Uint64

	mu     sync.Mutex
	server net.Conn
	over   bool
}

// channel is the client's, and notes that it has ended, unless that came from here.
type channel struct {
	c io.ReadWriter
	p *pass
}

func (x channel) ended(err error) error {
	if err != nil && !x.p.shut.Load() {
		x.p.gone.Store(true)
	}
	return err
}

// Read implements io.Reader.
func (x channel) Read(b []byte) (int, error) {
	n, err := x.c.Read(b)
	return n, x.ended(err)
}

// Write implements io.Writer.
func (x channel) Write(b []byte) (int, error) {
	n, err := x.c.Write(b)
	return n, x.ended(err)
}

// peeked is the client's channel, of which a byte can be seen before it is read.
type peeked struct {
	*bufio.Reader
	io.Writer
}

func (p *pass) passed() Passed { return Passed{p.toServer.Load(), p.toClient.Load()} }

// goOver has the server be at a connection.
func (p *pass) goOver(server net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server = server; p.over {
		_ = server.Close()
	}
}

// conn is the connection to the server.
func (p *pass) conn() net.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server
}

func (p *pass) end() {
	p.mu.Lock()
	p.over = true
	_ = p.server.Close() // which may be gone
	p.mu.Unlock()
	p.closeClient()
}

// toConn is the server's end, whose bytes are counted.
func (p *pass) toConn() io.ReadWriter {
	c := p.conn()
	return struct {
		io.Reader
		io.Writer
	}{c, counted{c, &p.toServer}}
}

// counted counts what is written.
type counted struct {
	io.Writer
	n *atomic.Uint64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(uint64(n))
	return n, err
}

// agree passes on what Upgrade says, and returns what the ends have agreed on.
func (p *pass) agree() (string, error) {
	server := p.toConn()
	near, err := passOffer(p.client, server, true)
	if err != nil {
		return "", err
	}
	far, err := passOffer(server, p.client, false)
	if err != nil {
		return "", err
	}
	if err := declined(near, far); err != nil {
		return "", err
	}
	for range 2 { // how connecting went, and whether bytes come through
		if err := errors.Join(passReason(p.client, server, "the guest"), passReason(server, p.client, "the GPU server")); err != nil {
			return "", err
		}
	}
	return agreed(near, far), nil
}

// declined is why there is no offer of an end's.
func declined(near, far Offer) error {
	for _, o := range []struct{ whose, why string }{{"the guest", near.Declined}, {"the GPU server", far.Declined}} {
		if o.why != "" {
			return fmt.Errorf("%w: %s: %s", ErrStays, o.whose, o.why)
		}
	}
	return nil
}

func agreed(near, far Offer) string {
	how := "copies in frames"
	if far.Reach {
		how = "copies one-sided"
	}
	return fmt.Sprintf("%v by the guest's own adapter (%v), MTU %d, %s", near.Link, netip.AddrFrom16(near.GID).Unmap(), min(near.MTU, far.MTU).Bytes(), how)
}

func passOffer(from io.Reader, to io.Writer, alone bool) (Offer, error) {
	peer, err := ReadOffer(from)
	// Whatever the end says itself: what is agreed on about rails is not passed on.
	peer.offer.Alone, peer.offer.Rails = alone, 0
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
