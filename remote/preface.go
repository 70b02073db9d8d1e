package remote

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Errors of what connections begin with.
var (
	// ErrPreface says that it is something else than a preface of this protocol.
	ErrPreface = errors.New("no connection of Causeway's")
	// ErrVersion says that it is a preface of another version.
	ErrVersion = errors.New("another version of Causeway: install the same on both hosts")
)

// LeaseID names a lease of a vGPU on a GPU server. It is random and says which lease a connection
// is for; it proves nothing.
type LeaseID [16]byte

// NewLeaseID draws one.
func NewLeaseID() LeaseID {
	var id LeaseID
	_, _ = rand.Read(id[:]) // does not fail
	return id
}

// IsZero reports whether it names no lease.
func (id LeaseID) IsZero() bool { return id == LeaseID{} }

// String is the hexadecimal form.
func (id LeaseID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id LeaseID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *LeaseID) UnmarshalText(b []byte) error {
	if len(b) != hex.EncodedLen(len(id)) {
		return fmt.Errorf("a lease's name of %d characters", len(b))
	}
	if _, err := hex.Decode(id[:], b); err != nil {
		return fmt.Errorf("a lease's name: %w", err)
	}
	return nil
}

// SessionID names a session of a lease, for connections that follow its first. It is random and
// proves nothing.
type SessionID [16]byte

// NewSessionID draws one.
func NewSessionID() SessionID { return SessionID(NewLeaseID()) }

// What a preface begins with: what the connection is for, and the version of what follows.
const (
	prefaceMagic   = 6
	prefaceVersion = 3
	sessionMagic   = "CWSESS"
	readyMagic     = "CWREDY"
	againMagic     = "CWAGAN"
	controlMagic   = "CWCTRL"
)

// PrefaceSize is the length of an encoded Preface.
const PrefaceSize = prefaceMagic + 2 + 16 + 16

// What a server answers, ahead of TLS, to a connection whose session does not begin, or is not
// there any more. Each is as long as a record's head of TLS, which it is none of. Whoever is on the
// way could say it as well as cut the connection.
const (
	Gone    = "CWGON" // the session that was to go on has ended
	NoLease = "CWLSE" // there is no such lease
	Full    = "CWFUL" // the vGPU has as many programs as it may
	NotNow  = "CWNOW" // programs begin too fast, or what this one waits for does not come
	Not     = "CWNOT" // for a reason that the server's log says
	Version = "CWVER" // the preface is of another version
)

// refuseLimit and refuseBytes bound what is read of a client that is refused: its first words of
// TLS.
const (
	refuseLimit = time.Second
	refuseBytes = 64 << 10
)

// HalfCloser is a connection whose ends end apart: of TCP, or of a Unix socket.
type HalfCloser interface {
	net.Conn
	CloseWrite() error
}

// Refuse answers a connection so. It reads what the client has said meanwhile, until that has
// ended, for a second at most: closed with something unread, a connection is reset, and the answer
// may be lost with it.
func Refuse(c HalfCloser, said string) {
	_ = c.SetDeadline(time.Now().Add(refuseLimit))
	if _, err := io.WriteString(c, said); err == nil && c.CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(c, refuseBytes))
	}
}

// Said is what a server has answered in the place of TLS's handshake, which has failed with err;
// "": nothing that is one of these words.
func Said(err error) string {
	var other tls.RecordHeaderError
	if !errors.As(err, &other) {
		return ""
	}
	switch said := string(other.RecordHeader[:]); said {
	case Gone, NoLease, Full, NotNow, Not, Version:
		return said
	}
	return ""
}

// Preface is what a connection to a GPU server begins with, ahead of TLS: it says where the
// connection goes.
type Preface struct {
	// Lease is the lease that a session's connection is for; zero: the connection is a host's, for
	// control.
	Lease LeaseID
	// Session is the session's name, which the client has drawn.
	Session SessionID
	// Again: the session has begun, and goes on over this connection.
	Again bool
	// Ready: the session begins, and its program's environment asks for nothing that a driver must
	// know when it starts: one that has started will do.
	Ready bool
}

// Encode is the preface as it is sent: 6 bytes that say what for, the version as two bytes, most
// significant first, the lease, the session.
func (p Preface) Encode() []byte {
	magic := sessionMagic
	switch {
	case p.Lease.IsZero():
		magic = controlMagic
	case p.Again:
		magic = againMagic
	case p.Ready:
		magic = readyMagic
	}
	b := append(make([]byte, 0, PrefaceSize), magic...)
	b = append(b, 0, prefaceVersion)
	b = append(b, p.Lease[:]...)
	return append(b, p.Session[:]...)
}

// ParsePreface reads what Encode wrote.
func ParsePreface(b []byte) (Preface, error) {
	var p Preface
	if len(b) != PrefaceSize {
		return p, fmt.Errorf("%w: a preface of %d bytes", ErrPreface, len(b))
	}
	magic, version := string(b[:prefaceMagic]), int(b[prefaceMagic])<<8|int(b[prefaceMagic+1])
	copy(p.Lease[:], b[prefaceMagic+2:])
	copy(p.Session[:], b[prefaceMagic+2+len(p.Lease):])
	p.Again, p.Ready = magic == againMagic, magic == readyMagic
	switch {
	case magic != sessionMagic && magic != readyMagic && magic != againMagic && magic != controlMagic:
		return Preface{}, fmt.Errorf("%w: it begins with %q", ErrPreface, magic)
	case version != prefaceVersion:
		return Preface{}, fmt.Errorf("%w: version %d, where this host speaks %d: %w", ErrPreface, version, prefaceVersion, ErrVersion)
	case (magic == controlMagic) != p.Lease.IsZero(), (magic == controlMagic) != (p.Session == SessionID{}):
		return Preface{}, fmt.Errorf("%w: %s with lease %v", ErrPreface, magic, p.Lease)
	}
	return p, nil
}

// ReadPreface reads exactly the preface of a connection.
func ReadPreface(r io.Reader) (Preface, error) {
	var b [PrefaceSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Preface{}, fmt.Errorf("%w: %w", ErrPreface, err)
	}
	return ParsePreface(b[:])
}
