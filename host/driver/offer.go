package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"causeway/cuda/wire"
)

// Sharer is a Host whose session may share with other sessions of the same virtual GPU. An offer is
// there until it is withdrawn or the session ends, one of memory that lasts also as long as another
// session has that open.
type Sharer interface {
	// Offer leaves something under a token that nobody can guess.
	Offer(o Shared) (ShareToken, error)
	// OfferAgain is Offer under a token that a session which was rebuilt here has given out before.
	OfferAgain(t ShareToken, o Shared) error
	// Redeem returns what a token names; file is -1 or the caller's to close. While a session is
	// rebuilt it waits for who offers that. Memory counts for the session that offers it as long as
	// that does, and for all of them afterwards, until each that redeemed it has let go of it as
	// often.
	Redeem(t ShareToken) (blob []byte, file int, err error)
	LetGo(t ShareToken)
	// Withdraw returns when what others have of it is counted: only then the session that had it
	// may count it no more.
	Withdraw(t ShareToken)
}

// Shared is what a session gives others: bytes, and a descriptor unless File is -1, which stays its
// owner's.
type Shared struct {
	Blob   []byte
	File   int
	Memory SharedMemory
}

// SharedMemory is the device memory that lasts as long as anybody has it open. Bytes 0: there is
// none.
type SharedMemory struct {
	Bytes uint64
	// Which of the session's memory it is, where several offers are of the same; 0: of its own.
	Of uint64

	// Lasting: what names it is good for as long as anybody has it open, as the descriptors of
	// cuMemExportToShareableHandle are.
	Lasting bool
}

// ShareToken names what a session shares.
type ShareToken [32]byte

// tokenWords is how many of Call.Placed hold a token.
const tokenWords = 4

func (t ShareToken) words() (w []uint64) {
	for i := range tokenWords {
		w = append(w, binary.LittleEndian.Uint64(t[8*i:]))
	}
	return w
}

// tokenOf is the token of words, if they are there.
func tokenOf(w []uint64, ok bool) (t ShareToken, _ bool) {
	for i, v := range w {
		binary.LittleEndian.PutUint64(t[8*i:], v)
	}
	return t, ok
}

// Errors of Offers.
var (
	ErrNotShared = errors.New("not shared") // the token names nothing, or something of another kind
	ErrNoSharer  = errors.New("this session has no others to share with")

	errSharedTwice = errors.New("it is shared already")
)

// Offers remembers what a session shares, each object once. The first byte of what travels is the
// object's kind. The zero value is ready; it belongs to the worker goroutine.
type Offers struct{ made map[offerKey]ShareToken }

type offerKey struct {
	kind byte
	id   uint64
}

// Offer shares an object for a call, or returns the token that it has. A replayed call shares it
// under the token that it was recorded with: guests have it.
func (o *Offers) Offer(h Host, c *wire.Call, kind byte, id uint64, what func() (Shared, error)) ([]byte, error) {
	key := offerKey{kind, id}
	if t, ok := o.made[key]; ok && !c.Replay {
		c.Placed = append(c.Placed, t.words()...)
		return slices.Clone(t[:]), nil
	} else if ok {
		return nil, errSharedTwice
	}
	again, recorded := tokenOf(c.Places(tokenWords))
	if c.Replay && !recorded {
		return nil, ErrNotShared
	}
	s, ok := h.(Sharer)
	if !ok {
		return nil, ErrNoSharer
	}
	x, err := what()
	if err != nil {
		return nil, err
	}
	t := again
	if x.Blob = append([]byte{kind}, x.Blob...); c.Replay {
		err = s.OfferAgain(t, x)
	} else {
		t, err = s.Offer(x)
	}
	if err != nil {
		return nil, err
	}
	if !c.Replay {
		c.Placed = append(c.Placed, t.words()...)
	}
	if o.made == nil {
		o.made = map[offerKey]ShareToken{}
	}
	o.made[key] = t
	return t[:], nil
}

// Withdraw takes an offer back: its object is gone. Objects that were not shared are fine.
func (o *Offers) Withdraw(h Host, kind byte, id uint64) {
	key := offerKey{kind, id}
	t, ok := o.made[key]
	if !ok {
		return
	}
	delete(o.made, key)
	if s, ok := h.(Sharer); ok {
		s.Withdraw(t)
	}
}

// Any reports whether something is shared.
func (o *Offers) Any() bool { return len(o.made) > 0 }

// AnyOf reports whether something of these kinds is.
func (o *Offers) AnyOf(kinds ...byte) bool {
	for k := range o.made {
		if slices.Contains(kinds, k.kind) {
			return true
		}
	}
	return false
}

// Own reports whether a token is one that this session has made.
func (o *Offers) Own(token []byte) bool {
	for _, t := range o.made {
		if bytes.Equal(t[:], token) {
			return true
		}
	}
	return false
}

// LetGo ends what a Redeem has opened.
func LetGo(h Host, t ShareToken) {
	if s, ok := h.(Sharer); ok && t != (ShareToken{}) {
		s.LetGo(t)
	}
}

// Redeem finds what a token names, if it is of a kind and has at least size bytes. file is -1 or
// the caller's to close.
func Redeem(h Host, kind byte, token []byte, size int) (blob []byte, file int, err error) {
	s, ok := h.(Sharer)
	if !ok {
		return nil, -1, ErrNoSharer
	}
	if len(token) != len(ShareToken{}) {
		return nil, -1, ErrNotShared
	}
	blob, file, err = s.Redeem(ShareToken(token))
	if err != nil {
		return nil, -1, err
	}
	if len(blob) < 1+size || blob[0] != kind {
		if file >= 0 {
			_ = unix.Close(file)
		}
		s.LetGo(ShareToken(token))
		return nil, -1, ErrNotShared
	}
	return blob[1:], file, nil
}
