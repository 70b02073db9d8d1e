package worker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/host/worker/offer"
)

var _ driver.Sharer = (*Worker)(nil)

// shareLimit is how long the parent may take to answer.
const shareLimit = 5 * time.Second

var errNoParent = errors.New("this session has no parent to share through")

// sharing is the worker's side of what sessions share. Its parent answers over the link, whose
// goroutine calls answered.
type sharing struct {
	mu   sync.Mutex
	link *link.WorkerEnd
	next uint64
	open map[uint64]chan link.Answer

	// Follows the link where nobody else does, a message at a time; nil: its goroutine does.
	receive   func() error
	comes     bool // the session is rebuilt: what others share comes with them
	rehearses bool // it is only tried: nothing is shared
}

// Offer implements driver.Sharer.
func (w *Worker) Offer(o driver.Shared) (driver.ShareToken, error) {
	t := driver.ShareToken(offer.NewToken())
	return t, w.OfferAgain(t, o)
}

// OfferAgain implements driver.Sharer.
func (w *Worker) OfferAgain(t driver.ShareToken, o driver.Shared) error {
	if w.sharing.rehearses {
		return nil
	}
	_, file, err := w.sharing.ask(func(n uint64) link.ToParent {
		return link.Offer{Request: n, Token: offer.Token(t), Memory: offer.Memory(o.Memory), Blob: o.Blob, File: link.FileOf(o.File)}
	})
	if file >= 0 { // a parent answers an offer without one
		_ = unix.Close(file)
	}
	return err
}

// Redeem implements driver.Sharer.
func (w *Worker) Redeem(t driver.ShareToken) (blob []byte, file int, err error) {
	return w.sharing.ask(func(n uint64) link.ToParent {
		return link.Redeem{Request: n, Token: offer.Token(t), Await: w.sharing.comes}
	})
}

// owned fails unless who offers a token has what it names.
func (s *sharing) owned(t driver.ShareToken) error {
	_, file, err := s.ask(func(n uint64) link.ToParent { return link.Redeem{Request: n, Token: offer.Token(t), Look: true} })
	if file >= 0 { // a parent answers it without one
		_ = unix.Close(file)
	}
	return err
}

// Withdraw implements driver.Sharer.
func (w *Worker) Withdraw(t driver.ShareToken) {
	w.sharing.tell(func(n uint64) link.ToParent { return link.Withdraw{Request: n, Token: offer.Token(t)} })
}

// LetGo implements driver.Sharer.
func (w *Worker) LetGo(t driver.ShareToken) {
	w.sharing.tell(func(n uint64) link.ToParent { return link.LetGo{Request: n, Token: offer.Token(t)} })
}

// tell is ask where nothing comes of it but that it was heard. A parent that is gone has forgotten
// everything.
func (s *sharing) tell(request func(n uint64) link.ToParent) {
	if s.rehearses {
		return
	}
	if _, file, err := s.ask(request); err == nil && file >= 0 {
		_ = unix.Close(file)
	}
}

// ask sends the request of the number that it is given, and waits for its answer. The descriptor,
// -1 if there is none, is the caller's.
func (s *sharing) ask(request func(n uint64) link.ToParent) (blob []byte, file int, err error) {
	s.mu.Lock()
	if s.link == nil {
		s.mu.Unlock()
		return nil, -1, errNoParent
	}
	if s.open == nil {
		s.open = map[uint64]chan link.Answer{}
	}
	s.next++
	n := s.next
	c := make(chan link.Answer, 1)
	s.open[n] = c
	l, receive := s.link, s.receive
	s.mu.Unlock()
	defer s.forget(n)
	if err := l.Send(request(n)); err != nil {
		return nil, -1, err
	}
	if receive != nil {
		for len(c) == 0 {
			if err := receive(); err != nil {
				return nil, -1, fmt.Errorf("share: %w", err)
			}
		}
	}
	t := time.NewTimer(shareLimit)
	defer t.Stop()
	select {
	case a := <-c:
		if a.Errno != 0 {
			discard(a)
			return nil, -1, fmt.Errorf("share: %w", a.Errno)
		}
		return a.Blob, a.File.FD(), nil
	case <-t.C:
		return nil, -1, errors.New("share: the parent does not answer")
	}
}

func (s *sharing) forget(n uint64) {
	s.mu.Lock()
	c := s.open[n]
	delete(s.open, n)
	s.mu.Unlock()
	select {
	case a := <-c: // came too late
		discard(a)
	default:
	}
}

// answered takes the parent's answer over.
func (s *sharing) answered(a link.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.open[a.Request] <- a: // nil, for one that nobody waits for, blocks
	default:
		discard(a)
	}
}

// discard closes what came with an answer.
func discard(a link.Answer) {
	if fd := a.File.FD(); fd >= 0 {
		_ = unix.Close(fd)
	}
}
