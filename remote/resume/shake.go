package resume

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"causeway/remote/frame"
)

// ErrProof says that who made a connection does not know the session's secret, or shows what was
// used before.
var ErrProof = errors.New("the connection is none of the session's")

// Labels of what both ends derive from a TLS connection (RFC 8446, 7.5), and of the two that show
// it.
const (
	labelSecret = "EXPORTER-causeway-session-secret"
	labelBind   = "EXPORTER-causeway-session-again"
	fromClient  = "client"
	fromServer  = "server"
)

type digest = [sha256.Size]byte

// derived is what both ends of a TLS connection know, and nobody else.
func derived(s *frame.Secure, label string) (d digest, err error) {
	state := s.ConnectionState()
	b, err := state.ExportKeyingMaterial(label, nil, len(d))
	if err != nil {
		return d, fmt.Errorf("session's secret: %w", err)
	}
	copy(d[:], b)
	return d, nil
}

// greeting is what each end says at the beginning of a connection that is not the session's first,
// the client first.
type greeting struct {
	// Attempt numbers the client's; the server repeats it.
	Attempt uint64
	// Got is how many bytes of the stream the sender has received.
	Got   uint64
	Proof digest
}

const greetingSize = 8 + 8 + sha256.Size

func (g greeting) encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, greetingSize), g.Attempt)
	b = binary.LittleEndian.AppendUint64(b, g.Got)
	return append(b, g.Proof[:]...)
}

func parseGreeting(b [greetingSize]byte) greeting {
	return greeting{binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), digest(b[16:])}
}

// A server that does not go on over a connection answers with a greeting whose attempt is 0, and
// whose Got says why. It proves nothing: who has the server's key can as well end the connection.
const (
	refusedProof = iota + 1
	refusedBranch
	refusedBudget
)

var errFarBudget = errors.New("the other end's budget of host memory (--host-memory there) has no room for what one more connection keeps to be sent again")

// refused is what is answered in place of an error's text; 0: nothing.
func refused(err error) uint64 {
	switch {
	case errors.Is(err, ErrProof):
		return refusedProof
	case errors.Is(err, ErrBranch):
		return refusedBranch
	case errors.Is(err, ErrBudget):
		return refusedBudget
	}
	return 0
}

// refusal is what the client makes of it.
func refusal(why uint64) error {
	switch why {
	case refusedProof:
		return fmt.Errorf("%w, by the other end's account", ErrProof)
	case refusedBranch:
		return ErrBranch
	case refusedBudget:
		return errFarBudget
	}
	return fmt.Errorf("the other end does not go on over the connection, for reason %d", why)
}

// proof shows that who says Attempt and Got on a TLS connection, from which bind was derived, knows
// the secret.
func (g greeting) proof(secret, bind digest, from string) digest {
	m := hmac.New(sha256.New, secret[:])
	m.Write([]byte(from))
	m.Write(g.encode()[:16])
	m.Write(bind[:])
	return digest(m.Sum(nil))
}

// proven reports whether the greeting's proof is one.
func (g greeting) proven(secret, bind digest, from string) bool {
	want := g.proof(secret, bind, from)
	return hmac.Equal(want[:], g.Proof[:])
}
