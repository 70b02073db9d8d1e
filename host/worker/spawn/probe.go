package spawn

import (
	"context"

	"causeway/host/worker/link"
)

// probes is what a worker is asked about a move of its session.
type probes struct {
	question[link.Probed]
	owed bool // an answer, to who has given up; of who asks
}

// Probe asks the worker whether its session can be rebuilt elsewhere. A worker that is busy for
// long owes one answer, however often it is asked meanwhile, and nobody takes it for that to a
// later question: until it has come there is none. ErrSilent.
func (p *Process) Probe(ctx context.Context, how link.Probe) (link.Probed, error) {
	q := &p.probes
	end, err := q.begin(ctx)
	if err != nil {
		return link.Probed{}, err
	}
	defer end()
	if q.owed {
		if _, err := p.probed(ctx); err != nil {
			return link.Probed{}, err
		}
	}
	if err := p.Send(how); err != nil {
		return link.Probed{}, err
	}
	q.owed = true
	return p.probed(ctx)
}

// probed awaits the answer that is owed.
func (p *Process) probed(ctx context.Context) (link.Probed, error) {
	m, err := p.probes.await(ctx, p)
	if err == nil {
		p.probes.owed = false
	}
	return m, err
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
