package spawn

import (
	"context"

	"causeway/host/worker/link"
)

// probes are what a worker is asked about a move of its session.
type probes struct {
	turn   chan struct{} // held by who asks
	owed   bool          // an answer, to who has given up; of who has the turn
	answer chan link.Probed
}

func newProbes() probes {
	return probes{turn: make(chan struct{}, 1), answer: make(chan link.Probed, 1)}
}

// Probe asks the worker whether its session can be rebuilt elsewhere. A worker that is busy for long owes one answer, however often it is asked meanwhile, and
// nobody takes it for that to a later question: until it has come there is none. ErrSilent.
func (p *Process) Probe(ctx context.Context, how link.Probe) (link.Probed, error) {
	q := &p.probes
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return link.Probed{}, ErrSilent
	}
	if q.owed {
		if _, err := p.probed(ctx); err != nil {
			return link.Probed{}, err
		}
	}
	if err := p.link.Send(how); err != nil {
		return link.Probed{}, err
	}
	q.owed = true
	return p.probed(ctx)
}

// probed awaits the answer that is owed.
func (p *Process) probed(ctx context.Context) (link.Probed, error) {
	select {
	case m := <-p.probes.answer:
		p.probes.owed = false
		return m, nil
	case <-p.drained:
		return link.Probed{}, ErrEnded
	case <-ctx.Done():
		return link.Probed{}, ErrSilent
	}
}

// keepProbed has who asks, or asks next, find the answer.
func (p *Process) keepProbed(m link.Probed) error {
	select {
	case p.probes.answer <- m:
		return nil
	default:
		return errUnasked
	}
}
