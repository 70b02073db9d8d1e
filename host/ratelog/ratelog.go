// Package ratelog bounds how much a process logs: what a guest can provoke must not fill its host's
// disk.
package ratelog

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Handler passes records on to another handler at a bounded rate, and says how many it left out.
// Those derived from it by attributes share its bounds. Any goroutine.
type Handler struct {
	next slog.Handler
	b    *bounds
}

type bounds struct {
	pace    *rate.Limiter
	now     func() time.Time
	dropped atomic.Uint64 // since the last that passed
}

var _ slog.Handler = (*Handler)(nil)

// New lets burst records through at once, then perSecond a second.
func New(next slog.Handler, burst int, perSecond float64) *Handler {
	return &Handler{next, &bounds{pace: rate.NewLimiter(rate.Limit(perSecond), burst), now: time.Now}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if !h.b.pace.AllowN(h.b.now(), 1) {
		h.b.dropped.Add(1)
		return nil
	}
	if dropped := h.b.dropped.Swap(0); dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("left_out_before", dropped))
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(as []slog.Attr) slog.Handler { return &Handler{h.next.WithAttrs(as), h.b} }

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler { return &Handler{h.next.WithGroup(name), h.b} }
