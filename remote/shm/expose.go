package shm

import "fmt"

// Expose implements remote.Exposer. What it begins ends with the region, with Detach, and when
// other pages take the place of the region's.
func (m *Memory) Expose(id uint32, expose func(mem []byte) (revoke func(), err error)) error {
	if _, err := m.Map(id, 0); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r, err := m.lentLocked(id)
	switch {
	case err != nil:
		return err
	case r.revoke != nil:
		return fmt.Errorf("region %d is exposed already", id)
	}
	revoke, err := expose(r.mem)
	if err != nil {
		return fmt.Errorf("expose region %d: %w", id, err)
	}
	r.revoke = revoke
	return nil
}

// Conceal implements remote.Exposer.
func (m *Memory) Conceal(id uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.regions[id]; r != nil {
		r.conceal()
	}
}

// conceal ends what Expose began. Memory.mu is held, unless nobody knows the region any more.
func (r *region) conceal() {
	if r.revoke != nil {
		r.revoke()
		r.revoke = nil
	}
}
