package verbstest

import "causeway/remote/verbs"

// faults are those of one port.
type faults struct {
	down  bool // nothing comes from or to it
	works int  // that it may still do, if what is behind them fails
	fails verbs.Status
}

// faultsLocked is a port's faults, to be changed.
func (f *Fabric) faultsLocked(a *Adapter) *faults {
	x := f.ports[a]
	if x == nil {
		x = &faults{}
		f.ports[a] = x
	}
	return x
}

// Down has nothing come from or to a port any more, until Heal.
func (f *Fabric) Down(a *Adapter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faultsLocked(a).down = true
}

// FailBehind has a port do so many work requests more, and those behind them end with a status,
// until Heal.
func (f *Fabric) FailBehind(a *Adapter, works int, s verbs.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.faultsLocked(a)
	x.works, x.fails = works, s
}

// ForgetAt is Forget of what is registered with one port.
func (f *Fabric) ForgetAt(a *Adapter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.regions {
		if m.a == a {
			m.may = 0
		}
	}
}

// MovedBy is how many bytes went by an operation that was posted at a port.
func (f *Fabric) MovedBy(a *Adapter, op verbs.Op) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[a][op]
}

// PostedBy is how many work requests of a port have not begun, under Hold or Stick.
func (f *Fabric) PostedBy(a *Adapter) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queues {
		if q.a == a {
			n += len(q.work)
		}
	}
	return n
}

// faultLocked is what ports' faults make of work between two; verbs.Success: they have none.
func (f *Fabric) faultLocked(from, to *Adapter) verbs.Status {
	x, y := f.ports[from], f.ports[to]
	switch {
	case from.port.Partition != to.port.Partition && !from.port.Partition.Reaches(to.port.Partition):
		return verbs.RetryExceeded // the other end drops what is not of its partition
	case x != nil && x.down, y != nil && y.down:
		return verbs.RetryExceeded
	case x != nil && x.fails != verbs.Success:
		if x.works == 0 {
			return x.fails
		}
		x.works--
	}
	return verbs.Success
}

// ReachedBy is MovedBy of what went from or to memory that its owner lets the other end read as
// well as write: what an end grants (verbs.Conn.Grant), and not the windows of streams.
func (f *Fabric) ReachedBy(a *Adapter, op verbs.Op) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reached[a][op]
}

// movedLocked counts the bytes of work that a port has done.
func (f *Fabric) movedLocked(a *Adapter, j job) {
	n := uint64(j.Length)
	f.moved[j.Op] += n
	count(f.by, a, j.Op, n)
	if m := f.regions[j.RemoteKey]; n > 0 && m.may&verbs.RemoteRead != 0 {
		// Which there is: the work could be done.
		count(f.reached, a, j.Op, n)
	}
}

func count(by map[*Adapter][3]uint64, a *Adapter, op verbs.Op, n uint64) {
	m := by[a]
	m[op] += n
	by[a] = m
}
