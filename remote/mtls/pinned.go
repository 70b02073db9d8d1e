package mtls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SessionProtocol is what a session's connection speaks inside TLS (ALPN): frames, as remote/frame
// has them.
const SessionProtocol = "causeway-session/2"

// ResumeProtocol is what a connection speaks over which a session goes on (package resume).
const ResumeProtocol = "causeway-resume/1"

// VerbsProtocol is what it speaks where both ends would rather have the frames go by RDMA
// (remote/verbs): they agree on that first.
const VerbsProtocol = "causeway-session-verbs/2"

// SessionProtocols are those of a session's connection, the preferred one first.
func SessionProtocols(rdma bool) []string {
	if rdma {
		return []string{VerbsProtocol, SessionProtocol}
	}
	return []string{SessionProtocol}
}

// ErrPeer says that the other end has not the key that it must have.
var ErrPeer = errors.New("the other end has another key")

// KeyHash names a key: the SHA-256 of its SubjectPublicKeyInfo.
type KeyHash [sha256.Size]byte

// String is the hexadecimal form.
func (h KeyHash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h KeyHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *KeyHash) UnmarshalText(b []byte) error {
	if len(b) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("a key's hash of %d characters", len(b))
	}
	if _, err := hex.Decode(h[:], b); err != nil {
		return fmt.Errorf("a key's hash: %w", err)
	}
	return nil
}

// Pinned is one side's identity in a lease: a key pair made for it alone, and the one key that the
// other side has. No authority is involved, and the key is no host's: the two sides have told each
// other the hashes over a connection by which they know one another (Files).
type Pinned struct {
	Certificate []byte  `json:"certificate"` // DER, self-signed: what carries the key
	Key         []byte  `json:"key"`         // DER, PKCS #8
	Peer        KeyHash `json:"peer"`
}

// pinnedFor is how long a pinned certificate says that it holds. Nobody asks: the lease's end is
// what ends it.
const pinnedFor = 10 * 365 * 24 * time.Hour

// NewPinned makes a key pair, whose peer is not known yet.
func NewPinned() (Pinned, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pinned{}, fmt.Errorf("a lease's key: %w", err)
	}
	t := template("Causeway lease", pinnedFor)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	cert, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return Pinned{}, fmt.Errorf("a lease's certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	return Pinned{Certificate: cert, Key: private}, err
}

// NewPinnedPair makes both sides of a lease, for who has them both.
func NewPinnedPair() (server, client Pinned, err error) {
	var errs [4]error
	server, errs[0] = NewPinned()
	client, errs[1] = NewPinned()
	if err := errors.Join(errs[:2]...); err != nil {
		return Pinned{}, Pinned{}, err
	}
	server.Peer, errs[2] = client.Hash()
	client.Peer, errs[3] = server.Hash()
	return server, client, errors.Join(errs[2:]...)
}

// Hash is what the other side knows this one by.
func (p Pinned) Hash() (KeyHash, error) {
	cert, err := x509.ParseCertificate(p.Certificate)
	if err != nil {
		return KeyHash{}, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	return sha256.Sum256(cert.RawSubjectPublicKeyInfo), nil
}

// Server is for connections of the one peer that speaks one of the protocols (ALPN), of which the
// first that both do is taken.
func (p Pinned) Server(protocols ...string) (*tls.Config, error) {
	c, err := p.config(protocols)
	if err == nil {
		c.ClientAuth = tls.RequireAnyClientCert // which one, VerifyConnection says
	}
	return c, err
}

// Client is for a connection to the one peer.
func (p Pinned) Client(protocols ...string) (*tls.Config, error) {
	c, err := p.config(protocols)
	if err == nil {
		c.InsecureSkipVerify = true // no authority, no name: VerifyConnection demands the key
	}
	return c, err
}

// config is what both sides have in common.
func (p Pinned) config(protocols []string) (*tls.Config, error) {
	own, err := p.Hash()
	if err != nil {
		return nil, err
	}
	if p.Peer == own || p.Peer == (KeyHash{}) {
		return nil, fmt.Errorf("%w: the other side of a lease has no key of its own", ErrIdentity)
	}
	key, err := x509.ParsePKCS8PrivateKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%w: a lease's key is of another kind", ErrIdentity)
	}
	if der, err := x509.MarshalPKIXPublicKey(private.Public()); err != nil || sha256.Sum256(der) != own {
		return nil, fmt.Errorf("%w: key and certificate do not belong together", ErrIdentity)
	}
	peer := p.Peer
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: true,
		// Records as long as they may be: what begins a session is not read as it comes.
		DynamicRecordSizingDisabled: true,
		Certificates:                []tls.Certificate{{Certificate: [][]byte{p.Certificate}, PrivateKey: private}},
		VerifyConnection:            func(s tls.ConnectionState) error { return verify(s, protocols, peer) },
	}, nil
}

// verify runs in each handshake of either side. That the peer holds the key, TLS has made sure of.
func verify(s tls.ConnectionState, protocols []string, peer KeyHash) error {
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: it shows none", ErrPeer)
	}
	if got := sha256.Sum256(s.PeerCertificates[0].RawSubjectPublicKeyInfo); !bytes.Equal(got[:], peer[:]) {
		return fmt.Errorf("%w: %x, not %v", ErrPeer, got, peer)
	}
	if !slices.Contains(protocols, s.NegotiatedProtocol) {
		// A client that offers no protocol at all would come so far.
		return fmt.Errorf("%w: it does not speak %s", ErrPeer, strings.Join(protocols, " or "))
	}
	return nil
}
