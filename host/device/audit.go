package device

import (
	"context"
	"fmt"
	"time"

	"causeway/host/inventory"
)

/*
Audit compares what workers say of the memory that they use with what the machine's driver says. The
driver also counts what no worker can see: contexts, code, the heap of kernels. That is booked
beside what the worker says.

A worker that was taken over can lie in the memory page, and allocate what it did not book. The
driver then says more than the virtual GPU may have; the session with the most that it did not book
is ended.
*/

const (
	auditEvery = 5 * time.Second
	auditLimit = 4 * time.Second
	// Bytes beyond the limit, or a sixteenth of it: rounding, and contexts that were just made.
	auditMargin  = 256 << 20
	auditStrikes = 2 // audits in a row
	// auditAfter is how long the driver is asked once there are no sessions any more: sessions may
	// come and go between two audits, and who adds up what the driver says is to be there when they
	// come back (inventory.Client.Idle).
	auditAfter = time.Minute

	// guessedContext is what a context takes beside allocations until the driver has told (H200,
	// driver 580).
	guessedContext = 520 << 20
)

// audit is what is known from earlier ones. It belongs to routineAudit, but for what mu of the
// device guards.
type audit struct {
	// What the virtual GPU may use: the limit, or what it already used when that was lowered.
	allowed uint64
	strikes int
	last    time.Time
	there   time.Time // of the last audit for which there was a session, or had been
	over    bool      // more was used than the limit allows, at the last look
	context uint64    // the least that a worker used beside its allocations; guarded by Device.mu
}

// contextBytes is what a context is guessed to take.
func (d *Device) contextBytes() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.opts.Audit == 0:
		return 0
	case d.audit.context == 0:
		return guessedContext
	}
	return d.audit.context
}

// routineAudit audits while there are sessions, and a while longer.
func (d *Device) routineAudit(ctx context.Context) {
	if d.opts.Audit == 0 || d.opts.Machine == nil {
		return
	}
	t := time.NewTicker(d.opts.Audit)
	defer t.Stop()
	d.audit.last = time.Now() // there was nobody before
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.look(ctx, time.Now())
		}
	}
}

// look is one audit, if one is due.
func (d *Device) look(ctx context.Context, now time.Time) {
	if !d.used(now) {
		d.audit.strikes, d.audit.last = 0, now // whoever comes has done nothing before
		return
	}
	begin := time.Now()
	limited, cancel := context.WithTimeout(ctx, auditLimit)
	r, err := d.readMachine(limited)
	cancel()
	if err != nil {
		d.log.Debug("memory in use is not known", "error", err)
		return
	}
	d.compare(r, now.Add(time.Since(begin)))
	d.watchLimit()
}

// used reports whether there are sessions, or were of late.
func (d *Device) used(now time.Time) bool {
	sessions := len(d.all())
	d.mu.Lock()
	defer d.mu.Unlock()
	if sessions > 0 || len(d.card.gone) > 0 {
		d.audit.there = now
	}
	return !d.audit.there.IsZero() && now.Sub(d.audit.there) <= auditAfter
}

// watchLimit tells the workers when what the driver said has brought the virtual GPU's use above
// its limit, or back.
func (d *Device) watchLimit() {
	d.telling.Lock()
	defer d.telling.Unlock()
	limit := d.budget.Limit()
	if over := limit != 0 && d.budget.Used() > limit; over != d.audit.over {
		d.audit.over = over
		d.sendLimit(limit)
	}
}

// compare is one audit.
func (d *Device) compare(r *inventory.Reading, now time.Time) {
	a := &d.audit
	period := now.Sub(a.last)
	if a.last.IsZero() {
		period = 0
	}
	a.last = now
	d.account(r, period)
	var total, most uint64
	var worst *session
	least := uint64(0)
	for _, s := range d.all() {
		used, hidden, ok := s.audit(r)
		if !ok {
			continue
		}
		total += used
		if hidden > most {
			worst, most = s, hidden
		}
		if hidden > 0 && (least == 0 || hidden < least) {
			least = hidden
		}
	}
	if least > 0 {
		d.mu.Lock()
		a.context = least
		d.mu.Unlock()
	}
	limit := d.budget.Limit()
	switch {
	case limit == 0:
		a.allowed, a.strikes = total, 0
		return
	case total <= max(limit, a.allowed):
		a.allowed = max(limit, total)
	}
	a.allowed = max(a.allowed, limit)
	if total <= a.allowed+max(auditMargin, limit/16) {
		a.strikes = 0
		return
	}
	if a.strikes++; a.strikes < auditStrikes || worst == nil {
		return
	}
	a.strikes = 0
	worst.log.Error("session uses memory that it did not ask for", "used", total, "limit", limit, "not_booked", most)
	go worst.fail(fmt.Errorf("its worker uses more GPU memory than the virtual GPU may: %d bytes of %d", total, limit))
}

// audit books what the driver says of the session's worker: used is all, hidden what the worker did
// not book. ok: it says something.
func (s *session) audit(r *inventory.Reading) (used, hidden uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil || s.res == nil || s.moving != nil || s.state >= dead {
		return 0, 0, false
	}
	pid := s.proc.PID()
	for i := range r.Used {
		if n, here := r.Used[i][pid]; here {
			used, ok = used+n, true
		}
	}
	if !ok {
		return 0, 0, false
	}
	own := s.dev.budget.Allocated(s.res.slot)
	hidden = used - min(used, own)
	s.dev.budget.SetBeside(s.res.slot, hidden)
	return used, hidden, true
}
