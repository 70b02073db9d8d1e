package spawn

import (
	"context"

	"causeway/host/worker/link"
)

// Measure asks the worker who its guest process is and what it uses. While the worker is busy there
// is no answer: ErrSilent.
func (p *Process) Measure(ctx context.Context) (link.Use, error) {
	end, err := p.use.begin(ctx)
	if err != nil {
		return link.Use{}, err
	}
	defer end()
	select {
	case <-p.use.answer: // of a call that has given up
	default:
	}
	if err := p.Send(link.Measure{}); err != nil {
		return link.Use{}, err
	}
	return p.use.await(ctx, p)
}

// keepMeasured keeps the last answer only.
func (p *Process) keepMeasured(u link.Use) {
	for {
		select {
		case p.use.answer <- u:
			return
		default:
		}
		select {
		case <-p.use.answer:
		default:
		}
	}
}
