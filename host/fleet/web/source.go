package web

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"causeway/host/fleet/overview"
)

// Source has the fleet at hand, as it was read last.
type Source struct {
	Read  func(context.Context) (*overview.Fleet, error)
	Every time.Duration
	Log   *slog.Logger

	mu   sync.Mutex
	last Seen
}

// Seen is a fleet as it was at a time.
type Seen struct {
	Fleet *overview.Fleet // nil: it was never read
	At    time.Time
	Err   error // why it is not newer

	look uint64 // the how-manieth
}

// patience is how long a read may take.
const patience = 30 * time.Second

// Run reads until ctx ends.
func (s *Source) Run(ctx context.Context) {
	t := time.NewTicker(s.Every)
	defer t.Stop()
	for {
		s.Look(ctx, time.Now())
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Look reads once. What was read before stays when that fails, with the reason beside it.
func (s *Source) Look(ctx context.Context, now time.Time) {
	reading, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f, err := s.Read(reading)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.look++
	if err != nil {
		if s.last.Err == nil {
			s.Log.Warn("the fleet is not read", "error", err)
		}
		s.last.Err = err
		return
	}
	s.last = Seen{Fleet: f, At: now, look: s.last.look}
}

// Seen is the fleet as it is known.
func (s *Source) Seen() Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
