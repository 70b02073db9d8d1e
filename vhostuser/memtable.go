package vhostuser

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const regionSize = 32 // guest address, size, user address, mmap offset

func (m *message) region(off int) regionDesc {
	return regionDesc{gpa: m.u64(off), size: m.u64(off + 8), user: m.u64(off + 16), offset: m.u64(off + 24)}
}

// setMemTable replaces all regions. Those that did not change stay mapped, unannounced.
func (c *conn) setMemTable(m *message) ([]byte, error) {
	if len(m.payload) < 8 {
		return nil, fmt.Errorf("table of %d bytes: %w", len(m.payload), ErrProtocol)
	}
	n := int(m.u32(0))
	if n > maxFDs || len(m.payload) != 8+n*regionSize || len(m.fds) != n {
		return nil, fmt.Errorf("%d regions in %d bytes with %d descriptors: %w", n, len(m.payload), len(m.fds), ErrProtocol)
	}
	old := c.mem.Regions()
	var next, fresh []*Region
	fail := func(err error) ([]byte, error) {
		for _, r := range fresh {
			r.unref()
		}
		return nil, err
	}
	for i := 0; i < n; i++ {
		d, fd := m.region(8+i*regionSize), m.takeFD()
		r, err := reuse(old, d, fd)
		if err != nil {
			return fail(err)
		}
		if !contains(old, r) {
			fresh = append(fresh, r)
		}
		next = append(next, r)
	}
	if err := c.mem.set(next); err != nil {
		return fail(err)
	}
	return nil, nil
}

// reuse returns the region of old that d and fd describe, or a new mapping. It consumes fd.
func reuse(old []*Region, d regionDesc, fd int) (*Region, error) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		for _, r := range old {
			if r.same(d, &st) {
				_ = unix.Close(fd)
				return r, nil
			}
		}
	}
	r, err := mapRegion(d, fd)
	if err != nil {
		_ = unix.Close(fd)
	}
	return r, err
}

func (c *conn) addMemReg(m *message) ([]byte, error) {
	fd := m.takeFD()
	r, err := mapRegion(m.region(8), fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if err := c.mem.set(append(c.mem.Regions(), r)); err != nil {
		r.unref() // closes fd too
		return nil, err
	}
	return nil, nil
}

// remMemReg removes a region by its three addresses; the mmap offset does not count
// (vhost-user.rst).
func (c *conn) remMemReg(m *message) ([]byte, error) {
	d := m.region(8)
	old := c.mem.Regions()
	for i, r := range old {
		if r.gpa == d.gpa && r.size == d.size && r.user == d.user {
			return nil, c.mem.set(append(old[:i:i], old[i+1:]...))
		}
	}
	return nil, fmt.Errorf("region %#x+%#x: %w", d.gpa, d.size, ErrNotMapped)
}
