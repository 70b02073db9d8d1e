package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"causeway/remote/mtls"
	"causeway/remote/sys"
)

// A connection becomes a stream by HTTP's Upgrade, to what device processes speak with each other:
// memory that goes ahead of sessions.

// StreamProtocol is what such a connection is upgraded to, and HostProtocol what hosts speak with
// each other over TLS (ALPN; net/http serves no name that it does not know).
const (
	StreamProtocol = "causeway-precopy"
	HostProtocol   = "http/1.1"
)

// HostPort is where a causewayd listens for others, unless its configuration says otherwise.
const HostPort = "7744"

// Switch answers a request by making its connection a stream, which the caller closes. Nothing of
// the request may be left to read.
func Switch(w http.ResponseWriter, r *http.Request) (net.Conn, error) {
	if r.Header.Get("Upgrade") != StreamProtocol {
		return nil, &Error{Status: http.StatusUpgradeRequired, Text: "this needs Upgrade: " + StreamProtocol}
	}
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{}) // the request's
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", StreamProtocol); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &stream{conn, buf.Reader}, nil
}

// stream is a connection of which something may have been read already.
type stream struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (s *stream) Read(b []byte) (int, error) { return s.r.Read(b) }

// Stream sends in as JSON and makes the connection a stream, which the caller closes. It ends with
// ctx.
func (c *Client) Stream(ctx context.Context, path string, in any) (io.ReadWriteCloser, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	ctx, over := c.begin(ctx)
	resp, err := c.ask(ctx, http.MethodPost, path, bytes.NewReader(b), "Connection", "Upgrade", "Upgrade", StreamProtocol)
	if err != nil {
		over()
		return nil, err
	}
	if s, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		return &answerStream{s, over}, nil
	}
	defer over()
	defer resp.Body.Close()
	if resp.StatusCode < 300 {
		return nil, fmt.Errorf("POST %s: answered by %s, not by a stream", path, resp.Status)
	}
	return nil, c.refusal(resp, http.MethodPost, path)
}

// Relay copies both ways between two connections, which it closes when either ends. The error says
// why, io.EOF that one was closed.
func Relay(a, b io.ReadWriteCloser) error {
	done := make(chan error, 2)
	one := func(to, from io.ReadWriteCloser) {
		_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, relayBuffer))
		if err == nil {
			err = io.EOF
		}
		done <- err
	}
	go one(a, b)
	go one(b, a)
	err := <-done
	_, _ = a.Close(), b.Close()
	<-done
	return err
}

const relayBuffer = 256 << 10

// hostDial bounds how long another host may take to be reached, hostSilence how long its kernel may
// then acknowledge nothing of what was sent.
const (
	hostDial    = 10 * time.Second
	hostSilence = 20 * time.Second
)

// NewHostClient returns a client for another host's causewayd, at HOST or HOST:PORT. identity makes
// the configuration for a host's name.
func NewHostClient(address string, identity func(host string) (*tls.Config, error)) (*Client, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		host, port = address, HostPort
	}
	cfg, err := identity(host)
	if err != nil {
		return nil, err
	}
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: hostDial, Control: sys.BoundSilence(hostSilence)}, Config: cfg}
	at := net.JoinHostPort(host, port)
	t := &http.Transport{TLSHandshakeTimeout: hostDial, DialTLSContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return d.DialContext(ctx, network, at)
	}}
	return &Client{socket: at, base: "https://" + at, http: &http.Client{Transport: t}, nobody: errNoHost}, nil
}

// errNoHost says that no causewayd of another host can be reached.
var errNoHost = errors.New("no causewayd listens there: on that host set migration.listen in " + ConfigFile)

func (c *Client) unreachedFar(err error) error {
	var request *url.Error
	if errors.As(err, &request) { // which address it was for, everybody knows
		err = request.Err
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: %w", c.socket, c.nobody)
	}
	if remedy := cmp.Or(mtls.Remedy(err), farRemedy(err)); remedy != "" {
		return fmt.Errorf("%s: %w: %s", c.socket, err, remedy)
	}
	return fmt.Errorf("%s: %w", c.socket, err)
}

// farRemedy says what an operator does about a host that is not reached, or does not answer.
func farRemedy(err error) string {
	var name *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &name):
		return "enter its name in DNS or /etc/hosts, or call it by its address"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the other end closes the connection: the log of its causewayd says why; or another service has that port"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.As(err, &timeout) && timeout.Timeout():
		return "see whether that host is up, and whether the network, or a firewall, lets this port through"
	}
	return ""
}

// Arriving is what a host asks another to make ready for memory that goes ahead of a VM.
type Arriving struct {
	// Wish is the vGPU as the source has it; the other host starts it if it has none of that name,
	// and ends it again if no VM comes.
	Wish Wish `json:"wish"`
	// Awaited: only if a VM is awaited there, for the vGPU of that name.
	Awaited bool `json:"awaited,omitempty"`
}

// Departs answers GET /v1/departs of a device process, which waits for the beginning of a
// migration, at most DepartsLimit.
type Departs struct {
	Departs bool `json:"departs"`
}

// DepartsLimit is when a question that nothing has happened to is answered.
const DepartsLimit = 25 * time.Second

// Copying is how a device process is asked to send memory ahead.
type Copying struct {
	Bandwidth uint64        `json:"bandwidth,omitempty"` // bytes a second
	Pause     time.Duration `json:"pause_ns,omitempty"`  // what the memory that is left may take
	// Connections is how many there are in all, 0: one. Along: this is another of those of an
	// Attempt that has begun.
	Connections int    `json:"connections,omitempty"`
	Attempt     uint64 `json:"attempt,omitempty"`
	Along       bool   `json:"along,omitempty"`
	// Throttle has programs held back, more and more, as long as they change memory as fast as it
	// is sent.
	Throttle bool `json:"throttle,omitempty"`
}

// Connections of a pre-copy.
const (
	MostConnections    = 16
	DefaultConnections = 4
)
