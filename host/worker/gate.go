package worker

import (
	"context"
	"runtime"
	"time"

	"causeway/cuda/wire"
	"causeway/host/driver"
	"causeway/host/schedule/gate"
	"causeway/host/schedule/page"
	"causeway/host/worker/link"
)

// gateSpin is how long the consumer looks for the grant that it wants before it sleeps, where cores
// are plenty: a scheduler that can grant at once takes less.
const gateSpin = 150 * time.Microsecond

// openGate makes the session's gate if its device process brought a grant. Before the consumer
// runs.
func (s *starter) openGate(w *Worker) error {
	mem, use, bell := s.pages.page(link.PageGrant), s.pages.page(link.PageUsage), s.pages.bell
	if mem == nil || use == nil || bell == 0 {
		return nil
	}
	grant, err := page.NewGrant(mem)
	if err != nil {
		return err
	}
	usage, err := page.NewUsage(use)
	if err != nil {
		return err
	}
	o := gate.Options{
		Grant: grant, Usage: usage, Bell: bell, OnConsumer: w.onLoop,
		Serve: func() error {
			if w.pending.Load() {
				return w.runTask()
			}
			return nil
		},
	}
	o.Gauge, _ = w.session.(driver.Gauge)
	if runtime.NumCPU() >= plentyCores {
		o.Spin = gateSpin
	}
	w.gate = gate.New(o)
	return nil
}

// pass runs a record, behind the gate if it gives the GPU work. Others pass: waits, queries and
// allocations take no GPU time, and what they wait for has passed the gate. But none overtakes one
// that stands there: the ring is one order.
func (w *Worker) pass(ctx context.Context, op wire.Op) error {
	if info := op.Info(); info == nil || !info.GPU {
		return w.execute(&w.incoming)
	}
	if err := w.gate.Before(ctx); err != nil {
		if ctx.Err() != nil {
			return errEnded
		}
		return err
	}
	if err := w.execute(&w.incoming); err != nil {
		return err
	}
	w.gate.After()
	return nil
}
