package device

import (
	"time"

	"causeway/host/inventory"
)

/*
Workers count GPU time by words that the GPU writes, and that a guest's kernels can write, too. What
the driver says of the worker processes is out of a guest's reach: it goes to the scheduler with
each audit, which charges for what was not counted (schedule/policy). A driver that does not tell of
processes, as on MIG slices, leaves the words alone.
*/

// card is the driver's account of a virtual GPU, as far as it is known. Device.mu guards it.
type card struct {
	known   bool          // at the last audit
	total   time.Duration // the GPU worked for it
	charged time.Duration // was not counted otherwise
	// What the driver said last, of all processes of each device: a worker's number may have been
	// another's.
	at   []map[int]time.Duration
	gone []int // processes that ended since: the driver's samples are late
}

// worked is what the driver says that the vGPU's processes have used of its GPU since the last
// audit, of several GPUs the busiest. ok: it can tell. each is the same by process, of all GPUs.
func (c *card) worked(r *inventory.Reading, pids []int) (used time.Duration, each map[int]time.Duration, ok bool) {
	each = map[int]time.Duration{}
	for i, list := range r.Worked {
		if i >= len(r.Sampled) || !r.Sampled[i] {
			continue
		}
		ok = true
		for len(c.at) <= i {
			c.at = append(c.at, nil)
		}
		device, seen := time.Duration(0), map[int]bool{}
		for _, pid := range pids {
			now, there := list[pid]
			if !there || seen[pid] { // one whose session is moved is named twice
				continue
			}
			seen[pid] = true
			before := c.at[i][pid]
			if now < before { // who adds up began anew
				before = 0
			}
			device += now - before
			each[pid] += now - before
		}
		c.at[i] = list
		used = max(used, device)
	}
	return used, each, ok
}

// account is one comparison. period is the time since the last; 0: there was none, and what the
// driver says is where the next begins.
func (d *Device) account(r *inventory.Reading, period time.Duration) {
	var pids []int
	sessions := d.all()
	for _, s := range sessions {
		s.mu.Lock()
		for _, p := range []workerProcess{s.proc, s.moving} {
			if p != nil {
				pids = append(pids, p.PID())
			}
		}
		s.mu.Unlock()
	}
	d.mu.Lock()
	pids = append(pids, d.card.gone...)
	d.card.gone = nil
	used, each, ok := d.card.worked(r, pids)
	d.card.known = ok
	if period > 0 {
		d.card.total += used
	}
	member := d.member
	d.mu.Unlock()
	if !ok || period <= 0 {
		return
	}
	for _, s := range sessions {
		s.mu.Lock()
		if s.res != nil && s.proc != nil {
			s.res.sampled += uint64(each[s.proc.PID()])
		}
		s.mu.Unlock()
	}
	if member == nil {
		return
	}
	if n := member.Account(used, period); n > 0 {
		d.mu.Lock()
		d.card.charged += n
		all := d.card.charged
		d.mu.Unlock()
		d.log.Warn("far less GPU time was counted than the driver says: it is charged", "driver", used, "of", period, "charged", n, "charged_so_far", all)
	}
}

// departedLocked keeps a worker's process for the next audit. Device.mu is held.
func (d *Device) departedLocked(p workerProcess) {
	const most = 4096 // in a period no more start
	if p != nil && d.opts.Audit != 0 && len(d.card.gone) < most {
		d.card.gone = append(d.card.gone, p.PID())
	}
}
