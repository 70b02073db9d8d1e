// Package ratelog bounds how much a process logs: what a guest can provoke must not fill its host's disk.
package ratelog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Handler passes records on to another handler at a bounded rate, and says how many it left out. Those derived from it by
// attributes share its bounds. Any goroutine.
type Handler struct {
	next slog.Handler
	b    *bucket
}

type bucket struct {
	burst, rate float64
	now         func() time.Time

	mu      sync.Mutex
	owed    float64 // records taken, less those that time allowed since
	at      time.Time
	dropped uint64
}

var _ slog.Handler = (*Handler)(nil)

// New lets burst records through at once, then rate a second.
func New(next slog.Handler, burst int, rate float64) *Handler {
	return &Handler{next, &bucket{burst: float64(burst), rate: rate, now: time.Now}}
}

// take reports whether a record may pass, and how many were left out before it.
func (b *bucket) take() (dropped uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if now.After(b.at) {
		b.owed = max(0, b.owed-now.Sub(b.at).Seconds()*b.rate)
		b.at = now
	}
	if b.owed+1 > b.burst {
		b.dropped++
		return 0, false
	}
	b.owed++
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	dropped, ok := h.b.take()
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("left_out_before", dropped))
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(as []slog.Attr) slog.Handler { return &Handler{h.next.WithAttrs(as), h.b} }

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler { return &Handler{h.next.WithGroup(name), h.b} }
