package worker

import (
	"context"
	"errors"
	"testing"
)

// TestMovableSoonGivesUp: who asks whether a session can move waits for a consumer that is busy no longer than the move is wanted; what the consumer says later is nobody's.
func TestMovableSoonGivesUp(t *testing.T) {
	for what, taken := range map[string]bool{"the consumer is about to answer": true, "the consumer has not seen it": false} {
		w := newRecorded(t).w
		w.tasks = make(chan func() error)
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan error, 1)
		go func() { asked <- w.movableSoon(ctx) }()
		later := func() error { return nil }
		if taken {
			later = <-w.tasks
		}
		cancel()
		if err := <-asked; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
		if err := later(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
