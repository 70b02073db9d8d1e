package lease

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"

	"causeway/host/api"
	"causeway/remote"
	"causeway/remote/mtls"
)

// ErrMessage says that another host's message is not what it should be.
var ErrMessage = errors.New("another host's message cannot be used")

// Bounds of what another host says.
const (
	// MostMessage is the length of a message.
	MostMessage = 256 << 10
	mostGPUs    = 256
	mostText    = 200
	mostBytes   = 1 << 56 // of any memory
	leastTerm   = time.Second
	mostTerm    = time.Hour
)

// Host is the name of a host that has shown its certificate, and can name a vGPU's folder.
type Host struct{ name string }

func (h Host) String() string { return h.name }

// HostOf is who a certificate is of: its common name, or else the first of its DNS names.
func HostOf(cert *x509.Certificate) (Host, error) {
	name := cert.Subject.CommonName
	if !api.IsName(name) && len(cert.DNSNames) > 0 {
		name = cert.DNSNames[0]
	}
	if !api.IsName(name) {
		return Host{}, fmt.Errorf("%w: its certificate names no host: %.100q", ErrMessage, name)
	}
	return Host{name}, nil
}

// Request is a checked api.LeaseWish. Only DecodeRequest makes one.
type Request struct{ wish api.LeaseWish }

// DecodeRequest reads what a host asks of a server.
func DecodeRequest(r io.Reader) (Request, error) {
	var w api.LeaseWish
	if err := decode(r, &w, true); err != nil {
		return Request{}, err
	}
	v := api.Wish{VM: w.VM, Name: w.Name, Change: w.Change}
	err := v.Check()
	switch {
	case err != nil:
	case w.Key == mtls.KeyHash{}:
		err = errors.New("no key")
	case w.Protocol != remote.ProtocolVersion:
		err = fmt.Errorf("it speaks version %d of the sessions' protocol, this server version %d: install the same version of Causeway on both", w.Protocol, remote.ProtocolVersion)
	case !text(w.GPU) || !text(w.MIG):
		err = errors.New("the name of a GPU")
	}
	if err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return Request{w}, nil
}

// Key is that of the host's data connections.
func (r Request) Key() mtls.KeyHash { return r.wish.Key }

// VM and Name are the vGPU's at the host that asks.
func (r Request) VM() string   { return r.wish.VM }
func (r Request) Name() string { return r.wish.Name }

// Wish is what the server makes of a request: a vGPU HOST/VM:NAME of its own.
func (r Request) Wish(h Host) api.Wish {
	return api.Wish{VM: h.name, Name: r.wish.VM + ":" + r.wish.Name, GPU: r.wish.GPU, MIG: r.wish.MIG, Migratable: r.wish.Migratable, Change: r.wish.Change}
}

// DecodeRenewal reads a renewal.
func DecodeRenewal(r io.Reader) (api.LeaseRenewal, error) {
	var n api.LeaseRenewal
	err := decode(r, &n, true)
	return n, err
}

// DecodeHeir reads who may take a lease over.
func DecodeHeir(r io.Reader) (api.LeaseHeir, error) {
	var h api.LeaseHeir
	err := decode(r, &h, true)
	if err == nil && h.Host != "" && !api.IsName(h.Host) {
		err = fmt.Errorf("%w: host %.100q", ErrMessage, h.Host)
	}
	return h, err
}

// DecodeHostName reads what another host calls itself.
func DecodeHostName(r io.Reader) (api.HostName, error) {
	var h api.HostName
	err := decode(r, &h, false)
	if err == nil && !api.IsName(h.Host) {
		err = fmt.Errorf("%w: host %.100q", ErrMessage, h.Host)
	}
	return h, err
}

// Inheritance is what a host tells another of a lease that it may take over with a VM.
type Inheritance struct {
	Wish    api.Wish `json:"wish"`
	Awaited bool     `json:"awaited,omitempty"` // only if the VM is awaited
	Lease   File     `json:"lease"`             // with the keys of the programs' connections
}

