package worker

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"causeway/host/driver"
	"causeway/host/worker/link"
	"causeway/host/worker/share"
	"causeway/remote/sys"
)

var _ driver.Sharer = (*Worker)(nil)

// shareLimit is how long the parent may take to answer.
const shareLimit = 5 * time.Second

var errNoParent = errors.New("this session has no parent to share through")

// sharing is the worker's side of what sessions share. Its parent answers over the link, whose goroutine calls answered.
type sharing struct {
	mu   sync.Mutex
	link *link.Conn
	next uint64
	open map[uint64]chan link.Message
}

// Offer implements driver.Sharer.
func (w *Worker) Offer(blob []byte, file int) (driver.ShareToken, error) {
	t := share.NewToken()
	m := link.Message{Type: link.Offer, Payload: append(t[:], blob...)}
	if file >= 0 {
		m.Files = []int{file}
	}
	a, err := w.sharing.ask(m)
	sys.CloseAll(a.Files)
	return driver.ShareToken(t), err
}

// Redeem implements driver.Sharer.
func (w *Worker) Redeem(t driver.ShareToken) (blob []byte, file int, err error) {
	a, err := w.sharing.ask(link.Message{Type: link.Redeem, Payload: t[:]})
	if err != nil {
		sys.CloseAll(a.Files)
		return nil, -1, err
	}
	file = -1
	if len(a.Files) > 0 {
		file = a.Files[0]
		sys.CloseAll(a.Files[1:])
	}
	return a.Payload, file, nil
}

// Withdraw implements driver.Sharer.
func (w *Worker) Withdraw(t driver.ShareToken) {
	w.sharing.mu.Lock()
	l := w.sharing.link
	w.sharing.mu.Unlock()
	if l != nil {
		_ = l.Send(link.Message{Type: link.Withdraw, Payload: t[:]}) // a parent that is gone has forgotten it
	}
}

// ask sends a request and waits for its answer.
func (s *sharing) ask(m link.Message) (link.Message, error) {
	s.mu.Lock()
	if s.link == nil {
		s.mu.Unlock()
		return link.Message{}, errNoParent
	}
	if s.open == nil {
		s.open = map[uint64]chan link.Message{}
	}
	s.next++
	m.A = s.next
	c := make(chan link.Message, 1)
	s.open[m.A] = c
	l := s.link
	s.mu.Unlock()
	defer s.forget(m.A)
	if err := l.Send(m); err != nil {
		return link.Message{}, err
	}
	t := time.NewTimer(shareLimit)
	defer t.Stop()
	select {
	case a := <-c:
		if a.B != 0 {
			return a, fmt.Errorf("share: %w", unix.Errno(a.B))
		}
		return a, nil
	case <-t.C:
		return link.Message{}, errors.New("share: the parent does not answer")
	}
}

func (s *sharing) forget(n uint64) {
	s.mu.Lock()
	c := s.open[n]
	delete(s.open, n)
	s.mu.Unlock()
	select {
	case a := <-c: // came too late
		sys.CloseAll(a.Files)
	default:
	}
}

// answered takes the parent's answer over.
func (s *sharing) answered(m link.Message) {
	m.Payload = bytes.Clone(m.Payload)
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.open[m.A] <- m: // nil, for one that nobody waits for, blocks
	default:
		sys.CloseAll(m.Files)
	}
}
