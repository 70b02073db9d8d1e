package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"causeway/remote"
	"causeway/remote/mtls"
	"causeway/remote/sys"
)

// What causewayds say to one another about vGPUs of one for VMs of the other, over TLS behind
// remote.Preface: docs/REMOTE.md.

// RemoteProtocol is what they speak (ALPN), RemotePort is where a GPU server listens unless its
// configuration says otherwise.
const (
	RemoteProtocol = "causeway-remote/1"
	RemotePort     = "7745"
)

// A lease is renewed every LeaseRenew. One that was not renewed for LeaseTerm is ended by its
// server, and all that it held is free.
const (
	LeaseRenew = 5 * time.Second
	LeaseTerm  = 30 * time.Second
)

// RemoteAny is a Wish's Remote for any server that has room.
const RemoteAny = "any"

// Offer is what a GPU server tells a host that it would give vGPUs to.
type Offer struct {
	Version  string `json:"version"`
	Protocol uint32 `json:"protocol"` // remote.ProtocolVersion
	GPUs     []GPU  `json:"gpus"`     // without what others have there
}

// LeaseWish asks for a lease of a vGPU, for one of a VM at the host that asks.
type LeaseWish struct {
	VM   string `json:"vm"`
	Name string `json:"name"`
	GPU  string `json:"gpu,omitempty"` // as in Wish, of the server's
	MIG  string `json:"mig,omitempty"`
	// Migratable: as in Wish; its programs' sessions may go to another server.
	Migratable *bool `json:"migratable,omitempty"`
	Change
	Protocol uint32       `json:"protocol"`
	Key      mtls.KeyHash `json:"key"` // of the key that data connections of this lease come with
}

// Lease is what a server grants.
type Lease struct {
	ID      remote.LeaseID `json:"id"`
	Key     mtls.KeyHash   `json:"key"` // of the server's key on data connections
	VM      string         `json:"vm"`
	Name    string         `json:"name"`
	GPU     GPU            `json:"gpu"`
	Limits  Limits         `json:"limits"`
	Profile string         `json:"profile,omitempty"`
	Term    time.Duration  `json:"term_ns"`
	// Migratable: its programs' sessions may go to another server, on a real GPU too.
	Migratable bool `json:"migratable,omitempty"`
}

// LeaseRenewal renews a lease. Epoch grows with each causewayd of the host that has the lease: of
// an earlier one nothing is taken any more.
type LeaseRenewal struct {
	Epoch uint64 `json:"epoch"`
	// Take: programs of the VM run at the host that renews. If it may, it has the lease from now
	// on.
	Take bool `json:"take,omitempty"`
}

// LeaseHeir says which host may take a lease over; empty: none.
type LeaseHeir struct {
	Host string `json:"host,omitempty"`
}

// HostName is what a host calls itself, by its certificate.
type HostName struct {
	Host string `json:"host"`
}

// LeaseState is how a lease is at its server.
type LeaseState struct {
	Limits   Limits `json:"limits"`
	Memory   uint64 `json:"memory"`   // bytes of device memory that its sessions use
	Sessions int    `json:"sessions"` // that have a worker there
	Why      string `json:"why,omitempty"`
	// Heir is the host to which its fleet lets the VM move; empty: to none, or it is no fleet's.
	Heir string `json:"heir,omitempty"`
}

// Upstream is how a vGPU's GPU server is reached, as causewayd knows.
type Upstream struct {
	Server  string         `json:"server"` // as in the configuration
	Address string         `json:"address"`
	Lease   remote.LeaseID `json:"lease"`
	GPU     string         `json:"gpu"`  // model
	UUID    string         `json:"uuid"` // there
	Memory  uint64         `json:"memory"`
	Driver  string         `json:"driver,omitempty"`
	// Migratable: as in Lease.
	Migratable bool `json:"migratable,omitempty"`
	// RoundTrip is that of the last renewal that was answered, Renewed when that was.
	RoundTrip time.Duration `json:"round_trip_ns,omitempty"`
	Renewed   time.Time     `json:"renewed"`
	State     *LeaseState   `json:"state,omitempty"` // at Renewed
	Error     string        `json:"error,omitempty"` // why it is not renewed now
	Lost      bool          `json:"lost,omitempty"`  // it has ended: programs get errors
	// Revoked: the last renewal was not asked for, as the server's certificate is.
	Revoked bool `json:"revoked,omitempty"`
}

