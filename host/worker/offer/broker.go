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
	MaxMemory     = 1 << 50 // bytes of memory behind one offer
	maxPerOwner   = 1 << 16 // offers of one worker
	maxFilesOwner = 256     // of them with a descriptor
	maxFiles      = 768     // descriptors of all workers: the parent needs its own

	// Memory of the parent's, which no session is charged for, in bytes: of the offers of one
	// worker, and of all. Each takes offerCost besides its blob.
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

// Memory is the GPU memory behind an offer.
type Memory struct {
	Bytes uint64 // 0: there is none, or none that outlives its owner
	// Which of its owner's it is, where several offers are of the same; 0: of its own.
	Of      uint64
	Lasting bool // its token is good for as long as anybody has it open, its owner or not
}

// Broker keeps what the workers of one virtual GPU share. The zero value is ready.
type Broker struct {
	mu     sync.Mutex
	kept   func(bytes int64)
	offers map[Token]*offer
	owners map[any]*holdings
	files  int
	bytes  int
	more   chan struct{} // closed when something is offered, or no more; nil: nobody waits for that
}

type offer struct {
	owner   any // nil: nobody's any more
	blob    []byte
	file    int     // -1: none
	memory  *memory // nil: none
	lasting bool
}

// memory is what several offers may be of.
type memory struct {
	bytes  uint64
	of     uint64 // its number among its owner's, 0: none
	offers int
	opened int     // how often others have it open
	kept   bool    // which was told
	left   []Token // offers of it that last, of an owner that has let go of them
}

type holdings struct {
	tokens map[Token]struct{}
	files  int
	bytes  int
	memory map[uint64]*memory  // by Memory.Of
	opened map[Token][]*memory // of others; a token may come again, for something else
	opens  int
}

func (o *offer) cost() int { return offerCost + len(o.blob) }

