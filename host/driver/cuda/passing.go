package cuda

import (
	"causeway/cuda"
	"causeway/host/driver/cuda/bind"
)

// passing is memory of this process that the GPU reaches, through which memory passes on its way
// from one process to another. It is not the driver's own: that takes the addresses for pinned
// memory from where variables come to lie, and what is loaded later lies elsewhere then than in the
// other process (6 MiB further for 5 MiB, on an H200).
type passing struct {
	bind.Registered
	buf bind.Buffer
	own bool // the driver's own, after all
}

// newPassing makes it, in a context that is current. A driver that does not take memory of this
// process gives some of its own.
func newPassing(d *bind.Driver, size uint64) (p passing, res cuda.Result) {
	p.buf = bind.NewBuffer(int(size))
	if p.Registered, res = d.Register(p.buf.Host()); res == cuda.Success {
		return p, res
	}
	p.buf.Free()
	if p.Registered, res = d.AllocHost(size); res != cuda.Success {
		return passing{}, res
	}
	return passing{Registered: p.Registered, own: true}, res
}

// free gives it back, in a context that is current.
func (p *passing) free(d *bind.Driver) {
	switch {
	case p.IsZero():
	case p.own:
		d.FreeHost(p.Registered)
	default:
		d.Unregister(p.Registered)
	}
	p.gone()
}

// gone is for memory whose context has gone.
func (p *passing) gone() {
	p.buf.Free()
	*p = passing{}
}
