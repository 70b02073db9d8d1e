package resume

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"causeway/remote"
	"causeway/remote/frame"
)

// Again makes the connections that follow a stream's first where its client's end is another
// process, which has no keys, and keeps what it has sent itself: of what a Conn does, the part that
// needs keys. One goroutine uses it.
type Again struct {
	secret  digest
	attempt uint64
	cfg     *tls.Config
	dial    Dialer
}

// NewAgain is for the stream that begins on a connection. TLS of others is cfg's.
func NewAgain(first *frame.Secure, cfg *tls.Config, dial Dialer) (*Again, error) {
	secret, err := derived(first, labelSecret)
	if err != nil {
		return nil, err
	}
	return &Again{secret: secret, cfg: cfg, dial: dial}, nil
}

// Connect makes another in place of one that is lost for a reason. The client has received so many
// bytes of the stream; it returns how many of the client's the server has. It tries until it has
// one, ctx ends, or no other attempt would do: ErrGone, and what breaks the rules.
func (a *Again) Connect(ctx context.Context, why error, got uint64) (net.Conn, uint64, error) {
	for wait := againFirst; ; wait = min(2*wait, againMost) {
		s, far, err := a.attemptOnce(ctx, why, got)
		if err == nil {
			return s, far, nil
		}
		if errors.Is(err, ErrGone) || errors.Is(err, remote.ErrProtocol) {
			return nil, 0, err
		}
		why = err
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, 0, errors.Join(err, ctx.Err())
		}
	}
}

func (a *Again) attemptOnce(ctx context.Context, why error, got uint64) (*frame.Secure, uint64, error) {
	s, err := another(ctx, a.cfg, a.dial, why)
	if err != nil {
		return nil, 0, err
	}
	a.attempt++
	far, err := greet(ctx, s, a.secret, a.attempt, got)
	if err != nil {
		s.Abort()
		return nil, 0, err
	}
	return s, far, nil
}