// Offer keeps blob, and a duplicate of file unless it is -1, until the owner withdraws them or is
// gone; if they are of memory and last, until then nobody has that open any more.
func (b *Broker) Offer(owner any, t Token, blob []byte, file int, m Memory) error {
	if len(blob) > MaxBlob {
		return fmt.Errorf("%d bytes: %w", len(blob), ErrFull)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.offers[t] != nil {
		return ErrTaken
	}
	h := b.holdingsLocked(owner)
	o := &offer{owner: owner, blob: blob, file: -1}
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
	b.owners[owner] = h
	h.tokens[t] = struct{}{}
	o.memory, o.lasting = h.of(m), m.Lasting
	o.blob = bytes.Clone(blob)
	b.offers[t] = o
	h.bytes, b.bytes = h.bytes+o.cost(), b.bytes+o.cost()
	b.changedLocked()
	return nil
}

// OnKept has f told how many bytes of memory more, or less, who offered it has let go of while
// others have it open. It is told before who let go goes on.
func (b *Broker) OnKept(f func(bytes int64)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = f
}

// holdingsLocked are what a worker has; new ones are not kept yet.
func (b *Broker) holdingsLocked(owner any) *holdings {
	if b.offers == nil {
		b.offers, b.owners = map[Token]*offer{}, map[any]*holdings{}
	}
	if h := b.owners[owner]; h != nil {
		return h
	}
	return &holdings{tokens: map[Token]struct{}{}, memory: map[uint64]*memory{}, opened: map[Token][]*memory{}}
}

// of is the memory of one more offer.
func (h *holdings) of(m Memory) *memory {
	if m.Bytes == 0 {
		return nil
	}
	x := h.memory[m.Of]
	if x == nil || m.Of == 0 {
		x = &memory{bytes: m.Bytes, of: m.Of}
		if m.Of != 0 {
			h.memory[m.Of] = x
		}
	}
	x.offers++
	return x
}

// settleLocked tells of memory that begins, or ceases, to be others' alone.
func (b *Broker) settleLocked(m *memory) {
	kept := m.offers == 0 && m.opened > 0
	if kept == m.kept || b.kept == nil {
		return
	}
	if m.kept = kept; kept {
		b.kept(int64(m.bytes))
	} else {
		b.kept(-int64(m.bytes))
	}
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

// OfferAgain is Offer once nobody has the token, unless ctx ends first: who had it before a VM left
// may be on its way out yet when that comes back.
func (b *Broker) OfferAgain(ctx context.Context, owner any, t Token, blob []byte, file int, m Memory) error {
	for {
		more := b.next()
		err := b.Offer(owner, t, blob, file, m)
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

// Redeem returns what a token names to a worker, which has memory open from then on, until as many
// times LetGo. The descriptor, -1 if there is none, is the caller's to close.
func (b *Broker) Redeem(who any, t Token) (blob []byte, file int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.offers[t]
	if o == nil {
		return nil, -1, ErrUnknown
	}
	h := b.holdingsLocked(who)
	if o.memory != nil && h.opens >= maxPerOwner {
		return nil, -1, ErrFull
	}
	file = -1
	if o.file >= 0 {
		if file, err = unix.FcntlInt(uintptr(o.file), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, -1, fmt.Errorf("pass descriptor: %w", err)
		}
	}
	if m := o.memory; m != nil {
		h.opened[t] = append(h.opened[t], m)
		h.opens++
		m.opened++
		b.owners[who] = h
	}
	return bytes.Clone(o.blob), file, nil
}

// LetGo ends what a Redeem has opened, if that was memory.
func (b *Broker) LetGo(who any, t Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.owners[who]
	if h == nil || len(h.opened[t]) == 0 {
		return
	}
	last := len(h.opened[t]) - 1
	m := h.opened[t][last]
	if h.opened[t] = h.opened[t][:last]; last == 0 {
		delete(h.opened, t)
	}
	h.opens--
	b.closeLocked(m)
}

// closeLocked is that somebody has memory open once less.
func (b *Broker) closeLocked(m *memory) {
	m.opened--
	b.settleLocked(m)
	if m.opened > 0 {
		return
	}
	for _, t := range m.left {
		b.forgetLocked(t, b.offers[t])
	}
	m.left = nil
}

// Await is Redeem once the token is offered, unless ctx ends first.
func (b *Broker) Await(ctx context.Context, who any, t Token) (blob []byte, file int, err error) {
	for {
		more := b.next()
		if blob, file, err = b.Redeem(who, t); !errors.Is(err, ErrUnknown) {
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

// Owned reports whether who offers a token has it still: what lasts may be others' alone.
func (b *Broker) Owned(t Token) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.offers[t]
	return o != nil && o.owner != nil
}

// Withdraw forgets an owner's offer.
func (b *Broker) Withdraw(owner any, t Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.offers[t]; o != nil && o.owner == owner {
		b.dropLocked(t, o)
	}
}

// Gone forgets everything of an owner, and what it has open.
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
	for _, list := range h.opened {
		for _, m := range list {
			b.closeLocked(m)
		}
	}
	delete(b.owners, owner)
}

// dropLocked ends an offer for its owner. One that lasts is nobody's then, as long as somebody has
// its memory open.
func (b *Broker) dropLocked(t Token, o *offer) {
	h, m := b.owners[o.owner], o.memory
	delete(h.tokens, t)
	h.bytes -= o.cost()
	if o.file >= 0 {
		h.files--
	}
	o.owner = nil
	if m != nil {
		if m.offers--; m.offers == 0 && h.memory[m.of] == m {
			delete(h.memory, m.of)
		}
		b.settleLocked(m)
	}
	if m != nil && o.lasting && m.opened > 0 {
		m.left = append(m.left, t)
		return
	}
	b.forgetLocked(t, o)
}

// forgetLocked has a token name nothing.
func (b *Broker) forgetLocked(t Token, o *offer) {
	delete(b.offers, t)
	b.bytes -= o.cost()
	if o.file >= 0 {
		_ = unix.Close(o.file)
		b.files--
	}
	b.changedLocked()
}