// UpstreamState tells a device process how its GPU server is.
type UpstreamState struct {
	// Lease is what this is said of: programs may go by another one by now, of another server.
	// Zero: whichever they go by, as older causewayds say it.
	Lease remote.LeaseID `json:"lease,omitzero"`
	Why   string         `json:"why,omitempty"` // no program can begin; empty: they can
	// Ends: nor does any go on there, whatever the server says of that.
	Ends bool `json:"ends,omitempty"`
}

// Handover says to which host the VM of a vGPU on a GPU server is about to move (HOST or HOST:PORT
// of its causewayd), which may take over the lease; empty: to none. Awaited: only if its VM is
// awaited there. Why, which causewayd tells a device process, is why no host may although a
// migration has begun: nothing more is tried.
type Handover struct {
	Host    string `json:"host,omitempty"`
	Awaited bool   `json:"awaited,omitempty"`
	Why     string `json:"why,omitempty"`
}

// HandOver has causewayd ready another host for the VM of a vGPU on a GPU server.
func (c *Client) HandOver(ctx context.Context, s *Spec, h Handover) error {
	return c.Do(ctx, http.MethodPost, path(s.VM, s.Name)+"/handover", h, nil)
}

// Server is a GPU server of the configuration, and what it offers now.
type Server struct {
	Name      string        `json:"name"`
	Address   string        `json:"address"`
	RoundTrip time.Duration `json:"round_trip_ns,omitempty"`
	Error     string        `json:"error,omitempty"`
	Offer
}

// LeasePath is a file that holds a vGPU's lease, for the server's device process or the host's:
// {run}/{vm}/{name}.lease.
func (s *Spec) LeasePath(run string) string { return filepath.Join(run, s.VM, s.Name+".lease") }

// Servers lists the GPU servers that causewayd is configured with, and what each offers.
func (c *Client) Servers(ctx context.Context) (list []Server, err error) {
	return list, c.Do(ctx, http.MethodGet, "/v1/servers", nil, &list)
}

// ServerAddress is HOST:PORT of a server that a configuration names.
func ServerAddress(name string) string {
	if _, _, err := net.SplitHostPort(name); err == nil {
		return name
	}
	return net.JoinHostPort(name, RemotePort)
}

// NewServerClient returns a client for the causewayd of a GPU server, at HOST or HOST:PORT.
// identity makes the configuration for a host's name.
func NewServerClient(address string, identity func(host string) (*tls.Config, error)) (*Client, error) {
	at := ServerAddress(address)
	host, _, err := net.SplitHostPort(at)
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{Timeout: hostDial, Control: sys.BoundSilence(hostSilence)}
	connect := func(ctx context.Context, network, _ string) (net.Conn, error) {
		cfg, err := identity(host)
		if err != nil {
			return nil, err
		}
		raw, err := d.DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		_ = raw.SetDeadline(time.Now().Add(hostDial))
		conn := tls.Client(raw, cfg)
		_, err = raw.Write(remote.Preface{}.Encode())
		if err == nil {
			err = conn.HandshakeContext(ctx)
		}
		if err != nil {
			_ = raw.Close()
			if remote.Said(err) == remote.Version {
				err = remote.ErrVersion
			}
			return nil, err
		}
		return &judged{Conn: conn, host: host, identity: identity, last: time.Now()}, raw.SetDeadline(time.Time{})
	}
	t := &certified{
		begin: func() *http.Transport {
			return &http.Transport{DialTLSContext: connect, MaxIdleConns: 2, MaxConnsPerHost: 4, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 16 << 10}
		},
		identity: func() (*tls.Config, error) { return identity(host) },
	}
	return &Client{socket: at, base: "https://" + at, http: &http.Client{Transport: t}, nobody: errNoServer}, nil
}

// errNoServer says that no GPU server can be reached.
var errNoServer = fmt.Errorf("no GPU server listens there: on that host start causewayd with remote.listen in %s, or run `causeway serve`; its port may be another one", ConfigFile)
