package daemon

// Handing is how many hold, or wait for, a vGPU's lock of hand-overs.
func (d *Daemon) Handing(key string) int {
	d.handing.mu.Lock()
	defer d.handing.mu.Unlock()
	if g := d.handing.of[key]; g != nil {
		return g.n
	}
	return 0
}

// Stepped has somebody told of each step of a vGPU's start and end.
func (o Options) Stepped(told func(name string)) Options {
	o.step = told
	return o
}
