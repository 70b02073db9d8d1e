package spawn

import (
	"context"

	"causeway/host/worker/link"
)

// Measure asks the worker who its guest process is and what it uses. While the worker is busy there is no answer: ErrSilent.
func (p *Process) Measure(ctx context.Context) (link.Use, error) {
	select {
	case p.measuring <- struct{}{}:
		defer func() { <-p.measuring }()
	case <-ctx.Done():
		return link.Use{}, ErrSilent
	}
	select {
	case <-p.measured: // of a call that has given up
	default:
	}
	if err := p.link.Send(link.Measure{}); err != nil {
		return link.Use{}, err
	}
	select {
	case u := <-p.measured:
		return u, nil
	case <-p.drained:
		return link.Use{}, ErrEnded
	case <-ctx.Done():
		return link.Use{}, ErrSilent
	}
}

// keepMeasured keeps the last answer only.
func (p *Process) keepMeasured(u link.Use) {
	for {
		select {
		case p.measured <- u:
			return
		default:
		}
		select {
		case <-p.measured:
		default:
		}
	}
}
