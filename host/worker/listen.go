package worker

import (
	"fmt"

	"causeway/host/driver"
	"causeway/host/worker/link"
)

// mostHeldBack bounds what a parent says besides answers before the session goes on.
const mostHeldBack = 64

// listen has the session's questions about what is shared answered while no goroutine follows the
// link, until done is called. comes: the session is rebuilt.
func (s *starter) listen(w *Worker, comes bool) (done func()) {
	w.sharing.use(s.link, func() error { return s.listenOnce(w) }, comes)
	return func() { w.sharing.use(s.link, nil, false) }
}

// listenOnce takes a message. One that is no answer is followed when the link is.
func (s *starter) listenOnce(w *Worker) error {
	r, err := s.link.Receive()
	if err != nil {
		return err
	}
	switch m := r.Message().(type) {
	case link.Answer:
		w.sharing.answered(m)
		return nil
	case link.Quit:
		return errEnded
	}
	if len(s.held) == mostHeldBack {
		return fmt.Errorf("%w: the parent says more than a session that moves takes", link.ErrUnexpected)
	}
	s.held = append(s.held, r)
	return nil
}

// next is the parent's next message.
func (s *starter) next() (link.Received[link.ToWorker], error) {
	if len(s.held) > 0 {
		r := s.held[0]
		s.held = s.held[1:]
		return r, nil
	}
	return s.link.Receive()
}

// use has questions go over a link. receive follows it, unless it is nil.
func (s *sharing) use(l *link.WorkerEnd, receive func() error, comes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.receive, s.comes = l, receive, comes
}

// had fails unless everything is still shared that this session has of others. What is not could
// not be had again elsewhere.
func (w *Worker) had(tokens []driver.ShareToken) error {
	for _, t := range tokens {
		if err := w.sharing.owned(t); err != nil {
			return fmt.Errorf("it uses memory or an event of another process that has freed it, or has ended (%w)", err)
		}
	}
	return nil
}