// DecodeInheritance reads one.
func DecodeInheritance(r io.Reader) (Inheritance, error) {
	var i Inheritance
	if err := decode(r, &i, true); err != nil {
		return Inheritance{}, err
	}
	err := i.Wish.Check()
	up := i.Lease.Upstream
	switch {
	case err != nil:
	case i.Lease.ID.IsZero() || up == nil || up.Lease != i.Lease.ID:
		err = errors.New("a lease without name or server")
	case !text(up.Server) || !text(up.Address) || !text(up.GPU) || !text(up.UUID) || !text(up.Driver) || up.Memory > mostBytes:
		err = errors.New("the description of a GPU server")
	default:
		_, err = i.Lease.Identity.Client("check")
	}
	if err != nil {
		return Inheritance{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return i, nil
}

// DecodeChange reads a change of limits. Profiles are the server's.
func DecodeChange(r io.Reader) (api.Change, error) {
	var c api.Change
	err := decode(r, &c, true)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return api.Change{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return c, nil
}

// Grant is a checked api.Lease. Only DecodeGrant makes one.
type Grant struct{ lease api.Lease }

// DecodeGrant reads what a server grants.
func DecodeGrant(r io.Reader) (Grant, error) {
	var l api.Lease
	if err := decode(r, &l, false); err != nil {
		return Grant{}, err
	}
	err := checkGPU(&l.GPU)
	switch {
	case err != nil:
	case l.ID.IsZero() || l.Key == mtls.KeyHash{}:
		err = errors.New("a lease without name or key")
	case l.Term < leastTerm || l.Term > mostTerm:
		err = fmt.Errorf("a term of %v", l.Term)
	case l.Profile != "" && !api.IsName(l.Profile):
		err = errors.New("a profile's name")
	default:
		err = l.Limits.Check()
	}
	if err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return Grant{l}, nil
}

// Lease is what was granted.
func (g Grant) Lease() api.Lease { return g.lease }

// DecodeState reads the answer to a renewal.
func DecodeState(r io.Reader) (api.LeaseState, error) {
	var s api.LeaseState
	if err := decode(r, &s, false); err != nil {
		return s, err
	}
	err := s.Limits.Check()
	if err == nil && (s.Memory > mostBytes || s.Sessions < 0 || s.Sessions > 1<<20 || !text(s.Why) || s.Heir != "" && !api.IsName(s.Heir)) {
		err = errors.New("a state that cannot be")
	}
	if err != nil {
		return api.LeaseState{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return s, nil
}

// DecodeLimits reads the limits that hold after a change.
func DecodeLimits(r io.Reader) (api.Limits, error) {
	var l api.Limits
	err := decode(r, &l, false)
	if err == nil {
		err = l.Check()
	}
	if err != nil {
		return api.Limits{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return l, nil
}

// DecodeOffer reads what a server offers.
func DecodeOffer(r io.Reader) (api.Offer, error) {
	var o api.Offer
	if err := decode(r, &o, false); err != nil {
		return o, err
	}
	var err error
	if len(o.GPUs) > mostGPUs || !text(o.Version) {
		err = fmt.Errorf("%d GPUs of version %.50q", len(o.GPUs), o.Version)
	}
	for i := range o.GPUs {
		if err == nil {
			err = checkGPU(&o.GPUs[i])
		}
	}
	if err != nil {
		return api.Offer{}, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return o, nil
}

func checkGPU(g *api.GPU) error {
	for _, s := range append([]string{g.ID, g.Backend, g.Name, g.Driver, g.Why}, g.MIG...) {
		if !text(s) {
			return errors.New("the description of a GPU")
		}
	}
	if g.Memory > mostBytes || g.Used > mostBytes || g.Promised > mostBytes || g.Index < 0 || g.Index > 1<<16 || len(g.MIG) > 64 || len(g.VGPUs) > 0 {
		return errors.New("the description of a GPU")
	}
	return nil
}

// text reports whether s is short and can be shown.
func text(s string) bool {
	if len(s) > mostText || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// decode reads the only JSON value of a message. strict: what is unknown is refused, as a misspelt
// limit would be none.
func decode(r io.Reader, v any, strict bool) error { return decodeUpTo(r, v, strict, MostMessage) }

func decodeUpTo(r io.Reader, v any, strict bool, most int64) error {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		if strict {
			d.DisallowUnknownFields()
		}
		if err = d.Decode(v); err == nil {
			if _, more := d.Token(); !errors.Is(more, io.EOF) {
				err = errors.New("more than one value")
			}
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return nil
}
