package inventory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"causeway/host/worker/link"
)

// Worker is a session's worker process.
type Worker interface {
	PID() int
	Measure(ctx context.Context) (link.Use, error)
}

// Times of a Server.
const (
	fresh = 100 * time.Millisecond // how long an answer serves all who ask
	// What workers may take; those that are busy count as they did last.
	measuring = 150 * time.Millisecond
)

// Server answers the guests of one owner.
type Server struct {
	// Bytes of device memory that all may use, 0: no limit, and that they do; nil: no limit.
	Memory  func() (limit, used uint64)
	Workers func() []Worker                             // the owner's, now
	Machine func(ctx context.Context) (*Reading, error) // how the machine is

	mu     sync.Mutex
	answer []byte
	at     time.Time
	last   map[Worker]link.Use
}

// Answer is the encoded Answer, at most 100 ms old.
func (s *Server) Answer(ctx context.Context) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil && time.Since(s.at) < fresh {
		return s.answer, nil
	}
	sessions := s.measureLocked(ctx)
	r, err := s.Machine(ctx)
	if err != nil {
		return nil, fmt.Errorf("state of the GPUs: %w", err)
	}
	o := Owner{Sessions: sessions}
	if s.Memory != nil {
		o.Limit, o.Used = s.Memory()
	}
	s.answer, s.at = AnswerFor(r, o).Encode(), time.Now()
	return s.answer, nil
}

// measureLocked asks all workers at once.
func (s *Server) measureLocked(ctx context.Context) []Session {
	ctx, cancel := context.WithTimeout(ctx, measuring)
	defer cancel()
	workers := s.Workers()
	// Lists keep their order.
	slices.SortFunc(workers, func(a, b Worker) int { return cmp.Compare(a.PID(), b.PID()) })
	uses := make([]link.Use, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		uses[i] = s.last[w]
		wg.Go(func() {
			if u, err := w.Measure(ctx); err == nil {
				uses[i] = u
			}
		})
	}
	wg.Wait()
	s.last = map[Worker]link.Use{}
	var list []Session
	for i, w := range workers {
		u := uses[i]
		s.last[w] = u
		if u.PID == 0 {
			continue // its program has said nothing yet
		}
		x := Session{Worker: w.PID(), PID: u.PID, Name: u.Program}
		for _, n := range u.Devices {
			x.Use = append(x.Use, Use(n))
		}
		list = append(list, x)
	}
	return list
}
