package offer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// TokenSize is the length of a token in bytes.
const TokenSize = 32

// Token names something that was shared.
type Token [TokenSize]byte

// NewToken makes a token that nobody can guess.
func NewToken() Token {
	var t Token
	_, _ = rand.Read(t[:]) // never fails (crypto/rand)
	return t
}

// Limits.
const (
	MaxBlob       = 4096
	maxPerOwner   = 1 << 16 // offers of one worker
	maxFilesOwner = 256     // of them with a descriptor
	maxFiles      = 768     // descriptors of all workers: the parent needs its own

	// Memory of the parent's, which no session is charged for, in bytes: of the offers of one worker, and of all. Each takes offerCost besides its blob.
	maxBytesOwner = 32 << 20
	maxBytes      = 64 << 20
	offerCost     = 256
)

// Errors.
var (
	ErrUnknown = errors.New("no such token in this virtual GPU")
	ErrTaken   = errors.New("token is taken")
	ErrFull    = errors.New("too much is shared")
)

// Broker keeps what the workers of one virtual GPU share. The zero value is ready.
type Broker struct {
	mu     sync.Mutex
	offers map[Token]*offer
	owners map[any]*holdings
	files  int
	bytes  int
	more   chan struct{} // closed when something is offered, or no more; nil: nobody waits for that
}

type offer struct {
	owner any
	blob  []byte
	file  int // -1: none
}

type holdings struct {
	tokens map[Token]struct{}
	files  int
	bytes  int
}

func (o *offer) cost() int { return offerCost + len(o.blob) }

// Offer keeps blob, and a duplicate of file unless it is -1, until the owner withdraws them or is gone.
func (b *Broker) Offer(owner any, t Token, blob []byte, file int) error {
	if len(blob) > MaxBlob {
		return fmt.Errorf("%d bytes: %w", len(blob), ErrFull)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.offers[t] != nil {
		return ErrTaken
	}
	h := b.owners[owner]
	if h == nil {
		h = &holdings{tokens: map[Token]struct{}{}}
	}
	o := &offer{owner, blob, -1}
	if len(h.tokens) >= maxPerOwner || file >= 0 && (h.files >= maxFilesOwner || b.files >= maxFiles) || h.bytes+o.cost() > maxBytesOwner || b.bytes+o.cost() > maxBytes {
		return ErrFull
	}
	if file >= 0 {
		var err error
		if o.file, err = unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return fmt.Errorf("keep descriptor: %w", err)
		}
		h.files++
		b.files++
	}
	if b.offers == nil {
		b.offers, b.owners = map[Token]*offer{}, map[any]*holdings{}
	}
	b.owners[owner] = h
	h.tokens[t] = struct{}{}
	o.blob = bytes.Clone(blob)
	b.offers[t] = o
	h.bytes, b.bytes = h.bytes+o.cost(), b.bytes+o.cost()
	b.changedLocked()
	return nil
}

// changedLocked wakes those who wait.
func (b *Broker) changedLocked() {
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
}

// next is closed at the next change.
func (b *Broker) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.more == nil {
		b.more = make(chan struct{})
	}
	return b.more
}

// OfferAgain is Offer once nobody has the token, unless ctx ends first: who had it before a VM left may be on its way out yet when that comes back.
func (b *Broker) OfferAgain(ctx context.Context, owner any, t Token, blob []byte, file int) error {
	for {
		more := b.next()
		err := b.Offer(owner, t, blob, file)
		if !errors.Is(err, ErrTaken) {
			return err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Redeem returns what a token names. The descriptor, -1 if there is none, is the caller's to close.
func (b *Broker) Redeem(t Token) (blob []byte, file int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.offers[t]
	if o == nil {
		return nil, -1, ErrUnknown
	}
	file = -1
	if o.file >= 0 {
		if file, err = unix.FcntlInt(uintptr(o.file), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, -1, fmt.Errorf("pass descriptor: %w", err)
		}
	}
	return bytes.Clone(o.blob), file, nil
}

// Await is Redeem once the token is offered, unless ctx ends first.
func (b *Broker) Await(ctx context.Context, t Token) (blob []byte, file int, err error) {
	for {
		more := b.next()
		if blob, file, err = b.Redeem(t); !errors.Is(err, ErrUnknown) {
			return blob, file, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, -1, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Has reports whether an owner offers a token.
func (b *Broker) Has(owner any, t Token) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.offers[t]
	return o != nil && o.owner == owner
}

// Withdraw forgets an owner's offer.
func (b *Broker) Withdraw(owner any, t Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.offers[t]; o != nil && o.owner == owner {
		b.dropLocked(t, o)
	}
}

// Gone forgets everything of an owner.
func (b *Broker) Gone(owner any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.owners[owner]
	if h == nil {
		return
	}
	for t := range h.tokens {
		b.dropLocked(t, b.offers[t])
	}
	delete(b.owners, owner)
}

func (b *Broker) dropLocked(t Token, o *offer) {
	h := b.owners[o.owner]
	delete(h.tokens, t)
	delete(b.offers, t)
	h.bytes, b.bytes = h.bytes-o.cost(), b.bytes-o.cost()
	b.changedLocked()
	if o.file >= 0 {
		_ = unix.Close(o.file)
		h.files--
		b.files--
	}
}
