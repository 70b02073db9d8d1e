package daemon

import (
	"slices"
	"strings"

	"causeway/host/daemon/place"
)

// fitsLocked judges another memory limit of a vGPU that is there. d.mu is held.
func (d *Daemon) fitsLocked(r Reading, v *vgpu, memory uint64) error {
	key := v.rec.Spec.Key()
	delete(d.vgpus, key) // its own promise does not stand in its way
	all := d.tallyLocked(r)
	d.vgpus[key] = v
	d.boundLocked(all, &v.rec.Spec)
	rules := place.Rules{Overcommit: d.cfg.Placement.Overcommit}
	for _, id := range strings.Split(v.rec.GPU, ",") {
		at := slices.IndexFunc(all, func(g place.GPU) bool { return g.ID == id })
		if at < 0 {
			continue // the driver does not show it any more
		}
		// What it uses itself is not others'.
		all[at].Others -= min(all[at].Others, v.uses(&all[at]))
		if err := place.Fits(all, at, memory, rules); err != nil {
			return err
		}
	}
	return nil
}
