package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

// Store is where the replicas have the certificate in common, and who is told to trust it.
type Store interface {
	// Load is the pair that is kept; ErrNone: there is none.
	Load(ctx context.Context) (Pair, error)
	// Save keeps a pair, if what is there is still what Load gave last.
	Save(ctx context.Context, p Pair) error
	// Trust has the API server trust these certificates, and no others, at this webhook, and show
	// it the token. It changes nothing that is so already.
	Trust(ctx context.Context, bundle []byte, token string) error
}

// ErrNone says that no certificate is kept.
var ErrNone = errors.New("there is no certificate")

// How often it is looked whether another replica has renewed the certificate, and how soon again
// when that failed.
const (
	lookEvery = time.Minute
	lookAgain = 2 * time.Second
)

// Keeper has the certificate at hand.
type Keeper struct {
	Store Store
	Names []string // of the server, as the API server calls it
	Log   *slog.Logger

	now   atomic.Pointer[tls.Certificate]
	token atomic.Pointer[string]
}

// Token is what the API server shows; "": nothing yet.
func (k *Keeper) Token() string {
	if t := k.token.Load(); t != nil {
		return *t
	}
	return ""
}

// Certificate implements tls.Config's GetCertificate.
func (k *Keeper) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.now.Load(); c != nil {
		return c, nil
	}
	return nil, ErrNone
}

// Run keeps the certificate until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		wait := lookEvery
		if err := k.Look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			k.Log.Warn("the webhook's certificate", "error", err)
			wait = lookAgain
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// Look takes the certificate that is kept, or makes one. The API server trusts a certificate before
// anybody serves it: of two replicas that make one at once the other's is kept, and the loser of
// the two finds it when it looks again.
func (k *Keeper) Look(ctx context.Context, now time.Time) error {
	p, err := k.Store.Load(ctx)
	if err != nil && !errors.Is(err, ErrNone) {
		return fmt.Errorf("load it: %w", err)
	}
	c, why := p.check(k.Names, now)
	if why != nil {
		next, err := New(k.Names, now)
		if err != nil {
			return fmt.Errorf("make it: %w", err)
		}
		next.Previous = p.Certificate
		if isToken(p.Token) {
			next.Token = p.Token
		}
		if err := k.Store.Trust(ctx, next.bundle(now), next.Token); err != nil {
			return fmt.Errorf("have the API server trust it: %w", err)
		}
		if err := k.Store.Save(ctx, next); err != nil {
			return fmt.Errorf("keep it: %w", err)
		}
		if c, err = next.check(k.Names, now); err != nil {
			return err
		}
		k.Log.Info("the webhook has a new certificate", "why", why, "until", c.Leaf.NotAfter)
		p = next
	}
	if err := k.Store.Trust(ctx, p.bundle(now), p.Token); err != nil {
		return fmt.Errorf("have the API server trust it: %w", err)
	}
	k.token.Store(&p.Token)
	k.now.Store(c)
	return nil
}
