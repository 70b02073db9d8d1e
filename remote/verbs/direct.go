package verbs

import (
	"causeway/remote"
	"causeway/remote/frame"
)

// Of transfers between the other end's memory and a GPU's: bytes of a work request, and how many
// are under way at once.
const (
	directPart  = 1 << 20
	directUnder = 16
)

var _ frame.Direct = (*Conn)(nil)

// FetchTo implements frame.Direct: by RDMA READs. The adapter may write to m until it returns, or,
// if it fails, until the connection is closed.
func (c *Conn) FetchTo(m remote.Registered, at, n uint64, from frame.Granted, off uint64) error {
	return c.direct(Read, m, at, n, from, off)
}

// StoreFrom implements frame.Direct: by RDMA WRITEs, the last of which it waits for.
func (c *Conn) StoreFrom(m remote.Registered, at, n uint64, to frame.Granted, off uint64) error {
	return c.direct(Write, m, at, n, to, off)
}

func (c *Conn) direct(op Op, m remote.Registered, at, n uint64, g frame.Granted, off uint64) error {
	if n > g.Size {
		return remote.ErrOutOfBounds
	}
	if err := c.enter(int(n), g, off); err != nil {
		return err
	}
	defer c.leave()
	var under []uint64 // work requests, oldest first
	for n > 0 || len(under) > 0 {
		if n == 0 || len(under) == directUnder {
			if err := c.settle(under[0]); err != nil {
				return err
			}
			under = under[1:]
			continue
		}
		part := min(n, directPart)
		id, err := c.postDirect(Work{
			Op: op, Signaled: true, Local: m.Address() + at, LocalKey: m.LocalKey(), Length: uint32(part), Remote: g.Address + off, RemoteKey: g.Key,
		})
		if err != nil {
			return err
		}
		under = append(under, id)
		at, off, n = at+part, off+part, n-part
	}
	return nil
}

// postDirect posts a work request as soon as there is room for it.
func (c *Conn) postDirect(w Work) (id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.awaitLocked(&deadline{}, func() bool { return c.posted-c.done < sends-reserved }); err != nil {
		return 0, err
	}
	if err := c.postLocked([]Work{w}); err != nil {
		return 0, err
	}
	return c.posted, nil
}
