package device

import "causeway/host/worker/link"

// Steps by which programs are held back, in hundredths of the time, as QEMU does it with
// processors.
const (
	throttleFirst = 20
	throttleStep  = 10
)

// heldMore is for how many hundredths of the time programs are held back that were so for now
// hundredths; false: for no more than that.
func heldMore(now int) (int, bool) {
	return min(max(throttleFirst, now+throttleStep), link.MostThrottle), now < link.MostThrottle
}

// holdBack has programs held back more from the next round on, if that is wanted and possible. o.mu
// is held.
func (o *copyOut) holdBack() bool {
	more, ok := heldMore(o.st.Throttled)
	if !o.opt.Throttle || !ok {
		return false
	}
	o.st.Throttled = more
	o.d.log.Info("GPU memory changes as fast as it is sent: programs are held back", "percent", o.st.Throttled)
	return true
}

// throttle tells a session's worker how much it is held back, if that has changed. x.busy is held.
func (o *copyOut) throttle(x *outStream) error {
	o.mu.Lock()
	share := uint32(o.st.Throttled)
	o.mu.Unlock()
	if x.share == share {
		return nil
	}
	x.share = share
	return x.proc.Send(link.Throttle{Share: share})
}

// letGo has all programs run as fast as they can again.
func (o *copyOut) letGo() {
	o.mu.Lock()
	was := o.st.Throttled
	o.mu.Unlock()
	if was == 0 {
		return
	}
	for _, s := range o.d.all() {
		s.mu.Lock()
		p, st := s.proc, s.state
		s.mu.Unlock()
		if p != nil && (st == running || st == parking || st == parked) {
			// Others were told nothing.
			_ = p.Send(link.Throttle{}) // one that has ended holds nobody back
		}
	}
}
